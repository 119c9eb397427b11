"""Convolutions of another form than the two axes that kernels know: what graph passes have left of them."""

from __future__ import annotations

from tvm import relax

from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def not_two_axes(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Declined:
    """What a graph pass has left of transposed and of 3-d convolutions."""
    if "transpose" in str(call.op.name):
        dilated = any(int(d) > 1 for d in call.attrs.dilation)
        return Declined("a dilated transposed convolution" if dilated else "a transposed convolution")
    return Declined("a convolution of three axes")


LOWERS = {"relax.nn.conv2d_transpose": not_two_axes, "relax.nn.conv3d": not_two_axes}
