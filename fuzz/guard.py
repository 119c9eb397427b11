"""Guard pages from Python: building and preloading `guard.c`, arrays between guard pages, arming the allocator."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.inputs import Array

SOURCE = Path(__file__).with_name("guard.c")
NOWHERE, BEHIND, BEFORE = 0, 1, 2
"""Where the inaccessible zone touches the buffer, if there is one."""


class Overwritten(Exception):
    """A kernel wrote where it must not."""


def library() -> Path:
    """The shared library that a worker preloads."""
    return built(SOURCE, ".so", "-O1", "-shared", "-ldl", "-lpthread")


def built(source: Path, suffix: str, *flags: str) -> Path:
    """What the C compiler makes of a source, once a version of it, in a folder that only this user can write."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"tvmopt-fuzz-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    made = folder / f"{source.stem}-{digest}{suffix}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as private:
            result = Path(private) / f"made{suffix}"
            subprocess.run(["cc", "-fPIC", "-o", str(result), str(source), *flags], check=True, capture_output=True)
            result.rename(made)
    return made


@cache
def _preloaded() -> Any:
    """The library in this process; None where it was not preloaded."""
    own = ctypes.CDLL(None)
    if not hasattr(own, "guard_allocate"):
        return None
    own.guard_allocate.restype = ctypes.c_void_p
    own.guard_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    own.guard_release.argtypes = [ctypes.c_void_p]
    own.guard_violations.restype = own.guard_tensors.restype = own.guard_reset.restype = ctypes.c_size_t
    return own


def available() -> bool:
    """Whether this process was started with the library preloaded."""
    return _preloaded() is not None


@contextmanager
def armed(side: int) -> Iterator[None]:
    """Tensors that TVM allocates in this block are guarded."""
    own = _preloaded()
    if own is None:
        yield
        return
    own.guard_arm(side)
    try:
        yield
    finally:
        own.guard_arm(0)


def guarded(array: Array, side: int, alignment: int = 64) -> Array:
    """A copy between guard pages, aligned as TVM wants it; released with the array."""
    own = _preloaded()
    if own is None or not array.nbytes:
        return array
    address = own.guard_allocate(array.nbytes, alignment, side)
    if not address:
        return array
    memory = (ctypes.c_char * array.nbytes).from_address(address)
    weakref.finalize(memory, own.guard_release, address)
    copy = np.frombuffer(memory, np.uint8).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def violations() -> int:
    """Buffers so far beside which something was written, on their own pages."""
    own = _preloaded()
    return int(own.guard_violations()) if own else 0


def tensors() -> int:
    """Tensors, and other aligned buffers, that the process has allocated so far, guarded or not."""
    own = _preloaded()
    return int(own.guard_tensors()) if own else 0


def reset() -> None:
    """Use the address space again if nothing lives in it."""
    own = _preloaded()
    if own:
        own.guard_reset()
