"""ONNX operators of our own that resample pictures of bytes, each with its meaning as a function of ONNX's operators.

    tvmopt.ResampleRows(x, places, weights)                             see :mod:`tvmopt.operators.resample`
    tvmopt.ResampleColumns(x, places, weights, rows, channels)

A model with one of them carries the function, so every runtime evaluates it, onnxruntime among them; the importer takes
the node as it is where the function is exactly this one. Sums are exact in float64. The operators are those whose form
has not changed since opset 8, as models of any age get these functions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.importer.protos import normal_domain

DOMAIN, VERSION = "tvmopt", 1
ROWS, COLUMNS = "ResampleRows", "ResampleColumns"
BITS = 22
"""Fractional bits of a weight."""
INPUTS = {ROWS: ("x", "places", "weights"), COLUMNS: ("x", "places", "weights", "rows", "channels")}


def function(name: str, opset: int) -> onnx.FunctionProto:
    """The definition of an operator, for a model of this opset."""
    node = helper.make_node
    if name == COLUMNS:
        nodes = [
            node("Gather", ["x", "rows"], ["some"], axis=1),
            node("Gather", ["some", "channels"], ["picked"], axis=3),
            node("Gather", ["picked", "places"], ["near"], axis=2),
            node("Transpose", ["near"], ["turned"], perm=[0, 1, 2, 4, 3]),
        ]
        shape = [0, -1, 1]
    else:
        nodes = [
            node("Gather", ["x", "places"], ["near"], axis=1),
            node("Transpose", ["near"], ["turned"], perm=[0, 1, 3, 4, 2]),
        ]
        shape = [0, 1, -1, 1]
    double = TensorProto.DOUBLE
    nodes += [
        *_constant("column", shape, TensorProto.INT64),
        node("Reshape", ["weights", "column"], ["standing"]),
        node("Cast", ["standing"], ["factors"], to=double),
        node("Cast", ["turned"], ["bytes"], to=double),
        node("MatMul", ["bytes", "factors"], ["sums"]),
        *_constant("half", [1 << (BITS - 1)], double),
        node("Add", ["sums", "half"], ["lifted"]),
        *_constant("step", [2.0**-BITS], double),
        node("Mul", ["lifted", "step"], ["scaled"]),
        node("Floor", ["scaled"], ["whole"]),
        *_constant("least", [0], double),
        node("Max", ["whole", "least"], ["positive"]),
        *_constant("most", [255], double),
        node("Min", ["positive", "most"], ["clipped"]),
        node("Cast", ["clipped"], ["standing_y"], to=TensorProto.UINT8),
        *_constant("same", [0, 0, 0, 0], TensorProto.INT64),
        node("Reshape", ["standing_y", "same"], ["y"]),
    ]
    return helper.make_function(DOMAIN, name, list(INPUTS[name]), ["y"], nodes, [helper.make_opsetid("", opset)])


def _constant(name: str, values: Sequence[float], elem: int) -> list[onnx.NodeProto]:
    """A constant of any type: of opset 8 only floats are."""
    tensor = numpy_helper.from_array(np.array(values, np.float32), name)
    return [
        helper.make_node("Constant", [], [f"{name}_float"], value=tensor),
        helper.make_node("Cast", [f"{name}_float"], [name], to=elem),
    ]


def is_own(definition: onnx.FunctionProto) -> bool:
    """Whether a model's function is one of these: its operator is then converted as it stands."""
    if normal_domain(definition.domain) != DOMAIN or definition.name not in INPUTS:
        return False
    opset = next((o.version for o in definition.opset_import if not normal_domain(o.domain)), 0)
    return bool(_meaning(function(definition.name, opset)) == _meaning(definition))


def _meaning(definition: onnx.FunctionProto) -> Any:
    """What a function computes, as a value that can be compared."""
    nodes = [
        (
            normal_domain(n.domain),
            n.op_type,
            list(n.input),
            list(n.output),
            [a.SerializeToString() for a in n.attribute],
        )
        for n in definition.node
    ]
    return nodes, list(definition.input), list(definition.output)


def others(definitions: Collection[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """The functions of a model that are not these."""
    return [f for f in definitions if not is_own(f)]
