"""Inputs of a fuzzed model: normal numbers, and the values that kernels get wrong.

What an integer input may hold stands in its ``doc_string``: ``range LOW HIGH`` (integers in [LOW, HIGH)), ``unique
AXIS LOW HIGH`` (the same, none twice along the axis), ``positive``; LOW and HIGH may be an open size, ``<n>``. Floats
that are ``places`` in a picture are never so large that their type does not tell one pixel from the next. A model with
open sizes says in its metadata at which ones it was built (:data:`NUMBERS`). So a model file can be replayed by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]

KINDS = ("normal", "nan", "inf", "zeros", "huge", "offset", "edge")
NUMBERS = "fuzz.sizes"
"""The metadata of a model with open sizes: a number for each name."""
PLACES = "places"
"""The note of floats that say where in a picture something is read."""
OUTSIDE = "outside"
"""The kind of run in which indices leave their range."""


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no initializers."""
    constants = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in constants]


def feeds_of(model: onnx.ModelProto, kind: str, seed: int) -> Feeds:
    """Arrays for every input of a model with static shapes; the same seed gives the same ones.

    Raises:
        ValueError: an input is no tensor of a static shape and a known type, or too large.
    """
    rng = np.random.default_rng([seed, (*KINDS, OUTSIDE).index(kind)])
    values = inputs_of(model)
    feeds = {value.name: _array(value, kind, rng) for value in values}
    floats = [n for n, a in feeds.items() if np.issubdtype(_plain(a).dtype, np.floating) and a.size]
    if kind in ("nan", "inf") and floats:
        chosen = feeds[floats[int(rng.integers(len(floats)))]]
        special = np.nan if kind == "nan" else rng.choice([np.inf, -np.inf])
        chosen.reshape(-1)[int(rng.integers(chosen.size))] = special
    return feeds


def has_range(value: onnx.ValueInfoProto) -> bool:
    """Whether an input holds indices, which may leave their range."""
    return value.doc_string.partition(" ")[0] in ("range", "unique")


def numbers_of(model: onnx.ModelProto) -> dict[str, int]:
    """The open sizes of a model by the names that its inputs give them, at numbers that fit; none: a static model, or
    one whose metadata are damaged."""
    text = next((entry.value for entry in model.metadata_props if entry.key == NUMBERS), "{}")
    named = {d.dim_param for v in inputs_of(model) for d in v.type.tensor_type.shape.dim}
    try:
        return {name: int(number) for name, number in json.loads(text).items() if name in named}
    except (ValueError, TypeError, AttributeError):
        return {}


def bound(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy whose inputs have these sizes, for :func:`feeds_of`.

    Raises:
        ValueError: an input cannot have what its note asks for at these sizes.
    """
    from tvmopt.dims import parse, replaced

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    noted_as = {name.replace(" ", "_"): size for name, size in sizes.items()}
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                text = dim.dim_param
                dim.dim_value = sizes[text] if text in sizes else int(replaced(parse(text), sizes))  # type: ignore[arg-type]
        value.doc_string = re.sub(r"<([^>]*)>", lambda found: str(noted_as[found[1]]), value.doc_string)
        words = value.doc_string.split()
        if words[:1] == ["unique"]:
            count = value.type.tensor_type.shape.dim[int(words[1])].dim_value
            if count > int(words[3]) - int(words[2]):
                raise ValueError(f"{value.name} has more indices than there are")
    return copy


def kinds_for(model: onnx.ModelProto) -> tuple[str, ...]:
    """The kinds of inputs that differ for this model."""
    types = {v.type.tensor_type.elem_type for v in inputs_of(model)}
    real = types & {1, 10, 11, 16}
    plain = any(v.type.tensor_type.elem_type in _INTEGERS and not v.doc_string for v in inputs_of(model))
    kinds = KINDS if real else ("normal", "zeros")
    operators = {n.op_type for n in model.graph.node}
    undefined = {"edge"} if not plain or "Pow" in operators else set()  # a power beyond its type: what C++ makes of it
    if operators & UNORDERED or any(_to_integer(n) for n in model.graph.node):
        undefined |= {"nan"}
    if "DynamicQuantizeLinear" in operators:
        undefined |= {"nan", "inf"}
    return tuple(k for k in dict.fromkeys((*kinds, "edge")) if k not in undefined)


UNORDERED = {"TopK", "ArgMax", "ArgMin", "Hardmax", "QuantizeLinear", "MaxUnpool", "Unique", "NonMaxSuppression"}
"""Operators whose result for a NaN ONNX leaves open: where it is sorted, and which integer it becomes."""


def _to_integer(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i in _INTEGERS for a in node.attribute)


_INTEGERS = {2, 3, 4, 5, 6, 7, 12, 13}


def noted(note: str, shape: tuple[int, ...], rng: np.random.Generator, outside: bool = False) -> Array:
    """Integers as a note asks for them; with `outside` some of them beyond the range."""
    words = note.split()
    if words == ["positive"]:
        return rng.integers(1, 10, shape)
    if words == [PLACES]:
        return rng.standard_normal(shape)
    low, high = int(words[-2]), int(words[-1])
    if words[0] == "unique" and not outside:
        axis = int(words[1])
        count = high - low
        if shape[axis] > count:
            return rng.integers(low, high, shape)
        moved = (*shape[:axis], *shape[axis + 1 :])
        lines = rng.permuted(np.broadcast_to(np.arange(low, high), (*moved, count)), axis=-1)[..., : shape[axis]]
        return np.moveaxis(lines, -1, axis)
    array = rng.integers(low, high, shape)
    if outside and array.size:
        far = rng.choice([high, low - 1, high + 7, low - 9, high + 100, 1 << 20, -(1 << 20), (1 << 31) - 1], shape)
        array = np.where(rng.random(shape) < 0.3, far, array)
        array.reshape(-1)[int(rng.integers(array.size))] = rng.choice([high, high + 64, low - 64, 1 << 20])
    return array


def _array(value: onnx.ValueInfoProto, kind: str, rng: np.random.Generator) -> Array:
    tensor = value.type.tensor_type
    shape = tuple(int(d.dim_value) for d in tensor.shape.dim)
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") or d.dim_value < 0 for d in tensor.shape.dim):
        raise ValueError(f"the shape of {value.name} is open")
    if np.prod(shape, dtype=np.float64) > 1 << 24:
        raise ValueError(f"{value.name} is too large")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{value.name} has no known type") from error
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool) if kind != "zeros" else np.zeros(shape, bool)
    if dtype.kind in "iu":
        return _integers(value.doc_string, kind, rng, shape, dtype)
    if dtype.kind in "OUSc":
        raise ValueError(f"{value.name} is no plain tensor")
    array = rng.standard_normal(shape)
    if kind == "zeros":
        array = np.zeros(shape)
    elif kind == "huge":
        small = value.doc_string == PLACES or (dtype.itemsize < 4 and dtype.name == "float16")
        array *= 1e3 if small else 1e18
    elif kind == "offset":
        array += 1000.0
    if value.doc_string == "positive":
        array = np.abs(array) + 0.5
    return np.asarray(array).astype(dtype)


def _integers(note: str, kind: str, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if note and note != "positive":
        with np.errstate(all="ignore"):
            return np.asarray(noted(note, shape, rng, kind == OUTSIDE)).astype(dtype)
    info = np.iinfo(dtype)
    if note == "positive" and kind in ("zeros", "edge"):  # a divisor
        ends = [1] if kind == "zeros" else [1, 2, 3, info.max - 1, info.max]
        return np.array(ends, dtype)[rng.integers(0, len(ends), shape)]
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "edge":
        ends = [info.min, info.max, 0, 1, info.max - 1, max(info.min, -1)]
        return np.array(ends, dtype)[rng.integers(0, len(ends), shape)]
    return rng.integers(max(info.min, -9) if note != "positive" else 1, 10, shape).astype(dtype)


def _plain(array: Array) -> Array:
    """bfloat16 is no floating type to NumPy: as float32."""
    return array.astype(np.float32) if array.dtype.name in ("bfloat16",) else array


def save(path: Any, feeds: Mapping[str, Array]) -> None:
    """Write inputs as .npz; types that NumPy lacks as float32."""
    np.savez(path, **{f"input_{i}": _plain(a) for i, a in enumerate(feeds.values())})
