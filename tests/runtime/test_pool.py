"""The process's pool of threads: short-lived callers, concurrent callers, forks, unloading."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soak

import tvmopt
from tvmopt.errors import InputError
from tvmopt.runtime import pool
from tvmopt.toolchain.linking import find_cc

BEHIND = """
import os, sys, numpy as np, tvmopt
model = tvmopt.load(sys.argv[1], threads=2)
feeds = {i.name: np.ones(i.shape, i.numpy_dtype) for i in model.inputs}
expected = model.run(feeds)
pid = os.fork()
if pid == 0:
    got = model.run(feeds)
    same = all((got[name] == expected[name]).all() for name in expected)
    sys.exit(0 if same and len(os.listdir("/proc/self/task")) == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pool") / "small.tvmopt"
    tvmopt.compile(soak.small_model(), output=path, verify=False)
    return path


@pytest.mark.parametrize(("what", "count"), [("threads", 300), ("loads", 40)])
def test_nothing_grows(file: Path, what: str, count: int) -> None:
    states = soak.soak(soak.STEPS[what](file), count, lambda text: None)
    (threads, mappings, memory), (more_threads, more_mappings, more_memory) = states[1], states[-1]
    assert more_threads - threads <= 3, states  # a thread that was joined may not have left the system yet
    assert more_mappings - mappings < 30, states  # it was five a load
    assert more_memory - memory < 4, states


def test_a_forked_process_has_threads_of_its_own(file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BEHIND, file], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0"], done.stderr


def test_a_process_that_compiled_can_be_forked(file: Path) -> None:
    """The child's end, too: TVM's pool waits there for workers that a fork does not copy, so none may be made."""
    code = BEHIND.replace("tvmopt.load(sys.argv[1], threads=2)", "tvmopt.compile(soak.small_model()).model")
    code = "import soak\n" + code.replace('len(os.listdir("/proc/self/task"))', "2")
    path = os.pathsep.join(filter(None, [str(Path(soak.__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.split() == ["0"], done.stderr


def test_callers_at_once(file: Path) -> None:
    model = tvmopt.load(file, threads=2)
    inputs = [np.random.default_rng(seed).standard_normal((64, 256)).astype(np.float32) for seed in range(6)]
    expected, wrong = [model(x) for x in inputs], []

    def call(index: int) -> None:
        for _ in range(50):
            if not np.array_equal(model(inputs[index]), expected[index]):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(len(inputs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_models_with_other_numbers_of_threads(file: Path) -> None:
    x = np.ones((64, 256), np.float32)
    for threads in (3, 1, 2, 5, 1):
        model = tvmopt.load(file, threads=threads)
        model(x)
        assert (model.threads, pool.tasks()) == (threads, threads)


def test_an_error_of_a_worker_is_the_callers(file: Path) -> None:
    """A task that fails leaves its error with its own thread; the launch hands it on."""
    tvmopt.load(file, threads=2)(np.ones((64, 256), np.float32))
    raised = ctypes.CDLL(None).TVMFFIErrorSetRaisedFromCStr
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def fail(number: int, group: object, data: object) -> int:
        if number == 1:
            raised(b"ValueError", b"task one")
        return -(number == 1)

    task, handle = kind(fail), ctypes.c_void_p()
    assert pool._owner.tvmopt_pool_launch(task, None, 0) == -1
    ctypes.CDLL(None).TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    assert handle.value
    ctypes.CDLL(None).TVMFFIObjectDecRef(handle)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alone") / "pool"
    source = Path(__file__).with_name("pool_alone.c")
    subprocess.run([*find_cc(), "-O2", "-pthread", f"-I{pool.SOURCE.parent}", source, "-o", path], check=True)
    return path


def test_what_no_worker_has_begun_is_the_callers(alone: Path) -> None:
    """A neighbour on a worker's core does not stop a call: workers that never run, and more of them than cores."""
    done = subprocess.run([alone], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_closed_model(file: Path) -> None:
    x = np.ones((64, 256), np.float32)
    with tvmopt.load(file) as model:
        y = model(x)
        kept = y.copy()
    with pytest.raises(InputError, match="was closed"):
        model(x)
    gc.collect()
    assert np.array_equal(y, kept)  # the outputs are the caller's


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**9])
def test_numbers_of_threads_that_cannot_be(file: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="from 1 to 1024"):
        tvmopt.load(file, threads=threads)
    monkeypatch.setenv("TVM_NUM_THREADS", str(threads))
    with pytest.raises(InputError, match="TVM_NUM_THREADS is "):
        tvmopt.load(file)
