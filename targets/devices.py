"""TVM's Python for GPUs and other devices than CPUs, which `tvmopt.runtime.library.load_compiler` leaves out - for
targets that need it."""

from __future__ import annotations

from functools import cache


@cache
def load() -> None:
    """Load it: 0.4 s. TVM is imported; where it has loaded it by itself, nothing happens."""
    from tvm.backend import _autoload_backends as devices

    devices._load_builtin_backends()
