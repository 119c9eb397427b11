"""ONNX operators of our own that resample pictures of bytes, each with its meaning as a function of ONNX's operators.

    ResampleRows(x, places, weights)                             see :mod:`tvmopt.operators.resample`
    ResampleColumns(x, places, weights, rows, channels)

Sums are exact in float64. The operators are those whose form has not changed since opset 8, as models of any age get
these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, COLUMNS = "ResampleRows", "ResampleColumns"
BITS = 22
"""Fractional bits of a weight."""
INPUTS = {ROWS: ("x", "places", "weights"), COLUMNS: ("x", "places", "weights", "rows", "channels")}


def body(name: str) -> list[onnx.NodeProto]:
    """The nodes of an operator's definition."""
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
    return [
        *nodes,
        *constant("column", shape, TensorProto.INT64),
        node("Reshape", ["weights", "column"], ["standing"]),
        node("Cast", ["standing"], ["factors"], to=double),
        node("Cast", ["turned"], ["bytes"], to=double),
        node("MatMul", ["bytes", "factors"], ["sums"]),
        *constant("half", [1 << (BITS - 1)], double),
        node("Add", ["sums", "half"], ["lifted"]),
        *constant("step", [2.0**-BITS], double),
        node("Mul", ["lifted", "step"], ["scaled"]),
        node("Floor", ["scaled"], ["whole"]),
        *constant("least", [0], double),
        node("Max", ["whole", "least"], ["positive"]),
        *constant("most", [255], double),
        node("Min", ["positive", "most"], ["clipped"]),
        node("Cast", ["clipped"], ["standing_y"], to=TensorProto.UINT8),
        *constant("same", [0, 0, 0, 0], TensorProto.INT64),
        node("Reshape", ["standing_y", "same"], ["y"]),
    ]


def constant(name: str, values: Sequence[float], elem: int) -> list[onnx.NodeProto]:
    """A constant of any type: of opset 8 only floats are."""
    tensor = numpy_helper.from_array(np.array(values, np.float32), name)
    return [
        helper.make_node("Constant", [], [f"{name}_float"], value=tensor),
        helper.make_node("Cast", [f"{name}_float"], [name], to=elem),
    ]
