"""Softmax from exponentials, with the maximum subtracted."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import FuseSoftmax
from tvmopt.report import DecisionLog

op = relax.op


def softmax(bb, x, axis, other=None, stable=True):
    """exp(x - max) / sum."""
    y = bb.emit(op.subtract(x, bb.emit(op.max(x, [axis], keepdims=True)))) if stable else x
    e = bb.emit(op.exp(y))
    return op.divide(e, bb.emit(op.sum(e, [axis if other is None else other], keepdims=True)))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("width", [1, 9, 16])
def test_every_axis(axis, width):
    check_rewrite(FuseSoftmax, build({"x": (3, 5, width)}, lambda bb, x: softmax(bb, x, axis)), {"nn.softmax": 1})


@pytest.mark.parametrize("other, stable, reason", [(None, False, "1"), (1, True, "2")])
def test_refusals(other, stable, reason):
    log, mod = DecisionLog(), build({"x": (3, 5, 7)}, lambda bb, x: softmax(bb, x, -1, other, stable))
    check_rewrite(FuseSoftmax, mod)
    FuseSoftmax(log)(mod)
    assert [d.reason[0] for d in log] == [reason]
