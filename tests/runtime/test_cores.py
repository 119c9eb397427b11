"""The cores that a model is given: which they are, whose threads run there, where its weights lie."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soak

import tvmopt
from tvmopt.cli.serve import parse_cores
from tvmopt.errors import ArtifactError, InputError
from tvmopt.runtime import cores, library, pool
from tvmopt.serving.batcher import Limits
from tvmopt.serving.repository import Repository
from tvmopt.targets import detect
from tvmopt.targets.detect import host_arch

HERE = sorted(os.sched_getaffinity(0))
ONE, ALL = str(HERE[0]), cores.told(HERE)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cores") / "small.tvmopt"
    tvmopt.compile(soak.small_model(), output=path, verify=False, threads=2)
    return path


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two nodes with four processors each, which are two cores of two threads, and a node of memory."""
    for node, processors in {"node0": "0-1,4-5", "node1": "2-3,6-7", "node2": ""}.items():
        (tmp_path / "node" / node).mkdir(parents=True)
        (tmp_path / "node" / node / "cpulist").write_text(processors + "\n")
    (tmp_path / "node" / "possible").write_text("0-2\n")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(8)) - {7})
    monkeypatch.setattr(cores, "cores_among", lambda some: len({one % 4 for one in some}))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "processors", "nodes", "count"),
    [
        ("0", {0}, (0,), 1),
        ("0-1", {0, 1}, (0,), 2),
        ("0,4", {0, 4}, (0,), 1),
        ("2,6-6", {2, 6}, (1,), 1),
        ("node1", {2, 3, 6}, (1,), 2),  # 7 is not ours
        ("node0,2", {0, 1, 2, 4, 5}, (0, 1), 3),
        (" node0 , node1", set(range(7)), (0, 1), 4),
    ],
)
def test_what_is_meant(sockets: Path, text: str, processors: set[int], nodes: tuple[int, ...], count: int) -> None:
    found = cores.parse(text, sockets)
    assert (found.processors, found.nodes, found.count) == (processors, nodes, count)
    assert cores.parse(sorted(processors), sockets) == found
    assert cores.parse(str(found), sockets) == found


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "names no processors"),
        ("x", "'x' names no processors"),
        ("3-1", "names no processors"),
        ("-1", "names no processors"),
        ("0,,1", "names no processors"),
        ("1.5", "names no processors"),
        ("0-999999", "names no processors"),
        ("node2", "no NUMA node 2"),  # it has memory only
        ("node9", "no NUMA node 9"),
        ("0-7", "may not use 7"),
        ("99", "may not use 99"),
    ],
)
def test_what_cannot_be_meant(sockets: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        cores.parse(text, sockets)
    assert "may use 0-6; node0 is 0-1,4-5, node1 is 2-3,6-7" in str(caught.value)


def test_a_machine_that_tells_of_no_nodes(tmp_path: Path) -> None:
    found = cores.parse(ALL, tmp_path)
    assert found.processors == set(HERE) and found.nodes == ()
    with pytest.raises(InputError, match="no NUMA node 0"):
        cores.parse("node0", tmp_path)
    assert cores.ask_memory(4096, 4096, ())  # nothing is asked


@pytest.mark.parametrize(
    ("nodes", "policy", "words"),
    [((0,), 1, [1]), ((1,), 1, [2]), ((0, 1), 3, [3]), ((0, 65), 3, [1, 2]), ((63,), 1, [1 << 63])],
)
def test_what_the_system_is_asked(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[int, ...], policy: int, words: list[int]
) -> None:
    asked = []

    def mbind(start: int, size: int, policy: int, mask: ctypes.Array[ctypes.c_uint64], bits: int, flags: int) -> int:
        asked.append((start, size, policy, list(mask), bits, flags))
        return -1

    monkeypatch.setattr(cores, "_mbind", mbind)
    assert not cores.ask_memory(8192, 100, nodes)
    assert asked == [(8192, 100, policy, words, 64 * len(words) + 1, 0)]


def test_memory_has_the_policy() -> None:
    """The kernel's own answer, of memory that was bound to node 0 and of memory that was not."""
    room = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    if not cores.ask_memory(start, 4096, (0,)):
        pytest.skip("this system's profile forbids mbind, or it knows no nodes")
    number = {"x86_64": 239, "aarch64": 236}[host_arch()]

    def policy(address: int) -> tuple[int, int]:
        mode, nodes, by_address = ctypes.c_int(), (ctypes.c_uint64 * 16)(), 2
        call = ctypes.CDLL(None).syscall
        bits, place = ctypes.c_ulong(1024), ctypes.c_void_p(address)
        assert call(ctypes.c_long(number), ctypes.byref(mode), nodes, bits, place, ctypes.c_ulong(by_address)) == 0
        return mode.value, nodes[0]

    assert policy(start) == (1, 1) and policy(start + 4096)[0] == 0


def test_weights_are_asked_for_on_the_nodes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, tuple[int, ...]]] = []
    monkeypatch.setattr(tvmopt.runtime.artifact, "ask_memory", lambda *words: asked.append(words))
    model = tvmopt.load(file, cores=ONE)
    (start, size, nodes) = asked[0]
    assert nodes == model.cores.nodes and size == model.manifest.weight_bytes
    assert all(start <= w.ctypes.data < start + size for w in model._arrays)


def _workers() -> set[str]:
    """The processors of each of the pool's threads in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found |= {status["Cpus_allowed_list"]} if status["Name"] == "tvmopt" else set()
    return found


def test_threads_run_there(file: Path) -> None:
    """In a process of its own: others' threads would be seen, too."""
    code = f"""
import os, sys, numpy as np, tvmopt
from tests.runtime.test_cores import _workers
from tvmopt.runtime import cores, model as place
before, seen = os.sched_getaffinity(0), []
real = place.running_on
class Watched:
    def __init__(self, some): self.inner = real(some)
    def __enter__(self): self.inner.__enter__(); seen.append(os.sched_getaffinity(0))
    def __exit__(self, *raised): return self.inner.__exit__(*raised)
place.running_on = Watched
model = tvmopt.load({str(file)!r}, threads=3, cores={ONE!r})
x = np.ones((64, 256), np.float32)
y = model(x)
model.time({{"x": x}}, iterations=1, warmup=0)
assert (y == tvmopt.load({str(file)!r}, threads=1)(x)).all()
assert os.sched_getaffinity(0) == before and seen == [{{{ONE}}}] * 2, (before, seen)
print(model.threads, "/".join(_workers()), model)
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(Path(soak.__file__).parent)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split(" ", 2)[:2] == ["3", ONE], done.stderr
    assert f"3 threads on cores {ONE}>" in done.stdout


def test_as_many_threads_as_cores(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    assert tvmopt.load(file, cores=ONE).threads == 1
    assert tvmopt.load(file, cores=[HERE[0]], threads=2).threads == 2
    many = cores.Cores(frozenset(HERE), (), 24)
    assert library.default_threads(2, many) == 24  # more than it was compiled for: they were asked for
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert tvmopt.load(file, cores=ONE).threads == 3


@pytest.mark.parametrize("limit", ["affinity", "quota"])
def test_a_container_of_one_core(file: Path, limit: str, tmp_path: Path) -> None:
    """What the pool has when a model is loaded, and as another process sees it."""
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "own").write_text("0::/\n")
    code = f"""
import os, sys, numpy as np
from pathlib import Path
from tvmopt.targets import detect
real, folder = detect._quota, Path({str(tmp_path)!r})
if {limit == "quota"}:
    detect._quota = lambda: real(folder, folder / "own")
import tvmopt
from tvmopt.runtime import pool
model = tvmopt.load({str(file)!r})
model(np.ones((64, 256), np.float32))
print(model.threads, pool.tasks())
"""
    environment = {k: v for k, v in os.environ.items() if k != "TVM_NUM_THREADS"}
    bound = ["taskset", "-c", ONE] if limit == "affinity" else []
    done = subprocess.run(
        [*bound, sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


def _beside(file: Path, first: str, other: str) -> int:
    """How many tasks a launch on the cores `other` has while one on the cores `first` runs, both of two threads."""
    models = [tvmopt.load(file, threads=2, cores=where) for where in (first, other)]
    runs, ends = threading.Event(), threading.Event()

    def hold(number: int, group: object, data: object) -> int:
        if number == 0:
            runs.set()
            ends.wait(60)
        return 0

    task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(hold)

    def caller() -> None:
        pool.use_threads(2, models[0]._place)
        pool._owner.tvmopt_pool_launch(task, None, 0)

    holder = threading.Thread(target=caller)
    holder.start()
    assert runs.wait(60)
    pool.use_threads(2, models[1]._place)
    found = pool.tasks()
    ends.set()
    holder.join()
    pool.use_threads(2)
    return found


@pytest.mark.skipif(len(HERE) < 2, reason="one core")
def test_models_of_one_process_share_cores_or_have_their_own(file: Path) -> None:
    assert _beside(file, ONE, ONE) == 1
    assert _beside(file, ONE, str(HERE[1])) == 2
    assert _beside(file, ALL, ALL) == 1


def test_a_first_library_without_places(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tvmopt.load(file)
    monkeypatch.setattr(pool, "_owner", object())
    monkeypatch.setattr(pool, "_places", {})
    with pytest.raises(ArtifactError, match="too old to give a model its cores"):
        pool.place_of([0], "model.tvmopt")


def test_too_many_sets(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tvmopt.load(file)
    monkeypatch.setattr(pool, "_places", {frozenset([number]): number for number in range(1, pool.PLACES)})
    assert pool.place_of([3], "model.tvmopt") == 3
    with pytest.raises(InputError, match="63 sets of cores already"):
        pool.place_of([0], "model.tvmopt")


def test_a_server_gives_models_their_cores(file: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.tvmopt").write_bytes(file.read_bytes())
    limits = Limits(cores=parse_cores([f"one={ONE}"]))
    observer: Callable[..., object] = lambda name, version: None  # noqa: E731
    repository = Repository([tmp_path], limits, observer, tell=lambda text: None)
    repository.refresh()
    places = {name: repository.find(name)[1].model.cores for name in ("one", "other")}
    assert repository.close(60)
    assert str(places["one"]) == ONE and places["other"] is None
    assert Limits(cores=parse_cores(["0", "a=1"])).cores_of("b") == "0"
    for twice in (["a=0", "a=1"], ["0", "1"]):
        with pytest.raises(InputError, match="twice"):
            parse_cores(twice)


def test_detection_counts_threads_of_a_core_once() -> None:
    assert detect.cores_among(HERE) == detect.usable_cores()
    assert detect.cores_among(HERE[:1]) == 1


def test_a_caller_on_those_cores_stays_as_it_is() -> None:
    given = cores.parse(ALL)
    with cores.running_on(given), cores.running_on(None):
        assert os.sched_getaffinity(0) == set(HERE)
    with pytest.raises(ZeroDivisionError), cores.running_on(cores.parse(ONE)):
        assert os.sched_getaffinity(0) == {HERE[0]}
        1 / 0  # noqa: B018
    assert os.sched_getaffinity(0) == set(HERE)
    np.testing.assert_equal(cores.told([3, 1, 2, 8]), "1-3,8")
