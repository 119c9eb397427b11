"""What classifiers of ai.onnx.ml make of the sums of each class: labels, and scores after `post_transform`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
STRINGS = ("classlabels_strings", "cats_strings", "keys_strings", "values_strings")
SMALL = 1e-7
"""SOFTMAX_ZERO leaves numbers nearer to 0 than this at 0."""


def class_labels(ctx: Context, attrs: dict[str, Any], *keys: str) -> list[int]:
    """The integers that classes are called by."""
    if any(attrs.get(key) for key in STRINGS):
        raise ctx.unsupported("its labels are strings", "train with numbers as labels, and keep the names beside")
    return [int(label) for key in keys for label in attrs.get(key, ())]


def transformed(b: Build, ctx: Context, scores: Any, name: str) -> Any:
    """Scores [n, classes] behind a `post_transform`."""
    if name not in TRANSFORMS:
        raise ctx.unsupported(f"post_transform is {name!r}", f"one of {', '.join(TRANSFORMS)}")
    if name == "LOGISTIC":
        return b.emit(relax.op.sigmoid(scores))
    if name == "SOFTMAX":
        return b.softmax(scores, 1)
    if name == "SOFTMAX_ZERO":
        largest = b.max(scores, 1, keepdims=True)
        near = b.less_equal(b.emit(relax.op.abs(scores)), SMALL)
        powers = b.emit(relax.op.exp(b.sub(scores, largest)))
        rest = b.mul(scores, b.emit(relax.op.exp(b.emit(relax.op.negative(largest)))))
        powers = b.where(near, rest, powers)
        total = b.sum(powers, 1, keepdims=True)
        return b.where(b.equal(total, 0.0), 0.5, b.div(powers, b.where(b.equal(total, 0.0), 1.0, total)))
    return scores


def label_of(b: Build, scores: Any, labels: list[int]) -> Any:
    """The label of the largest score of each row [n], int64."""
    place = b.emit(relax.op.argmax(scores, 1))
    if labels == list(range(len(labels))):
        return place
    return b.take(const(np.asarray(labels), "int64"), place, 0)


def both_classes(b: Build, score: Any, of_share: bool) -> Any:
    """Of two classes [n, 2], where only the second one's score [n, 1] is computed."""
    other = b.sub(const(1.0, "float32"), score) if of_share else b.emit(relax.op.negative(score))
    assert shape_of(score)[1] == 1
    return b.concat([other, score], 1)
