"""Child processes: results, errors, progress, crashes and Ctrl-C come back as they should."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.waiting import until
from tvmopt import children
from tvmopt.analysis import verify
from tvmopt.errors import ModelError, UnsupportedOp

HERE = {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}


def work(kind: str, progress: Callable[[str], None]) -> Any:
    progress("working")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(7)
    if kind == "error":
        raise UnsupportedOp("a", where="b", fix="c", others=[ModelError("d")])
    if kind == "bug":
        raise ZeroDivisionError
    if kind == "unwinds through C++":
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("terminate called after throwing an instance of 'tvm::ffi::Error'", file=sys.stderr, flush=True)
            os.abort()
    print("noise on stdout")
    return {"kind": kind}


hoard: list[bytes] = []


def take_all_memory() -> None:
    """Take what the limit of this process leaves, but for a little."""
    size = 1 << 24
    while size > 64:
        try:
            hoard.append(bytes(size))
        except MemoryError:
            size >>= 1


def call(kind: str, progress: Callable[[str], None] | None = None) -> Any:
    return children.call("tests.test_children:work", {"kind": kind}, progress=progress, environment=HERE)


def test_result_and_progress() -> None:
    seen: list[str] = []
    assert call("fine", seen.append) == {"kind": "fine"}
    assert seen == ["working"]


def test_a_child_whose_parent_has_ended_says_nothing() -> None:
    """Ctrl-C can end the parent before the child is ready: nobody reads the pipe any more."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from tvmopt.children import main; main()"],
        env={**os.environ, children._PIPE: str(writer)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, pass_fds=(writer,), check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_our_errors_come_back_whole() -> None:
    with pytest.raises(UnsupportedOp) as told:
        call("error")
    assert str(told.value) == "a\n  where: b\n  fix:   c\nModelError: d"


@pytest.mark.parametrize(
    ("kind", "words"), [("crash", "SIGSEGV"), ("exit", "exit code 7"), ("bug", r"exit code 1: ZeroDivisionError\n")]
)
def test_crashes_tell_the_stage(kind: str, words: str) -> None:
    with pytest.raises(children.Crash, match=words) as told:
        call(kind)
    assert told.value.stage == "working"


def test_a_process_that_the_system_ends_lacked_memory() -> None:
    with pytest.raises(children.Crash) as told:
        call("killed")
    assert "memory" in children.starved(told.value.what)
    assert "--no-verify" not in children.starved("signal SIGSEGV")


@pytest.mark.parametrize("killed", ["signal SIGXCPU", "signal SIGKILL"])
def test_time_of_a_processor_that_is_used_up_is_no_lack_of_memory(killed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sends SIGKILL where the soft limit is the hard one, as `ulimit -t` sets them."""
    limits = {resource.RLIMIT_CPU: 7, resource.RLIMIT_AS: 1 << 29}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    for seconds, words in ((7.0, "ulimit -t"), (1.0, "ulimit -t" if "XCPU" in killed else "memory")):
        used = SimpleNamespace(ru_utime=seconds, ru_stime=0.0)
        monkeypatch.setattr(resource, "getrusage", lambda who, used=used: used)
        assert words in children.starved(killed)
    assert "ulimit -v" in children.starved("signal SIGSEGV")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread"), ValueError("3 axes")])
def test_only_some_errors_come_of_too_little_memory(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not children.lacks_memory(error), "without a limit nothing does"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 29, 1 << 29))
    assert children.lacks_memory(error) == (not isinstance(error, ValueError))


def test_a_child_without_memory_shows_no_traceback() -> None:
    """Not even the next message can be read once what was called ahead has taken all memory."""
    script = """if 1:
        import resource
        from tvmopt import children
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        children.prepare("tests.test_children:take_all_memory")
        try:
            children.call("tests.test_children:work", {"kind": "x" * 100_000})
        except children.Crash as crash:
            print(crash.what, crash.of_compile("m").fix)
    """
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **HERE}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.startswith("exit code 1"), "ulimit -v" in done.stdout, done.stderr) == (True, True, "")


def test_ctrl_c_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the interruption runs through in the child, its last words do not reach the terminal."""

    def interrupt(stage: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call("unwinds through C++", interrupt)
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_while_the_child_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still importing: it has nothing to clean up, and no traceback to show."""
    started, waited = tmp_path / "started", tmp_path / "waited"
    lines = ("import pathlib, signal, time", f"pathlib.Path({str(started)!r}).touch()",
             f"signal.signal(signal.SIGINT, lambda *_: pathlib.Path({str(waited)!r}).touch())",
             "time.sleep(3600)")  # fmt: skip
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    monkeypatch.setitem(HERE, "PYTHONPATH", str(tmp_path))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)

    def press() -> None:
        until(started.exists, "the child starts")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    presser = threading.Thread(target=press)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call("fine")
    finally:
        presser.join()
        signal.signal(signal.SIGALRM, before)
    assert not waited.exists(), "it is killed, not asked to end"
    assert capfd.readouterr() == ("", "")


def listen(first: int, progress: Callable[[str], None]) -> int:
    progress("waiting")
    return first + sum(children.receive()["number"] for _ in range(2))


def test_messages_reach_a_child_at_work() -> None:
    seen: list[str] = []
    with children.Child("tests.test_children:listen", {"first": 1}, environment=HERE) as child:
        for number in (10, 100):
            child.send({"number": number})
        assert child.result(seen.append) == 111
    assert seen == ["waiting"]


def test_a_child_that_is_left_alone_ends() -> None:
    """Its parent leaves without a word, or says that there is no more to come."""
    with children.Child("tests.test_children:listen", {"first": 1}, environment=HERE) as child:
        process, folder = child._process, child._folder.name
    assert process.poll() is not None and not os.path.exists(folder)
    with children.Child("tests.test_children:listen", {"first": 1}, environment=HERE) as child:
        child.end()
        with pytest.raises(children.Crash, match="exit code 130"):
            child.result()


def test_messages_to_a_dead_child_are_no_error_of_their_own() -> None:
    with children.Child("tests.test_children:work", {"kind": "exit"}, environment=HERE) as child:
        child._process.wait()
        child.send({"number": 1})
        with pytest.raises(children.Crash, match="exit code 7"):
            child.result()


def ready() -> None:
    os.environ["TVMOPT_TEST_READY"] = str(os.getpid())


def broken() -> None:
    raise ImportError("not here")


def who(progress: Callable[[str], None]) -> list[str]:
    return [os.environ.get("TVMOPT_TEST_READY", ""), str(os.getpid())]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE["PYTHONPATH"])


@pytest.mark.usefixtures("here")
def test_a_child_that_was_started_ahead_is_taken_once() -> None:
    children.prepare("tests.test_children:ready")
    children.prepare("tests.test_children:ready")
    (_, (folder, process, _)) = children._ahead[0]
    first, second = (children.call("tests.test_children:who", {}) for _ in range(2))
    assert first == [str(process.pid)] * 2 and second[0] == "" and second[1] != first[1]
    assert not children._ahead and not Path(folder.name).exists()


@pytest.mark.usefixtures("here")
def test_another_environment_takes_another_child(monkeypatch: pytest.MonkeyPatch) -> None:
    children.prepare("tests.test_children:ready")
    (_, (folder, process, _)) = children._ahead[0]
    monkeypatch.setenv("TVMOPT_OF_LATER", "1")
    assert children.call("tests.test_children:who", {})[0] == ""
    assert process.poll() is not None and not Path(folder.name).exists()


@pytest.mark.usefixtures("here")
def test_the_child_that_verifies_is_started_ahead(tmp_path: Path) -> None:
    verify.prepare()
    (_, (_, process, _)) = children._ahead[0]
    with verify.Verification(tmp_path / "none.onnx") as started:
        assert started._child._process is process and not children._ahead


@pytest.mark.usefixtures("here")
def test_a_child_that_is_not_needed_ends_at_once() -> None:
    children.prepare("tests.test_children:ready")
    (_, (folder, process, _)) = children._ahead[0]
    children.dismiss()
    assert process.poll() is not None and not children._ahead and not Path(folder.name).exists()
    children.dismiss()


@pytest.mark.usefixtures("here")
def test_what_cannot_be_prepared_is_told_when_it_is_needed() -> None:
    children.prepare("tests.test_children:broken")
    assert children.call("tests.test_children:work", {"kind": "fine"}) == {"kind": "fine"}
    children.prepare("tests.test_children:no_such_name")
    with pytest.raises(UnsupportedOp):
        children.call("tests.test_children:work", {"kind": "error"})


def test_a_child_that_nobody_takes_ends_with_its_parent(tmp_path: Path) -> None:
    text = "from tvmopt import children; children.prepare('os:getpid'); print(children._ahead[0][1][1].pid)"
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert ran.returncode == 0 and ran.stderr == "" and not list(tmp_path.iterdir())
    until(lambda: not Path(f"/proc/{int(ran.stdout)}").exists(), "the child has ended")


MEASURING = """
from pathlib import Path
import sys
from tvmopt.analysis.peaks import _program
Path(sys.argv[1]).mkdir()
measure = _program(Path(sys.argv[1]), 1)
while True:
    measure("fp32", 0)
"""

ENGINE = """
import signal, sys
from pathlib import Path
from tvmopt.bench.engine import Engine
from tvmopt.bench.records import Job
with Engine(Job("onnxruntime", "none.onnx")) as engine:
    engine.ask("memory")
    Path(sys.argv[1]).touch()
    signal.pause()
"""


def spent(process: psutil.Process) -> float:
    """Seconds of processor time; 0 of a process that has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@pytest.mark.parametrize(("code", "name"), [(MEASURING, "peaks"), (ENGINE, "python")])
def test_what_measures_dies_with_its_parent(code: str, name: str, tmp_path: Path) -> None:
    """The child is stopped when its parent is killed, so it does not come to its end by itself."""
    begun = tmp_path / "begun"
    parent = psutil.Popen([sys.executable, "-c", code, str(begun)])
    found: list[psutil.Process] = []

    def works() -> bool:
        assert parent.poll() is None
        found[:] = [child for child in parent.children() if child.name().startswith(name) and spent(child) > 0.05]
        return begun.exists() and bool(found)

    until(works, "the child works")
    (child,) = found
    try:
        child.suspend()
        parent.kill()
        parent.wait()
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child has ended")
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def test_nobody_waits_for_the_end_of_a_child_that_has_answered() -> None:
    begin = time.perf_counter()
    assert children.call("tests.test_children:lingers", {}, environment=HERE) == "answer"
    assert time.perf_counter() - begin < 5.0


def lingers(progress: object) -> str:
    """In a child: an answer, and memory that takes the system long to take back."""
    real = os._exit
    os._exit = lambda code: (time.sleep(6.0), real(code))  # type: ignore[assignment]
    return "answer"
