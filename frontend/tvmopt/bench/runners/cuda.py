"""The few CUDA runtime calls that runners need - memory, streams, graphs - with errors in words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tvmopt.bench.runners.base import Array
from tvmopt.errors import MissingDependency, TvmoptError

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # enum cudaMemcpyKind
THREAD_LOCAL = 1  # enum cudaStreamCaptureMode


class CudaError(TvmoptError):
    """A CUDA call failed."""

    exit_code = 4


class Cuda:
    """The runtime of the ``cuda-python`` package: ``cuda.bindings.runtime``, ``cuda.cudart`` before 12.6.

    Raises:
        MissingDependency: no such package, or no device.
    """

    def __init__(self) -> None:
        self.rt: Any = None
        for module in ("cuda.bindings.runtime", "cuda.cudart"):
            try:
                self.rt = import_module(module)
                break
            except ImportError:
                continue
        if self.rt is None:
            raise MissingDependency("cuda-python is not installed", fix="pip install cuda-python")
        error, count = self.rt.cudaGetDeviceCount()
        if int(error) or not count:
            raise MissingDependency(
                "no CUDA device",
                where=f"cudaGetDeviceCount: {error}",
                fix="run where a GPU and its driver are",
            )

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a runtime function; its results without the error code."""
        error, *results = getattr(self.rt, name)(*args)
        if int(error):
            raise CudaError(f"{name} failed: {error}", where="CUDA runtime")
        return results[0] if len(results) == 1 else tuple(results)

    def alloc(self, nbytes: int) -> int:
        """Device memory; its address."""
        return int(self("cudaMalloc", max(nbytes, 1)))

    def stream(self) -> Any:
        """A new stream."""
        return self("cudaStreamCreate")

    def upload(self, address: int, array: Array, stream: Any) -> None:
        """Copy a host array to the device."""
        self("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, self._kind(HOST_TO_DEVICE), stream)

    def download(self, array: Array, address: int, stream: Any) -> None:
        """Copy device memory into a host array."""
        self("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, self._kind(DEVICE_TO_HOST), stream)

    def synchronize(self, stream: Any) -> None:
        """Wait for a stream."""
        self("cudaStreamSynchronize", stream)

    def graph(self, enqueue: Callable[[], Any], stream: Any) -> Any:
        """Capture what `enqueue` puts on the stream; an executable graph."""
        mode = getattr(self.rt, "cudaStreamCaptureMode", None)
        self("cudaStreamBeginCapture", stream, mode(THREAD_LOCAL) if mode else THREAD_LOCAL)
        enqueue()
        captured = self("cudaStreamEndCapture", stream)
        return self("cudaGraphInstantiate", captured, 0)

    def _kind(self, number: int) -> Any:
        kind = getattr(self.rt, "cudaMemcpyKind", None)
        return kind(number) if kind else number


def pinned(cuda: Cuda, shape: tuple[int, ...], dtype: Any) -> Array:
    """A page-locked host array, which copies at full speed."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    address = int(cuda("cudaMallocHost", max(size, 1)))
    buffer = (ctypes.c_uint8 * max(size, 1)).from_address(address)
    return np.frombuffer(buffer, dtype, count=int(np.prod(shape, dtype=np.int64))).reshape(shape)
