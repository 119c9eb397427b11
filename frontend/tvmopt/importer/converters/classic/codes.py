"""Numbers for numbers in ai.onnx.ml: columns of ones and zeros, labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.classic.scores import class_labels
from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import refused

UNKNOWN = "pass known categories, or export with handle_unknown='ignore': a row of zeros"


def _matches(b: Build, x: Any, keys: Any) -> Any:
    """Which of the keys each element is: booleans [..., keys]."""
    return b.equal(b.reshape(x, (*shape_of(x), 1)), const(np.asarray(keys), dtype_of(x)))


def one_hot(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """OneHotEncoder: a 1 in the column of its category; of an unknown one a row of zeros, or an error of the run."""
    b = Build(bb, ctx.name)
    known = class_labels(ctx, attrs, "cats_int64s")
    x = inputs[0] if dtype_of(inputs[0]).startswith("int") else b.cast(inputs[0], "int64")
    found = _matches(b, x, known)
    if len(set(known)) < len(known):  # the last column of a category that is there twice, as in onnxruntime
        found = b.both(found, const(np.array([c not in known[i + 1 :] for i, c in enumerate(known)]), "bool"))
    columns = b.cast(found, "float32")
    if attrs.get("zeros", 1):
        return columns
    axis = len(shape_of(x))
    unknown = b.equal(b.max(b.cast(found, "int32"), axis), 0)
    zeros = refused(b, ctx, 0, unknown, "a category is none of those that it was fitted with", UNKNOWN)
    return b.add(columns, b.cast(b.reshape(zeros, (*shape_of(x), 1)), "float32"))


def label_encoder(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LabelEncoder: the value of each key, of what is no key the default."""
    b = Build(bb, ctx.name)
    class_labels(ctx, attrs)
    given = {side: _table(attrs, side) for side in ("keys", "values")}
    keys, values = given["keys"], given["values"]
    if keys is None or values is None or len(keys) != len(values) or not len(keys):
        raise ctx.unsupported("its keys and values are not as many numbers", "integers or floats, a value a key")
    if dtype_of(inputs[0]) != str(keys.dtype):
        raise ctx.unsupported(f"its keys are {keys.dtype} and its input is {dtype_of(inputs[0])}", "the same type")
    kind, real = str(values.dtype), values.dtype.kind == "f"
    default = attrs.get("default_float", -0.0) if real else attrs.get("default_int64", -1)
    default = attrs.get("default_tensor", default)
    found = _matches(b, inputs[0], keys)
    if np.isnan(keys.astype(np.float64)).any():
        nan = b.both(
            b.emit(relax.op.isnan(b.reshape(inputs[0], (*shape_of(inputs[0]), 1)))), const(np.isnan(keys), "bool")
        )
        found = b.emit(relax.op.logical_or(found, nan))
    axis = len(shape_of(inputs[0]))
    places = b.cast(found, "int32")
    value = b.take(const(values, kind), b.emit(relax.op.argmax(places, axis)), 0)
    return b.where(
        b.greater(b.max(places, axis), 0),
        value,
        const(np.ravel(default)[0], kind),
    )


def _table(attrs: dict[str, Any], side: str) -> np.ndarray[Any, Any] | None:
    for key, dtype in ((f"{side}_int64s", "int64"), (f"{side}_floats", "float32")):
        if key in attrs:
            return np.asarray(attrs[key], dtype)
    found = attrs.get(f"{side}_tensor")
    return np.ravel(found) if found is not None and found.dtype.kind in "fi" else None


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("ai.onnx.ml", "LabelEncoder"): label_encoder,
    ("ai.onnx.ml", "OneHotEncoder"): one_hot,
}
