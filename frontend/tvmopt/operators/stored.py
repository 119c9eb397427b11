"""How the numbers of a decoder's caches are stored - for the runtime, the judge and `--kv-cache`.

    float32     as they are
    bfloat16    rounded to the nearest
    int8        each row of D numbers, one head's key or value of one token, in steps (:mod:`tvmopt.operators.codes`): D
                bytes and behind them its step, a float32 - as D / 4 + 1 words of int32

A row with an infinity or a NaN is read as NaN from bytes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.operators.codes import round_groups

Array = np.ndarray[Any, Any]

FLOAT, HALF, BYTES = "float32", "bfloat16", "int8"

CHOICES = {"fp32": FLOAT, "bf16": HALF, "int8": BYTES}
"""What may be asked for, and how the numbers are stored then."""

CARRIERS = {FLOAT: "float32", HALF: "bfloat16", BYTES: "int32"}
"""The type of the elements of a buffer."""

WORD = 4
"""Bytes of a word."""


def elements(depth: Any, kind: str) -> Any:
    """The last size of a buffer of rows of `depth` numbers, which for bytes is a multiple of :data:`WORD`.

    >>> elements(64, "bfloat16"), elements(64, "int8")
    (64, 17)
    """
    return depth // WORD + 1 if kind == BYTES else depth


def row_bytes(depth: int, kind: str) -> int:
    """Bytes of a row of `depth` numbers.

    >>> row_bytes(64, "float32"), row_bytes(64, "bfloat16"), row_bytes(64, "int8")
    (256, 128, 68)
    """
    return int(elements(depth, kind)) * (2 if kind == HALF else 4)


def dtype_of(kind: str) -> np.dtype[Any]:
    """NumPy's type of the elements of a buffer."""
    return np.dtype(ml_dtypes.bfloat16) if kind == HALF else np.dtype(CARRIERS[kind])


def store(rows: Array, kind: str) -> Array:
    """Rows float32[.., D] as a buffer has them.

    >>> rows = np.array([[0.5, -1.0, 0.25, 0.0]], np.float32)
    >>> store(rows, "int8").shape, np.round(load(store(rows, "int8"), "int8") * 127, 2).tolist()
    ((1, 2), [[64.0, -127.0, 32.0, 0.0]])
    """
    if kind != BYTES:
        return rows.astype(dtype_of(kind), copy=False)
    codes, step = round_groups(rows, rows.shape[-1])
    words = codes[..., 0, :].astype(np.int8).view(np.int32)
    return np.concatenate([words, step[..., 0].view(np.int32)], axis=-1)


def load(buffer: Array, kind: str) -> Array:
    """The numbers float32[.., D] of rows of a buffer."""
    if kind != BYTES:
        return buffer.astype(np.float32, copy=False)
    codes, step = (np.ascontiguousarray(part) for part in (buffer[..., :-1], buffer[..., -1:]))
    return np.asarray(codes.view(np.int8) * step.view(np.float32))


def as_stored(rows: Array, kind: str) -> Array:
    """Rows of real numbers as a buffer gives them back, in their own type.

    >>> as_stored(np.array([[0.1, 1.0]]), "bfloat16").tolist()
    [[0.10009765625, 1.0]]
    """
    with np.errstate(all="ignore"):
        return np.asarray(load(store(rows.astype(np.float32), kind), kind).astype(rows.dtype))
