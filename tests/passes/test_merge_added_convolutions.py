"""Convolutions of one tensor whose results are added become one."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.dims import Dim
from tvmopt.importer.sizes import shape_to_tvm
from tvmopt.passes import MergeAddedConvolutions
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def conv(bb, x, kernel, seed=0, channels=8, bias=True, groups=1, into=8, **given):
    """A convolution whose window is around the place that it writes, and its bias."""
    padding = given.pop("padding", [k // 2 for k in kernel] * 2)
    y = bb.emit(
        nn.conv2d(x, c(rand(into, channels // groups, *kernel, seed=seed)), padding=padding, groups=groups, **given)
    )
    return bb.emit(op.add(y, c(rand(into, 1, 1, seed=seed + 10)))) if bias else y


def scaled(bb, x, seed=5, channels=8):
    y = bb.emit(op.multiply(x, c(rand(channels, 1, 1, seed=seed))))
    return bb.emit(op.add(y, c(rand(channels, 1, 1, seed=seed + 1))))


def block(bb, x):
    """A block of RepVGG as it is trained."""
    both = bb.emit(op.add(conv(bb, x, (3, 3)), conv(bb, x, (1, 1), 1)))
    return op.add(both, scaled(bb, x))


MERGED = {
    "RepVGG": (block, {"nn.conv2d": 1, "add": 1}),
    "no bias": (
        lambda bb, x: op.add(conv(bb, x, (1, 1), bias=False), conv(bb, x, (3, 3), 1, bias=False)),
        {"nn.conv2d": 1},
    ),
    "of one window": (lambda bb, x: op.add(conv(bb, x, (3, 3)), conv(bb, x, (3, 3), 1)), {"nn.conv2d": 1, "add": 1}),
    "rows": (lambda bb, x: op.add(conv(bb, x, (5, 3)), conv(bb, x, (1, 3), 1)), {"nn.conv2d": 1, "add": 1}),
    "depthwise and a scale": (
        lambda bb, x: op.add(scaled(bb, x), conv(bb, x, (7, 7), groups=8)),
        {"nn.conv2d": 1, "add": 1},
    ),
    "groups and a scale": (
        lambda bb, x: op.add(conv(bb, x, (3, 3), groups=2, bias=False), scaled(bb, x)),
        {"nn.conv2d": 1, "add": 1},
    ),
    "strides": (
        lambda bb, x: op.add(
            conv(bb, x, (3, 3), strides=[2, 2]), conv(bb, x, (1, 1), 1, strides=[2, 2], padding=[0] * 4)
        ),
        {"nn.conv2d": 1, "add": 1},
    ),
    "padding on one side": (
        lambda bb, x: op.add(
            conv(bb, x, (3, 3), padding=[0, 2, 2, 0]), conv(bb, x, (2, 2), 1, padding=[0, 1, 1, 0])
        ),
        {"nn.conv2d": 1, "add": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [(1, 8, 9, 7), (2, 8, 1, 16)])
@pytest.mark.parametrize("name", MERGED)
def test_branches_are_one_convolution(name, size):
    body, expected = MERGED[name]
    check_rewrite(MergeAddedConvolutions, build({"x": size}, body), expected)


def test_branches_of_open_size():
    shape = shape_to_tvm((Dim.symbol("n"), 8, Dim.symbol("h"), Dim.symbol("w")))
    assert ops(MergeAddedConvolutions()(build({"x": shape}, block))) == {"nn.conv2d": 1, "add": 1}


def shared(bb, x):
    """The second convolution is read again."""
    one, two = conv(bb, x, (3, 3), bias=False), conv(bb, x, (1, 1), 1, bias=False)
    return op.multiply(bb.emit(op.add(one, two)), two)


KEPT = {
    "a plain sum": lambda bb, x: op.add(conv(bb, x, (3, 3)), x),
    "two scales": lambda bb, x: op.add(scaled(bb, x), scaled(bb, x, 7)),
    "another tensor": lambda bb, x: op.add(conv(bb, x, (3, 3)), conv(bb, bb.emit(nn.relu(x)), (1, 1), 1)),
    "read twice": shared,
    "dilated": lambda bb, x: op.add(conv(bb, x, (3, 3), dilation=[2, 2], padding=[2] * 4), conv(bb, x, (1, 1), 1)),
    "a row for each pixel": lambda bb, x: op.add(
        conv(bb, x, (3, 3)), bb.emit(op.multiply(x, c(rand(1, 8, 1, 7))))
    ),
}  # fmt: skip
REFUSED = {
    "groups": lambda bb, x: op.add(conv(bb, x, (3, 3)), conv(bb, x, (3, 3), 1, groups=8)),
    "crossing windows": lambda bb, x: op.add(conv(bb, x, (3, 1)), conv(bb, x, (1, 3), 1)),
    "beside the window": lambda bb, x: op.add(
        conv(bb, x, (3, 3), padding=[1] * 4), conv(bb, x, (3, 3), 1, padding=[2, 2, 0, 0])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*KEPT, *REFUSED])
def test_other_sums_stay(name):
    mod, log = build({"x": (1, 8, 9, 7)}, (KEPT | REFUSED)[name]), DecisionLog()
    check_rewrite(MergeAddedConvolutions, mod)
    MergeAddedConvolutions(log)(mod)
    assert [d.reason[0] for d in log] == ["1"] * (name in REFUSED)


def test_weights_that_would_leave_their_type_stay():
    def body(bb, x):
        large = c(np.full((8, 8, 1, 1), 3e38, np.float32))
        return op.add(bb.emit(nn.conv2d(x, large)), bb.emit(nn.conv2d(x, large)))

    log = DecisionLog()
    mod = build({"x": (1, 8, 9, 7)}, body)
    assert ops(MergeAddedConvolutions(log)(mod)) == ops(mod)
    assert [d.reason[0] for d in log] == ["2"]


def test_a_scale_is_no_weight_of_16_bits():
    mod, log = build({"x": (1, 8, 9, 7)}, block), DecisionLog()
    assert ops(MergeAddedConvolutions(log, scales=False)(mod)) == {"nn.conv2d": 1, "add": 3, "multiply": 1}
    assert [d.reason[0] for d in log if d.reason[0].isdigit()] == ["3"]
