"""GELU, SiLU and the sigmoid in every association; near misses stay."""

import itertools

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import EliminateIdentities, FuseActivations
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
F = np.float32
HALF, ONE = c(F(0.5)), c(F(1))
R2, C3 = F(2**-0.5), F(0.044715)
K = F((2 / np.pi) ** 0.5)


def fuse(log):
    """As in the pipeline."""
    return lambda mod: FuseActivations(log)(EliminateIdentities(log)(mod))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_gelu_erf_in_every_order_and_association(order):
    def body(bb, x):
        e = bb.emit
        inner = e(op.divide(x, c(F(2**0.5)))) if order[0] else e(op.multiply(c(R2), x))
        three = [x, HALF, e(op.add(ONE, e(op.erf(inner))))]
        a, b, d = (three[i] for i in order)
        return op.multiply(a, e(op.multiply(b, d))) if order[1] else op.multiply(e(op.multiply(a, b)), d)

    check_rewrite(fuse, build({"x": (3, 17)}, body), {"nn.gelu": 1})


def test_gelu_erf_distributed():
    def body(bb, x):
        e = bb.emit
        half = e(op.multiply(e(op.erf(e(op.multiply(x, c(R2))))), HALF))
        return op.multiply(x, e(op.add(half, HALF)))

    check_rewrite(fuse, build({"x": (3, 17)}, body), {"nn.gelu": 1})


def cube(bb, x):
    return bb.emit(op.multiply(bb.emit(op.multiply(x, x)), x))


TANH = {
    "paper": lambda bb, x: op.multiply(c(K), bb.emit(op.add(x, bb.emit(op.multiply(c(C3), cube(bb, x)))))),
    "power": lambda bb, x: op.multiply(
        bb.emit(op.add(x, bb.emit(op.multiply(bb.emit(op.power(x, c(F(3)))), c(C3))))), c(K)
    ),
    "factored": lambda bb, x: op.multiply(
        bb.emit(op.multiply(x, c(K))),
        bb.emit(op.add(ONE, bb.emit(op.multiply(bb.emit(op.multiply(x, x)), c(C3))))),
    ),
}


@pytest.mark.parametrize("name", TANH)
def test_gelu_tanh(name):
    def body(bb, x):
        gate = bb.emit(op.add(bb.emit(op.tanh(bb.emit(TANH[name](bb, x)))), ONE))
        return op.multiply(bb.emit(op.multiply(x, HALF)), gate)

    check_rewrite(fuse, build({"x": (3, 17)}, body), {"nn.gelu_tanh": 1})


def test_silu_and_sigmoid():
    mod = build({"x": (3, 17)}, lambda bb, x: op.multiply(bb.emit(op.sigmoid(x)), x))
    check_rewrite(fuse, mod, {"nn.silu": 1})

    def spelled(bb, x, top):
        return op.divide(top, bb.emit(op.add(ONE, bb.emit(op.exp(bb.emit(op.negative(x)))))))

    check_rewrite(fuse, build({"x": (3, 17)}, lambda bb, x: spelled(bb, x, ONE)), {"sigmoid": 1})
    check_rewrite(fuse, build({"x": (3, 17)}, lambda bb, x: spelled(bb, x, x)), {"nn.silu": 1})


def test_quick_gelu_is_not_silu():
    def body(bb, x):
        return op.multiply(x, bb.emit(op.sigmoid(bb.emit(op.multiply(x, c(F(1.702)))))))

    check_rewrite(FuseActivations, build({"x": (3, 17)}, body))


@pytest.mark.parametrize("half, root", [(0.4, 2**-0.5), (0.5, 0.8)])
def test_other_constants_are_not_gelu(half, root):
    def body(bb, x):
        e = bb.emit
        gate = e(op.add(e(op.erf(e(op.multiply(x, c(F(root)))))), ONE))
        return op.multiply(e(op.multiply(x, c(F(half)))), gate)

    log, mod = DecisionLog(), build({"x": (3, 17)}, body)
    check_rewrite(FuseActivations, mod)
    FuseActivations(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_gate_of_another_tensor_stays():
    def body(bb, x, y):
        e = bb.emit
        return op.multiply(e(op.multiply(x, HALF)), e(op.add(e(op.erf(e(op.multiply(y, c(R2))))), ONE)))

    check_rewrite(FuseActivations, build({"x": (3, 17), "y": (3, 17)}, body))
