"""Dequantizations go down through what moves numbers, quantizations up; a pair with one scale is none."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import PropagateQuantization
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def down(x, scale=0.05, zero=9, kind="uint8"):
    return op.dequantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1)


def up(x, scale=0.05, zero=9, kind="uint8"):
    return op.quantize(x, c(np.float32(scale)), c(np.array(zero, kind), kind), axis=-1, out_dtype=kind)


IMAGE = {"x": ((1, 4, 9, 8), "uint8")}
MOVES = {
    "nn.max_pool2d": lambda bb, x: nn.max_pool2d(x, (3, 3), (2, 2), 1),
    "reshape": lambda bb, x: op.reshape(x, (4, 72)),
    "permute_dims": lambda bb, x: op.permute_dims(x, (0, 2, 3, 1)),
    "strided_slice": lambda bb, x: op.strided_slice(x, [2], [1], [8], [2]),
    "flatten": lambda bb, x: op.flatten(x),
    "take": lambda bb, x: op.take(x, c(np.array([2, 0, 2]), "int64"), axis=1),
    "gather_elements": lambda bb, x: op.gather_elements(x, c(np.ones((1, 4, 9, 3)), "int64"), axis=3),
    "gather_nd": lambda bb, x: op.gather_nd(x, c(np.array([[0, 3], [0, 1]]), "int64")),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_between_a_pair(name):
    mod = build(IMAGE, lambda bb, x: up(bb.emit(MOVES[name](bb, bb.emit(down(x))))))
    check_rewrite(PropagateQuantization, mod, {name: 1})


@pytest.mark.parametrize("name", MOVES)
def test_a_move_before_arithmetic(name):
    mod = build(IMAGE, lambda bb, x: op.exp(bb.emit(MOVES[name](bb, bb.emit(down(x))))))
    check_rewrite(PropagateQuantization, mod, {name: 1, "dequantize": 1, "exp": 1})


def test_a_quantization_rises_to_what_computes():
    mod = build({"x": (1, 4, 6, 6)}, lambda bb, x: up(bb.emit(op.reshape(bb.emit(op.exp(x)), (4, 36)))))
    after = check_rewrite(PropagateQuantization, mod, {"exp": 1, "quantize": 1, "reshape": 1})
    assert [b.var.ty.dtype for b in after["main"].body.blocks[0].bindings[1:3]] == ["uint8", "uint8"]


def test_other_readers_keep_their_floats():
    def body(bb, x):
        moved = bb.emit(op.reshape(bb.emit(op.exp(x)), (4, 36)))
        return up(moved), moved

    check_rewrite(PropagateQuantization, build({"x": (1, 4, 6, 6)}, body))


def join(*parts):
    return op.concat(list(parts), axis=1)


def test_a_concatenation_of_one_scale():
    two = {"x": ((1, 4, 5), "uint8"), "y": ((1, 3, 5), "uint8")}
    mod = build(two, lambda bb, x, y: op.exp(bb.emit(join(bb.emit(down(x)), bb.emit(down(y))))))
    check_rewrite(PropagateQuantization, mod, {"concat": 1, "dequantize": 1, "exp": 1})


def test_a_concatenation_that_is_quantized():
    """The part with the scale of the whole is taken as it is, the others are quantized before they are joined."""
    three = {"x": ((1, 4, 5), "uint8"), "y": ((1, 3, 5), "uint8"), "z": (1, 2, 5)}

    def body(bb, x, y, z):
        return up(bb.emit(join(bb.emit(down(x)), bb.emit(down(y, 0.07, 11)), bb.emit(op.exp(z)))))

    check_rewrite(PropagateQuantization, build(three, body), {"concat": 1, "dequantize": 1, "exp": 1, "quantize": 2})


REFUSED = {
    "another scale": lambda bb, x: up(bb.emit(down(x)), 0.06),
    "another zero point": lambda bb, x: up(bb.emit(down(x)), zero=8),
    "another type": lambda bb, x: up(bb.emit(down(x)), zero=9, kind="int8"),
    "an average": lambda bb, x: nn.avg_pool2d(bb.emit(down(x)), (2, 2)),
    "a sum": lambda bb, x: op.add(bb.emit(down(x)), bb.emit(down(x))),
    "a negative scale": lambda bb, x: nn.max_pool2d(bb.emit(down(x, -0.05)), (2, 2)),
    "per channel": lambda bb, x: op.permute_dims(
        bb.emit(op.dequantize(x, c(np.full(4, 0.1, "float32")), c(np.zeros(4, "uint8"), "uint8"), axis=1)), (0, 2, 3, 1)
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    check_rewrite(PropagateQuantization, build(IMAGE, REFUSED[case]))


def test_parts_of_different_scales_are_reported():
    log = DecisionLog()
    two = {"x": ((1, 4, 5), "uint8"), "y": ((1, 3, 5), "uint8")}
    mod = build(two, lambda bb, x, y: op.exp(bb.emit(join(bb.emit(down(x)), bb.emit(down(y, 0.07))))))
    check_rewrite(PropagateQuantization, mod)
    PropagateQuantization(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]
