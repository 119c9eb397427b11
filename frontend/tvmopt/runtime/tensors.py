"""Tensors between NumPy and TVM: names of dtypes, aligned memory, views that copy nothing - for `Model`.

TVM's kernels load whole vectors from 64-byte aligned memory: weights and everything between kernels lie so. A model's
inputs may begin at any element (`passes/relax_alignment.py`), since NumPy promises no more than 16 bytes.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.dims import Dim, Size, is_open, parse
from tvmopt.errors import InputError

ALIGNMENT = 64  # bytes; TVM's kAllocAlignment, one AVX-512 register, one cache line
HUGE = 2 << 20  # bytes; a huge page of x86-64

Array = np.ndarray[Any, Any]

EXTENDED = {  # DLPack in NumPy has no code for these; they travel as unsigned integers of the same width
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
}


def carrier(dtype: str) -> str:
    """The type that a program takes and gives for a tensor of this type: the codes of float8 as they are.

    >>> carrier("float8_e5m2"), carrier("bfloat16")
    ('uint8', 'bfloat16')
    """
    return "uint8" if dtype.startswith("float8") else dtype


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape and dtype of one input or output of a compiled model. An open size is a `tvmopt.dims.Dim`; its text
    will do.

    >>> str(TensorInfo("x", (1, 3, 224, 224), "float32")), str(TensorInfo("ids", ("batch", "past + 1"), "int64"))
    ('x: float32[1,3,224,224]', 'ids: int64[batch,past + 1]')
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str

    def __post_init__(self) -> None:
        if any(isinstance(d, str) for d in self.shape):
            object.__setattr__(self, "shape", tuple(parse(d) if isinstance(d, str) else d for d in self.shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype (from `ml_dtypes` for bfloat16 and float8)."""
        return numpy_dtype(self.dtype)

    @property
    def nbytes(self) -> Size:
        """Bytes; a `Dim` where a size is open."""
        return prod(self.shape) * self.numpy_dtype.itemsize

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape has the right rank, and the right size wherever it is not open."""
        return len(shape) == len(self.shape) and all(
            isinstance(d, Dim) or d == size for d, size in zip(self.shape, shape, strict=True)
        )


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype for TVM's name of it.

    >>> numpy_dtype("bfloat16").itemsize
    2
    """
    return EXTENDED[name] if name in EXTENDED else np.dtype(name)


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any], alignment: int = ALIGNMENT) -> Array:
    """An uninitialised C-contiguous array whose first byte is `alignment`-byte aligned.

    >>> aligned_empty((3, 5), np.dtype("float32")).ctypes.data % 64
    0
    """
    nbytes = prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def address(array: Array) -> int:
    """The address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def is_direct(array: Array) -> bool:
    """Whether a kernel may read the array's own memory: whole elements in order, in this machine's bytes; not empty."""
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned and array.size > 0 and array.dtype.isnative)


def to_ffi(array: Array, dtype: str) -> Any:
    """TVM's tensor over the memory of an array for which :func:`is_direct` holds; nothing is copied.

    An array that NumPy holds to be read only is no exception: no kernel writes into an input.
    """
    import tvm_ffi

    if not array.flags.writeable:
        array = memory_at(address(array), array.dtype, array.shape, owner=array)  # NumPy refuses to export it
    if dtype not in EXTENDED and array.size:
        return tvm_ffi.from_dlpack(array, require_contiguous=True)
    raw = array.reshape(-1).view(np.uint8) if array.size else aligned_empty((1,), np.dtype(np.uint8))
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    base = tvm_ffi.from_dlpack(raw, require_contiguous=True)
    return view(base, tvm_ffi.Shape(array.shape), tvm_ffi.dtype(carrier(dtype)), 0)


def memory_at(start: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: Any = None) -> Array:
    """The memory at an address as a writable array, which keeps `owner` alive; without one the caller does."""
    memory: Any = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(start)
    memory.owner = owner
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


PLAIN = frozenset(f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)) - {"float8"}
"""Types that NumPy has under TVM's names."""


def from_ffi(tensor: Any, info: TensorInfo) -> Array:
    """A NumPy array over a TVM tensor's memory; it keeps the tensor alive. Nothing is copied (CUDA: copied to
    the host).
    """
    if tensor.device.dlpack_device_type() != 1:
        return _to_host(tensor, info)
    if info.dtype not in EXTENDED:
        return np.from_dlpack(tensor)
    import tvm_ffi

    width = np.dtype(f"u{info.numpy_dtype.itemsize}")
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    raw = view(tensor, tvm_ffi.Shape(tensor.shape), tvm_ffi.dtype(width.name), 0)
    return np.from_dlpack(raw).view(info.numpy_dtype)


def numbers(tensor: Any) -> Array:
    """The numbers of a TVM tensor in the host's memory, which are only read: not copied where NumPy, or ml_dtypes, has
    their type."""
    kind = str(tensor.dtype)
    if kind in EXTENDED:
        array = from_ffi(tensor, TensorInfo("", tuple(int(d) for d in tensor.shape), kind))
    elif kind in PLAIN:
        array = np.from_dlpack(tensor)
    else:
        return np.asarray(tensor.numpy())
    array.flags.writeable = False
    return array


def _to_host(tensor: Any, info: TensorInfo) -> Array:
    import tvm_ffi

    host = np.empty(tuple(tensor.shape), info.numpy_dtype)
    copy = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
    copy(tensor, host.ctypes.data_as(ctypes.c_void_p), host.nbytes)
    return host


def as_array(value: Any, info: TensorInfo, bound: Collection[str] = ()) -> Array | InputError:
    """`value` as an array of `info`'s dtype and shape. Never casts: a list, which has no dtype, is the exception. Bytes
    in another machine's order are copied into this one's.

    Args:
        bound: inputs whose open shapes the compile was given: with other ones it makes another model.
    """
    where = f"input {info}"
    try:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
        elif hasattr(value, "__dlpack__"):
            dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
            if dtype in EXTENDED and dtype != info.dtype:  # NumPy has no name for it, and its error does not help
                return _other_dtype(value, dtype, info)
            array = _from_dlpack(value, info)
        else:
            array = np.asarray(value, info.numpy_dtype)
    except (TypeError, ValueError, BufferError, RuntimeError, OverflowError) as error:
        return InputError(
            f"cannot read a {type(value).__name__} as a tensor: {error}",
            where=where,
            fix="pass a NumPy array",
        )
    if array.dtype.newbyteorder("=") != info.numpy_dtype:
        return _other_dtype(value, str(array.dtype), info)
    if not info.fits(array.shape):
        other = f"compile the model with --shape {info.name}:{'x'.join(map(str, array.shape))}"
        fixed = "export the model with an open dimension: its file fixes this shape"
        fix = f"reshape it, or {other if info.name in bound else fixed}"
        wanted = info.shape if not is_open(info.shape) else f"({', '.join(map(str, info.shape))})"
        return InputError(f"the shape is {array.shape}, the model takes {wanted}.", where=where, fix=fix)
    return array if array.dtype.isnative else array.astype(info.numpy_dtype)


def _other_dtype(value: Any, dtype: str, info: TensorInfo) -> InputError:
    torch = type(value).__module__.partition(".")[0] == "torch"
    fix = f"x.to(torch.{info.dtype})" if torch else f"x.astype({info.dtype!r})"
    return InputError(f"the dtype is {dtype}, the model takes {info.dtype}.", where=f"input {info}", fix=fix)


def _from_dlpack(value: Any, info: TensorInfo) -> Array:
    device = getattr(value, "__dlpack_device__", lambda: (1, 0))()[0]
    if int(device) != 1 and int(device) != 3:
        raise ValueError("it is not in host memory; move it to the CPU first")
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):  # bfloat16: NumPy has no name for it, TVM has
        import tvm_ffi

        tensor = tvm_ffi.from_dlpack(value)
        if str(tensor.dtype) != info.dtype or not info.fits(tuple(tensor.shape)):
            raise
        return from_ffi(tensor, info)


def to_plain(value: Any) -> Any:
    """The value of an input as JSON data: numbers and lists as they are, an array by its type, shape and bytes.

    >>> to_plain([1, 2]), to_plain(np.zeros((2, 1), np.int8))
    ([1, 2], {'dtype': 'int8', 'shape': [2, 1], 'bytes': 'AAA='})
    """
    if not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "bytes": data}


def from_plain(value: Any) -> Any:
    """The value that :func:`to_plain` wrote."""
    if not isinstance(value, dict):
        return value
    data = base64.b64decode(value["bytes"])
    return np.frombuffer(data, numpy_dtype(value["dtype"])).reshape(value["shape"])
