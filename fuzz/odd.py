"""ONNX's own node tests with one odd attribute, or with an axis of nothing: the kind "odd".

Mutants change what is there; an attribute that a test leaves out stays out, and few axes become empty. Here every
attribute of the schema gets numbers that nobody writes, and every axis has a turn: of its input alone, or of all inputs
that have this size.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz.cases import SMALL, node_tests

REALS = (0.0, -0.0, math.inf, -math.inf, math.nan, -1.5, 1e38)
INTEGERS = (0, -1, 1, 2, 5, -3, 127, 1 << 31, (1 << 63) - 1, -(1 << 63))
LISTED = (0, -1, 3, 100, 1 << 40)
EMPTIED = 0.3
"""The share of models that have an axis of nothing."""


def odd(index: int) -> onnx.ModelProto:
    """The model number `index`."""
    tests = node_tests()
    for attempt in range(100):
        rng = np.random.default_rng([index, attempt, 29])
        model = onnx.ModelProto()
        model.CopyFrom(tests[int(rng.integers(len(tests)))].model)
        if len(model.graph.node) != 1 or model.ByteSize() >= SMALL:
            continue
        changed = _emptied(model, rng) if rng.random() < EMPTIED else _spoilt(model, rng)
        if changed:
            for value in model.graph.output:
                value.type.tensor_type.ClearField("shape")
            return model
    raise RuntimeError(f"no test to change for {index}")


def _spoilt(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Whether an attribute of the only node was set to something odd."""
    (node,) = model.graph.node
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    with suppress(onnx.defs.SchemaError):
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        choices = [(n, v) for n, a in sorted(schema.attributes.items()) for v in _values(a, given.get(n))]
        if choices:
            name, made = choices[int(rng.integers(len(choices)))]
            left = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*left, helper.make_attribute(name, made)])
            return True
    return False


def _values(attribute: Any, given: Any) -> list[Any]:
    """What an attribute is set to, by its type."""
    kinds = onnx.defs.OpSchema.AttrType
    if attribute.type == kinds.FLOAT:
        return list(REALS)
    if attribute.type == kinds.INT:
        return list(INTEGERS)
    if attribute.type != kinds.INTS or not given:
        return []
    one = [[v if i == at else n for i, n in enumerate(given)] for at in range(len(given)) for v in LISTED]
    return [*one, [*given, 1], *([list(given[:-1])] if len(given) > 1 else [])]


def _emptied(model: onnx.ModelProto, rng: np.random.Generator) -> bool:
    """Whether an axis, or all axes of its size, have no elements now."""
    dims = [d for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_value]
    if not dims:
        return False
    chosen = dims[int(rng.integers(len(dims)))]
    size, everywhere = chosen.dim_value, rng.random() < 0.5
    for dim in dims if everywhere and size > 1 else [chosen]:
        if dim.dim_value == size:
            dim.dim_value = 0
    return True
