"""ai.onnx.ml: the preprocessing that classic pipelines put around a network."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, dtype_of, like, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


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
    index = b.reshape(inputs[1], (int(np.prod(shape_of(inputs[1]))),))
    return b.take(x, index, len(shape_of(x)) - 1)


def scaler(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Scaler: ``(x - offset) * scale``, one of each a feature or for all; the result is float32."""
    b = Build(bb, ctx.name)
    x = b.cast(inputs[0], "float32")
    offset, scale = (
        np.asarray(attrs.get(key, (default,)), "float32") for key, default in (("offset", 0), ("scale", 1))
    )
    return b.mul(b.sub(x, relax.const(offset, "float32")), relax.const(scale, "float32"))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "ArrayFeatureExtractor"): array_feature_extractor,
    ("ai.onnx.ml", "Binarizer"): binarizer,
    ("ai.onnx.ml", "Scaler"): scaler,
}
