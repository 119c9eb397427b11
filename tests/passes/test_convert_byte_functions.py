"""What becomes of a byte between two quantizations: nothing, bounds, or a table of its 256 values."""

import math

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, run
from tvmopt.passes import ConvertByteFunctions
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
SHAPE = (2, 8, 5, 7)
BYTES = {"q": (SHAPE, "uint8")}


def up(x, scale=0.05, zero=9, kind="uint8"):
    return op.quantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1, out_dtype=kind)


def down(x, scale=0.05, zero=9, kind="uint8"):
    return op.dequantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1)


def number(value):
    return c(np.float32(value))


def hard_swish(bb, x):
    gate = op.clip(bb.emit(op.add(x, number(3))), 0, 6)
    return op.multiply(bb.emit(op.multiply(x, bb.emit(gate))), number(1 / 6))


def silu_in_pieces(bb, x):
    """As quantizers write it: with a pair around each tensor."""
    gate = bb.emit(down(bb.emit(up(bb.emit(op.sigmoid(x)), 1 / 255, 0)), 1 / 255, 0))
    return op.multiply(x, gate)


def passes(tables=True):
    return lambda log=None: ConvertByteFunctions(log, tables)


# the function, scale and zero point behind it, and what is left
CASES = {
    "relu": (lambda bb, x: nn.relu(x), 0.05, 9, {"maximum": 1}),
    "relu of what is not negative": (lambda bb, x: op.add(nn.relu(x), number(0.45)), 0.05, 0, {"maximum": 1}),
    "relu6": (lambda bb, x: op.clip(x, 0, 6), 0.05, 9, {"maximum": 1, "minimum": 1}),
    "an upper bound": (lambda bb, x: op.minimum(x, number(1.0)), 0.05, 9, {"minimum": 1}),
    "nothing": (lambda bb, x: op.maximum(x, number(-100)), 0.05, 9, {}),
    "sigmoid": (lambda bb, x: op.sigmoid(x), 1 / 255, 0, {"tvmopt.lookup": 1}),
    "gelu": (lambda bb, x: nn.gelu(x), 0.031, 7, {"tvmopt.lookup": 1}),
    "hard swish": (hard_swish, 0.03, 14, {"tvmopt.lookup": 1}),
    "silu in pieces": (silu_in_pieces, 0.04, 7, {"tvmopt.lookup": 1}),
    "signed": (lambda bb, x: op.tanh(x), 1 / 127, 0, {"tvmopt.lookup": 1}),
}


EXACT = {
    "relu": lambda x: np.maximum(x, 0), "relu of what is not negative": lambda x: np.maximum(x, 0) + 0.45,
    "relu6": lambda x: np.clip(x, 0, 6), "an upper bound": lambda x: np.minimum(x, 1), "nothing": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "signed": np.tanh,
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "silu in pieces": lambda x: x * np.rint(255 / (1 + np.exp(-x))) / 255,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rewrites(name):
    """Every byte becomes the nearest integer to what the function makes of it."""
    function, scale, zero, expected = CASES[name]
    kind, low, high = ("int8", -128, 127) if name == "signed" else ("uint8", 0, 255)
    mod = build(BYTES, lambda bb, q: up(bb.emit(function(bb, bb.emit(down(q)))), scale, zero, kind))
    after = check_rewrite(passes(), mod, expected)
    every = np.resize(np.arange(256, dtype="uint8"), SHAPE)
    (found,) = run(after, [every])
    real = EXACT[name]((every.astype("float64") - 9) * np.float32(0.05)) / np.float32(scale)
    steps = np.clip(np.rint(real) + zero, low, high)
    on_a_line = np.abs(np.abs(real - np.floor(real)) - 0.5) < 1e-6
    assert found.dtype == kind and ((found == steps) | on_a_line).all()


def test_bounds_need_no_instruction():
    mod = build(BYTES, lambda bb, q: up(bb.emit(nn.relu(bb.emit(down(q))))))
    check_rewrite(passes(False), mod, {"maximum": 1})


def test_bounds_behind_what_stays_in_floats():
    def body(bb, q):
        first = bb.emit(up(bb.emit(op.sigmoid(bb.emit(down(q)))), 1 / 255, 3))
        return up(bb.emit(nn.relu(bb.emit(down(first, 1 / 255, 3)))), 1 / 255, 3)

    left = {"dequantize": 1, "sigmoid": 1, "quantize": 1, "maximum": 1}
    check_rewrite(passes(False), build(BYTES, body), left)


def declined(mod, tables=True):
    log = DecisionLog()
    check_rewrite(passes(tables), mod)
    passes(tables)(log)(mod)
    return " ".join(d.reason for d in log if d.verdict == "declined")


def test_another_shape():
    one = c(np.full((1, 1, 1, 1), 2.0, "float32"))
    inputs = {"q": ((5, 7), "uint8")}
    mod = build(inputs, lambda bb, q: up(bb.emit(op.multiply(bb.emit(op.tanh(bb.emit(down(q)))), one))))
    assert "1: it has another shape" in declined(mod)


def test_a_byte_that_has_no_number():
    mod = build(BYTES, lambda bb, q: up(bb.emit(op.log(bb.emit(down(q))))))
    assert "2: it is NaN" in declined(mod)


def test_a_machine_without_permutations():
    mod = build(BYTES, lambda bb, q: up(bb.emit(op.tanh(bb.emit(down(q))))))
    assert "AVX512-VBMI" in declined(mod, tables=False)


def test_a_table_that_would_take_longer():
    mod = build(BYTES, lambda bb, q: up(bb.emit(down(q)), 0.04, 9))
    assert "4: a table would take longer" in declined(mod)


@pytest.mark.parametrize("second", ["uint8", "channels", "float32"])
def test_two_tensors_are_no_function_of_one(second):
    inputs = BYTES if second == "channels" else {**BYTES, "p": (SHAPE, second)}

    def body(bb, q, p=None):
        other = bb.emit(down(p)) if second == "uint8" else p
        if p is None:
            other = c(np.arange(8, dtype="float32").reshape(1, 8, 1, 1))
        return up(bb.emit(op.multiply(bb.emit(op.sigmoid(bb.emit(down(q)))), other)))

    assert declined(build(inputs, body)) == ""
