"""Child processes: results, errors, progress, crashes and Ctrl-C come back as they should."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tvmopt import children
from tvmopt.errors import ModelError, UnsupportedOp

HERE = {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}


def work(kind: str, progress: Callable[[str], None]) -> Any:
    progress("working")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        os._exit(7)
    if kind == "error":
        raise UnsupportedOp("a", where="b", fix="c", others=[ModelError("d")])
    if kind == "bug":
        raise ZeroDivisionError
    print("noise on stdout")
    return {"kind": kind}


def call(kind: str, progress: Callable[[str], None] | None = None) -> Any:
    return children.call("tests.test_children:work", {"kind": kind}, progress=progress, environment=HERE)


def test_result_and_progress() -> None:
    seen: list[str] = []
    assert call("fine", seen.append) == {"kind": "fine"}
    assert seen == ["working"]


def test_our_errors_come_back_whole() -> None:
    with pytest.raises(UnsupportedOp) as told:
        call("error")
    assert str(told.value) == "a\n  where: b\n  fix:   c\nModelError: d"


@pytest.mark.parametrize(
    ("kind", "words"), [("crash", "SIGSEGV"), ("exit", "exit code 7"), ("bug", "exit code 1")]
)
def test_crashes_tell_the_stage(kind: str, words: str) -> None:
    with pytest.raises(children.Crash, match=words) as told:
        call(kind)
    assert told.value.stage == "working"
