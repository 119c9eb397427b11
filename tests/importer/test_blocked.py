"""Weights behind a DequantizeLinear by blocks: products of them stay packed, whatever their form."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.importer.onnx_check import ops, run_relax, value
from tvmopt.importer.prepare import prepare
from tvmopt.importer.relax import to_relax

KINDS = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8}
RNG = np.random.default_rng(2)


def built(kind: str, k: int, block: int, zeros: bool, turned: bool, n: int = 9) -> Any:
    """The model, its weight in float64, and the input."""
    low, high = (
        (-8, 8) if kind == "int4" else (0, 16) if kind == "uint4" else (-128, 128) if kind == "int8" else (0, 256)
    )
    groups = -(-k // block)
    shape, small = ((n, k), (n, groups)) if turned else ((k, n), (groups, n))
    codes, points = (RNG.integers(low, high, s) for s in (shape, small))
    scales = RNG.uniform(0.01, 0.1, small).astype(np.float32)
    wide = np.repeat(scales, block, int(turned))[: shape[0], : shape[1]].astype(np.float64)
    zero = np.repeat(points, block, int(turned))[: shape[0], : shape[1]] if zeros else 0
    weight = (codes - zero) * wide
    arrays = {"w": codes.astype(KINDS[kind]), "s": scales} | ({"z": points.astype(KINDS[kind])} if zeros else {})
    nodes = [helper.make_node("DequantizeLinear", list(arrays), ["d"], axis=int(turned), block_size=block)]
    if turned:
        nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if turned else "d"], ["y"], name="product"))
    initial = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    graph = helper.make_graph(nodes, "g", [value("x", (2, 3, k))], [value("y", (2, 3, n))], initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = RNG.standard_normal((2, 3, k)).astype(np.float32)
    return made, (weight.T if turned else weight), x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("k", "block"), [(48, 16), (32, 32)])
def test_products_stay_packed(kind: str, zeros: bool, turned: bool, k: int, block: int) -> None:
    made, weight, x = built(kind, k, block, zeros, turned)
    prepared = prepare(made)
    assert "MatMulNBits" in ops(prepared) and "MatMul" not in ops(prepared)
    onnx.checker.check_model(prepared)
    got = run_relax(to_relax(prepared), {"x": x})[0]
    expected = x.astype(np.float64) @ weight
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_other_forms_are_float_products() -> None:
    """Blocks of a size that MatMulNBits lacks, and a product from the left."""
    made, weight, x = built("int4", 40, 20, True, False)
    assert "MatMulNBits" not in ops(prepare(made))
    got = run_relax(to_relax(prepare(made)), {"x": x})[0]
    np.testing.assert_allclose(got, x.astype(np.float64) @ weight, rtol=1e-4, atol=1e-4)
    made, weight, _ = built("int8", 32, 16, False, False)
    made.graph.node[-1].input[:] = ["d", "x"]
    made.graph.input[0].CopyFrom(value("x", (9, 5)))
    made.graph.output[0].CopyFrom(value("y", (32, 5)))
    assert "MatMulNBits" not in ops(prepare(made))
    x = RNG.standard_normal((9, 5)).astype(np.float32)
    got = run_relax(to_relax(prepare(made)), {"x": x})[0]
    np.testing.assert_allclose(got, weight @ x.astype(np.float64), rtol=1e-4, atol=1e-4)
