"""Element-wise operators that TVM imports in a form its layout and fusion passes cannot use."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def _chain(binary: Callable[[Any, Any], Any]) -> Converter:
    """Fold a variadic operator into binary ones (TVM stacks and reduces, which ConvertLayout refuses)."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        return reduce(lambda a, b: bb.normalize(binary(a, b)), list(inputs))

    return convert


def mean(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Mean of n tensors: their sum times 1/n."""
    total = reduce(lambda a, b: bb.normalize(relax.op.add(a, b)), list(inputs))
    dtype = str(inputs[0].ty.dtype)
    return relax.op.divide(total, relax.const(len(inputs), dtype)) if len(inputs) > 1 else total


def clip(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Clip as ``min(max(x, lo), hi)``; a bound that is not given, infinite or NaN does nothing."""
    x, dtype = inputs[0], str(inputs[0].ty.dtype)
    bounds = [inputs[1], inputs[2]]
    for i, key in enumerate(("min", "max")):
        if ctx.opset < 11 and key in attrs:
            bounds[i] = relax.const(attrs[key], dtype)
    steps = ((relax.op.maximum, -np.inf), (relax.op.minimum, np.inf))
    for bound, (op, neutral) in zip(bounds, steps, strict=True):
        value = ctx.array(bound)
        if bound is None or (value is not None and dtype.startswith("float") and value == neutral):
            continue
        if value is not None and np.isnan(value.astype("float64")).any():
            continue
        x = bb.normalize(op(x, relax.op.reshape(bound, ()) if len(bound.ty.shape) else bound))
    return x


def dropout(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Dropout at inference: the input, and a mask of ones."""
    if ctx.array(inputs[2]) is not None and bool(ctx.array(inputs[2])) and np.any(ctx.array(inputs[1]) != 0):
        raise ctx.unsupported("training_mode is set", "export the model in evaluation mode (model.eval())")
    if not ctx.wants(1):
        return inputs[0]
    dtype = "bool" if ctx.opset >= 10 else str(inputs[0].ty.dtype)
    shape = [int(d) for d in inputs[0].ty.shape]
    return inputs[0], relax.const(np.ones(shape), dtype)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Sum"): _chain(relax.op.add),
    ("", "Max"): _chain(relax.op.maximum),
    ("", "Min"): _chain(relax.op.minimum),
    ("", "Mean"): mean,
    ("", "Clip"): clip,
    ("", "Dropout"): dropout,
}
