"""MaxPool with indices: of equal maxima the first, of NaN the first, of windows of -inf one that is inside."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.runtime.tensors import numpy_dtype


def expected(x, kernel, strides, pads, order):
    """Element by element, in Python."""
    n, c, h, w = x.shape
    rows = (h + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    columns = (w + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    values, places = np.empty((n, c, rows, columns), x.dtype), np.empty((n, c, rows, columns), np.int64)
    for b, f, i, j in product(range(n), range(c), range(rows), range(columns)):
        cells = []
        for k, m in product(range(kernel[0]), range(kernel[1])):
            y, z = i * strides[0] + k - pads[0], j * strides[1] + m - pads[1]
            if 0 <= y < h and 0 <= z < w:
                value, at = x[b, f, y, z], (b * c + f) * h * w + (y * w + z if not order else z * h + y)
                cells.append((not np.isnan(float(value)), -float(value) if value == value else 0.0, at, value))
        values[b, f, i, j], places[b, f, i, j] = min(cells)[3], min(cells)[2]
    return values, places


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint8"])
def test_the_first_maximum(dtype, order):
    rng, kind = np.random.default_rng(order), numpy_dtype(dtype)
    kernel, strides, pads = [3, 2], [2, 1], [1, 0, 1, 1]
    number, typed = helper.np_dtype_to_tensor_dtype(kind), helper.make_tensor_value_info
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "storage_order": order}
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)], "g",
        [typed("x", number, [2, 3, 7, 9])], [typed("y", number, None), typed("i", 7, None)],
    )  # fmt: skip
    pooled = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 22 if dtype == "bfloat16" else 12)], ir_version=8
    )
    compiled = tvmopt.compile(pooled, verify=False, records=False).model
    x = rng.integers(0, 6, (2, 3, 7, 9)).astype(kind)
    real = dtype.endswith(("16", "32", "64"))
    inputs = [x, np.full_like(x, -np.inf if real else np.iinfo(kind).min)]
    if real:
        broken = x.copy()
        broken[rng.random(x.shape) < 0.1], broken[0, 1, 2:6] = np.nan, -np.inf
        inputs.append(broken)
    for array in inputs:
        values, places = expected(array, kernel, strides, pads, order)
        for found in (compiled.run({"x": array}), Oracle(pooled).run({"x": array})):
            np.testing.assert_array_equal(found["y"].astype("float64"), values.astype("float64"))
            np.testing.assert_array_equal(found["i"], places)


def test_a_window_of_nothing_but_padding_has_no_index() -> None:
    """Between taps that are two columns apart lies the only one there is. ONNX defines nothing; -1 is no address."""
    attributes = {"kernel_shape": [1, 2], "dilations": [1, 2], "pads": [0, 1, 0, 1]}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y", "i"], **attributes)], "g",
        [value("x", 1, [1, 2, 3, 1])], [value("y", 1, None), value("i", 7, None)],
    )  # fmt: skip
    pooled = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    x = np.ones((1, 2, 3, 1), np.float32)
    compiled = tvmopt.compile(pooled, verify=False, records=False).model
    for found in (compiled.run({"x": x}), Oracle(pooled).run({"x": x})):
        assert (found["i"] == -1).all() and (found["y"] == -np.inf).all()


@pytest.mark.parametrize(
    "attributes", [{"pads": [1, 0, 1, 1]}, {"storage_order": 1}, {"dilations": [2, 2]}, {"auto_pad": "SAME_UPPER"}]
)
def test_pictures_of_open_sizes(attributes):
    """They were refused; the indices count through the batch, and depend on the picture's size."""
    pool = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[3, 2], strides=[2, 2], **attributes)
    made = model([pool], [value("x", ("n", "c", "h", "w"))], [value("y", None), value("i", None, TensorProto.INT64)])
    compiled = tvmopt.compile(made, verify=False, records=False).model
    for shape in ((1, 1, 7, 8), (2, 3, 9, 20), (3, 2, 33, 5)):
        x = np.random.default_rng(shape[2]).standard_normal(shape).astype("float32")
        for mine, reference in zip(compiled.run({"x": x}).values(), run_ort(made, {"x": x}), strict=True):
            np.testing.assert_array_equal(mine, reference)
