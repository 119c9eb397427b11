"""Padding operators become the padding of their reader."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import FusePad
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
SAME = [0, 0, 0, 0, 0, 1, 0, 2]
W = c(rand(4, 3, 3, 3))
LOWEST = float(np.finfo("float32").min)

READERS = {
    "convolution": (lambda x: nn.conv2d(x, W, strides=2, padding=(1, 0, 0, 1)), 0.0, "nn.conv2d"),
    "maximum": (lambda x: nn.max_pool2d(x, 3, 2), float("-inf"), "nn.max_pool2d"),
    "average": (lambda x: nn.avg_pool2d(x, 3, 2, count_include_pad=True), 0.0, "nn.avg_pool2d"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("size", [7, 8, 9])
def test_readers(reader, size):
    call, value, name = READERS[reader]
    mod = build({"x": (1, 3, size, size)}, lambda bb, x: call(bb.emit(nn.pad(x, SAME, pad_value=value))))
    check_rewrite(FusePad, mod, {name: 1})


def test_conv1d():
    w = c(rand(4, 3, 3))
    mod = build({"x": (1, 3, 9)}, lambda bb, x: nn.conv1d(bb.emit(nn.pad(x, [0, 0, 0, 0, 2, 0])), w))
    check_rewrite(FusePad, mod, {"nn.conv1d": 1})


def test_two_readers_of_one_pad():
    def body(bb, x):
        p = bb.emit(nn.pad(x, SAME))
        return nn.conv2d(p, W), nn.relu(p)

    check_rewrite(FusePad, build({"x": (1, 3, 8, 8)}, body), {"nn.pad": 1, "nn.conv2d": 1, "nn.relu": 1})


REFUSED = {
    "another value": (lambda x: nn.conv2d(nn.pad(x, SAME, pad_value=1.0), W), "1"),
    "reflection": (lambda x: nn.conv2d(nn.pad(x, SAME, pad_mode="reflect"), W), "1"),
    "zeros below a maximum": (lambda x: nn.max_pool2d(nn.pad(x, SAME), 3), "1"),
    "channels": (lambda x: nn.max_pool2d(nn.pad(x, [0, 0, 1, 0, 0, 0, 0, 0], pad_value=LOWEST), 3), "2"),
    "an average that does not count": (lambda x: nn.avg_pool2d(nn.pad(x, SAME), 3), "4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, reason = REFUSED[case]
    log, mod = DecisionLog(), build({"x": (1, 3, 8, 8)}, lambda bb, x: call(x))
    check_rewrite(FusePad, mod)
    FusePad(log)(mod)
    assert [d.reason[0] for d in log] == [reason]
