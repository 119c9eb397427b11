"""SelectBoxes of our own domain: a detector's boxes that no better one overlaps, the best first."""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result
from tvmopt.importer.boxes import ANY, SELECT


def selected(boxes: Array, scores: Array, most: Array, iou: Array, score: Array, *, any_class: bool) -> Array:
    """The numbers of the boxes that stay: see :mod:`tvmopt.operators.select_boxes`."""
    n, classes, _ = scores.shape
    if any_class:
        best = scores.argmax(1, keepdims=True) == np.arange(scores.shape[1])[:, None]
        scores = np.where(best, scores, -np.inf)
    found = np.full((n, int(np.ravel(most)[0])), -1, np.int64)
    low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    area = (high - low).prod(-1)
    for b in range(n):
        flat = scores[b].T.reshape(-1)
        left = np.flatnonzero(flat > np.ravel(score)[0])
        left = left[np.argsort(-flat[left], kind="stable")]
        for k in range(found.shape[1]):
            if not len(left):
                break
            found[b, k], rest = left[0], left[1:]
            rivals = np.arange(len(rest)) if any_class else np.flatnonzero(rest % classes == left[0] % classes)
            box, others = left[0] // classes, rest[rivals] // classes
            sides = np.minimum(high[b, box], high[b, others]) - np.maximum(low[b, box], low[b, others])
            both = sides.prod(-1)
            some = (sides > 0).all(-1) & (area[b, others] > 0) & (area[b, box] > 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                over = some & (both / (area[b, box] + area[b, others] - both) > np.ravel(iou)[0])
            left = np.delete(rest, rivals[over])
    return found


def _select(call: Call, *given: Array) -> Result:
    return selected(*given[:5], any_class=call.op == ANY)


TABLE: dict[str, Operator] = {SELECT: _select, ANY: _select}
