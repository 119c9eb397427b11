"""ONNX's own node tests with one absurd constant, their sizes open or not: the kind "absurd".

Mutants seldom meet the operators whose constants say sizes, axes and scales, and more seldom beside an open size, where
the importer computes with them in integers of any length, and TVM in 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from fuzz.build import F32
from fuzz.cases import cases, in_type
from fuzz.inputs import NUMBERS as OPEN
from fuzz.inputs import inputs_of
from fuzz.mutate import NUMBERS, SIZES

Random = np.random.Generator


def absurd(index: int) -> onnx.ModelProto:
    """The model number `index`."""
    tests = cases()
    for attempt in range(100):
        rng = np.random.default_rng([index, attempt, 31])
        model = in_type(tests[int(rng.integers(len(tests)))], F32, "mixed" if rng.random() < 0.7 else "outside")
        places = [*_attributes(model), *_weights(model)]
        if not places:
            continue
        places[int(rng.integers(len(places)))](rng)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        if rng.random() < 0.5:
            _open(model, rng)
        return model
    raise RuntimeError(f"no test to change for {index}")


def _pick(rng: Random, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _attributes(model: onnx.ModelProto) -> list[Callable[[Random], None]]:
    """What changes one number of an attribute, for each of them."""
    found: list[Callable[[Random], None]] = []
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.INT:
                found.append(lambda rng, a=attribute: setattr(a, "i", _pick(rng, SIZES)))
            elif attribute.type == AttributeProto.FLOAT:
                found.append(lambda rng, a=attribute: setattr(a, "f", _pick(rng, NUMBERS)))
            for at in range(len(attribute.ints)):
                found.append(lambda rng, a=attribute, at=at: a.ints.__setitem__(at, _pick(rng, SIZES)))
    return found


def _weights(model: onnx.ModelProto) -> list[Callable[[Random], None]]:
    """What changes one number of a small constant, for each of its ends."""
    found: list[Callable[[Random], None]] = []
    for tensor in model.graph.initializer:
        array = np.array(numpy_helper.to_array(tensor))
        if array.dtype.kind not in "iuf" or not 0 < array.size <= 16:
            continue

        def change(rng: Random, tensor: Any = tensor, array: Any = array) -> None:
            flat = array.reshape(-1)
            value = _pick(rng, NUMBERS if array.dtype.kind == "f" else SIZES)
            if array.dtype.kind in "iu":
                info = np.iinfo(array.dtype)
                value = max(info.min, min(info.max, value))
            with np.errstate(all="ignore"):
                flat[int(rng.integers(flat.size))] = value
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

        found += [change, change]
    return found


def _open(model: onnx.ModelProto, rng: Random) -> None:
    """All axes of one size are open."""
    dims = [d for v in inputs_of(model) for d in v.type.tensor_type.shape.dim if d.dim_value > 1]
    if not dims:
        return
    size = _pick(rng, dims).dim_value
    for dim in dims:
        if dim.dim_value == size:
            dim.dim_param = "n"
    model.metadata_props.add(key=OPEN, value=json.dumps({"n": size}))
