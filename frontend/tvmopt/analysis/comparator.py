"""The one comparator for numbers: outputs against a reference - for verification, benchmarks and tuning.

In this order: names, shapes, dtypes, placement of NaN and Inf, then values. A failure tells max, mean and
99th percentile of the error, the worst element, and the tolerance that would pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_EPSILON = {  # distance from 1 to the next number: 2^-(bits of the fraction)
    "float64": 2.0**-52, "float32": 2.0**-23, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
_PRECISIONS = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
SAFETY = 4.0  # standard deviations of the rounding-error walk


def tolerance(dtype: str, reduction: int = 1, depth: int = 1) -> float:
    """Relative tolerance for results of `depth` reductions in sequence, each summing `reduction` terms.

    Rounding errors of a sum of n terms walk at random: their size grows with sqrt(n) * eps (Higham,
    Accuracy and Stability of Numerical Algorithms, section 2.8); errors of successive layers add likewise::

        tolerance = 4 * eps(dtype) * sqrt(reduction * depth)

    It is taken relative to the largest magnitude of the output tensor, because cancellation makes the
    relative error of a small element meaningless.

    >>> f"{tolerance('float32', 4608, 53):.1e}"
    '2.4e-04'
    >>> tolerance("int64")
    0.0
    """
    epsilon = _EPSILON.get(_PRECISIONS.get(dtype, dtype), 0.0)
    return SAFETY * epsilon * sqrt(max(1, reduction) * max(1, depth))


def allowance(dtype: str, precision: str | None, reduction: int, depth: int) -> float:
    """The relative tolerance of an output of this dtype, computed in this precision (None: as the dtype shows)."""
    coarse = tolerance(precision, _terms(precision, reduction), depth) if precision else 0.0
    return max(tolerance(dtype, reduction, depth), coarse)


def _terms(precision: str, reduction: int) -> int:
    """Terms whose rounding errors add up. 16-bit operands are rounded once and summed in fp32: an error of eps a term
    walks as the sum itself does, and stays eps relative to it. So only the layers count."""
    return 1 if precision in ("bf16", "fp16", "tf32") else reduction


@dataclass(frozen=True)
class OutputComparison:
    """One output tensor.

    Attributes:
        problem: empty when it agrees.
        max_error, mean_error, p99_error: of |actual - reference|, over elements finite in both.
        scale: the largest finite magnitude of the reference.
        tolerance: what was allowed: |error| <= tolerance * scale (+ `atol`). Where slices decide by their rms: the
            largest error, over `scale`, at which errors distributed as these are would just pass.
        needed: the tolerance that would pass.
        worst: index of the largest error; `expected` and `found` are the values there.
        spread: largest minus smallest value of the reference.
        peer_error: the largest error of onnxruntime against the same reference; -1 where it is not known.
        excess: the error over what is allowed, at the worst place.
        numbers: whether the reference has any; where it is NaN and infinities alone, only their places were compared.
    """

    name: str
    problem: str = ""
    max_error: float = 0.0
    mean_error: float = 0.0
    p99_error: float = 0.0
    scale: float = 0.0
    tolerance: float = 0.0
    needed: float = 0.0
    worst: tuple[int, ...] = ()
    expected: float = 0.0
    found: float = 0.0
    spread: float = 0.0
    peer_error: float = -1.0
    excess: float = 0.0
    numbers: bool = True

    @property
    def ok(self) -> bool:
        return not self.problem

    def __str__(self) -> str:
        figures = f"max error {self.max_error:.3g}, mean {self.mean_error:.3g}, p99 {self.p99_error:.3g}"
        if self.peer_error >= 0:
            figures += f"; onnxruntime's max error {self.peer_error:.3g}"
        figures += f" (largest value {self.scale:.3g}; tolerance {self.tolerance:.2g} of it)"
        if self.ok:
            return f"{self.name}: agrees, {figures}"
        if not self.needed:
            return f"{self.name}: {self.problem}"
        at = f"[{', '.join(map(str, self.worst))}]"
        return (
            f"{self.name}: {self.problem}; {figures}; "
            f"worst at {at}: {self.found:.7g}, expected {self.expected:.7g}; "
            f"a tolerance of {self.needed:.2g} would pass"
        )


@dataclass(frozen=True)
class Comparison:
    """All outputs of one run against the reference."""

    outputs: tuple[OutputComparison, ...]

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    @property
    def max_error(self) -> float:
        """The largest error over all outputs, relative to the scale of its output."""
        return max((o.max_error / (o.scale or 1.0) for o in self.outputs), default=0.0)

    @property
    def numberless(self) -> tuple[str, ...]:
        """The outputs in which the reference has no number."""
        return tuple(o.name for o in self.outputs if not o.numbers)

    @property
    def degenerate(self) -> bool:
        """Whether agreement proves little: all values of an output differ by less than the tolerance."""
        return bool(self.outputs) and all(o.spread <= 2 * o.tolerance * o.scale for o in self.outputs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    reference: Mapping[str, Array],
    actual: Mapping[str, Array],
    *,
    reduction: int = 1,
    depth: int = 1,
    precision: str | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    at_least: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare named outputs.

    Args:
        reference, actual: arrays by output name.
        reduction: terms of the longest sum (input channels * kernel area of a convolution, K of a product).
        depth: reductions in sequence.
        precision: the arithmetic used, when coarser than the dtype shows: "bf16", "fp16", "tf32".
        rtol: instead of the derived tolerance.
        atol: absolute slack, added.
        at_least: for outputs named here, no derived tolerance below this (`tvmopt.analysis.sensitivity`).
    """
    results = []
    for name in [*reference, *(n for n in actual if n not in reference)]:
        if name not in actual:
            results.append(OutputComparison(name, "missing from the result"))
        elif name not in reference:
            results.append(OutputComparison(name, "not an output of the reference"))
        else:
            expected, found = np.asarray(reference[name]), np.asarray(actual[name])
            allowed = rtol
            if allowed is None:
                derived = allowance(str(expected.dtype), precision, reduction, depth)
                allowed = max(derived, (at_least or {}).get(name, 0.0))
            results.append(_compare(name, expected, found, allowed, atol))
    return Comparison(tuple(results))


def _compare(name: str, expected: Array, found: Array, allowed: float, atol: float) -> OutputComparison:
    if expected.shape != found.shape:
        return OutputComparison(name, f"shape {found.shape}, expected {expected.shape}")
    if expected.dtype != found.dtype:
        return OutputComparison(name, f"dtype {found.dtype}, expected {expected.dtype}")
    if expected.dtype.kind in "OUS":
        same = bool(np.array_equal(expected, found))
        return OutputComparison(name, "" if same else "strings differ")
    if expected.dtype.kind in "iub" and expected.dtype.itemsize > 1 and np.array_equal(expected, found):
        wide = expected.astype(np.float64)
        return OutputComparison(name, scale=_scale(wide), spread=float(np.ptp(wide)) if wide.size else 0.0)
    a, b = _wide(expected), _wide(found)
    for what, test in (("NaN", np.isnan), ("+Inf", np.isposinf), ("-Inf", np.isneginf)):
        wrong = test(a.real) != test(b.real)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return OutputComparison(name, f"{int(wrong.sum())} elements differ in {what}, the first at {list(at)}")
    finite = np.isfinite(a)
    error = np.abs(np.where(finite, b - np.where(finite, a, 0), 0))
    if error.size == 0:
        return OutputComparison(name)
    scale = _scale(np.where(finite, a, 0))
    worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    largest = float(error[worst])
    if expected.dtype.kind in "iu" and expected.dtype.itemsize == 1:
        atol = max(atol, 1.0)  # an 8-bit quantized value may round to its neighbour
    needed = max(0.0, largest - atol) / (scale or 1.0)
    return OutputComparison(
        name,
        "" if needed <= allowed else "differs",
        largest,
        float(error.mean()),
        float(np.percentile(error, 99)),
        scale,
        allowed,
        needed,
        worst,
        float(a[worst].real),
        float(b[worst].real),
        float(np.ptp(np.where(finite, a.real, a.real[finite].mean() if finite.any() else 0))),
        numbers=bool(finite.any()),
    )


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _scale(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def largest(a: Array) -> float:
    """The largest size of the finite numbers of a tensor."""
    low, high = float(a.min(initial=0.0)), float(a.max(initial=0.0))
    if np.isfinite(low) and np.isfinite(high):  # so are all others: an infinity or a NaN would be one of them
        return max(-low, high)
    with np.errstate(all="ignore"):
        return float(np.abs(a).max(initial=0.0, where=np.isfinite(a)))
