"""Products of dequantized operands become integer products; what is not exact is left in floats, with a reason."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops
from tvmopt.passes import ConvertIntegerProducts
from tvmopt.report import DecisionLog
from tvmopt.scheduling.byte_cost import Product

op, nn, c = relax.op, relax.op.nn, relax.const
RNG = np.random.default_rng(0)


def data(x, scale=0.05, zero=9):
    kind = str(x.ty.dtype)
    return op.dequantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1)


def weight(*dims, kind="int8", channels=None, axis=0, zero=0):
    """A dequantized constant; `channels`: scales along `axis`."""
    low, high = (0, 255) if kind == "uint8" else (-128, 127)
    w = RNG.integers(low, high + 1, dims).astype(kind)
    scale = np.float32(0.01) if channels is None else (0.01 + RNG.random(channels) / 50).astype("float32")
    zeros = np.array(zero, kind) if channels is None else np.full(channels, zero, kind)
    return op.dequantize(c(w, kind), c(scale), c(zeros, kind), axis=axis)


IMAGE = {"x": ((2, 8, 7, 9), "uint8")}
SCALED = {"astype": 1, "multiply": 1}


@pytest.mark.parametrize("channels", [None, 16])
@pytest.mark.parametrize("zero", [0, 1, 128, 255])
def test_convolution(zero, channels):
    w = weight(16, 8, 3, 3, channels=channels)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x, zero=zero)), bb.emit(w), padding=1, strides=2))
    shifted = {"add": 1, "nn.pad": 1} if zero else {}
    after = check_rewrite(ConvertIntegerProducts, mod, {"nn.conv2d": 1, **SCALED, **shifted}, tol=2e-6)
    for binding in after["main"].body.blocks[0].bindings:
        if "nn.pad" in str(binding.value):
            assert float(binding.value.attrs.pad_value) == zero


def test_an_unpadded_convolution_needs_no_border():
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(weight(16, 8, 1, 1))))
    check_rewrite(ConvertIntegerProducts, mod, {"nn.conv2d": 1, **SCALED, "add": 1}, tol=2e-6)


@pytest.mark.parametrize(("groups", "each"), [(2, 4), (8, 1)])
def test_groups(groups, each):
    w = weight(16, each, 3, 3)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(w), padding=1, groups=groups))
    check_rewrite(ConvertIntegerProducts, mod, {"nn.conv2d": 1, "nn.pad": 1, **SCALED, "add": 1}, tol=2e-6)


def test_signed_data():
    image = {"x": ((2, 8, 7, 9), "int8")}
    mod = build(image, lambda bb, x: nn.conv2d(bb.emit(data(x, zero=-3)), bb.emit(weight(16, 8, 3, 3)), padding=1))
    expected = {"nn.conv2d": 1, "nn.pad": 1, "astype": 3, "multiply": 1, "add": 2}
    check_rewrite(ConvertIntegerProducts, mod, expected, tol=2e-6)


@pytest.mark.parametrize("zero", [0, 9, 255])
@pytest.mark.parametrize(
    ("groups", "each", "padding"), [(1, 8, (2, 1)), (2, 4, (0, 3)), (8, 1, (1, 1)), (1, 8, (0, 0))]
)
def test_convolution_along_one_axis(groups, each, padding, zero):
    w, attrs = weight(16, each, 3, channels=16), dict(padding=padding, groups=groups, strides=2)
    mod = build({"x": ((2, 8, 17), "uint8")}, lambda bb, x: nn.conv1d(bb.emit(data(x, zero=zero)), bb.emit(w), **attrs))
    bordered = {"nn.pad": 1} if zero and any(padding) else {}
    shifted = {"add": 1} if zero else {}
    check_rewrite(ConvertIntegerProducts, mod, {"nn.conv1d": 1, **SCALED, **shifted, **bordered}, tol=2e-6)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("channels", [None, 17])
def test_product(channels, transposed):
    dims, axis = ((17, 33), 0) if transposed else ((33, 17), 1)
    w = weight(*dims, channels=channels, axis=axis)

    def body(bb, x):
        matrix = bb.emit(w)
        return op.matmul(bb.emit(data(x)), bb.emit(op.permute_dims(matrix)) if transposed else matrix)

    mod = build({"x": ((3, 5, 33), "uint8")}, body)
    check_rewrite(ConvertIntegerProducts, mod, {"matmul": 1, **SCALED, "add": 1}, tol=2e-6)


def test_a_weight_with_a_zero_point_of_its_own():
    """uint8 around 128 is int8."""
    w = weight(16, 8, 3, 3, kind="uint8", zero=128)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x, zero=0)), bb.emit(w)))
    check_rewrite(ConvertIntegerProducts, mod, {"nn.conv2d": 1, **SCALED}, tol=2e-6)


@pytest.mark.parametrize("channels", [None, 16])
def test_a_weight_that_the_model_quantizes(channels):
    """Trainers that simulate quantization leave float weights behind a quantization of their own."""
    values = RNG.standard_normal((16, 8, 3, 3)).astype("float32")
    values.flat[:2] = 1e9, -1e9
    scale = c(np.float32(0.01) if channels is None else (0.01 + RNG.random(16) / 50).astype("float32"))
    zeros = c(np.zeros(() if channels is None else 16, "int8"))

    def body(bb, x):
        q = bb.emit(op.quantize(c(values), scale, zeros, axis=0, out_dtype="int8"))
        w = bb.emit(op.dequantize(q, scale, zeros, axis=0, out_dtype="float32"))
        return nn.conv2d(bb.emit(data(x, zero=0)), w)

    mod = build(IMAGE, body)
    check_rewrite(ConvertIntegerProducts, mod, {"nn.conv2d": 1, **SCALED}, tol=2e-6)


@pytest.mark.parametrize("channels", [None, 16])
@pytest.mark.parametrize("zeros", [(0, 0), (9, 100), (255, 3), (0, 255)])
def test_a_convolution_by_a_weight_around_another_number(zeros, channels):
    """It does not fit into int8: a convolution with ones takes what it is shifted by off."""
    own, zero = zeros
    w = weight(16, 8, 3, 3, kind="uint8", channels=channels, zero=zero)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x, zero=own)), bb.emit(w), padding=1))
    found = ops(ConvertIntegerProducts(DecisionLog())(mod))
    assert (found["nn.conv2d"], found["dequantize"]) == (2, 0)
    check_rewrite(ConvertIntegerProducts, mod, dict(found), tol=2e-6)


@pytest.mark.parametrize("channels", [None, 17])
@pytest.mark.parametrize("zeros", [(0, 0), (9, 100), (255, 255)])
def test_a_product_by_a_weight_around_another_number(zeros, channels):
    own, zero = zeros
    w = weight(33, 17, kind="uint8", channels=channels, axis=1, zero=zero)
    mod = build({"x": ((3, 5, 33), "uint8")}, lambda bb, x: op.matmul(bb.emit(data(x, zero=own)), bb.emit(w)))
    found = ops(ConvertIntegerProducts(DecisionLog())(mod))
    assert (found["matmul"], found["sum"], found["dequantize"]) == (1, 1, 0)
    check_rewrite(ConvertIntegerProducts, mod, dict(found), tol=2e-6)


def longest(bb, x):
    w = op.dequantize(c(np.full((70_000, 2), -128, "int8"), "int8"), c(np.float32(0.1)), c(np.array(0, "int8"), "int8"))
    return op.matmul(bb.emit(data(x)), bb.emit(w))


@pytest.mark.parametrize("zeros", [(0, 0), (9, 0), (0, 128), (0, 3), (255, 255), (128, 128)])
@pytest.mark.parametrize("kinds", [("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_two_activations(kinds, zeros):
    """Sums of rows where the second operand's zero point is not in the middle, of columns for the first one's."""
    zeros = [z - 128 if kind == "int8" else z for z, kind in zip(zeros, kinds, strict=True)]
    inputs = {"x": ((2, 3, 5, 19), kinds[0]), "y": ((2, 1, 19, 7), kinds[1])}
    mod = build(inputs, lambda bb, x, y: op.matmul(bb.emit(data(x, 0.03, zeros[0])), bb.emit(data(y, 0.02, zeros[1]))))
    own, other = (z + 128 * (kind == "int8") for z, kind in zip(zeros, kinds, strict=True))
    sums = (other != 128) + (own != 0)
    found = ops(ConvertIntegerProducts(DecisionLog())(mod))
    assert (found["matmul"], found["sum"], found["dequantize"]) == (1, sums, 0)
    check_rewrite(ConvertIntegerProducts, mod, dict(found), tol=2e-6)


def test_two_activations_of_open_sizes_stay_floats():
    n = tvm.tirx.Var("n", "int64")
    inputs = {"x": ((n, 4, 8), "uint8"), "y": ((n, 8, 4), "uint8")}
    mod = build(inputs, lambda bb, x, y: op.matmul(bb.emit(data(x)), bb.emit(data(y))))
    assert ops(ConvertIntegerProducts(DecisionLog())(mod)) == ops(mod)


def float_data(bb, x):
    return nn.conv2d(bb.emit(op.astype(x, "float32")), bb.emit(weight(16, 8, 3, 3)))


def float_weight(bb, x):
    return nn.conv2d(bb.emit(data(x)), c(RNG.standard_normal((16, 8, 3, 3)).astype("float32")))


REFUSED = {
    "float data": (IMAGE, float_data, "1"),
    "a float weight": (IMAGE, float_weight, "2"),
    "a weight around another zero point, in groups": (
        IMAGE,
        lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(weight(16, 4, 3, 3, kind="uint8", zero=100)), groups=2), "3",
    ),
    "scales along the sum": (
        {"x": ((3, 33), "uint8")},
        lambda bb, x: op.matmul(bb.emit(data(x)), bb.emit(weight(33, 17, channels=33, axis=0))), "4",
    ),
    "a sum beyond int32": ({"x": ((1, 70_000), "uint8")}, longest, "5"),
    "a sum of two activations beyond int32": (
        {"x": ((2, 1, 20_000), "uint8"), "y": ((2, 20_000, 1), "uint8")},
        lambda bb, x, y: op.matmul(bb.emit(data(x)), bb.emit(data(y))), "5",
    ),
    "groups of no whole words": (
        {"x": ((1, 6, 5, 5), "uint8")},
        lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(weight(4, 3, 3, 3)), groups=2), "6",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ns", "kept"), [((2000.0, 1000.0), "7"), ((1000.0, 1000.0), "nn.conv2d"), ((1.0, 2.0), "nn")])
def test_what_would_take_longer_stays_in_floats(ns, kept):
    """The prediction decides, and is told."""
    seen, log = [], DecisionLog()

    def predicted(product):
        seen.append(product)
        return ns

    w = weight(16, 4, 3, 5)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(w), padding=(0, 2), groups=2))
    after = ConvertIntegerProducts(log, predicted)(mod)
    assert (ops(after) == ops(mod)) == (kept == "7")
    (decision,) = log
    assert decision.reason.startswith(kept) and ("2.0 us in bytes, 1.0 in floats" in decision.reason) == (kept == "7")
    assert seen == [Product(2, 5, 9, 8, 4, (3, 5), 2, dense=True, border=True, read=2 * 8 * 7 * 9)]


@pytest.mark.parametrize(("zero", "shifted"), [(0, False), (101, True)])
def test_the_prediction_knows_of_sums_for_weights_around_any_number(zero, shifted):
    seen = []
    w = weight(16, 8, 3, 5, kind="uint8", zero=zero) if shifted else weight(16, 8, 3, 5)
    mod = build(IMAGE, lambda bb, x: nn.conv2d(bb.emit(data(x)), bb.emit(w), padding=(0, 2)))
    ConvertIntegerProducts(DecisionLog(), lambda product: (seen.append(product), (1.0, 2.0))[1])(mod)
    assert [p.shifted for p in seen] == [shifted]


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    inputs, body, reason = REFUSED[case]
    log, mod = DecisionLog(), build(inputs, body)
    check_rewrite(ConvertIntegerProducts, mod)
    ConvertIntegerProducts(log)(mod)
    assert [d.reason[0] for d in log] == [reason]


def test_a_float_model_is_not_talked_about():
    log = DecisionLog()
    mod = build({"x": (3, 8)}, lambda bb, x: op.matmul(x, c(RNG.standard_normal((8, 4)).astype("float32"))))
    assert ops(ConvertIntegerProducts(log)(mod)) == ops(mod) and not list(log)
