"""Sums whose terms leave the range of float32 though the result need not - for the judge.

A sum of numbers of 1e38 may be finite in double precision. An engine that adds the positive ones first has an infinity,
one that keeps several partial sums perhaps NaN, another one the number. A BatchNorm that is folded into the weights, or
the transforms of a Winograd convolution, have partial sums of other sizes. None of that is wrong.
"""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.values import Call, Value, is_real

SUMS = {
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "Sum", "Mean", "CumSum", "ReduceSum"),
    *("ReduceMean", "AveragePool", "GlobalAveragePool", "DeformConv"),
}
"""Operators whose results are sums of their inputs, or of products of them."""
PLACES = {"DeformConv": 2}
"""Of these an input says where the terms are read."""
LARGEST = 2.0**-10 * float(np.finfo(np.float32).max)
"""How large the terms may be together, without their signs: scales that are folded into weights, and the transforms of
a tile of pixels, make more of them. Types of 16 bits are added up in float32."""


class Undecided(Oracle):
    """The oracle, with NaN for what the order of a sum decides, and for all that follows from it."""

    def evaluate(self, call: Call, domain: str, values: list[Value | None]) -> list[Value | None]:
        """One node."""
        results = super().evaluate(call, domain, values)
        made = results[0]
        if call.op not in SUMS or made is None or not is_real(made.kind) or made.kind == np.float64:
            return results
        terms = [value if PLACES.get(call.op) == i else _sizes(value) for i, value in enumerate(values)]
        sizes = super().evaluate(call, domain, terms)[0]
        assert sizes is not None
        return [Value(np.where(np.abs(sizes.array) > LARGEST, np.nan, made.array), made.kind), *results[1:]]


def _sizes(value: Value | None) -> Value | None:
    """A tensor without its signs, and without what is no number: that decides a sum in any order."""
    if value is None or not isinstance(value.array, np.ndarray) or not is_real(value.kind):
        return value
    return Value(np.where(np.isfinite(value.array), np.abs(value.array), 0), value.kind)
