"""The one pool of threads that every artifact's kernels run on (`pool.c`) - for `load_library` and `Model`.

Each artifact's library carries the pool's machine code, since there may be no compiler where it runs. The library that
is loaded first gives the process its pool, and stays; the others' kernels are pointed to it, and their own copies are
never used, so that they can be unloaded.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvmopt.errors import ArtifactError, InputError

MOST = 1024
"""Threads that a call may use; `pool.c` has room for as many."""
PLACES = 64
"""Sets of processors, everybody's among them, that models of a process may be given; `pool.c` has room for as many."""

SOURCE = Path(__file__).with_name("pool.c")

_POINTERS = {
    "__TVMBackendParallelLaunch": "tvmopt_pool_launch",
    "__TVMBackendParallelBarrier": "tvmopt_pool_barrier",
    "__tvmopt_worth_threads": "tvmopt_pool_worth",
}
_LOCK = threading.Lock()


class _Thread(threading.local):
    """What a Python thread's launches may use, and where; before it asked, nothing in particular."""

    threads: int | None = None
    place: int = 0


_THREAD = _Thread()
_owner: Any = None
_places: dict[frozenset[int], int] = {}


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
            # a library without parallel loops has none; one of an older version lacks a function, and does without
            if hasattr(library, pointer) and hasattr(kept, function):
                place = ctypes.c_void_p.in_dll(library, pointer)
                place.value = ctypes.cast(getattr(kept, function), ctypes.c_void_p).value
    finally:
        if kept is not library:
            _ctypes.dlclose(library._handle)


def place_of(processors: Iterable[int], where: str) -> int:
    """The number of the place whose workers run on these processors, made where there is none; a library is loaded.

    Raises:
        ArtifactError: the process's pool is of an artifact that was compiled before there were places.
        InputError: there are too many.
    """
    wanted = frozenset(processors)
    with _LOCK:
        if wanted in _places:
            return _places[wanted]
        if not hasattr(_owner, "tvmopt_pool_place"):
            fix = "compile that one again, too: the pool of threads is that of the first artifact"
            what = "the first artifact that this process loaded is too old to give a model its cores."
            raise ArtifactError(what, where=where, fix=fix)
        number = len(_places) + 1
        if number >= PLACES:
            fix = "give models the same cores, or load them in processes of their own"
            raise InputError(f"models of this process have {number - 1} sets of cores already.", where=where, fix=fix)
        mask = sum(1 << processor for processor in wanted)
        words = mask.to_bytes(-(-mask.bit_length() // 64) * 8, sys.byteorder)
        if _owner.tvmopt_pool_place(number, words, ctypes.c_size_t(len(words))):
            raise MemoryError("no memory for a set of cores")
        _places[wanted] = number
        return number


def use_threads(threads: int, place: int = 0) -> None:
    """Let the calling Python thread's launches use so many threads, its own among them; a library is loaded.

    Args:
        place: whose, of :func:`place_of`; 0: everybody's.
    """
    if _THREAD.threads != threads:
        _owner.tvmopt_pool_use(threads)
        _THREAD.threads = threads
    if _THREAD.place != place:
        _owner.tvmopt_pool_go(place)
        _THREAD.place = place


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
        InputError: below 1 or above what the pool has room for, or no whole number.
    """
    whole = hasattr(threads, "__index__") and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= MOST:
        fix = f"give 1 to {MOST}; more threads than cores make a model slower"
        raise InputError(f"{what} is {threads!r}, which is not a number from 1 to {MOST}.", fix=fix)
    return int(threads)
