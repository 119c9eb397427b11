"""Constant weights of bfloat16 in the tiles that AMX loads - for the families whose products are AMX's.

A step of up to 32 terms (:class:`tvmopt.schedules.cpu._amx.cost.Steps`) is what one `tdpbf16ps` adds up: 16 pairs x 16
columns of uint32, a tile of B as it lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te

from tvmopt.lowering.pairs import pack_pairs
from tvmopt.schedules.cpu._amx.cost import Steps

Array = np.ndarray[Any, Any]


def pack_steps(weight: Array, steps: Steps, width: int) -> Array:
    """bfloat16 W[..., K, N] as uint32 pairs [P, ..., step, pair, width]: a step's tiles of B as they are loaded.

    Columns beyond N, and terms that an earlier step has summed, are zero.

    >>> import ml_dtypes
    >>> w = np.arange(1.0, 35.0).reshape(34, 1).astype(ml_dtypes.bfloat16)
    >>> packed = pack_steps(w, Steps.of(34), 16)
    >>> packed.shape, [hex(v) for v in packed[0, 1, 14:, 0]]  # the second step holds the last two terms only
    ((1, 2, 16, 16), ['0x0', '0x42084204'])
    """
    *lead, k, n = weight.shape
    padded = np.zeros((*lead, k, -(-n // width) * width), weight.dtype)
    padded[..., :n] = weight
    parts = []
    for step in range(steps.count):
        start = steps.start(step)
        part = padded[..., start : start + 2 * steps.pairs, :].copy()
        part[..., : steps.fresh(step) - start, :] = 0
        parts.append(pack_pairs(part))
    stacked = np.stack(parts, axis=-3)  # [..., step, pair, P * width]
    split = stacked.reshape(*stacked.shape[:-1], -1, width)
    return np.ascontiguousarray(np.moveaxis(split, -2, 0))


def start_of(step: Any, steps: Steps) -> Any:
    if steps.length % (2 * steps.pairs) == 0:
        return step * (2 * steps.pairs)
    return te.min(step * (2 * steps.pairs), steps.length - 2 * steps.pairs)


def tag(kernel: str, **more: int) -> dict[str, Any]:
    return {"tvmopt.kernel": kernel, **{f"tvmopt.{key}": value for key, value in more.items()}}
