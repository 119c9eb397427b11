"""Constant weights of bfloat16 or int8 in the tiles that AMX loads, and a term of a product of them - for the families
whose products are AMX's.

A step of up to 32 terms, or 64 of bytes (:class:`tvmopt.schedules.cpu._amx.cost.Steps`), is what one `tdpbf16ps` or
`tdpbusd` adds up: 16 words x 16 columns, a tile of B as it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te

from tvmopt.lowering.pairs import dot2, pack_pairs, pair
from tvmopt.lowering.quads import dot4, pack_quads, quad
from tvmopt.schedules.cpu._amx.cost import Steps

Array = np.ndarray[Any, Any]
SUMS = {"bfloat16": ("bfloat16", "float32"), "uint8": ("int8", "int32")}
"""Data -> the weights and the sums that tiles have for it."""


def pack_steps(weight: Array, steps: Steps, width: int) -> Array:
    """W[..., K, N] of bfloat16 as uint32 pairs, of int8 as int32 quads, [P, ..., step, word, width]: a step's tiles of
    B as they are loaded.

    Columns beyond N, and terms that an earlier step has summed, are zero.

    >>> import ml_dtypes
    >>> w = np.arange(1.0, 35.0).reshape(34, 1).astype(ml_dtypes.bfloat16)
    >>> packed = pack_steps(w, Steps.of(34, 2), 16)
    >>> packed.shape, [hex(v) for v in packed[0, 1, 14:, 0]]  # the second step holds the last two terms only
    ((1, 2, 16, 16), ['0x0', '0x42084204'])
    """
    *lead, k, n = weight.shape
    padded = np.zeros((*lead, k, -(-n // width) * width), weight.dtype)
    padded[..., :n] = weight
    parts = []
    for step in range(steps.count):
        start = steps.start(step)
        part = padded[..., start : start + steps.terms, :].copy()
        part[..., : steps.fresh(step) - start, :] = 0
        parts.append(pack_quads(part) if weight.dtype == np.int8 else pack_pairs(part))
    stacked = np.stack(parts, axis=-3)  # [..., step, word, P * width]
    split = stacked.reshape(*stacked.shape[:-1], -1, width)
    return np.ascontiguousarray(np.moveaxis(split, -2, 0))


def start_of(step: Any, steps: Steps) -> Any:
    if steps.length % steps.terms == 0:
        return step * steps.terms
    return te.min(step * steps.terms, steps.length - steps.terms)


def product(data: Callable[[Any], Any], steps: Steps, t: Any, i: Any, weight: Any) -> Any:
    """The terms of word `i` of step `t`: data(term) times a packed word of weights."""
    first = start_of(t, steps) + steps.word * i
    terms = [data(first + at) for at in range(steps.word)]
    return dot2(pair(*terms), weight) if steps.word == 2 else dot4(quad(*terms), weight)


def tag(kernel: str, **more: int) -> dict[str, Any]:
    return {"tvmopt.kernel": kernel, **{f"tvmopt.{key}": value for key, value in more.items()}}
