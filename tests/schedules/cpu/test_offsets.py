"""Norms, log-softmax and losses of values far from zero, against float64: nothing cancels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

import tvmopt

C = 24
ONES, ZEROS = np.ones(C, "float32"), np.zeros(C, "float32")
SAME = np.eye(C, dtype="float32")[:, :, None, None]
NODE = h.make_node


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def grouped(x: np.ndarray) -> np.ndarray:
    return normalized(x.reshape(len(x), 4, -1), (2,)).reshape(x.shape)


IMAGE = (2, C, 9, 7)
AFFINE = {"g": ONES, "b": ZEROS}
INSTANCE = NODE("InstanceNormalization", ["c", "g", "b"], ["y"])
GROUP = NODE("GroupNormalization", ["c", "g", "b"], ["y"], num_groups=4)
CONV = NODE("Conv", ["c0", "w"], ["c"])
CASES: dict[str, tuple[list[Any], tuple[int, ...], dict[str, Any], Callable[..., Any]]] = {
    "mvn": ([NODE("MeanVarianceNormalization", ["c"], ["y"])], IMAGE, {}, lambda x: normalized(x, (0, 2, 3), 0)),
    "log_softmax": ([NODE("LogSoftmax", ["c"], ["y"], axis=-1)], (7, 50), {}, log_softmax),
    "log_softmax short": ([NODE("LogSoftmax", ["c"], ["y"], axis=-1)], (7, 5), {}, log_softmax),
    "log_softmax across": ([NODE("LogSoftmax", ["c"], ["y"], axis=1)], IMAGE, {}, lambda x: log_softmax(x, 1)),
    "loss": (
        [NODE("SoftmaxCrossEntropyLoss", ["c", "t"], ["y"], reduction="none")], (7, 10), {"t": np.arange(7)},
        lambda x: -log_softmax(x)[np.arange(7), np.arange(7)],
    ),
    "layer_norm": ([NODE("LayerNormalization", ["c", "g", "b"], ["y"])], (7, C), AFFINE, lambda x: normalized(x, (1,))),
    "layer_norm short": (
        [NODE("LayerNormalization", ["c", "s"], ["y"])], (9, 7), {"s": ONES[:7]}, lambda x: normalized(x, (1,)),
    ),
    "instance_norm": ([INSTANCE], IMAGE, AFFINE, lambda x: normalized(x, (2, 3))),
    "group_norm": ([GROUP], IMAGE, AFFINE, grouped),
    "instance_norm, channels last": ([CONV, INSTANCE], IMAGE, {**AFFINE, "w": SAME}, lambda x: normalized(x, (2, 3))),
    "group_norm, channels last": ([CONV, GROUP], IMAGE, {**AFFINE, "w": SAME}, grouped),
    "batch_norm, training": (
        [NODE("BatchNormalization", ["c", "g", "b", "b", "g"], ["y", "m", "v"], training_mode=1)], IMAGE, AFFINE,
        lambda x: normalized(x, (0, 2, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_offsets(case: str) -> None:
    nodes, shape, constants, reference = CASES[case]
    name = nodes[0].input[0]
    graph = h.make_graph(
        nodes, "g", [h.make_tensor_value_info(name, 1, shape)], [h.make_tensor_value_info("y", 1, None)],
        [nh.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=9)
    model = tvmopt.compile(proto, verify=False, records=False).model
    for offset in (0.0, 1e3, -1e5, 1e6):
        x = (offset + np.random.default_rng(1).standard_normal(shape)).astype("float32")
        want = reference(x.astype("float64"))
        got = model.run({name: x})["y"]
        assert np.abs(got - want).max() <= 1e-6 * max(1.0, np.abs(want).max()), offset


def test_a_row_of_equal_numbers() -> None:
    """Its variance is 0, and may not come out below."""
    node = NODE("LayerNormalization", ["x", "g", "b"], ["y"], epsilon=1e-12)
    ends = [h.make_tensor_value_info("x", 1, (64, C))], [h.make_tensor_value_info("y", 1, None)]
    graph = h.make_graph([node], "g", *ends, [nh.from_array(v, k) for k, v in AFFINE.items()])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=9)
    x = np.random.default_rng(2).uniform(-1e4, 1e4, (64, 1)).astype("float32").repeat(C, 1)
    got = tvmopt.compile(proto, verify=False, records=False).model.run({"x": x})["y"]
    assert np.abs(got).max() < 1e-2


@pytest.mark.parametrize("case", ["layer_norm", "layer_norm short", "instance_norm", "group_norm, channels last"])
def test_squares_that_overflow(case: str) -> None:
    """The variance is infinite and the result 0, as onnxruntime's; a NaN stays in its row."""
    nodes, shape, constants, _ = CASES[case]
    name = nodes[0].input[0]
    ends = [h.make_tensor_value_info(name, 1, shape)], [h.make_tensor_value_info("y", 1, None)]
    graph = h.make_graph(nodes, "g", *ends, [nh.from_array(v, k) for k, v in constants.items()])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=9)
    x = np.random.default_rng(3).standard_normal(shape).astype("float32") * np.float32(1e30)
    model = tvmopt.compile(proto, verify=False, records=False).model
    assert (model.run({name: x})["y"] == 0).all()
    x[0].flat[0] = np.nan
    got = model.run({name: x})["y"]
    assert np.isnan(got[0].flat[0])
    assert (got[1] == 0).all()
