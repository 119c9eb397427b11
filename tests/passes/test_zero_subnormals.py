"""Weights that are subnormal numbers, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, constants, rand
from tvmopt.passes import ZeroSubnormals
from tvmopt.passes.zero_subnormals import LEAST, subnormal
from tvmopt.report import DecisionLog

R = relax.op


def decayed(*dims: int) -> np.ndarray[Any, Any]:
    """Weights of which a third are subnormal."""
    weight = rand(*dims)
    weight.reshape(-1)[::3] *= np.float32(1e-39)
    return weight


def test_products_and_convolutions_lose_them_and_keep_their_numbers() -> None:
    weight = decayed(40, 9)
    made = build({"x": (3, 40)}, lambda b, x: R.matmul(x, relax.const(weight)))
    (left,) = constants(check_rewrite(ZeroSubnormals, made, {"matmul": 1}))
    assert not subnormal(left).any()
    assert np.array_equal(left, np.where(np.abs(weight) < LEAST, np.float32(0), weight))
    for groups, shape in ((1, (8, 3, 3, 4)), (4, (4, 3, 3, 1))):
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "groups": groups}
        kernel = relax.const(decayed(*shape))
        made = build({"x": (1, 5, 5, 4)}, lambda b, x, k=kernel, o=layouts: R.nn.conv2d(x, k, **o))
        (left,) = constants(check_rewrite(ZeroSubnormals, made, {"nn.conv2d": 1}))
        assert not subnormal(left).any()


@pytest.mark.parametrize(
    ("weight", "reason"),
    [(rand(4, 2), None), (np.full((4, 2), 1e-39, "float32"), "1: "), (rand(4, 2) * np.float32(1e-30), None)],
)
def test_other_weights_stay(weight: Any, reason: str | None) -> None:
    log = DecisionLog()
    made = build({"x": (3, 4)}, lambda b, x: R.matmul(x, relax.const(weight)))
    (left,) = constants(ZeroSubnormals(log)(made))
    assert np.array_equal(left, weight)
    assert [d.reason[:3] for d in log.decisions] == ([reason] if reason else [])


@pytest.mark.parametrize("first", [False, True])
def test_biases_lose_them_too(first: bool) -> None:
    """Where the weights of a channel are zero, its result would be the bias."""
    weight, bias = rand(9, 4, 1, 1), decayed(9, 1, 1)
    weight[::3] = 0

    def body(builder: Any, x: Any) -> Any:
        y = builder.emit(R.nn.conv2d(x, relax.const(weight)))
        return R.add(*((relax.const(bias), y) if first else (y, relax.const(bias))))

    made = build({"x": (2, 4, 5, 3)}, body)
    left = [a for a in constants(check_rewrite(ZeroSubnormals, made, {"nn.conv2d": 1, "add": 1})) if a.size == 9]
    assert np.array_equal(left, [np.where(subnormal(bias), np.float32(0), bias)])


def test_what_is_added_to_other_tensors_stays() -> None:
    bias = relax.const(decayed(9))
    check_rewrite(ZeroSubnormals, build({"x": (3, 9)}, lambda b, x: R.add(x, bias)), None)
    check_rewrite(ZeroSubnormals, build({"x": (3, 9)}, lambda b, x: R.add(b.emit(R.nn.relu(x)), bias)), None)


def test_products_of_activations_and_scales_stay() -> None:
    check_rewrite(ZeroSubnormals, build({"x": (3, 4), "y": (4, 5)}, lambda b, x, y: R.matmul(x, y)), None)
    scale = relax.const(np.asarray([1.0, 1e-40, 2.0], "float32"))
    check_rewrite(ZeroSubnormals, build({"x": (3, 3)}, lambda b, x: R.multiply(x, scale)), None)


def test_a_compiled_model_has_none(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import tvmopt

    weight = decayed(48, 24)
    weight[:, -1] = np.float32(-3e-40)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", s]) for n, s in (("x", 48), ("y", 24))]
    graph = helper.make_graph([node], "g", info[:1], info[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    tvmopt.compile(tmp_path / "m.onnx", output=tmp_path / "m.tvmopt", records=False)
    x = rand(5, 48, seed=1)
    (found,) = tvmopt.load(tmp_path / "m.tvmopt").run({"x": x}).values()
    np.testing.assert_allclose(found, x.astype("float64") @ weight, rtol=1e-5, atol=1e-5)
    assert np.array_equal(found[:, -1], np.zeros(5, "float32"))  # not 1e-39: its column is of subnormal weights
