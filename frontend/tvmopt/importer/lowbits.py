"""How types that TVM has no working arithmetic for are stored: 8-bit and smaller floats as codes, 2- and
4-bit integers in a byte each - for the importer, its converters and the border of a compiled model.

TVM 0.27 converts float8 by copying bits that do not belong together (NaN becomes 480), refuses float4 and cannot
hold a tensor of 4-bit integers. So a float8 or smaller float is a ``uint8`` tensor of its codes, converted by table
(see :mod:`tvmopt.importer.converters.casts`), and an int4 or int2 is an ``int8`` tensor of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper


@dataclass(frozen=True)
class SmallFloat:
    """One float format of at most 8 bits.

    Attributes:
        exponent, mantissa: their bits; bias: of the exponent.
        top: the code of the largest finite value (sign 0).
        overflow: the code of what is too large when not saturating, and of infinity; None if it always
        saturates.
        nan: the code of NaN; unsigned_zero: whether -0 and the sign of NaN do not exist (the "uz" formats).
    """

    exponent: int
    mantissa: int
    bias: int
    top: int
    overflow: int | None
    nan: int
    unsigned_zero: bool = False


SMALL_FLOATS: dict[int, SmallFloat] = {
    TensorProto.FLOAT8E4M3FN: SmallFloat(4, 3, 7, 0x7E, 0x7F, 0x7F),
    TensorProto.FLOAT8E4M3FNUZ: SmallFloat(4, 3, 8, 0x7F, 0x80, 0x80, True),
    TensorProto.FLOAT8E5M2: SmallFloat(5, 2, 15, 0x7B, 0x7C, 0x7E),
    TensorProto.FLOAT8E5M2FNUZ: SmallFloat(5, 2, 16, 0x7F, 0x80, 0x80, True),
    TensorProto.FLOAT4E2M1: SmallFloat(2, 1, 1, 0x07, None, 0x08),
    TensorProto.FLOAT6E2M3: SmallFloat(2, 3, 1, 0x1F, None, 0x20),
    TensorProto.FLOAT6E3M2: SmallFloat(3, 2, 3, 0x1F, None, 0x20),
}
"""From the standard's tables (docs/docs/technical/float8.md); the codes of NaN are those that ml_dtypes writes."""

CODED = {*SMALL_FLOATS, TensorProto.FLOAT8E8M0}
"""Element types stored as codes in uint8."""

SMALL_INTEGERS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
}
"""Element types stored by value in a byte, with their range."""

_BY_NAME = {str(helper.tensor_dtype_to_np_dtype(t)): t for t in (*CODED, *SMALL_INTEGERS)}


def elem_type_of(dtype: str) -> int:
    """The ONNX element type of a NumPy dtype's name."""
    return _BY_NAME.get(dtype) or int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def storage_dtype(dtype: str) -> str:
    """What TVM holds such a tensor in: ``"float8_e5m2"`` gives ``"uint8"``, ``"float32"`` itself."""
    elem = _BY_NAME.get(dtype)
    if elem is None:
        return dtype
    return "uint8" if elem in CODED or SMALL_INTEGERS[elem][0] == 0 else "int8"


def pack(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array as TVM holds it."""
    elem = _BY_NAME.get(array.dtype.name)
    if elem is None:
        return array
    return array.view(np.uint8) if elem in CODED else array.astype(storage_dtype(array.dtype.name))


def unpack(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The inverse of :func:`pack`, given the dtype's name."""
    elem = _BY_NAME.get(dtype)
    if elem is None:
        return array
    target = helper.tensor_dtype_to_np_dtype(elem)
    return array.view(target) if elem in CODED else array.astype(target)


def decode_table(elem: int) -> npt.NDArray[np.float32]:
    """The float32 value of each of the 256 codes (a code out of range repeats the last)."""
    target = helper.tensor_dtype_to_np_dtype(elem)
    bits = 8 if elem == TensorProto.FLOAT8E8M0 else 1 + SMALL_FLOATS[elem].exponent + SMALL_FLOATS[elem].mantissa
    codes = np.minimum(np.arange(256), 2**bits - 1).astype(np.uint8)
    return np.asarray(codes.view(target), np.float32)
