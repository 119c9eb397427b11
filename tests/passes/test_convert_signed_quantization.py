"""int8 activations become uint8 where they are made."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops
from tvmopt.passes import ConvertSignedQuantization
from tvmopt.passes.convert_signed_quantization import signed, unsigned
from tvmopt.report import DecisionLog

op, c = relax.op, relax.const
SCALE = c(np.float32(0.02))


def zero(value, kind="int8"):
    return c(np.array(value, kind), kind)


def pair(bb, x, z=-3):
    return bb.emit(op.quantize(x, SCALE, zero(z), axis=-1, out_dtype="int8"))


def real(q, z=-3):
    return op.dequantize(q, SCALE, zero(z), axis=-1)


@pytest.mark.parametrize("z", [-128, -3, 0, 127])
def test_one_reader(z):
    mod = build({"x": (3, 17)}, lambda bb, x: real(pair(bb, x, z), z))
    after = check_rewrite(ConvertSignedQuantization, mod, {"quantize": 1, "dequantize": 1}, tol=0)
    kinds = [str(b.var.ty.dtype) for b in after["main"].body.blocks[0].bindings[:-1]]
    assert kinds == ["uint8", "float32"]


def test_two_readers():
    def body(bb, x):
        q = pair(bb, x)
        return op.add(bb.emit(real(q)), bb.emit(op.exp(bb.emit(real(q)))))

    expected = {"quantize": 1, "dequantize": 2, "exp": 1, "add": 1}
    check_rewrite(ConvertSignedQuantization, build({"x": (3, 17)}, body), expected)


def per_channel(bb, x):
    q = bb.emit(op.quantize(x, c(np.full(17, 0.1, "float32")), c(np.zeros(17, "int8"), "int8"), out_dtype="int8"))
    return op.astype(q, "float32")


REFUSED = {
    "a result": (pair, "1"),
    "a reader of the integers": (lambda bb, x: op.astype(pair(bb, x), "int32"), "1"),
    "a reader per channel": (
        lambda bb, x: op.dequantize(pair(bb, x), c(np.full(17, 0.1, "float32")), c(np.zeros(17, "int8"), "int8")), "1"
    ),
    "per channel": (per_channel, "2"),
    "numbers that are only added": (lambda bb, x: op.add(x, bb.emit(real(pair(bb, x)))), "3"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    body, reason = REFUSED[case]
    log, mod = DecisionLog(), build({"x": (3, 17)}, body)
    check_rewrite(ConvertSignedQuantization, mod)
    ConvertSignedQuantization(log)(mod)
    assert [d.reason[0] for d in log] == [reason]


def test_unsigned_is_left_alone():
    def body(bb, x):
        q = bb.emit(op.quantize(x, SCALE, zero(3, "uint8"), out_dtype="uint8"))
        return op.dequantize(q, SCALE, zero(3, "uint8"))

    check_rewrite(ConvertSignedQuantization, build({"x": (3, 17)}, body))


def test_there_and_back():
    mod = build({"x": ((256,), "uint8")}, lambda bb, x: unsigned(bb.emit(signed(x))))
    assert ops(mod)["astype"] > 0
    from tests.passes.helpers import run

    every = np.arange(256).astype("uint8")
    assert (run(mod, [every])[0] == every).all()
