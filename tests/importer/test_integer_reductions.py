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


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_64_bits_without_a_sign(op, last):
    value = helper.make_tensor_value_info
    nodes = [helper.make_node(op, ["x"], [f"y{a}"], axis=a, keepdims=0, select_last_index=last) for a in (0, 1)]
    outs = [value("y0", 7, None), value("y1", 7, None)]
    graph = helper.make_graph(nodes, "g", [value("x", 13, [9, 17])], outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = np.random.default_rng(0).choice(np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], "uint64"), (9, 17))
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})
    for axis in (0, 1):
        choose = np.argmax if op == "ArgMax" else np.argmin
        want = x.shape[axis] - 1 - choose(np.flip(x, axis), axis) if last else choose(x, axis)
        np.testing.assert_array_equal(found[f"y{axis}"], want)
