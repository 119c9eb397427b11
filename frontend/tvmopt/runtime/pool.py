"""The one pool of threads that every artifact's kernels run on (`pool.c`) - for `load_library` and `Model`.

Each artifact's library carries the pool's machine code, since there may be no compiler where it runs. The library that
is loaded first gives the process its pool, and stays; the others' kernels are pointed to it, and their own copies are
never used, so that they can be unloaded.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError

MOST = 1024
"""Threads that a call may use; `pool.c` has room for as many."""

SOURCE = Path(__file__).with_name("pool.c")

_POINTERS = {
    "__TVMBackendParallelLaunch": "tvmopt_pool_launch",
    "__TVMBackendParallelBarrier": "tvmopt_pool_barrier",
}
_LOCK = threading.Lock()
_THREAD = threading.local()  # .threads: what this Python thread's launches may use
_owner: Any = None


def _forked() -> None:
    global _LOCK
    _LOCK = threading.Lock()  # another thread may have held it; `pool.c` sees to its threads itself


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def adopt(path: str) -> None:
    """Point the parallel loops of a library that TVM has just loaded from `path` to this process's pool.

    Raises:
        OSError, AttributeError: it is not one of ours.
    """
    global _owner
    library = ctypes.CDLL(path)
    with _LOCK:
        _owner = kept = _owner or library
    try:
        for pointer, function in _POINTERS.items():
            if hasattr(library, pointer):  # a library without parallel loops has none
                place = ctypes.c_void_p.in_dll(library, pointer)
                place.value = ctypes.cast(getattr(kept, function), ctypes.c_void_p).value
    finally:
        if kept is not library:
            _ctypes.dlclose(library._handle)


def use_threads(threads: int) -> None:
    """Let the calling Python thread's launches use so many threads, its own among them; a library is loaded."""
    if getattr(_THREAD, "threads", None) != threads:
        _owner.tvmopt_pool_use(threads)
        _THREAD.threads = threads


def tasks() -> int:
    """How many tasks a parallel loop of the calling thread has: one round through the pool; a library is loaded."""
    seen: set[int] = set()

    def note(number: int, group: Any, data: Any) -> int:
        seen.add(number)
        return 0

    task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(note)
    _owner.tvmopt_pool_launch(task, None, 0)
    return len(seen)


def check_threads(threads: int, what: str) -> int:
    """The number, if it can be used.

    Raises:
        InputError: below 1 or above what the pool has room for.
    """
    if not 1 <= threads <= MOST:
        fix = f"give 1 to {MOST}; more threads than cores make a model slower"
        raise InputError(f"{what} is {threads}, which is not a number from 1 to {MOST}.", fix=fix)
    return threads
