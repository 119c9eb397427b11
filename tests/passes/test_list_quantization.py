"""Every step between bytes and floats that is left is told, with what is computed between them, and why."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import ConvertIntegerProducts, ListQuantization
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
X = {"x": ((2, 8), "uint8")}


def floats(x, scale=0.1):
    return op.dequantize(x, c(np.float32(scale)), c(np.array(3, "uint8"), "uint8"), axis=-1, out_dtype="float32")


def steps(x, scale=0.2):
    return op.quantize(x, c(np.float32(scale)), c(np.array(9, "uint8"), "uint8"), axis=-1, out_dtype="uint8")


def told(mod, **options):
    log = options.pop("log", DecisionLog())
    check_rewrite(lambda _: ListQuantization(log, **options), mod)
    return [d.reason for d in log if d.stage == "tvmopt.ListQuantization"]


def test_softmax_between_bytes():
    def body(bb, x):
        real = bb.emit(op.add(bb.emit(floats(x)), c(np.float32(1.0))))
        return bb.emit(steps(bb.emit(nn.softmax(real, axis=-1))))

    assert told(build(X, body)) == [
        "1: bytes become floats for nn.softmax", "2: floats become bytes behind nn.softmax"
    ]  # fmt: skip


def test_the_ends_of_a_model():
    mod = build({"x": (2, 8)}, lambda bb, x: floats(bb.emit(steps(x))))
    assert told(mod) == [
        "2: floats become bytes behind the model's input",
        "1: bytes become floats for the model's output",
    ]


def test_sums_of_integers_are_not_told():
    """The kernel of a product of bytes stores bytes; nothing lies in memory as floats."""

    def square(bb, x):
        total = bb.emit(op.astype(bb.emit(op.matmul(x, c(np.ones((8, 8), "int8")), out_dtype="int32")), "float32"))
        real = bb.emit(op.add(bb.emit(op.multiply(total, c(np.float32(0.1)))), bb.emit(floats(x))))
        return bb.emit(steps(bb.emit(nn.relu(real))))

    assert told(build(X, square)) == []


@pytest.mark.parametrize("unwanted", ["", "no products of bytes are asked for"])
def test_why_a_product_is_in_floats_is_repeated(unwanted):
    w = op.dequantize(c(np.ones((8, 3), "int8")), c(np.float32(0.1)), c(np.array(0, "int8"), "int8"), axis=1)
    log = DecisionLog()
    mod = build(X, lambda bb, x: steps(bb.emit(op.matmul(bb.emit(floats(x)), bb.emit(w)))))
    if not unwanted:
        mod = ConvertIntegerProducts(log, lambda product: (3000.0, 2000.0))(mod)
    why = unwanted or "predicted to take 3.0 us in bytes, 2.0 in floats"
    assert told(mod, log=log, unwanted=unwanted) == [
        f"1: bytes become floats for matmul ({why})", f"2: floats become bytes behind matmul ({why})"
    ]  # fmt: skip
