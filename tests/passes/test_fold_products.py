"""The distributive law, where it saves a multiplication."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import FoldProducts
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
SHAPES = {"x": (3, 9), "y": (3, 9)}


@pytest.mark.parametrize("join", [op.add, op.subtract])
def test_one_tensor_and_two_constants(join):
    def body(bb, x, y):
        return join(bb.emit(op.multiply(x, c(rand(9)))), bb.emit(op.multiply(c(rand(9, seed=1)), x)))

    check_rewrite(FoldProducts, build(SHAPES, body), {"multiply": 1})


def test_two_tensors_and_one_constant():
    b = c(rand(1, 9))
    mod = build(SHAPES, lambda bb, x, y: op.add(bb.emit(op.multiply(x, b)), bb.emit(op.multiply(y, b))))
    check_rewrite(FoldProducts, mod, {"add": 1, "multiply": 1})


@pytest.mark.parametrize("number", [np.inf, 3e38])
def test_a_factor_that_may_leave_the_type_stays(number):
    """inf * x - inf * y is NaN or infinite, inf * (x - y) another infinity."""
    b = c(np.full((1, 9), number, "float32"))
    mod = build(SHAPES, lambda bb, x, y: op.subtract(bb.emit(op.multiply(x, b)), bb.emit(op.multiply(y, b))))
    check_rewrite(FoldProducts, mod)
    mod = build(SHAPES, lambda bb, x, y: op.add(bb.emit(op.multiply(x, b)), bb.emit(op.multiply(x, c(rand(1, 9))))))
    check_rewrite(FoldProducts, mod)


def test_twice_the_same():
    check_rewrite(FoldProducts, build(SHAPES, lambda bb, x, y: op.add(x, x)), {"multiply": 1})


def test_different_tensors_and_constants_stay():
    def body(bb, x, y):
        return op.add(bb.emit(op.multiply(x, c(rand(9)))), bb.emit(op.multiply(y, c(rand(9, seed=1)))))

    check_rewrite(FoldProducts, build(SHAPES, body))


def test_a_shared_product_stays():
    def body(bb, x, y):
        p = bb.emit(op.multiply(x, c(rand(9))))
        return op.add(p, bb.emit(op.multiply(x, c(rand(9, seed=1))))), nn.relu(p)

    log, mod = DecisionLog(), build(SHAPES, body)
    check_rewrite(FoldProducts, mod)
    FoldProducts(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_constants_that_would_grow_stay():
    def body(bb, x, y):
        return op.add(bb.emit(op.multiply(x, c(rand(9)))), bb.emit(op.multiply(x, c(rand(3, 1)))))

    check_rewrite(FoldProducts, build(SHAPES, body))
