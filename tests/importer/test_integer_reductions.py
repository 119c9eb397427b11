"""ReduceMean and ReduceL2 of integers: what is in between may be larger than the type; the result is not."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest
from onnx import helper

import tvmopt
from tvmopt.analysis.oracle.evaluate import Oracle


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2"])
def test_against_whole_numbers(op, dtype):
    info, kind = np.iinfo(dtype), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], axes=[1], keepdims=0)],
        "g",
        [value("x", kind, [5, 3])],
        [value("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    top = int(info.max) if info.bits == 32 else 1 << 30
    low = max(int(info.min), -(1 << 31))
    rows = [[top, top - 1, top], [low] * 3, [-7 if low else 7, 2, 0]]
    rows += [[3, 4, 12], [top // 2, 7, 8]]
    means = [abs(sum(row)) // 3 * (-1 if sum(row) < 0 else 1) for row in rows]
    roots = [min(isqrt(sum(v * v for v in row)), int(info.max)) for row in rows]
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": np.array(rows, dtype)})["y"]
    assert found.dtype == dtype
    exact = np.array(means if op == "ReduceMean" else roots, dtype)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(Oracle(model).run({"x": np.array(rows, dtype)})["y"], exact)
