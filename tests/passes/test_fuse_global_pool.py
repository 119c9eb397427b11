"""One reduction for two, and for a window as large as the image."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import FuseGlobalPool
from tvmopt.report import DecisionLog

op, nn = relax.op, relax.op.nn


@pytest.mark.parametrize("name", ["mean", "max", "min", "sum"])
@pytest.mark.parametrize(
    "first, second, keep", [(3, 2, True), (2, 3, True), (3, 2, False), (2, 2, False), (-1, -1, False)]
)
def test_two_reductions(name, first, second, keep):
    reduce = getattr(op, name)

    def body(bb, x):
        return reduce(bb.emit(reduce(x, [first], keepdims=keep)), [second], keepdims=keep)

    check_rewrite(FuseGlobalPool, build({"x": (2, 3, 7, 9)}, body), {name: 1})


def test_keepdims_of_the_inner_only():
    def body(bb, x):
        return op.mean(bb.emit(op.mean(x, [3], keepdims=True)), [2])

    check_rewrite(FuseGlobalPool, build({"x": (2, 3, 7, 9)}, body), {"mean": 1, "reshape": 1})


WINDOWS = {
    "average": (lambda x: nn.avg_pool2d(x, (7, 9)), "mean"),
    "average, stride": (lambda x: nn.avg_pool2d(x, (7, 9), (2, 2)), "mean"),
    "larger than the image": (lambda x: nn.avg_pool2d(x, (20, 20), (20, 20), ceil_mode=True), "mean"),
    "maximum": (lambda x: nn.max_pool2d(x, (7, 9)), "max"),
    "adaptive": (lambda x: nn.adaptive_avg_pool2d(x, 1), "mean"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    pool, reduction = WINDOWS[name]
    check_rewrite(FuseGlobalPool, build({"x": (2, 3, 7, 9)}, lambda bb, x: pool(x)), {reduction: 1})


def test_a_smaller_window_stays():
    check_rewrite(FuseGlobalPool, build({"x": (2, 3, 7, 9)}, lambda bb, x: nn.avg_pool2d(x, (7, 8))))


def test_counted_padding_stays():
    log = DecisionLog()
    mod = build({"x": (2, 3, 7, 9)}, lambda bb, x: nn.avg_pool2d(x, (7, 9), (9, 9), (1, 1), count_include_pad=True))
    check_rewrite(FuseGlobalPool, mod)
    FuseGlobalPool(log)(mod)
    assert [d.reason[0] for d in log] == ["2"]


def test_a_shared_inner_reduction_stays():
    log = DecisionLog()

    def body(bb, x):
        rows = bb.emit(op.mean(x, [3], keepdims=True))
        return op.mean(rows, [2], keepdims=True), nn.relu(rows)

    mod = build({"x": (2, 3, 7, 9)}, body)
    check_rewrite(FuseGlobalPool, mod)
    FuseGlobalPool(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_maximum_of_means_stays():
    def body(bb, x):
        return op.max(bb.emit(op.mean(x, [3], keepdims=True)), [2], keepdims=True)

    check_rewrite(FuseGlobalPool, build({"x": (2, 3, 7, 9)}, body))
