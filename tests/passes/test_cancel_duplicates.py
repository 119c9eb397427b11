"""Equal expressions are computed once."""

import numpy as np
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import CancelDuplicates

op, nn, c = relax.op, relax.op.nn, relax.const


def test_a_tree_of_equal_calls():
    def body(bb, x):
        trees = [bb.emit(op.exp(bb.emit(op.mean(x, [-1], keepdims=True)))) for _ in range(2)]
        return op.add(*trees)

    check_rewrite(CancelDuplicates, build({"x": (3, 9)}, body), {"mean": 1, "exp": 1, "add": 1})


def test_equal_small_constants_are_one():
    mod = build({"x": (3, 9)}, lambda bb, x: (op.add(x, c(np.float32(2))), op.add(x, c(np.float32(2)))))
    check_rewrite(CancelDuplicates, mod, {"add": 1})


def test_parts_of_a_split_are_told_apart():
    def body(bb, x):
        a, b = (bb.emit(op.split(x, 3, axis=1)) for _ in range(2))
        return op.add(bb.emit(a[0]), bb.emit(b[1])), op.add(bb.emit(a[0]), bb.emit(b[0]))

    check_rewrite(CancelDuplicates, build({"x": (3, 9)}, body), {"split": 1, "add": 2})


def test_other_attributes_stay_apart():
    mod = build({"x": (9, 9)}, lambda bb, x: (op.mean(x, [0]), op.mean(x, [1])))
    check_rewrite(CancelDuplicates, mod)


def test_other_types_and_numbers_stay_apart():
    def body(bb, x):
        return op.add(x, c(np.float32(1))), op.add(x, c(np.ones((1,), "float32"))), op.astype(x, "int32")

    check_rewrite(CancelDuplicates, build({"x": (9,)}, body))


def test_large_constants_are_compared_by_object():
    one, two = c(rand(9, 9)), c(rand(9, 9))
    mod = build({"x": (9, 9)}, lambda bb, x: (op.matmul(x, one), op.matmul(x, two)))
    check_rewrite(CancelDuplicates, mod)
    mod = build({"x": (9, 9)}, lambda bb, x: (op.matmul(x, one), op.matmul(x, one)))
    check_rewrite(CancelDuplicates, mod, {"matmul": 1})


def test_calls_of_one_primfunc_on_one_value():
    mod = build({"x": (3, 9)}, lambda bb, x: (op.exp(x), op.exp(x), op.negative(x)))
    mod = relax.transform.LegalizeOps()(mod)
    check_rewrite(CancelDuplicates, mod, {"call_tir": 2})
