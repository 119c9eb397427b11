"""How far a tensor may be from the oracle's, and how far it is: slice by slice - for the judge.

    slices     rows, channels and the whole: one bad row among good ones shows
    scale      the root mean square of a slice, without fills: the few huge, nearly equal values of a mask
    allowed    a few eps of that scale, or a multiple of the error that runs which only round have in the same slice
    rms        of a slice: errors of one sign add up, and rms errors hardly vary, so a few per cent in one kernel show
    largest    of an element, beyond what the rms allows: a single wrong one shows

Integers, booleans and quantised values have no tolerance: an element may differ where a run that only rounds does, and
by no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison, largest
from tvmopt.analysis.oracle.evaluate import Oracle, reads
from tvmopt.analysis.oracle.rounding import PRODUCTS
from tvmopt.analysis.oracle.values import DIGITS, Unsupported
from tvmopt.importer.evaluate import RANDOM

LEAST = 64
"""Elements of a slice: the rms of fewer says little."""
FEW = 16
"""Elements of a slice of a 16-bit precision: a single element may be off by more than a wrong kernel makes it, and the
channels of one pixel together may not."""
PEAK = 8.0
"""How much larger than the rms a single error of a slice may be."""
LEAST_SINGLE, TIMES_SINGLE = 4.0, 6.0
"""What a single error of a 16-bit precision may be, in units of its rounding - of a slice's numbers, and of its own: at
least, and how many times the largest one of a run that only rounds."""
SQUARABLE = (1e-12, 1e15)
"""Between these lies the largest number of a tensor whose squares can be added up in float32."""
UNMOVED = "elements differ where rounding changes nothing"
BEYOND = 8.0
"""How many times what a run that only rounds differs a number may be from the largest one of its type."""
FILLS = 1e3
"""No number below this is a fill."""
FILL = 100.0
"""How much larger than all other values a fill is."""


@dataclass(frozen=True)
class Limits:
    """What is allowed without a question, relative to a slice's scale.

    Attributes:
        rms: error of a slice. cross: of any slice, relative to the scale of the whole tensor: what a Relu left of a
            channel is smaller than what was rounded, and Winograd's transforms carry a little to the neighbours.
        factor: how many times the error of a run that only rounds.
        element: of a single value, relative to itself.
    """

    rms: float
    cross: float
    factor: float
    element: float


LIMITS = {
    "fp64": Limits(3e-5 * DIGITS, 1e-5 * DIGITS, 16.0, 1e-5 * DIGITS),
    "fp32": Limits(3e-5, 1e-5, 16.0, 1e-5),
    "tf32": Limits(2.0**-11, 2.0**-11, 6.0, 2.0**-9),
    "fp16": Limits(2.0**-11, 2.0**-11, 6.0, 2.0**-9),
    "bf16": Limits(2.0**-7, 2.0**-7, 6.0, 2.0**-7),
}
SLOPE = {"fp32": 2e-3, "tf32": 4e-3, "fp16": 4e-3, "bf16": 1e-2}
"""How much of a product a kernel's error may be. Rounding has no direction: of thousands of elements it leaves next to
nothing along the product itself, so a few per cent too much show even where a large residual hides them."""
NEARLY = 64.0
"""How many times what is allowed a kernel's error may be for further runs that only round to be asked: what resembles
a tensor and is none has a larger one."""
DWARFED = 0.1
"""The share of a product that may be lost where it is added to something larger and the sum is stored."""


def limits_of(precision: str, dtype: np.dtype[Any]) -> Limits:
    """Of a precision, at least what the tensor's own type can hold. Float64 is float64 in every precision."""
    if dtype == np.float64:
        return LIMITS["fp64"]
    own = {"float16": "fp16", "bfloat16": "bf16"}.get(dtype.name, "fp32")
    named = LIMITS.get(precision, LIMITS["fp32"])
    return named if named.rms >= LIMITS[own].rms else LIMITS[own]


def is_coarse(precision: str, dtype: np.dtype[Any]) -> bool:
    """Whether a tensor is stored, or products are computed, in 16 bits.

    >>> is_coarse("fp32", np.dtype(np.float16)), is_coarse("fp32", np.dtype(np.float32))
    (True, False)
    """
    return limits_of(precision, dtype).rms > LIMITS["fp32"].rms


def partitions(shape: tuple[int, ...], least: int = LEAST) -> Iterator[tuple[int, ...]]:
    """Sets of axes to take a slice over: all; the last ones; all but the channels, in either layout; the channels of
    one pixel, which many kernels write as one row, or the last axis alone, where less than :data:`LEAST` are wanted.
    """
    every = tuple(range(len(shape)))
    yield every
    found = {every}
    size, last = 1, len(shape)
    while last > 0 and size < LEAST:
        last -= 1
        size *= shape[last]
    wide = [every[last:], *(tuple(a for a in every if a != kept) for kept in (1, len(shape) - 1))]
    single = [(axis,) for axis in every[1:2] + every[-1:] if least < LEAST]
    for axes, number in [*((axes, LEAST) for axes in wide), *((axes, least) for axes in single)]:
        if axes not in found and axes and int(np.prod([shape[a] for a in axes])) >= number:
            found.add(axes)
            yield axes


def counted(exact: Array, finite: Array) -> Array:
    """Which elements make the scale: all finite ones but fills."""
    sizes = np.abs(exact)
    keep = finite
    for _ in range(3):
        chosen = sizes[keep] if not keep.all() else sizes
        top = float(chosen.max(initial=0.0))
        if top < FILLS:
            break
        group = keep & (sizes >= top / 2)
        rest = keep & ~group
        if not rest.any() or float(sizes[rest].max()) * FILL > float(sizes[group].min()):
            break
        keep = rest
    return keep


def deviation(
    name: str, exact: Array, found: Array, limits: Limits, naturals: Sequence[Array] = (), peer: Array | None = None
) -> OutputComparison:
    """One tensor against the oracle's.

    Args:
        exact: the oracle's numbers. found: an engine's, of the same shape.
        naturals: of runs that only round, of the same shape.
        peer: onnxruntime's; its error is told beside ours.
    """
    if exact.dtype.kind not in "fc":
        return steps(name, exact, found, naturals)
    wide = np.result_type(exact.dtype, np.float32)
    a, b = squarable(exact.astype(wide, copy=False), found)
    problem = placement(a, b, naturals, float(ml_dtypes.finfo(found.dtype).max) if found.dtype.kind in "fV" else np.inf)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        error = np.abs(b - a)
    if not finite.all():
        error = np.where(finite, error, 0)
    if error.size == 0:
        return OutputComparison(name, problem)
    keep = counted(a, finite)
    errors = [_natural(a, n, finite) for n in naturals if n.shape == a.shape]
    ratio, worst, allowed = _worst(a, error, keep, errors, limits)
    kept = a if keep.all() else a[keep]
    low, high = float(kept.min(initial=np.inf)), float(kept.max(initial=-np.inf))
    scale = max(0.0, -low, high)
    share = float(error.max()) / (scale or 1.0)
    return OutputComparison(
        name,
        problem or ("" if ratio <= 1 else "differs"),
        max_error=float(error.max()),
        mean_error=float(error.mean()),
        p99_error=float(np.percentile(error, 99)) if ratio > 1 or error.size < 1 << 14 else 0.0,
        scale=scale,
        tolerance=share / ratio if ratio > 0 else allowed / (scale or 1.0),
        needed=share,
        worst=tuple(map(int, worst)),
        expected=float(a[worst]),
        found=float(b[worst]),
        spread=max(high - low, 0.0),
        peer_error=float(_natural(a, peer, finite).max()) if peer is not None and peer.shape == a.shape else -1.0,
        excess=ratio,
        numbers=bool(finite.any() or np.isfinite(a).any()),
    )


def agreement(name: str, exact: Array, found: Array, limits: Limits) -> OutputComparison | None:
    """The comparison of a tensor no element of which differs by more than a slice of any scale is allowed, in a fifth
    of the time; None where more has to be looked at. Its tolerance is that least one.

    >>> exact = np.ones((2, 40), np.float32)
    >>> near, far = (agreement("y", exact, exact * (1 + e), LIMITS["fp32"]) for e in (1e-6, 1e-4))
    >>> near.ok, far
    (True, None)
    """
    plain = exact.dtype in (np.float32, np.float64) and found.dtype == exact.dtype and exact.shape == found.shape
    if not plain or exact.size == 0 or limits.rms > LIMITS["fp32"].rms:
        return None
    low, high = float(exact.min()), float(exact.max())
    scale = max(-low, high)
    if not SQUARABLE[0] < scale < FILLS:  # also where it is NaN
        return None
    with np.errstate(all="ignore"):
        error = np.asarray(found - exact)  # of single numbers NumPy makes no array
        least, most = float(error.min()), float(error.max())
        largest_error = max(-least, most)
        flat = exact.reshape(-1)
        allowed = limits.cross * float(np.sqrt(np.dot(flat, flat) / exact.size))
        if not (np.isfinite(least) and largest_error < allowed):
            return None
    worst = np.unravel_index(int(error.argmax() if most == largest_error else error.argmin()), error.shape)
    return OutputComparison(
        name,
        max_error=largest_error,
        mean_error=float(np.abs(error, out=error).mean()),
        scale=scale,
        tolerance=allowed / scale,
        needed=largest_error / scale,
        worst=tuple(map(int, worst)),
        expected=float(exact[worst]),
        found=float(found[worst]),
        spread=high - low,
        excess=largest_error / allowed,
    )


def nearly(one: OutputComparison) -> bool:
    """Whether a kernel's difference is so small that further runs which only round may explain it."""
    return one.problem == "differs" and one.excess <= NEARLY


def squarable(a: Array, b: Array) -> tuple[Array, Array]:
    """Both in the type of the first or, where the squares of its numbers leave float32, in float64."""
    top = largest(a) if a.dtype == np.float32 else 1.0
    if top and not SQUARABLE[0] < top < SQUARABLE[1]:
        a = a.astype(np.float64)
    return a, b.astype(a.dtype, copy=False)


def _natural(a: Array, other: Array, finite: Array) -> Array:
    with np.errstate(all="ignore"):
        error = np.abs(other.astype(a.dtype) - a)
    return np.where(finite & np.isfinite(error), error, 0)


def _worst(
    a: Array, error: Array, keep: Array, naturals: Sequence[Array], limits: Limits
) -> tuple[float, tuple[Any, ...], float]:
    """(error over what is allowed, at most; where; what is allowed there)."""
    whole = bool(keep.all())
    power, errors, *others = (np.square(x if whole else np.where(keep, x, 0)) for x in (a, error, *naturals))
    overall = float(np.sqrt(power.sum() / max(1, a.size if whole else int(keep.sum()))))
    levels = _levels(a, naturals)
    best, where, limit = 0.0, np.unravel_index(int(error.argmax()), error.shape), 0.0
    few = limits.rms > LIMITS["fp32"].rms
    for axes in partitions(a.shape, FEW if few else LEAST):
        number = float(np.prod([a.shape[x] for x in axes]))
        count = number if whole else np.maximum(keep.sum(axes, keepdims=True), 1)
        scale = np.sqrt(power.sum(axes, keepdims=True) / count)
        allowed = limits.rms * scale + limits.cross * overall + np.finfo(np.float32).tiny
        for other, level in zip(others, levels, strict=True):
            if level:
                through = ((other > 0) | (errors > 0)).mean(axes, keepdims=True)
                allowed = np.maximum(allowed, limits.factor * level * np.sqrt(through))
            own = np.sqrt(other.sum(axes, keepdims=True) / count)
            usual = float(np.sqrt(np.mean(np.square(own)))) / (float(np.sqrt(np.mean(np.square(scale)))) or 1.0)
            allowed = np.maximum(allowed, limits.factor * np.maximum(own, usual * scale))
            if few and len(axes) == 1:  # too few elements to tell by one run what rounding makes of them
                allowed = np.maximum(allowed, limits.factor * float(np.sqrt(other.mean())))
        ratios = np.sqrt(errors.sum(axes, keepdims=True) / count) / allowed
        at = np.unravel_index(int(ratios.argmax()), ratios.shape)
        if float(ratios[at]) > best:
            best, limit = float(ratios[at]), float(allowed[at])
            inside = tuple(slice(None) if x in axes and ratios.shape[x] == 1 else at[x] for x in range(a.ndim))
            where = _largest(error, inside)
        peak, times = PEAK * allowed, 1.0
        if few:
            unit = (limits.rms * scale + limits.cross * overall) / 2 + np.finfo(np.float32).tiny
            own_units = [float((n / (unit + limits.element * np.abs(a))).max()) for n in naturals]
            times = max(LEAST_SINGLE, TIMES_SINGLE * max(own_units, default=0.0))
            peak = np.minimum(peak, times * unit)
        if float((error.max(axes, keepdims=True) / peak).max()) > best:  # else no single element can be the worst
            found = _single(a, error, peak, naturals, levels, replace(limits, element=times * limits.element), best)
            best, where, limit = found or (best, where, limit)
    return best, where, limit


def _single(
    a: Array, error: Array, peak: Array, naturals: Sequence[Array], levels: Sequence[float], limits: Limits, best: float
) -> tuple[float, tuple[Any, ...], float] | None:
    """The element whose error is more than `best` times what is allowed, by most: (how many times, where, what is
    allowed there).

    Args:
        peak: what is allowed by the scale alone, which broadcasts; the few elements beyond it are looked at.
        levels: of :func:`_levels`.
    """
    beyond = error > best * peak
    each = np.broadcast_to(peak, a.shape)[beyond] + limits.element * np.abs(a[beyond])
    for natural, level in zip(naturals, levels, strict=True):
        each = np.maximum(each, limits.factor * np.maximum(natural[beyond], level))
    ratios = error[beyond] / each
    if not ratios.size or float(ratios.max()) <= best:
        return None
    found = int(ratios.argmax())
    at = np.unravel_index(int(np.flatnonzero(beyond)[found]), a.shape)
    return float(ratios[found]), at, float(each[found])


def _levels(a: Array, naturals: Sequence[Array]) -> list[float]:
    """Of runs that round the rms error of the numbers that a Relu lets through; 0 for what no Relu computes.

    Sums are rounded by as much where it leaves nothing of most of them: there the scale is no measure.
    """
    if float(a.min()) != 0:
        return [0.0] * len(naturals)
    return [float(np.sqrt(np.square(n).sum(dtype=np.float64) / max(1, np.count_nonzero(n)))) for n in naturals]


def _largest(error: Array, inside: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index of the largest error of a slice."""
    kept = tuple(i if isinstance(i, slice) else slice(int(i), int(i) + 1) for i in inside)
    part = error[kept]
    at = np.unravel_index(int(part.argmax()), part.shape)
    return tuple(int(p) + (k.start or 0) for p, k in zip(at, kept, strict=True))


def slope(exact: Array, found: Array, product: Array, epsilon: float = 0.0) -> float:
    """The share of `product` that the error of `found` is, by least squares over the elements that are not zero.

    Args:
        epsilon: rounding of the type that `found` is stored in. A sum that dwarfs its product rounds it away, and that
            error has the product's direction: such elements say nothing.

    >>> p = np.random.default_rng(0).standard_normal((64, 64))
    >>> round(slope(p + 9, 1.03 * p + 9, p), 6)
    0.03
    """
    if product.size != exact.size or product.size < 256:
        return 0.0
    p, flat = squarable(product.reshape(-1), exact.reshape(-1))
    with np.errstate(all="ignore"):
        error = found.reshape(-1).astype(p.dtype, copy=False) - flat
        keep = (flat != 0) & np.isfinite(error) & np.isfinite(p)
        if epsilon:
            keep &= epsilon * np.abs(flat) < DWARFED * np.abs(p)
        if not keep.all():
            plain = bool(np.isfinite(p).all() and np.isfinite(error).all())  # then 0 times them is 0, and faster
            p, error = (x * keep if plain else np.where(keep, x, 0) for x in (p, error))
        power = float(np.dot(p, p))
        return float(np.dot(error, p)) / power if np.isfinite(power) and power > 0 else 0.0


def small(error: float, exact: Array, product: Array, limit: float) -> bool:
    """Whether no error of at most this size can have a :func:`slope` of `limit`, in a quarter of the time.

    By the Cauchy-Schwarz inequality a slope is at most the norm of the error over that of the product, both over the
    elements that are not zero.

    >>> p = np.random.default_rng(0).standard_normal((64, 64))
    >>> small(1e-3, p + 9, p, 2e-3), small(1e-2, p + 9, p, 2e-3)
    (True, False)
    """
    if product.size != exact.size:
        return True
    with np.errstate(all="ignore"):
        part = product.reshape(-1) * (exact.reshape(-1) != 0)
        norm = float(np.sqrt(np.dot(part, part)))
    return bool(np.isfinite(norm)) and error * float(np.sqrt(part.size)) < limit * norm


def spread(exact: Array, found: Array) -> Array:
    """`found` without NaN where the oracle has none: for what is behind a NaN among the weights. A kernel that computes
    whole tiles, or multiplies by a zero what another leaves out, spreads a NaN; it must not lose one."""
    if exact.dtype.kind not in "fc" or found.shape != exact.shape or not np.isnan(found).any():
        return found
    return np.where(np.isnan(found) & ~np.isnan(exact), exact, found).astype(found.dtype)


def spreading(model: Any, hurt: Collection[str] = ()) -> frozenset[str]:
    """Tensors in which a NaN may stand that the oracle does not have: behind a product that reads a weight which has
    one, or an infinity, which times zero is one. What nodes make of weights alone is a weight; the infinities of masks
    are no operands.

    Args:
        hurt: results of products which in this run read what is no number.
    """
    products = {name for n in model.graph.node if n.op_type in PRODUCTS for name in n.input}
    bad = {
        name for name, array in _weights(model) if np.isnan(array).any() or (name in products and np.isinf(array).any())
    }
    found = set(hurt)
    if not bad and not found:
        return frozenset()
    for node in model.graph.node:
        read = {*reads(node)}
        if read & found or (node.op_type in PRODUCTS and read & bad):
            found.update(node.output)
        if read & bad:
            bad.update(node.output)
    return frozenset(found)


def _weights(model: Any) -> Iterator[tuple[str, Array]]:
    """The real constants of a model, and what follows from constants alone."""
    from onnx import TensorProto

    from tvmopt.importer.external import array_of

    real = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
    for tensor in model.graph.initializer:
        if tensor.data_type in real:
            yield tensor.name, array_of(tensor)
    fixed = {t.name for t in model.graph.initializer}
    made: list[str] = []
    for node in model.graph.node:
        if node.op_type not in RANDOM and fixed.issuperset(reads(node)):
            made += [n for n in node.output if n]
            fixed.update(made)
    with suppress(Unsupported):
        for name, array in Oracle(model).run({}, made, known={}).items():
            if isinstance(array, np.ndarray) and array.dtype.kind == "f":
                yield name, array


def placement(a: Array, b: Array, naturals: Sequence[Array] = (), top: float = np.inf) -> str:
    """How NaN and Inf differ in place, in words.

    Where a run that only rounds has what `b` has, it is no difference. Nor is it where neither `a` nor `b` is a number
    and such a run has another one of the three than `a`: a sum left its type, and the order of its terms decides what
    it becomes. A number may be infinite where several times what such runs differ leads beyond the largest one.

    Args:
        top: the largest number of the type that `b` is stored in.
    """
    if np.isfinite(a).all() and np.isfinite(b).all():
        return ""
    expected, found = _class(a), _class(b)
    wrong = expected != found
    for natural in naturals:
        if natural.shape == a.shape:
            other = _class(natural)
            undecided = (other != expected) & (expected > 0) & (found > 0) & (other > 0)
            wrong &= (other != found) & ~undecided
            with np.errstate(all="ignore"):
                far = np.abs(a) + BEYOND * np.abs(natural.astype(a.dtype) - a)
                wrong &= ~((far > top) & np.isinf(b) & (np.sign(a) == np.sign(b)))
    for number, what in enumerate(("NaN", "+Inf", "-Inf"), 1):
        here = wrong & ((expected == number) | (found == number))
        if here.any():
            at = [int(i) for i in np.argwhere(here)[0]]
            return f"{int(here.sum())} elements differ in {what}, the first at {at}"
    return ""


def misplaced(one: OutputComparison) -> bool:
    """Whether a NaN or an infinity is where it ought not to be, or the other way round."""
    return " elements differ in " in one.problem


def jumped(one: OutputComparison) -> bool:
    """Whether integers differ, which have no tolerance."""
    return one.problem.endswith(UNMOVED)


def ranged(exact: Array, unlimited: Array, found: Array) -> Array:
    """The oracle's numbers for a comparison with `found`, where they follow from the range of a type.

    Which results are kept in a wider register is the engine's affair: a number must be the one that stands there
    without limits, or the one that does with them (1 divided by a square that overflows is 0, or as small as it is);
    what is none may be any of the three.

    Args:
        unlimited: as if intermediate results had no largest number.

    >>> ranged(np.array([np.nan, np.nan, np.inf]), np.array([7.0, 7.0, np.inf]), np.array([7.0, np.inf, np.nan]))
    array([ 7., inf, inf])
    >>> ranged(np.array([0.0, 0.0, 2.0]), np.array([1e-9, 1e-9, 2.0]), np.array([1e-9, 0.0, 9.0]))
    array([1.e-09, 0.e+00, 2.e+00])
    """
    if exact.dtype.kind != "f" or unlimited.shape != exact.shape or np.array_equal(exact, unlimited, equal_nan=True):
        return exact
    loose = ~np.isfinite(exact) & (_class(exact) != _class(unlimited))
    number = np.isfinite(found)
    both = number & np.isfinite(exact) & np.isfinite(unlimited)
    with np.errstate(invalid="ignore", over="ignore"):
        nearer = both & (np.abs(found.astype(exact.dtype) - unlimited) < np.abs(found.astype(exact.dtype) - exact))
    chosen = np.where((loose & number) | nearer, unlimited, np.where(loose & ~number, found, exact))
    return chosen.astype(exact.dtype)


def decided(exact: Array, undecided: Array, found: Array) -> Array:
    """The oracle's numbers for a comparison with `found`; where the order of a sum decides, the latter.

    Args:
        undecided: NaN where it does, or where there is no number (:mod:`tvmopt.analysis.oracle.overflow`).
    """
    if exact.dtype.kind != "f" or undecided.shape != exact.shape:
        return exact
    return np.where(np.isnan(undecided) & ~np.isnan(exact), found, exact).astype(exact.dtype)


def _class(x: Array) -> Array:
    """0 for a number, 1 for NaN, 2 and 3 for the infinities."""
    return np.where(np.isfinite(x), 0, np.where(np.isnan(x), 1, np.where(x > 0, 2, 3))).astype(np.int8)


def steps(
    name: str, exact: Array, found: Array, naturals: Sequence[Array], free: Array | None = None
) -> OutputComparison:
    """Integers, booleans, quantised values, strings: exact but for what rounding moves.

    Args:
        free: how many steps of difference are no error.
    """
    wrong = np.asarray(exact != found)
    if exact.dtype.kind in "OUS":
        return OutputComparison(name, "strings differ" if wrong.any() else "")
    a, b = exact.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):  # float8 has NaN and infinities; they are right where both have them
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(b - a))
    error = np.where(np.isnan(error), np.inf, error)
    allowed = np.zeros(a.shape) if free is None else free.astype(np.float64)
    for natural in naturals:
        if natural.shape == a.shape:
            allowed = np.fmax(allowed, np.abs(natural.astype(np.float64) - a))
    beyond = error > allowed
    if exact.dtype.kind in "iu":
        beyond |= wrong & (allowed == 0)  # beyond 2^53 float64 does not tell neighbours apart
    scale = float(np.abs(a).max(initial=0.0, where=np.isfinite(a)))
    worst = np.unravel_index(int((error - allowed).argmax()), a.shape) if a.size else ()
    return OutputComparison(
        name,
        f"{int(beyond.sum())} of {a.size} {UNMOVED}" if beyond.any() else "",
        max_error=float(error.max(initial=0.0)),
        mean_error=float(error.mean()) if a.size else 0.0,
        p99_error=float(np.percentile(error, 99)) if a.size else 0.0,
        scale=scale,
        tolerance=0.0,
        needed=float(error.max(initial=0.0)) / (scale or 1.0),
        worst=tuple(map(int, worst)),
        expected=float(a[worst]) if a.size else 0.0,
        found=float(b[worst]) if a.size else 0.0,
        spread=float(np.ptp(a)) if a.size and np.isfinite(a).all() else 0.0,
        excess=float("inf") if beyond.any() else 0.0,
    )
