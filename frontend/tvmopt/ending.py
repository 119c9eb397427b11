"""SIGTERM and SIGHUP end the command as Ctrl-C does: half-written files and temporary folders are removed.

`timeout`, a CI and a container that stops send SIGTERM; a terminal that closes sends SIGHUP. By default each of them
ends Python on the spot. What is ignored when the command starts stays ignored: SIGHUP behind `nohup`, SIGINT behind
`&`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a command from outside."""

AGAIN = 1.0
"""Seconds in which the same end may arrive twice: `timeout` sends SIGTERM to the command and then to its group, and a
terminal's SIGHUP comes from the shell and from the kernel. The second one must not end the clearing up."""

_abandoned: list[bool] = []
"""Not empty: a thread is at work in compiled code."""

_codes: list[int] = []
"""The exit code, once it is known."""

_received: list[tuple[int, float]] = []
"""The signals that interrupted this process, each with the time at which it came."""


def handlers() -> dict[int, Callable[[int, Any], Any]]:
    """What takes each signal that ends a command, Ctrl-C's among them, but for those that are ignored."""
    found: dict[int, Callable[[int, Any], Any]] = {
        number: interrupt for number in ENDING if signal.getsignal(number) is signal.SIG_DFL
    }
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        found[signal.SIGINT] = press
    return found


def interrupt(number: int, frame: Any) -> None:
    """The handler that makes a signal a KeyboardInterrupt, and remembers which one it was."""
    now = time.monotonic()
    repeated = bool(_received) and now - _received[-1][1] < AGAIN
    if not repeated:
        _received.append((number, now))
        raise KeyboardInterrupt


def press(number: int, frame: Any) -> None:
    """The handler of Ctrl-C: Python's own, and it is remembered."""
    _received.append((number, time.monotonic()))
    signal.default_int_handler(number, frame)


def interrupted() -> bool:
    """Whether a signal interrupted this process, Ctrl-C's among them.

    Its KeyboardInterrupt may arrive as another exception: TVM's FFI makes a RuntimeError of it where it was raised in a
    function that C++ called, and a module whose import it ended an ImportError.
    """
    return bool(_received)


def received() -> signal.Signals | None:
    """The signal from outside that interrupted this process first; None where there was none, or Ctrl-C alone."""
    return next((signal.Signals(number) for number, _ in _received if number != signal.SIGINT), None)


def abandon() -> None:
    """Note that a thread is at work in compiled code, and that nobody waits for it: see :func:`watch`."""
    _abandoned.append(True)


def left(code: int) -> int:
    """The exit code of the command, with which it ends whatever happens."""
    _codes.append(code)
    return code


def watch() -> None:
    """End the process as the last thing that Python does on its own, where a thread was abandoned.

    When such a thread comes back to Python while that clears up, Python ends it, and a thread that ends within a
    function of C++ aborts the process (`Py_FinalizeEx` and `PyGILState_Ensure` in the documentation of Python's C API).

    What is registered by `atexit` after this call is done before: temporary folders are removed.
    """
    atexit.register(_end)


def _end() -> None:
    if _abandoned:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a terminal that is gone
                stream.flush()
        os._exit(_codes[-1] if _codes else 1)
