"""Linear models of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.classic.scores import both_classes, class_labels, label_of, transformed
from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def _sums(b: Build, ctx: Context, x: Any, attrs: dict[str, Any], count: int = 0) -> Any:
    """x @ coefficients^T + intercepts, of which there is one a row; onnxruntime reads no more coefficients.

    Args:
        count: of the rows, where the node says it.
    """
    x = b.cast(x, "float32")
    shape = shape_of(x)
    if len(shape) == 1:
        x = b.reshape(x, (1, shape[0]))
    features = shape[-1]
    coefficients = np.asarray(attrs["coefficients"], np.float32)
    intercepts = np.asarray(attrs.get("intercepts", ()), np.float32)
    wanted = count or intercepts.size
    if wanted and isinstance(features, int) and coefficients.size > wanted * features:
        coefficients = coefficients[: wanted * features]
    if not isinstance(features, int) or not features or coefficients.size % features:
        raise ctx.unsupported(f"{coefficients.size} coefficients do not fit {features} features", "check --shape")
    rows = coefficients.reshape(-1, features)
    if count and len(rows) != count:
        raise ctx.unsupported(f"it has {len(rows)} rows of coefficients and {count} targets", "one a target")
    sums = b.matmul(x, const(np.ascontiguousarray(rows.T), "float32"))
    if intercepts.size not in (0, len(rows)):
        raise ctx.unsupported(f"it has {len(rows)} rows of coefficients and {intercepts.size} intercepts", "one a row")
    return b.add(sums, const(intercepts, "float32")) if intercepts.size else sums


def classifier(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LinearClassifier: the label of the largest sum, and the scores; of two classes one row of coefficients may do."""
    b = Build(bb, ctx.name)
    labels, transform = class_labels(ctx, attrs, "classlabels_ints"), attrs.get("post_transform", "NONE")
    sums = _sums(b, ctx, inputs[0], attrs)
    if shape_of(sums)[1] == 1 and len(labels) == 2:
        sums = both_classes(b, sums, of_share=False)
    if shape_of(sums)[1] != len(labels):
        raise ctx.unsupported(f"it has {shape_of(sums)[1]} sums and {len(labels)} labels", "a label a class")
    return label_of(b, sums, labels), transformed(b, ctx, sums, transform)


def regressor(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LinearRegressor."""
    b = Build(bb, ctx.name)
    sums = _sums(b, ctx, inputs[0], attrs, int(attrs.get("targets", 1)))
    return transformed(b, ctx, sums, attrs.get("post_transform", "NONE"))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "LinearClassifier"): classifier,
    ("ai.onnx.ml", "LinearRegressor"): regressor,
}
