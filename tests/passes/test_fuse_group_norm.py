"""GroupNorm as PyTorch's exporter writes it: an instance norm between two reshapes, then a scale and a shift."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.passes import FuseGroupNorm
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const


def group_norm(bb, x, groups, *, scale=None, shift=None):
    """x normalised in groups; `scale` and `shift` are applied behind the second reshape."""
    dims = [int(d) for d in x.ty.shape]
    flat = bb.emit(op.reshape(x, (dims[0], groups, int(np.prod(dims[1:])) // groups)))
    one, zero = c(np.full(groups, 1.5, "float32")), c(np.full(groups, 0.25, "float32"))
    norm = bb.emit(nn.instance_norm(flat, one, zero, channel_axis=1, axes=[2], epsilon=1e-5))
    y = bb.emit(op.reshape(norm, dims))
    y = y if scale is None else bb.emit(op.multiply(y, c(scale)))
    return y if shift is None else bb.emit(op.add(c(shift), y))


@pytest.mark.parametrize(
    "channels, groups, space", [(1, 1, (7, 9)), (8, 8, (1, 1)), (9, 3, (17,)), (32, 4, (3, 5)), (6, 2, (2, 3, 4))]
)
def test_norm_scale_and_shift_are_one(channels, groups, space):
    column = (channels, *[1] * len(space))

    def body(bb, x):
        return group_norm(bb, x, groups, scale=rand(*column), shift=rand(1, *column, seed=1))

    mod = build({"x": (2, channels, *space)}, body)
    check_rewrite(FuseGroupNorm, mod, {"nn.group_norm": 1}, tol=1e-4)


def test_without_scale_and_shift():
    mod = build({"x": (2, 8, 5, 3)}, lambda bb, x: group_norm(bb, x, 4))
    check_rewrite(FuseGroupNorm, mod, {"nn.group_norm": 1}, tol=1e-4)


def test_one_number_is_a_scale_too():
    mod = build({"x": (2, 8, 5, 3)}, lambda bb, x: group_norm(bb, x, 4, scale=np.float32(3)))
    check_rewrite(FuseGroupNorm, mod, {"nn.group_norm": 1}, tol=1e-4)


def declined(mod):
    """The rewritten module's operators, and the reasons for what was left alone."""
    log = DecisionLog()
    return ops(FuseGroupNorm(log)(mod)), [d.reason for d in log if d.verdict == "declined"]


def test_channels_that_stand_last_are_left_alone():
    found, reasons = declined(build({"x": (2, 8)}, lambda bb, x: group_norm(bb, x, 4)))
    assert found["nn.group_norm"] == 0 and reasons[0].startswith("1")


@pytest.mark.parametrize("dims", [(8, 5, 3), (3,), (2, 1, 1, 1)])
def test_a_scale_that_is_not_by_channel_stays(dims):
    mod = build({"x": (2, 8, 5, 3)}, lambda bb, x: group_norm(bb, x, 4, scale=rand(*dims)))
    found, reasons = declined(mod)
    assert found["nn.group_norm"] == 1 and found["multiply"] == 1 and reasons[0].startswith("2")


def test_a_norm_with_another_reader_stays():
    def body(bb, x):
        flat = bb.emit(op.reshape(x, (2, 4, 30)))
        norm = bb.emit(nn.instance_norm(flat, c(rand(4)), c(rand(4)), channel_axis=1, axes=[2]))
        return bb.emit(op.reshape(norm, (2, 8, 5, 3))), bb.emit(op.exp(norm))

    found, _ = declined(build({"x": (2, 8, 5, 3)}, body))
    assert found["nn.group_norm"] == 0


def test_another_shape_behind_it_stays():
    def body(bb, x):
        flat = bb.emit(op.reshape(x, (2, 4, 30)))
        norm = bb.emit(nn.instance_norm(flat, c(rand(4)), c(rand(4)), channel_axis=1, axes=[2]))
        return bb.emit(op.reshape(norm, (2, 8, 3, 5)))

    found, _ = declined(build({"x": (2, 8, 5, 3)}, body))
    assert found["nn.group_norm"] == 0
