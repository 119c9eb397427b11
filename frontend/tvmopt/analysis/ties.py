"""Index outputs (ArgMax, ArgMin, TopK, MaxPool; Hardmax, whose one is an index): where two engines choose differently,
is it a tie? - for who judges results.

An index has no rounding error; the scores that it was chosen from have. If each score may be off by t, an element is
rightly chosen where its score is within 2 t of the reference's choice: there are scores within the tolerance for which
it is the choice. For TopK element by element: the k-th largest of numbers that are off by t is off by at most t::

    |scores[found] - scores[expected]| <= 2 * tolerance * scale       tolerance, scale: those of the scores
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison

if TYPE_CHECKING:
    import onnx

_ORDER_STAYS = {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"}


@dataclass(frozen=True)
class Choice:
    """Where an index output comes from.

    Attributes:
        scores: the tensor chosen from; axis: along which.
        marked: the output is of the scores' shape, 1 at the chosen element and 0 elsewhere.
        window: of a MaxPool, whose indices are places in all of the scores: how far apart two elements of a window may
            be, by spatial axis.
    """

    scores: str
    axis: int = 0
    marked: bool = False
    window: tuple[int, ...] = ()


def choices(model: onnx.ModelProto) -> dict[str, Choice]:
    """Outputs that are indices of an ArgMax, ArgMin, TopK or MaxPool, with nothing behind it but casts and new shapes,
    or those of a Hardmax along one axis."""
    along = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0) >= 13
    makers = {name: node for node in model.graph.node for name in node.output if name}
    found = {}
    for output in model.graph.output:
        name, node = output.name, makers.get(output.name)
        while node is not None and node.op_type in _ORDER_STAYS:
            name, node = node.input[0], makers.get(node.input[0])
        if node is None or node.domain not in ("", "ai.onnx"):
            continue
        top = node.op_type == "TopK" and name == node.output[1]
        marked = along and node.op_type == "Hardmax" and name == output.name
        if top or marked or node.op_type in ("ArgMax", "ArgMin"):
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if top or marked else 0)
            found[output.name] = Choice(node.input[0], axis, marked)
        elif node.op_type == "MaxPool" and name in node.output[1:] and (window := _window(node)):
            found[output.name] = Choice(node.input[0], window=window)
    return found


def _window(pool: onnx.NodeProto) -> tuple[int, ...]:
    """How far apart two elements of its window may be; none where it counts places by columns."""
    ints = {a.name: list(a.ints) for a in pool.attribute}
    if any(a.name == "storage_order" and a.i for a in pool.attribute):
        return ()
    kernel = ints["kernel_shape"]
    return tuple((k - 1) * d for k, d in zip(kernel, ints.get("dilations") or [1] * len(kernel), strict=True))


def settle(
    one: OutputComparison, choice: Choice, expected: Array, found: Array, scores: Array | None, tolerance: float
) -> OutputComparison:
    """The comparison of an index output by the scores of what was chosen; `one` where that cannot be said.

    Args:
        one: of the indices, which differ.
        scores: the reference's; None: it does not give them.
        tolerance: of the scores, relative to their largest magnitude.

    Returns:
        A comparison whose errors, scale and worst element are of scores; its tolerance is twice the scores'.
    """
    if scores is None or not scores.size or scores.dtype.kind not in "fiu" or expected.shape != found.shape:
        return one
    wide = scores.astype(np.float64)
    axis = choice.axis % max(1, scores.ndim)
    right: Array | None = expected.reshape(-1)
    chosen: Array | None = found.reshape(-1)
    if not choice.window:
        read = _marked if choice.marked else _indices
        right, chosen = read(expected, scores, axis), read(found, scores, axis)
    elif _within(expected, found, scores.shape, choice.window):
        wide, axis = wide.reshape(-1), 0
    else:
        return one
    if right is None or chosen is None:
        return one
    best, ours = np.take_along_axis(wide, right, axis), np.take_along_axis(wide, chosen, axis)
    with np.errstate(invalid="ignore"):  # of infinite scores
        gap = np.where(right == chosen, 0.0, np.abs(ours - best))
    gap = np.where(np.isnan(gap), np.finfo(np.float64).max, gap)
    finite = wide[np.isfinite(wide)]
    scale = float(np.abs(finite).max(initial=0.0))
    worst = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    largest, allowed = float(gap[worst]), 2 * tolerance
    needed = largest / (scale or 1.0)
    return OutputComparison(
        one.name,
        "" if needed <= allowed else "chooses an element of another score",
        largest,
        float(gap.mean()),
        float(np.percentile(gap, 99)),
        scale,
        allowed,
        needed,
        worst,
        float(best[worst]),
        float(ours[worst]),
        float(np.ptp(finite)) if finite.size else 0.0,
    )


def _within(expected: Array, found: Array, shape: tuple[int, ...], window: tuple[int, ...]) -> bool:
    """Whether places in a tensor of a shape are in one window with the expected ones."""
    size = int(np.prod(shape))
    if not expected.size or min(expected.min(), found.min()) < 0 or max(expected.max(), found.max()) >= size:
        return False
    at, other = (np.array(np.unravel_index(a.reshape(-1), shape)) for a in (expected, found))
    reach = (*(0 for _ in shape[: len(shape) - len(window)]), *window)
    return bool((np.abs(at - other) <= np.array(reach)[:, None]).all())


def _marked(array: Array, scores: Array, axis: int) -> Array | None:
    """Where the only element other than 0 is a 1; None where a line has another number of them."""
    if array.shape != scores.shape or not ((array == 0) | (array == 1)).all():
        return None
    lines = (array == 1).sum(axis)
    return np.argmax(array == 1, axis, keepdims=True) if (lines == 1).all() else None


def _indices(array: Array, scores: Array, axis: int) -> Array | None:
    """An index output in the shape that `np.take_along_axis` wants; None if it is not one: out of range, or an element
    twice."""
    length = scores.shape[axis]
    number = array.size * length // scores.size
    shape = (*scores.shape[:axis], number, *scores.shape[axis + 1 :])
    if array.size != int(np.prod(shape)) or array.dtype.kind not in "iuf":
        return None
    indices = array.astype(np.int64).reshape(shape)
    ordered = np.sort(indices, axis)
    right = indices.min() >= 0 and indices.max() < length and not (np.diff(ordered, axis=axis) == 0).any()
    return indices if right else None
