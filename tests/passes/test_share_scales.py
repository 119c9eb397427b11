"""Scales that are tensors, and layers that share a kernel for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.passes.helpers import build, check_rewrite, constants, rand
from tvmopt.passes import ShareScales
from tvmopt.targets import Machine

R = relax.op


def scaled(*turned: bool) -> Callable[..., Any]:
    """x * (s * 0.25), with the operands of the outer and of the inner product in turn."""
    outer, inner = turned

    def body(b, x, s):
        c = relax.const(np.float32(0.25))
        scale = b.emit(R.multiply(c, s) if inner else R.multiply(s, c))
        return R.multiply(scale, x) if outer else R.multiply(x, scale)

    return body


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("scale", [(), (1,), (1, 1)])
@pytest.mark.parametrize("tensor", [(9,), (3, 5), (2, 3, 4)])
def test_a_number_that_scales_a_scale_is_a_tensor(tensor, scale, turned) -> None:
    made = build({"x": tensor, "s": scale}, scaled(*turned))
    left = check_rewrite(ShareScales, made, {"multiply": 2})
    assert [number.shape for number in constants(left)] == [(1,)]


def test_what_stays() -> None:
    number, row = relax.const(np.float32(0.25)), relax.const(rand(5))
    one = build({"x": (1,), "s": ()}, scaled(False, False))
    check_rewrite(ShareScales, one, None)  # nothing is scaled by a scale
    check_rewrite(ShareScales, build({"x": (3, 5)}, lambda b, x: R.multiply(x, number)), None)
    rows = build({"x": (3, 5), "s": (3, 1)}, lambda b, x, s: R.multiply(x, b.emit(R.multiply(s, number))))
    check_rewrite(ShareScales, rows, None)
    tensors = build({"x": (3, 5), "s": ()}, lambda b, x, s: R.multiply(x, b.emit(R.multiply(s, row))))
    check_rewrite(ShareScales, tensors, None)


def test_layers_of_dynamic_int8_share_a_kernel() -> None:
    """Each one's weights have a scale of their own, which was a number in its kernel."""
    rng = np.random.default_rng(0)
    nodes, weights, at, expected = [], {}, "x", rng.standard_normal((7, 32), np.float32)
    x = expected
    for i in range(3):
        codes, scale = rng.integers(-127, 128, (32, 32), np.int8), np.float32(0.002 * (i + 1))
        weights |= {f"w{i}": codes, f"s{i}": scale}
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [at], [f"q{i}", f"a{i}", f"z{i}"]),
            helper.make_node("MatMulInteger", [f"q{i}", f"w{i}", f"z{i}"], [f"p{i}"]),
            helper.make_node("Cast", [f"p{i}"], [f"f{i}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"a{i}", f"s{i}"], [f"k{i}"]),
            helper.make_node("Mul", [f"f{i}", f"k{i}"], [f"y{i}"]),
        ]
        expected, at = expected @ (codes * scale), f"y{i}"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 32])],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, [7, 32])],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for target in ("x86-64-v4", "x86-64-v3"):
        report = tvmopt.compile(made, target=Machine.load(target).with_cores(1), verify=False, cache=False).report
        products = [kernel for kernel in report.kernels if "matmul" in kernel.name]
        assert [kernel.calls for kernel in products] == [3], [kernel.name for kernel in report.kernels]
    found = tvmopt.compile(made, threads=1, records=False)(x)  # verified
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
