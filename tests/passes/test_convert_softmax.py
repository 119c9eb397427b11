"""Softmax of 16-bit numbers, in float32."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import ConvertSoftmax
from tvmopt.report import DecisionLog


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_float16_is_widened(name, axis):
    def body(bb, x):
        return getattr(relax.op.nn, name)(bb.emit(relax.op.astype(x, "float16")), axis)

    before = build({"x": (5, 17)}, body)
    check_rewrite(ConvertSoftmax, before, {"astype": 3, f"nn.{name}": 1}, tol=2e-3)


def test_float32_stays():
    check_rewrite(ConvertSoftmax, build({"x": (5, 17)}, lambda bb, x: relax.op.nn.softmax(x, -1)))


def test_kernels_that_sum_in_float32_are_left_alone():
    def body(bb, x):
        return relax.op.nn.softmax(bb.emit(relax.op.astype(x, "float16")), -1)

    log = DecisionLog()
    after = ConvertSoftmax(log, lambda call: int(call.attrs.axis) == -1)(build({"x": (5, 17)}, body))
    assert "float32" not in str(after["main"].body.body.ty)
    assert [d.reason for d in log.decisions] == ["1: its kernel adds up in float32"]
