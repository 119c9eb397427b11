"""Quantised tensors in steps: one step too much is found anywhere but at an edge."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.analysis.deviation import LIMITS
from tvmopt.analysis.grids import Grids

SCALE, ZERO = np.float32(0.0371), np.uint8(117)


def quantised(scale=SCALE, zero=ZERO, axis=1):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis),
    ]
    values = {"s": scale, "z": zero}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 7, 33])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 7, 33])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def seen(scale=SCALE, zero=ZERO):
    """(the grids of a model that has seen an x, x in steps, q, y)"""
    grids = Grids.of(quantised(scale, zero), LIMITS["fp32"])
    wide = np.asarray(scale).reshape(-1, 1) if np.ndim(scale) else np.asarray(scale)
    offset = np.asarray(zero, np.int64).reshape(-1, 1) if np.ndim(zero) else int(zero)
    place = np.random.default_rng(0).uniform(-100, 100, (4, 7, 33))
    place[0, 0, 0] = 12.5 + 1e-6  # at an edge
    place[0, 0, 1] = 12.4
    grids.see("x", (place * wide).astype(np.float32))
    q = np.clip(np.rint(place) + offset, 0, 255)
    return grids, q.astype(np.uint8), ((q - offset) * wide).astype(np.float32), wide


CHANNELS = np.linspace(0.01, 0.05, 7).astype(np.float32)


@pytest.mark.parametrize(("scale", "zero"), [(SCALE, np.uint8(117)), (CHANNELS, np.full(7, 117, np.uint8))])
def test_one_step_is_found_but_at_an_edge(scale, zero):
    grids, q, y, wide = seen(scale, zero)
    assert grids.compared("q", q, q).ok and grids.compared("y", y, y * np.float32(1 + 1e-7)).ok
    for at, free in (((0, 0, 0), True), ((0, 0, 1), False), ((3, 6, 32), False)):
        wrong, off = q.copy(), y.copy()
        wrong[at] -= 1
        off[at] -= np.broadcast_to(wide, (4, 7, 33))[at]
        assert grids.compared("q", q, wrong).ok is free
        assert grids.compared("y", y, off).ok is free
    two = q.copy()
    two[0, 0, 0] -= 2
    assert not grids.compared("q", q, two).ok


def requantised(branches):
    """``x -> Q -> DQ -> Relu -> Q``, or the sum of two such, the last scale being half of the first."""
    halves = [("x", "q", "y", "r"), ("x2", "q2", "y2", "r2")][:branches]
    nodes = []
    for x, q, y, r in halves:
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [q]),
            helper.make_node("DequantizeLinear", [q, "s", "z"], [y]),
            helper.make_node("Relu", [y], [r]),
        ]
    if branches == 2:
        nodes.append(helper.make_node("Add", ["r", "r2"], ["sum"]))
    last = "sum" if branches == 2 else "r"
    nodes.append(helper.make_node("QuantizeLinear", [last, "half", "z"], ["end"]))
    values = {"s": SCALE, "half": np.float32(SCALE / 2), "z": np.uint8(0)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(x, TensorProto.FLOAT, [64]) for x, *_ in halves],
        [helper.make_tensor_value_info("end", TensorProto.UINT8, [64])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), halves, last


@pytest.mark.parametrize(("branches", "known"), [(1, ()), (2, ()), (1, ("q",)), (2, ("q", "q2")), (2, ("r", "sum"))])
def test_what_an_edge_inside_a_kernel_makes_of_the_end_is_no_error(branches, known):
    """Only where the inner integers are at an edge and not the compiled model's, and by what they make of the end."""
    model, halves, last = requantised(branches)
    grids = Grids.of(model, LIMITS["fp32"])
    place = np.random.default_rng(0).integers(1, 60, 64) + 0.2
    place[0] += 0.3 + 1e-7  # at an edge: 2 steps of the end
    total = np.zeros(64)
    for x, _, y, r in halves:
        values = np.rint(place) * SCALE
        grids.see(x, (place * SCALE).astype(np.float32), known)
        for name in (y, r):
            grids.see(name, values.astype(np.float32), known)
        total += values
    if branches == 2:
        grids.see(last, total.astype(np.float32), known)
    end = np.rint(total / (SCALE / 2))
    moved = 0 if known else 2 * branches
    for at, most in ((0, moved), (1, 0)):
        for steps in (1, 2, 3, 4, 5):
            wrong = end.copy()
            wrong[at] += steps
            assert grids.compared("end", end, wrong).ok is (steps <= most), (at, steps)


def test_what_is_between_two_steps_is_found():
    grids, _, y, wide = seen()
    off = y.copy()
    off[2, 3, 4] += 0.3 * float(wide)
    assert "no multiples" in grids.compared("y", y, off).problem
    assert not grids.compared("y", y, np.where(y == y[2, 3, 4], np.nan, y)).ok
