"""Sums whose terms leave float32 may be what any order of them gives; thresholds are numbers of their type."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.kernels import check_kernels
from tvmopt.analysis.observe import Seen


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


@pytest.mark.parametrize(("found", "fine"), [(np.inf, True), (-np.inf, True), (np.nan, True), (7.0, False)])
def test_the_terms_of_a_deformable_convolution(found: float, fine: bool) -> None:
    """Its four pixels are 3e38, 3e38, -3e38 and -3e38 at one place, and 1, 2, 3 and -4 at another; where they are read
    is no term."""
    node = helper.make_node("DeformConv", ["x", "w", "o"], ["y"], kernel_shape=[2, 2])
    values = {"w": np.ones((1, 1, 2, 2), np.float32), "o": np.zeros((1, 8, 1, 3), np.float32)}
    model = made([node], {"x": (1, [1, 1, 2, 4])}, {"y": (1, [1, 1, 1, 3])}, values)
    judge = Judge(model)
    feeds = {"x": np.float32([[3e38, 3e38, 1, 2], [-3e38, -3e38, 3, -4]]).reshape(1, 1, 2, 4)}
    right = judge.truth(feeds).exact["y"].astype(np.float32)
    if fine:
        right[..., 0] = found  # in any order
    else:
        right[..., 2] = found
    assert judge(judge.truth(feeds), {"y": right}).ok is fine


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


def test_a_multiply_add_that_stores_no_product_hides_no_infinity_of_the_input() -> None:
    """-3.4e38 times -1.6 leaves float32 where the product is stored, and with the sum behind it does not."""
    nodes = [helper.make_node("Where", ["m", "x", "f"], ["v"]), helper.make_node("Mul", ["v", "w"], ["p"]),
             helper.make_node("Add", ["v", "p"], ["y"])]  # fmt: skip
    values = {"f": np.float32(-3.4028235e38), "w": np.float32([-1.6, 0.5, 1.5])}
    model = made(nodes, {"x": (1, [7, 3]), "m": (9, [7, 3])}, {"y": (1, [7, 3])}, values)
    examiner = Examiner(tvmopt.compile(model, verify=False, records=False).model, model, model)
    feeds = {"x": np.ones((7, 3), np.float32), "m": np.ones((7, 3), bool)}
    feeds["m"][2], feeds["x"][0, 1] = False, np.inf

    class Run:
        """What a compiled model gives, an element replaced."""

        def __init__(self, at: tuple[int, int], number: float) -> None:
            self.at, self.number = at, number

        def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            y = np.float32([[-0.6, 1.5, 2.5]] * 7)
            y[0, 1], y[2] = np.inf, (2e38, -np.inf, -np.inf)
            y[self.at] = self.number
            return {"y": y}

    for at, number, fine in (((2, 0), 2e38, True), ((0, 1), 3.0, False)):
        examiner.model = Run(at, number)
        assert examiner.hostile(feeds, None).ok is fine


@pytest.mark.parametrize(("found", "fine"), [([True, False], True), ([False, False], True), ([False, True], False)])
def test_what_no_longer_overflows_in_a_wider_register_is_no_nan_for_a_comparison(found: list[bool], fine: bool) -> None:
    """60000 * 1000 - 50000 * 2000 is NaN in float16, and a number where float16 is computed in float32."""
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Mul", ["x", "a"], ["p"]), helper.make_node("Mul", ["z", "b"], ["q"]),
             helper.make_node("Sub", ["p", "q"], ["d"]), helper.make_node("IsNaN", ["d"], ["y"])]  # fmt: skip
    values = {"a": np.float16(1000), "b": np.float16(2000)}
    model = made(nodes, {"x": (half, [2]), "z": (half, [2])}, {"y": (TensorProto.BOOL, [2])}, values)
    feeds = {"x": np.float16([60000, 1]), "z": np.float16([50000, 2])}
    judge = Judge(model)
    assert judge(judge.truth(feeds), {"y": np.array(found)}).ok is fine


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_index_of_scores_that_overflow_is_that_of_a_wider_register(at: int) -> None:
    """Two scores are infinite in float16; in float32 the second is larger. A third is chosen by no engine."""
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Mul", ["x", "a"], ["p"]), helper.make_node("TopK", ["p", "k"], ["v", "i"]),
             helper.make_node("Relu", ["i"], ["y"])]  # fmt: skip
    values = {"a": np.float16(1000), "k": np.int64([1])}
    model = made(nodes, {"x": (half, [1, 3])}, {"y": (TensorProto.INT64, [1, 1])}, values)
    judge = Judge(model)
    feeds = {"x": np.float16([[50000, 60000, 1]])}
    assert judge(judge.truth(feeds), {"y": np.int64([[at]])}).ok is (at < 2)


@pytest.mark.parametrize(("share", "fine"), [(1.0, True), (1.01, False)])
def test_little_is_left_of_the_tail_of_gelu(share: float, fine: bool) -> None:
    """x / gelu(x) is 1 over the share of a normal distribution below x: 6.7e-4 at -3.2, of which an engine that adds 1
    to an erf has lost four digits."""
    nodes = [helper.make_node("Gelu", ["x"], ["g"]), helper.make_node("Div", ["x", "g"], ["y"])]
    model = made(nodes, {"x": (1, [9, 8])}, {"y": (1, [9, 8])}, {})
    x = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
    x[0, 0], x[1, 0] = -3.2, -4.85
    judge = Judge(model)
    truth = judge.truth({"x": x})
    y = truth.exact["y"].copy()
    y[0, 0] *= 1 + 6e-5 if fine else share
    y[1, 0] *= 1 + 0.08
    assert judge(truth, {"y": y.astype(np.float32)}).ok is fine


@pytest.mark.parametrize(("hidden", "fine"), [(1e30, True), (1.0, False)])
def test_a_sum_that_leaves_the_type_between_two_tensors_that_are_seen(hidden: float, fine: bool) -> None:
    """a * b + c * d of four products of 1e60, inside one kernel: infinite, and of either sign. Its inputs are small."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], "large"),
        helper.make_node("MatMul", ["p", "b"], ["q"], "sum"),
        helper.make_node("Erf", ["q"], ["y"], "erf"),
    ]
    rng = np.random.default_rng(0)
    values = {"a": rng.standard_normal((4, 4)) * hidden, "b": np.array([[1], [-1], [1], [-1]]) * hidden}
    values = {n: a.astype(np.float32) for n, a in values.items()}
    model = made(nodes, {"x": (1, [8, 4])}, {"y": (1, [8, 1])}, values)
    feeds = {"x": rng.standard_normal((8, 4)).astype(np.float32) * np.float32(1e7)}
    found = {"y": -np.sign(feeds["x"] @ values["a"] @ (values["b"] / np.float32(hidden))).astype(np.float32)}
    run = [Seen("all", ("large", "sum", "erf"), (), found["y"])]
    assert (not check_kernels(model, feeds, found, run, "fp32").wrong) is fine
