"""Sums whose terms leave float32 may be what any order of them gives; thresholds are numbers of their type."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Judge


def made(nodes, inputs, outputs, values) -> onnx.ModelProto:
    infos = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in d.items()] for d in (inputs, outputs)]
    constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", *infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize(
    ("found", "fine"),
    [([1e38, 6], True), ([np.inf, 6], True), ([-np.inf, 6], True), ([np.nan, 6], True), ([1e38, np.inf], False),
     ([np.inf, 7], False)],
)  # fmt: skip
def test_the_order_of_a_sum_decides_where_its_terms_leave_the_type(found: list[float], fine: bool) -> None:
    """3e38 + 1e38 - 3e38: one engine adds the first two first. A fill of -3.4e38 that a convolution read was such."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    model = made(nodes, {"x": (1, [2, 3])}, {"y": (1, [2, 1])}, {"w": np.ones((3, 1), np.float32)})
    feeds = {"x": np.float32([[3e38, 1e38, -3e38], [1, 2, 3]])}
    judge = Judge(model)
    found = [0 if f == -np.inf else f for f in found]  # what a Relu makes of it
    assert judge(judge.truth(feeds), {"y": np.float32(found).reshape(2, 1)}).ok is fine


def test_a_fill_that_a_folded_convolution_reads_is_no_false_alarm() -> None:
    """Sums of fills overflow or not by their order, and by whether BatchNorm's scale is in the weights."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Where", ["m", "x", "f"], ["v"]),
             helper.make_node("Conv", ["v", "w"], ["c"], pads=[1] * 4),
             helper.make_node("BatchNormalization", ["c", "g", "z", "z", "g"], ["n"]),
             helper.make_node("Add", ["n", "v"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]  # fmt: skip
    values = {"w": rng.standard_normal((5, 5, 3, 3)).astype(np.float32) / 7, "f": np.float32(-3.4e38),
              "g": rng.uniform(0.3, 2, 5).astype(np.float32), "z": np.zeros(5, np.float32)}  # fmt: skip
    shape = [5, 5, 4, 15]
    model = made(nodes, {"x": (1, shape), "m": (9, shape)}, {"a": (1, shape), "y": (1, shape)}, values)
    examiner = Examiner(tvmopt.compile(model, verify=False, records=False).model, model, model)
    feeds = {"x": rng.standard_normal((5, 5, 4, 15)).astype(np.float32), "m": rng.random((5, 5, 4, 15)) < 0.5}
    assert examiner.fully(feeds, None).ok
    feeds["x"][0, 0, 0, 0] = np.inf
    assert examiner.hostile(feeds, None).ok


@pytest.mark.parametrize(("op", "attribute"), [("ThresholdedRelu", "alpha"), ("Shrink", "lambd")])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_a_threshold_is_a_number_of_the_type(kind: int, op: str, attribute: str) -> None:
    """0.4265279 is 0.42578125 in bfloat16, and an element of that size is not above it."""
    if (kind, op) == (TensorProto.BFLOAT16, "Shrink"):
        pytest.skip("ONNX has none")
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    alpha = np.float32(0.4265279)
    at, above = alpha.astype(dtype), (np.float32(1.01) * alpha).astype(dtype)
    model = made([helper.make_node(op, ["x"], ["y"], **{attribute: alpha})], {"x": (kind, [4])}, {"y": (kind, [4])}, {})
    feeds = {"x": np.array([at, above, -at, 3], dtype)}
    found = tvmopt.compile(model, verify=False, records=False).model.run(feeds)
    judge = Judge(model)
    assert judge(judge.truth(feeds), found).ok
    assert found["y"][0] == 0 and found["y"][1] != 0
