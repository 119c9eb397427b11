"""The division of a quantization goes into the constants before it, through bounds and residuals."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, ops, random_inputs, run
from tvmopt.passes import FoldRequantization
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
RNG = np.random.default_rng(0)
SHAPE = (2, 16, 5, 7)
M = c((RNG.random((1, 16, 1, 1)) / 300).astype("float32"))
B = c(RNG.standard_normal((1, 16, 1, 1)).astype("float32"))


def up(x, scale=0.013, zero=31, kind="uint8"):
    return op.quantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1, out_dtype=kind)


def down(x, scale=0.05, zero=9, kind="uint8"):
    return op.dequantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1)


def real(bb, i):
    """What ConvertIntegerProducts leaves of a product i."""
    return bb.emit(op.add(bb.emit(op.multiply(bb.emit(op.astype(i, "float32")), M)), B))


def relu6(bb, x):
    return op.minimum(bb.emit(op.maximum(x, c(np.float32(0)))), c(np.float32(0.7)))


ONE, TWO = {"i": (SHAPE, "int32")}, {"i": (SHAPE, "int32"), "q": (SHAPE, "uint8")}
STEPS = {"astype": 1, "multiply": 1, "add": 1, "quantize": 1}
CASES = {
    "a bias": (ONE, lambda bb, i: real(bb, i), STEPS),
    "relu": (ONE, lambda bb, i: nn.relu(real(bb, i)), {**STEPS, "nn.relu": 1}),
    "bounds": (ONE, lambda bb, i: relu6(bb, real(bb, i)), {**STEPS, "nn.relu": 1, "minimum": 1}),
    "clip": (ONE, lambda bb, i: op.clip(real(bb, i), -0.3, 0.7), {**STEPS, "maximum": 1, "minimum": 1}),
    "a bound beyond the range": (ONE, lambda bb, i: op.clip(real(bb, i), -0.5, 9.0), STEPS),
    "a residual": (
        TWO, lambda bb, i, q: nn.relu(bb.emit(op.add(real(bb, i), bb.emit(down(q))))),
        {**STEPS, "nn.relu": 1, "tvmopt.scaled_sum": 1},
    ),
    "a difference": (
        TWO, lambda bb, i, q: op.subtract(bb.emit(down(q)), real(bb, i)), {**STEPS, "tvmopt.scaled_sum": 1},
    ),
    "two tensors of bytes": (
        {"p": (SHAPE, "uint8"), "q": (SHAPE, "int8")},
        lambda bb, p, q: op.add(bb.emit(down(p)), bb.emit(down(q, 0.03, -7, "int8"))),
        {"tvmopt.scaled_sum": 1, "quantize": 1},
    ),
    "another scale": ({"q": (SHAPE, "uint8")}, lambda bb, q: down(q), {"tvmopt.scaled_sum": 1, "quantize": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rewrites(case):
    inputs, body, expected = CASES[case]
    mod = build(inputs, lambda bb, *xs: up(bb.emit(body(bb, *xs))))
    after = FoldRequantization(DecisionLog())(mod)
    assert dict(ops(after)) == expected
    quantize = after["main"].body.blocks[0].bindings[-2].value
    assert float(quantize.args[1].value.numpy()) == 1.0
    values = [
        RNG.integers(*((-900, 900) if a.dtype == "int32" else (0, 256)), a.shape).astype(a.dtype)
        for a in random_inputs(mod)
    ]
    (a,), (b,) = run(after, values), run(mod, values)
    differs = np.abs(a.astype(int) - b.astype(int))  # only a number on the line between two steps may move
    assert differs.max() <= 1 and differs.mean() < 0.005 and len(np.unique(b)) > 20


CHANNELS = (RNG.random((1, 16, 1, 1)) + 0.5).astype("float32")


@pytest.mark.parametrize("zero", [0, 31])
def test_a_division_per_channel(zero):
    """FoldChannelScales leaves it; a step of channel c is 0.013 times its scale."""
    mod = build(ONE, lambda bb, i: up(bb.emit(op.divide(relu6(bb, real(bb, i)), c(CHANNELS))), zero=zero))
    after = FoldRequantization(DecisionLog())(mod)
    bounds = {"minimum": 1} if zero == 0 else {"nn.relu": 1, "minimum": 1}
    assert dict(ops(after)) == {**STEPS, **bounds}
    (values,) = [RNG.integers(-900, 900, SHAPE).astype("int32")]
    (a,), (b,) = run(after, [values]), run(mod, [values])
    differs = np.abs(a.astype(int) - b.astype(int))
    assert differs.max() <= 1 and differs.mean() < 0.005 and len(np.unique(b)) > 20


@pytest.mark.parametrize(("scale", "kept"), [(6 / 255, 0), (6 / 254.6, 0), (6 / 254.4, 1), (6 / 100, 1)])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_bounds_that_are_the_types(scale, kept, kind):
    """A ReLU6 whose 6 is the last step, and whose 0 is the first, leaves nothing."""
    zero = 0 if kind == "uint8" else -128
    mod = build(ONE, lambda bb, i: up(bb.emit(op.clip(real(bb, i), 0.0, 6.0)), scale, zero, kind))
    after = FoldRequantization(DecisionLog())(mod)
    assert dict(ops(after)) == {**STEPS, **({"minimum": 1} if kept else {})}
    values = np.concatenate([RNG.integers(-9000, 9000, np.prod(SHAPE) - 2), [2**31 - 1, -(2**31)]])
    values = values.reshape(SHAPE).astype("int32")
    (a,), (b,) = run(after, [values]), run(mod, [values])
    assert np.abs(a.astype(int) - b.astype(int)).max() <= 1
    assert a.max() == b.max() and a.min() == b.min() == zero


def shared(bb, i):
    x = real(bb, i)
    return up(x), x


def other_function(bb, i):
    return up(bb.emit(op.exp(bb.emit(op.minimum(real(bb, i), c(np.float32(1)))))))


def product_of_two(bb, i):
    wide = bb.emit(op.astype(i, "float32"))
    return up(bb.emit(op.multiply(wide, wide)))


def broadcast(bb, i):
    row = bb.emit(op.strided_slice(i, [3], [0], [1]))
    return up(bb.emit(op.add(bb.emit(op.astype(row, "float32")), bb.emit(op.astype(i, "float32")))))


def times_a_constant(bb, i):
    return up(bb.emit(op.multiply(bb.emit(op.exp(bb.emit(op.minimum(real(bb, i), c(np.float32(1)))))), c(CHANNELS))))


def bounded(bb, i):
    """A convolution that stays in floats, with its activation."""
    return up(relu6(bb, bb.emit(op.exp(bb.emit(op.minimum(real(bb, i), c(np.float32(1))))))))


@pytest.mark.parametrize("body", [bounded, shared, other_function, product_of_two, broadcast, times_a_constant])
def test_the_reciprocal(body):
    """Results of other operators are multiplied, not divided; a constant they are multiplied by already takes it."""
    mod = build(ONE, body)
    after = FoldRequantization(DecisionLog())(mod)
    assert dict(ops(after) - ops(mod)) == ({} if body is times_a_constant else {"multiply": 1})
    values = RNG.integers(-900, 900, SHAPE).astype("int32")
    a, b = run(after, [values])[0], run(mod, [values])[0]
    differs = np.abs(a.astype(int) - b.astype(int))
    assert differs.max() <= 1 and differs.mean() < 0.005


REFUSED = {
    "an input": lambda bb, x: up(x),
    "an input between bounds": lambda bb, x: up(relu6(bb, x)),
    "a moved input": lambda bb, x: up(bb.emit(op.reshape(bb.emit(nn.relu(x)), (16, 2, 5, 7)))),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    """What lies exactly between two steps before is divided still."""
    log, mod = DecisionLog(), build({"x": SHAPE}, REFUSED[case])
    assert ops(FoldRequantization(log)(mod)) == ops(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_scale_of_one_stays():
    mod = build(ONE, lambda bb, i: up(real(bb, i), scale=1.0))
    assert ops(FoldRequantization(DecisionLog())(mod)) == STEPS
