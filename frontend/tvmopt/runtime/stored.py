"""How the numbers of a decoder's caches are stored - for the runtime, the judge and `--kv-cache`.

    float32     as they are
    bfloat16    rounded to the nearest
    int8        each row of D numbers (one head's key or value of one token) as D bytes, and behind them its scale, a
                float32 in four bytes: number = byte * scale, scale = the largest |number| of the row / 127

A row whose largest number is below :data:`LEAST` is stored as zeros: the reciprocal of its scale would be infinite. One
with an infinity or a NaN is read as NaN.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

FLOAT, HALF, BYTES = "float32", "bfloat16", "int8"

CHOICES = {"fp32": FLOAT, "bf16": HALF, "int8": BYTES}
"""What may be asked for, and the type of the buffers."""

SCALE_BYTES = 4
"""Bytes behind the numbers of a row of bytes."""

STEPS = 127
"""The largest byte of a row."""

LEAST = 1e-30
"""A largest number of a row below which it is stored as zeros."""


def row_bytes(depth: int, kind: str) -> int:
    """Bytes of a row of `depth` numbers.

    >>> row_bytes(64, "float32"), row_bytes(64, "bfloat16"), row_bytes(64, "int8")
    (256, 128, 68)
    """
    return elements(depth, kind) * {FLOAT: 4, HALF: 2, BYTES: 1}[kind]


def elements(depth: int, kind: str) -> int:
    """The last size of a buffer of rows of `depth` numbers.

    >>> elements(64, "bfloat16"), elements(64, "int8")
    (64, 68)
    """
    return depth + SCALE_BYTES if kind == BYTES else depth


def depth_of(last: int, kind: str) -> int:
    """The other way round: the numbers of a row of a buffer whose last size is `last`."""
    return last - SCALE_BYTES if kind == BYTES else last


def store(rows: Array, kind: str) -> Array:
    """Rows float32[.., D] as a buffer has them.

    >>> rows = np.array([[0.5, -1.0, 0.25]], np.float32)
    >>> store(rows, "int8").shape, load(store(rows, "int8"), "int8").round(3).tolist()
    ((1, 7), [[0.504, -1.0, 0.252]])
    """
    if kind == FLOAT:
        return rows
    if kind == HALF:
        return rows.astype(ml_dtypes.bfloat16)
    with np.errstate(all="ignore"):
        most = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0).astype(np.float32)
        inverse = np.where(most < LEAST, 0, np.float32(STEPS) / most).astype(np.float32)
        codes = np.nan_to_num(np.rint(rows * inverse)).astype(np.int8)
        scale = np.where(most < LEAST, 0, most / np.float32(STEPS)).astype(np.float32)
    return np.concatenate([codes, scale.view(np.int8)], axis=-1)


def load(buffer: Array, kind: str) -> Array:
    """The numbers float32[.., D] of rows of a buffer."""
    if kind == FLOAT:
        return buffer
    if kind == HALF:
        return buffer.astype(np.float32)
    codes, scale = buffer[..., :-SCALE_BYTES], np.ascontiguousarray(buffer[..., -SCALE_BYTES:]).view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.asarray(codes.astype(np.float32) * scale)
