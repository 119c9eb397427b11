"""CUDA kernels in the emulator under guard pages: what random graphs found on a GPU, and in its stead."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuzz.inputs import NUMBERS
from fuzz.worker import Worker

node = helper.make_node


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


CASES = {
    "a row whose last axis no vector divides": ([node("GlobalAveragePool", ["x"], ["y"])], (3, 7, 4, 6), {}),
    "a warp that is left with 24 sums": ([node("MatMul", ["x", "w"], ["y"])], (3, 8, 4), {"w": weight(4)}),
    "a product of less than 16 bytes": (
        [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "w"], ["s"]), node("Sigmoid", ["s"], ["y"])],
        (1, 4), {"w": weight(4, 16)},
    ),
    "a scale for each channel within one sum": (
        [node("Mul", ["x", "w"], ["m"]), node("ReduceL1", ["m"], ["y"])], (5, 1, 8, 5), {"w": weight(5)},
    ),
    "truth values behind a product": (
        [
            node("Greater", ["x", "zero"], ["b"]), node("Slice", ["b", "first", "end", "last"], ["c"]),
            node("MatMul", ["x", "w"], ["m"]), node("Where", ["c", "m", "zero"], ["y"]),
        ],
        (2, 33, 49), {"w": weight(49, 12), "zero": np.float32(0), "first": np.int64([1]), "end": np.int64([13]),
                      "last": np.int64([2])},
    ),
    "nothing": ([node("Neg", ["x"], ["n"]), node("Exp", ["n"], ["y"])], (0, 33, 8, 2), {}),
}  # fmt: skip


OPEN = {
    "what is chosen": ([node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["y"])], {"x": ("n", 33)}, {}),
    "a deviation from the mean of one": (
        [node("ReduceMean", ["x"], ["m"], axes=[1]), node("Sub", ["x", "m"], ["d"]), node("Exp", ["d"], ["y"])],
        {"x": ("n", 1)}, {},
    ),
    "a product with a vector, of rows that no block divides": (
        [node("MatMul", ["x", "w"], ["y"])], {"x": (33, "n"), "w": ("n",)}, {},
    ),
    "rows far from zero": (
        [node("LayerNormalization", ["x", "g", "b"], ["y"])], {"x": ("n", 2, 96)}, {"g": weight(96), "b": weight(96)},
    ),
    "pictures far from zero": (
        [node("InstanceNormalization", ["x", "g", "b"], ["y"])],
        {"x": (2, 3, "n", 7)}, {"g": weight(3), "b": weight(3)},
    ),
    "attention over a cache": (
        [
            node("Concat", ["past", "k"], ["keys"], axis=2), node("Concat", ["past", "v"], ["values"], axis=2),
            node("Transpose", ["keys"], ["across"], perm=[0, 1, 3, 2]), node("MatMul", ["x", "across"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "values"], ["y"]),
        ],
        {"x": (1, 4, 5, 16), "past": (1, 4, "n", 16), "k": (1, 4, 8, 16), "v": (1, 4, 8, 16)}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_sizes_may_be_open(worker: Worker, name: str) -> None:
    nodes, inputs, weights = OPEN[name]
    result = TensorProto.INT64 if name == "what is chosen" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    helper.set_model_props(model, {NUMBERS: json.dumps({"n": 5})})
    options = {"target": "nvidia-h100", "kinds": ["normal", "offset"], "seed": 3}
    outcome = worker.check(model.SerializeToString(), options)
    assert outcome["findings"] == [] and outcome["status"] == "checked", outcome
    assert outcome["runs"] >= 6


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_no_kernel_touches_foreign_memory(worker: Worker, name: str, precision: str) -> None:
    nodes, shape, weights = CASES[name]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    options = {"target": "nvidia-h100", "precision": precision, "kinds": ["normal", "nan", "zeros"], "seed": 1}
    outcome = worker.check(model.SerializeToString(), options)
    assert outcome["findings"] == [] and outcome["status"] == "checked", outcome
    assert outcome["runs"] > 0
