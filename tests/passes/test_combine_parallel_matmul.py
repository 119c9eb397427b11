"""Parallel GEMMs become one where only layout operators read them."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import CombineParallelMatmul
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def linear(bb, x, n, bias=True, seed=0):
    """x W + b."""
    y = bb.emit(op.matmul(x, c(rand(int(x.ty.shape[-1]), n, seed=seed))))
    return bb.emit(op.add(y, c(rand(n, seed=seed + 1)))) if bias else y


def heads(bb, x, h=4):
    b, s, w = (int(d) for d in x.ty.shape)
    return bb.emit(op.reshape(x, (b, s, w // h, h)))


ALL, SOME, NONE = (True, True, True), (True, False, True), (False, False, False)


@pytest.mark.parametrize("rows, bias", [(1, ALL), (7, ALL), (8, SOME), (15, NONE)])
def test_query_key_value(rows, bias):
    def body(bb, x):
        return nn.attention(*(heads(bb, linear(bb, x, 12, b, seed=i)) for i, b in enumerate(bias)))

    expected = {"matmul": 1, "split": 1, "reshape": 3, "nn.attention": 1, **({"add": 1} if any(bias) else {})}
    check_rewrite(CombineParallelMatmul, build({"x": (2, rows, 9)}, body), expected)


def test_grouped_queries_have_other_widths():
    def body(bb, x):
        return tuple(heads(bb, linear(bb, x, n, seed=n)) for n in (16, 8, 4))

    mod = build({"x": (1, 5, 8)}, body)
    check_rewrite(CombineParallelMatmul, mod, {"matmul": 1, "add": 1, "split": 1, "reshape": 3})


def test_gate_and_up_keep_their_epilogues():
    log = DecisionLog()

    def body(bb, x):
        return op.multiply(bb.emit(nn.silu(linear(bb, x, 8, False))), linear(bb, x, 8, False, seed=5))

    mod = build({"x": (1, 5, 8)}, body)
    check_rewrite(CombineParallelMatmul, mod)
    CombineParallelMatmul(log)(mod)
    assert [d.reason[0] for d in log] == ["1", "1"]


def test_many_rows_stay_apart():
    log = DecisionLog()
    mod = build({"x": (2, 16, 8)}, lambda bb, x: tuple(heads(bb, linear(bb, x, 8, seed=i)) for i in range(3)))
    check_rewrite(CombineParallelMatmul, mod)
    CombineParallelMatmul(log)(mod)
    assert [d.reason for d in log] == ["2: 3 GEMMs of 32 rows"]


def test_one_gemm_has_nothing_to_join():
    log, mod = DecisionLog(), build({"x": (1, 5, 8)}, lambda bb, x: heads(bb, linear(bb, x, 8)))
    check_rewrite(CombineParallelMatmul, mod)
    CombineParallelMatmul(log)(mod)
    assert not list(log)


def test_different_inputs_stay_apart():
    def body(bb, x, y):
        return heads(bb, linear(bb, x, 8)), heads(bb, linear(bb, y, 8))

    check_rewrite(CombineParallelMatmul, build({"x": (1, 5, 8), "y": (1, 5, 8)}, body))


def test_weights_that_are_inputs_stay_apart():
    def body(bb, x, w):
        return heads(bb, bb.emit(op.matmul(x, w))), heads(bb, bb.emit(op.matmul(x, w)))

    check_rewrite(CombineParallelMatmul, build({"x": (1, 5, 8), "w": (8, 8)}, body))


def test_a_bias_of_rows_stays_outside_its_gemm():
    def body(bb, x):
        y = bb.emit(op.matmul(x, c(rand(8, 8))))
        return heads(bb, bb.emit(op.add(y, c(np.ones((5, 1), "float32"))))), heads(bb, linear(bb, x, 8))

    check_rewrite(CombineParallelMatmul, build({"x": (1, 5, 8)}, body))
