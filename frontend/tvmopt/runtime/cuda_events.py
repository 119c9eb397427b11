"""Times of kernels on a GPU by CUDA events, without waiting between them - for `tvmopt profile`.

An event is recorded in the stream before and after each kernel; the GPU stamps it when it gets there, so the
times are the device's own and the launches stay asynchronous. TVM launches on the default stream.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

from tvmopt.errors import TvmoptError

LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


def load_cudart() -> Any:
    """CUDA's runtime library by ctypes; None where there is none."""
    for name in LIBRARIES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


class EventTimer:
    """Pairs of events around calls; they are made once and used again in the next run.

    Args:
        library: CUDA's runtime, or a stand-in with the same functions.

    Raises:
        TvmoptError: CUDA reports an error, by its number.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.pairs: list[tuple[ctypes.c_void_p, ctypes.c_void_p]] = []
        self.open: list[int] = []
        self.used = 0

    def reset(self) -> None:
        """Start a new run."""
        self.open.clear()
        self.used = 0

    def begin(self) -> None:
        """Before a kernel."""
        if self.used == len(self.pairs):
            self.pairs.append((self._event(), self._event()))
        self.open.append(self.used)
        self._call("cudaEventRecord", self.pairs[self.used][0], None)
        self.used += 1

    def end(self) -> None:
        """After the kernel that was begun last."""
        self._call("cudaEventRecord", self.pairs[self.open.pop()][1], None)

    def seconds(self) -> list[float]:
        """The time of each call of the run, in the order of their beginnings; waits for the last one."""
        times = []
        for first, last in self.pairs[: self.used]:
            self._call("cudaEventSynchronize", last)
            elapsed = ctypes.c_float()
            self._call("cudaEventElapsedTime", ctypes.byref(elapsed), first, last)
            times.append(elapsed.value / 1e3)
        return times

    def close(self) -> None:
        """Give the events back."""
        for event in (e for pair in self.pairs for e in pair):
            self._call("cudaEventDestroy", event)
        self.pairs.clear()
        self.reset()

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cudaEventCreate", ctypes.byref(event))
        return event

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise TvmoptError(
                f"{name} failed with CUDA error {status}.",
                where="timing kernels with CUDA events",
                fix="run `nvidia-smi` and `tvmopt doctor`; an earlier kernel may have failed",
            )
