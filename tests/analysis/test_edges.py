"""Results that jump: on either side of the edge where rounding decides it, and on the right side everywhere else."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, value
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.oracle import contrib
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.quantized import rounded

node, INT64 = helper.make_node, TensorProto.INT64
MS = "com.microsoft"
THIRD = np.float32(1 / 3)
NEAR, FAR = 4, 9


def thirds(last, outputs, shape=(1, 1, 16), **weights):
    """`last` of p = x / 3, computed by a product."""
    nodes = [node("Mul", ["x", "third"], ["p"]), last]
    return model(nodes, [value("x", shape)], outputs, {"third": THIRD, **weights})


def numbers() -> np.ndarray:
    x = np.random.default_rng(1).permutation(np.linspace(-3, 3, 16)).astype("f") + np.float32(0.07)
    return x.reshape(1, 1, 16)


@pytest.mark.parametrize("op", ["ThresholdedRelu", "Shrink"])
def test_a_number_at_a_threshold(op):
    """A product is one rounding error above its threshold, and may be below it; another one is far above."""
    x = numbers()
    x[..., NEAR], x[..., FAR] = 1.5, 2.5
    edge = float(np.nextafter(x[0, 0, NEAR] * THIRD, np.float32(0)))
    attributes = {"alpha": edge} if op == "ThresholdedRelu" else {"lambd": edge, "bias": 0.125}
    made = thirds(node(op, ["p"], ["y"], **attributes), [value("y", x.shape)])
    p = x * THIRD
    p[..., NEAR] = edge
    below = np.where(p > np.float32(edge), p - attributes.get("bias", 0), 0)
    if op == "Shrink":
        below = np.where(p < -np.float32(edge), p + 0.125, below)
    above = below.copy()
    above[..., NEAR] = p[..., NEAR] - attributes.get("bias", 0)
    for right in (below, above):
        assert Judge(made).judged({"x": x}, {"y": right.astype("f")}, None).ok
    x[..., NEAR] = 1.25  # nothing is at the edge now: there is one right result
    below[..., NEAR] = 0
    lost, gone, more = below.copy(), below.copy(), below.copy()
    lost[..., FAR] = 0
    gone[..., FAR] *= 1.01
    more[..., int(np.flatnonzero((p > 0) & (below == 0))[0])] = 0.01
    assert Judge(made).judged({"x": x}, {"y": below.astype("f")}, None).ok
    for wrong in (lost, gone, more):
        assert not Judge(made).judged({"x": x}, {"y": wrong.astype("f")}, None).ok


def test_the_nearest_element_of_a_coordinate_between_two():
    picture = np.arange(16, dtype="f").reshape(1, 1, 4, 4) + 1
    grid = np.stack(np.meshgrid(np.linspace(-0.9, 0.9, 4), np.linspace(-0.9, 0.9, 4)), -1)[None]
    x = (grid * 3).astype("f")
    x[0, 1, 2, 0] = np.float32(1.5)  # / 3 is half-way between two columns
    nodes = [
        node("Mul", ["x", "third"], ["g"]),
        node("GridSample", ["picture", "g"], ["y"], mode="nearest", align_corners=0),
    ]
    made = model(nodes, [value("x", x.shape)], [value("y", picture.shape)], {"third": THIRD, "picture": picture})
    right = np.arange(1, 17, dtype="f").reshape(1, 1, 4, 4)
    for column in (7, 8):
        right[0, 0, 1, 2] = column
        assert Judge(made).judged({"x": x}, {"y": right}, None).ok
    x[0, 1, 2, 0] = 1.4  # left of the middle
    for column in (7, 8):
        right[0, 0, 1, 2] = column
        assert Judge(made).judged({"x": x}, {"y": right}, None).ok == (column == 7)


def equals() -> np.ndarray:
    """The second and third number of the first four are equal when they are a third."""
    x = numbers()
    x[..., :4] = 0.5, 2.5, np.nextafter(np.float32(2.5), np.float32(3)), -1
    return x


def test_the_place_of_the_larger_of_two_equal_numbers():
    x = equals()
    last = node("MaxPool", ["p"], ["y", "places"], kernel_shape=[4], strides=[4])
    made = thirds(last, [value("y", (1, 1, 4)), value("places", (1, 1, 4), INT64)])
    p = (x * THIRD).reshape(4, 4)
    places = p.argmax(1) + np.arange(0, 16, 4)
    for first, accepted in ((1, True), (2, True), (0, False)):
        places[0] = first
        found = {"y": p.max(1).reshape(1, 1, 4), "places": places.reshape(1, 1, 4)}
        assert Judge(made).judged({"x": x}, found, None).ok == accepted, first
    places[:2] = 1, 4 + (places[1] - 3) % 4
    assert not Judge(made).judged({"x": x}, {**found, "places": places.reshape(1, 1, 4)}, None).ok


@pytest.mark.parametrize("op", ["Cast", "CastLike"])
def test_an_integer_of_a_number_beyond_its_type(op):
    """The largest integer, or the lowest, which x86 makes of it: ONNX says nothing of it. Others stay what they are."""
    x = np.array([1e30, -1e30, 7.0], "f")
    last = node(op, ["x"], ["y"], to=INT64) if op == "Cast" else node(op, ["x", "like"], ["y"])
    made = model([last], [value("x", x.shape)], [value("y", x.shape, INT64)], {"like": np.zeros(1, np.int64)}, opset=19)
    low, high = np.iinfo(np.int64).min, 2**63 - 1024
    for y, right in (([high, low, 7], True), ([low, low, 7], True), ([low, low, 8], False), ([high, 0, 7], False)):
        assert Judge(made).judged({"x": x}, {"y": np.array(y)}, None).ok == right


@pytest.mark.parametrize("kind", [TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.INT8])
def test_an_integer_of_nan(kind):
    """Any integer of a NaN or of what is far beyond the type, as engines differ; others stay what they are."""
    x = np.array([np.nan, 1e30, -1e30, 7.0, 100.5], "f")
    made = model([node("Cast", ["x"], ["y"], to=kind)], [value("x", x.shape)], [value("y", x.shape, kind)])
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for ends in ([low, high, low], [high, low, high], [0, 0, 0]):
        assert Judge(made).judged({"x": x}, {"y": np.array([*ends, 7, 100], dtype)}, None).ok
    for wrong in ([0, high, low, 8, 100], [0, high, low, 7, 102]):
        assert not Judge(made).judged({"x": x}, {"y": np.array(wrong, dtype)}, None).ok


def test_an_integer_of_a_number_that_rounding_takes_to_the_other_end():
    """A sum of large numbers has another sign in bfloat16, so that Clip has its other end: a byte of it is what
    rounding makes, where a number that is moved farther wraps. Elsewhere it has to be right."""
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Clip", ["p", "l", "h"], ["c"]), node("Cast", ["c"], ["y"], to=3)]
    w = np.float32([0.21645826, -0.67564446, -0.7118605, -0.2500617, 0.71877986, 0.21845421])
    weights = {"w": w[:, None], "l": np.float32(-100), "h": np.float32(100)}
    x = 1e18 * np.sign(w) * np.ones((64, 6), "f")
    x[5] = [-1.8511139e18, 5.5198215e17, 1.1641063e18, 3.0624718e17, 2.1301967e18, 6.8336737e17]
    made = model(nodes, [value("x", x.shape)], [value("y", (64, 1), TensorProto.INT8)], weights)
    found = np.full((64, 1), 100, np.int8)
    for end in (100, -100):
        found[5] = end
        assert Judge(made, "bf16").judged({"x": x}, {"y": found}, None).ok
        assert Judge(made).judged({"x": x}, {"y": found}, None).ok == (end > 0)
    found[7] = -100
    assert not Judge(made, "bf16").judged({"x": x}, {"y": found}, None).ok


def test_a_sum_of_bytes_that_rounding_moves_each_by_itself():
    """Two halves become 0 or 1 each: 9, -8 and 1 are right for 9 a - 8 b, and what no bytes give is not."""
    nodes = [node("Mul", ["x", "third"], ["p"]), node("QuantizeLinear", ["p", "one", "zero"], ["q"])]
    nodes.append(node("MatMulInteger", ["q", "w"], ["y"]))
    weights = {"third": THIRD, "one": np.float32(1), "zero": np.uint8(0), "w": np.array([[9], [-8]], np.int8)}
    made = model(nodes, [value("x", (1, 2))], [value("y", (1, 1), TensorProto.INT32)], weights)
    x = np.full((1, 2), 1.5, "f")
    for y, right in ((0, True), (1, True), (9, True), (-8, True), (17, False), (-17, False)):
        assert Judge(made).judged({"x": x}, {"y": np.array([[y]], np.int32)}, None).ok == right, y


def test_a_quotient_in_the_type_of_its_scale():
    """ONNX divides by a scale of bfloat16 in bfloat16: 1000 / 1.5 is 667, and 668 there."""
    nodes = [node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.INT16)]
    kind = TensorProto.BFLOAT16
    bf16 = helper.tensor_dtype_to_np_dtype(kind)
    weights = {"s": np.array(1.5).astype(bf16)}
    made = model(nodes, [value("x", (1,), kind)], [value("y", (1,), TensorProto.INT16)], weights, opset=23)
    for y, right in ((667, True), (668, True), (660, False)):
        feeds = {"x": np.array([1000]).astype(bf16)}
        assert Judge(made).judged(feeds, {"y": np.array([y], np.int16)}, None).ok == right


def requantised(op, channels, b, bias=None, scales=(1.0, 1.0, 1.0)):
    """A product of bytes `a` [1, channels] with `b`, in steps of the third scale."""
    tail = () if op == "QLinearMatMul" else (1, 1)
    b = b.reshape(channels, 1) if op == "QLinearMatMul" else b.reshape(1, channels, 1, 1)
    values = dict(zip(("sa", "sb", "sy"), map(np.float32, scales), strict=True))
    values |= {"b": b, "za": np.uint8(0), "zb": b.dtype.type(0), "zy": np.uint8(0)}
    inputs = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    if bias is not None:
        values["bias"] = np.array([bias], np.int32)
        inputs.append("bias")
    shape, made = (1, channels, *tail), [value("y", (1, 1, *tail), TensorProto.UINT8)]
    return model([node(op, inputs, ["y"])], [value("a", shape, TensorProto.UINT8)], made, values)


def accepted(judge, end, *bytes_):
    """The results below `end` that the judge accepts of these bytes."""
    shape = [d.dim_value for d in judge.model.graph.input[0].type.tensor_type.shape.dim]
    truth = judge.truth({"a": np.array(bytes_, np.uint8).reshape(shape)})
    return {v for v in range(end) if judge(truth, {"y": np.full(truth.exact["y"].shape, v, np.uint8)}).ok}


@pytest.mark.parametrize("op", ["QLinearMatMul", "QLinearConv"])
def test_a_tie_of_a_requantised_product_may_go_either_way(op):
    """0.05 * 0.02 / 0.2 is 0.005 in decimals, a little less or more in float32: 100 times it is a tie."""
    judge = Judge(requantised(op, 2, np.ones(2, np.uint8), scales=(0.05, 0.02, 0.2)))
    # a step either way at the tie of 2.5, whichever the oracle takes
    for total, allowed in ((100, {0, 1}), (500, {1, 2, 3}), (110, {1}), (90, {0})):
        assert accepted(judge, 5, total // 2, total // 2) == allowed, total


@pytest.mark.parametrize(("bias", "allowed"), [(0, {4}), (-29380, {3, 4, 5})])
def test_a_bias_that_cancels_a_product_leaves_its_rounding(bias, allowed):
    """30,739 - 29,380 over 388.28 is 3.500005. An engine that adds the bias in float32 may be off by 22 epsilons."""
    scales = 1.0, 1.0, 1359 / 3.5 * (1 - 1.3e-6)
    judge = Judge(requantised("QLinearConv", 2, np.array([127, 1], np.int8), bias, scales))
    assert accepted(judge, 7, *divmod(1359 - bias, 127)) == allowed


def test_a_tangent_of_an_angle_that_rounding_does_not_tell_from_a_pole():
    """Of ten thousand such angles one gives a number of ten thousand times the usual one, in no run the same: a right
    result was refused for one of them. A row of tangents of angles that are well known is still looked at."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Tan", ["m"], ["y"])]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 200)).astype("f")
    x = rng.standard_normal((50, 64)).astype("f")
    made = Judge(model(nodes, [value("x", x.shape)], [value("y", (50, 200))], {"w": w}))
    far, near = x * np.float32(1e9), x * np.float32(0.05)  # angles of 1e10, and up to 1.5
    right = np.tan(far @ w)
    right[7, 3] = 3e6
    assert made.judged({"x": far}, {"y": right}, None).ok
    right = np.tan(near @ w)
    assert made.judged({"x": near}, {"y": right}, None).ok
    right[7] *= np.float32(1.03)
    assert not made.judged({"x": near}, {"y": right}, None).ok


STEPS, HIDDEN = 24, 32


def rounded_lstm(factor: float = 1.0) -> tuple[Any, dict[str, np.ndarray]]:
    """DynamicQuantizeLSTM of two directions and its data; the scale of one of them times `factor`."""
    random = np.random.default_rng(3)
    weights = {n: random.integers(-127, 128, (2, k, 4 * HIDDEN)).astype("i1") for n, k in (("w", 9), ("r", HIDDEN))}
    weights |= {"z": np.zeros(2, "i1"), "ws": np.full(2, 0.004, "f"), "b": np.zeros((2, 8 * HIDDEN), "f")}
    weights["rs"] = np.array([1, factor], "f") * np.float32(0.6 / 127 / HIDDEN**0.5)
    inputs = ["x", "w", "r", "b", "", "", "", "", "ws", "z", "rs", "z"]
    last = node("DynamicQuantizeLSTM", inputs, ["y"], domain=MS, hidden_size=HIDDEN, direction="bidirectional")
    made = model([last], [value("x", (STEPS, 1, 9))], [value("y", (STEPS, 2, 1, HIDDEN))], weights, domains={MS: 1})
    return made, {"x": random.standard_normal((STEPS, 1, 9)).astype("f")}


@pytest.mark.parametrize("step", [3, 11, 30])
def test_a_state_between_two_codes_of_eight_bits(step, monkeypatch):
    """A number of a state that an error takes to the next code changes all steps behind it by thousandths. Another
    scale changes all of them by more, and so does what is in another order."""
    made, feeds = rounded_lstm()
    right, (other, _) = Oracle(made).run(feeds)["y"].astype("f"), rounded_lstm(1.05)
    wrong = [Oracle(other).run(feeds)["y"].astype("f"), right * np.float32(1.05), right[:, ::-1].copy()]
    calls = []

    def one_code_on(x: np.ndarray) -> np.ndarray:
        calls.append(x.shape)
        codes = rounded(x)
        if len(calls) == step:
            codes[5] += (x.max(initial=0) - x.min(initial=0)) / 255
        return codes

    monkeypatch.setattr(contrib, "rounded", one_code_on)
    flipped = Oracle(made).run(feeds)["y"].astype("f")
    monkeypatch.undo()
    assert 1e-4 < np.abs(flipped - right).max() < 1e-2
    for found in (right, flipped):
        assert Judge(made).judged(feeds, {"y": found}, None).ok
    for found in wrong:
        assert not Judge(made).judged(feeds, {"y": found}, None).ok
