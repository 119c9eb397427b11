"""isolated: results, errors, crashes, hangs and memory of a step that runs in a child."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import until
from tvmopt.errors import ModelError, UnsupportedOp
from tvmopt.importer.isolate import isolated


def test_results_come_back():
    big = np.arange(3_000_000)
    assert isolated(lambda: {"a": (1, "b")}, "test") == {"a": (1, "b")}
    np.testing.assert_array_equal(isolated(lambda: big * 2, "test"), big * 2)


def test_our_errors_come_back_whole():
    def fail():
        raise UnsupportedOp("what", where="where", fix="fix", others=[ModelError("other")])

    with pytest.raises(UnsupportedOp) as caught:
        isolated(fail, "test")
    assert str(caught.value) == "what\n  where: where\n  fix:   fix\nModelError: other"


def test_a_crash_is_an_error():
    with pytest.raises(ModelError, match=r"shape inference of this model crashes \(SIGSEGV\)"):
        isolated(lambda: ctypes.string_at(0), "shape inference")
    with pytest.raises(ModelError, match="SIGABRT"):
        isolated(os.abort, "test")


def test_a_hang_is_an_error():
    with pytest.raises(ModelError, match="longer than"):
        isolated(lambda: time.sleep(3600), "test", seconds=0.3)


def test_too_much_memory_is_an_error():
    with pytest.raises(ModelError, match="memory"):
        isolated(lambda: np.ones(1 << 42, "uint8").sum(), "test")


def test_the_parents_garbage_is_not_collected_in_the_child():
    """A cycle with a session of onnxruntime would wait for threads that the child does not have."""

    class Session:
        def __init__(self):
            self.cycle = self
            self.owner = os.getpid()

        def __del__(self):
            if os.getpid() != self.owner:
                os._exit(1)

    Session()
    assert isolated(gc.collect, "a collection") is not None


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        isolated(lambda: 1 // 0, "test")


def test_no_child_is_left():
    for _ in range(3):
        isolated(lambda: None, "test")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_child_dies_with_its_parent(tmp_path):
    """Killed by a time limit, a compile left the child behind that imported its model."""
    told = tmp_path / "pid"
    step = f"open({str(told)!r}, 'w').write(str(os.getpid())) and time.sleep(3600)"
    code = f"import os, time; from tvmopt.importer.isolate import isolated; isolated(lambda: {step}, 'test')"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        until(lambda: told.exists() and told.read_text(), "the child begins")
        child = int(told.read_text())
        parent.kill()
    until(lambda: not alive(child), "the child dies")


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
