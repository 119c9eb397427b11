"""Convolutions of another form than the two axes that kernels know: what graph passes have left of them."""

from __future__ import annotations

from tvm import relax

from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def other_form(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Declined:
    """A transposed convolution, or one of one or three axes."""
    axes = {"1": "one axis", "2": "two axes", "3": "three axes"}[str(call.op.name).partition("conv")[2][0]]
    if "transpose" not in str(call.op.name):
        return Declined(f"a convolution of {axes}")
    dilated = "dilated " if any(int(d) > 1 for d in call.attrs.dilation) else ""
    return Declined(f"a {dilated}transposed convolution of {axes}")


LOWERS = {f"relax.nn.conv{name}": other_form for name in ("1d", "3d", "1d_transpose", "2d_transpose", "3d_transpose")}
