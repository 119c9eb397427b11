"""What stands in front of a model of ai.onnx.ml: scaling, norms, thresholds, missing values, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, like, shape_of, size
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import index


def binarizer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Binarizer: 1 above the threshold, else 0."""
    x = inputs[0]
    return Build(bb, ctx.name).cast(bb.emit(relax.op.greater(x, like(attrs.get("threshold", 0.0), x))), dtype_of(x))


def array_feature_extractor(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ArrayFeatureExtractor: these columns of the last axis; a vector counts as one row."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    if len(shape_of(x)) == 1:
        x = b.reshape(x, (1, *shape_of(x)))
    last = len(shape_of(x)) - 1
    chosen = index(b, ctx, 1, [shape_of(x)[last]], b.reshape(inputs[1], (size(shape_of(inputs[1])),)), wrap=False)
    return b.take(x, chosen, last)


def scaler(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Scaler: ``(x - offset) * scale``, one of each a feature or for all; the result is float32."""
    b = Build(bb, ctx.name)
    x = b.cast(inputs[0], "float32")
    offset, scale = (
        np.asarray(attrs.get(key, (default,)), "float32") for key, default in (("offset", 0), ("scale", 1))
    )
    return b.mul(b.sub(x, relax.const(offset, "float32")), relax.const(scale, "float32"))


def normalizer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Normalizer: each row over its largest magnitude, its sum of magnitudes, or its length; a row of zeros stays."""
    b, norm = Build(bb, ctx.name), attrs.get("norm", "MAX")
    x = b.cast(inputs[0], "float32")
    axis = len(shape_of(x)) - 1
    magnitudes = b.emit(relax.op.abs(x))
    if norm == "L2":
        total = b.emit(relax.op.sqrt(b.sum(b.mul(x, x), axis, keepdims=True)))
    elif norm in ("L1", "MAX"):
        total = b.sum(magnitudes, axis, keepdims=True) if norm == "L1" else b.max(magnitudes, axis, keepdims=True)
    else:
        raise ctx.unsupported(f"there is no norm {norm!r}", "MAX, L1 or L2")
    return b.div(x, b.where(b.equal(total, 0.0), 1.0, total))


def imputer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Imputer: a value, or NaN, replaced by one number for all columns or one of each."""
    b, x = Build(bb, ctx.name), inputs[0]
    integers = "imputed_value_int64s" in attrs
    kind = "int64s" if integers else "floats"
    values = np.asarray(attrs.get(f"imputed_value_{kind}", ()))
    gone = attrs.get(f"replaced_value_{kind[:-1]}", 0)
    if not values.size or dtype_of(x).startswith("int") != integers:
        raise ctx.unsupported("its values are not of the type of its input", "floats for floats, integers for integers")
    missing = b.emit(relax.op.isnan(x)) if gone != gone else b.equal(x, gone)
    return b.where(missing, const(values, dtype_of(x)), x)


def feature_vectorizer(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """FeatureVectorizer: columns of several inputs side by side, as float32, each cut or filled up to its number."""
    b, parts = Build(bb, ctx.name), []
    dimensions = attrs.get("inputdimensions", ())
    if len(dimensions) != len(list(inputs)) or any(columns < 0 for columns in dimensions):
        raise ctx.unsupported(f"its inputdimensions are {list(dimensions)}", "a number of columns for each input")
    for x, wanted in zip(inputs, dimensions, strict=True):
        given = b.cast(x, "float32")
        shape = shape_of(given)
        if len(shape) == 1:
            given, shape = b.reshape(given, (shape[0], 1)), (shape[0], 1)
        columns = shape[1]
        if not isinstance(columns, int):
            raise ctx.unsupported("the number of its columns is not known", "bind it with --shape")
        if columns > wanted:
            given = b.slice(given, 1, 0, wanted)
        parts.append(b.pad(given, [0, 0], [0, max(0, wanted - columns)]))
    return b.concat(parts, 1)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "ArrayFeatureExtractor"): array_feature_extractor,
    ("ai.onnx.ml", "Binarizer"): binarizer,
    ("ai.onnx.ml", "FeatureVectorizer"): feature_vectorizer,
    ("ai.onnx.ml", "Imputer"): imputer,
    ("ai.onnx.ml", "Normalizer"): normalizer,
    ("ai.onnx.ml", "Scaler"): scaler,
}
