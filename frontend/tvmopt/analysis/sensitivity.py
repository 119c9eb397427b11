"""How far rounding alone moves a model's outputs - for whoever judges a 16-bit result of a model that amplifies errors.

A tolerance derived from the number of layers supposes that each passes an error on as it came. A network that does not
(a sharp softmax behind noise: Inception v2 turns a change of 0.4 % in its weights into one of 35 % in its first
probability) would be called wrong in every 16-bit engine. So where the derived tolerance fails, the reference itself is
run in float32 once more, with weights and inputs rounded to the 16-bit type, and may differ as much::

    tolerance = max(derived, 2 * |reference(rounded) - reference| / scale)        for each output and each input

Twice, because the engine rounds the activations between the layers too, which the reference does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.comparator import Array

TYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
"""Precisions whose operands are 16 bits wide."""
FACTOR = 2.0


def rounded(arrays: Mapping[str, Array], precision: str) -> dict[str, Array]:
    """The same arrays, float32 ones holding only values of the 16-bit type.

    >>> rounded({"x": np.array([1.001], "float32"), "n": np.array([3])}, "bf16")
    {'x': array([1.], dtype=float32), 'n': array([3])}
    """
    kind = TYPES[precision]
    return {n: a.astype(kind).astype(a.dtype) if a.dtype == np.float32 else a for n, a in arrays.items()}


def sensitivity(reference: Mapping[str, Array], moved: Mapping[str, Array]) -> dict[str, float]:
    """For each output :data:`FACTOR` times the largest change, relative to the largest value of the reference."""
    found = {}
    for name, a in reference.items():
        b = moved.get(name)
        if b is None or a.dtype.kind != "f" or a.shape != b.shape or not a.size:
            continue
        wide, change = a.astype(np.float64), np.abs(b.astype(np.float64) - a.astype(np.float64))
        scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0)) or 1.0
        found[name] = FACTOR * float(change[np.isfinite(change)].max(initial=0.0)) / scale
    return found


def flips(reference: Mapping[str, Array], moved: Mapping[str, Array]) -> dict[str, float]:
    """For each integer or boolean output :data:`FACTOR` times the share of elements that change; how far is no measure.

    >>> flips({"label": np.array([1, 2, 3, 4])}, {"label": np.array([1, 2, 9, 4])})
    {'label': 0.5}
    """
    return {
        name: FACTOR * float(np.mean(a != moved[name]))
        for name, a in reference.items()
        if name in moved and a.dtype.kind in "iub" and a.shape == moved[name].shape and a.size
    }
