"""LayerNorm, RMSNorm, GroupNorm and InstanceNorm that no row kernel takes: of float64, of 16-bit
numbers, over axes that are not the last, over open sizes.

    mu = sum x / n;  v = sum (x - mu)^2 / n;  y = (x - mu) / sqrt(v + eps) * gamma + beta

TVM's own have the one-pass form E[x^2] - E[x]^2, which loses every digit where the mean is large beside the spread, and
know neither float64 nor bfloat16. Sums of 16-bit numbers are float32. Over open sizes, sums and what is computed with
them are float64: one chain of additions of unknown length has no digits of float32 to lose. Group and instance norms
split the channel axis into groups and the channels of one: a reshape that costs nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import is_empty, is_open, same_size, sizes
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

UNFIT = "an unknown or empty shape, or a type that is no float"
NO_PARTS = "an open number of channels in groups"
FLOATS = ("float16", "bfloat16", "float32", "float64")


def layer_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.layer_norm` over any axes."""
    attrs, shape = call.attrs, _shape(call)
    if shape is None:
        return Declined(UNFIT)
    axes = [int(a) % len(shape) for a in attrs.axes]
    return _normalised(bb, call.args, shape, axes, axes, float(attrs.epsilon), bool(attrs.scale), bool(attrs.center))


def rms_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.rms_norm` over any axes."""
    shape = _shape(call)
    if shape is None:
        return Declined(UNFIT)
    axes = [int(a) % len(shape) for a in call.attrs.axes]
    return _normalised(bb, call.args, shape, axes, axes, float(call.attrs.epsilon), True, False, centred=False)


def group_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.group_norm`, the channels on any axis."""
    return _grouped(bb, call, int(call.attrs.num_groups))


def instance_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.instance_norm`: each channel is a group."""
    shape = _shape(call)
    return Declined(UNFIT) if shape is None else _grouped(bb, call, shape[int(call.attrs.channel_axis) % len(shape)])


def _grouped(bb: relax.BlockBuilder, call: relax.Call, groups: int) -> Any:
    attrs, shape = call.attrs, _shape(call)
    if shape is None:
        return Declined(UNFIT)
    channel = int(attrs.channel_axis) % len(shape)
    if isinstance(shape[channel], int):
        each = shape[channel] // groups
    elif same_size(shape[channel], groups):
        each = 1
    else:
        return Declined(NO_PARTS)
    split = (*shape[:channel], groups, each, *shape[channel + 1 :])
    axes = [channel + 1, *(a + (a > channel) for a in sorted(int(a) % len(shape) for a in attrs.axes) if a != channel)]
    x, gamma, beta = call.args
    args = [bb.emit(relax.op.reshape(x, split)), *(bb.emit(relax.op.reshape(v, (groups, each))) for v in (gamma, beta))]
    where = [channel, channel + 1]
    y = _normalised(bb, args, split, axes, where, float(attrs.epsilon), bool(attrs.scale), bool(attrs.center))
    return relax.op.reshape(bb.emit(y), shape)


def _shape(call: relax.Call) -> tuple[Any, ...] | None:
    """The shape of the data, open sizes as TVM's expressions; None where no kernel is written for it."""
    shape = sizes(call.args[0])
    return shape if shape and not is_empty(shape) and all(str(a.ty.dtype) in FLOATS for a in call.args) else None


def _normalised(
    bb: relax.BlockBuilder, args: Sequence[Any], shape: Sequence[Any], axes: Sequence[int], where: Sequence[int],
    epsilon: float, scale: bool, center: bool, centred: bool = True,
) -> Any:  # fmt: skip
    """`args` (x, gamma, perhaps beta) normalised over `axes`; `where`: the axes of x that gamma and beta have.

    Args:
        centred: subtract the mean (RMSNorm does not).
    """
    dtype = str(args[0].ty.dtype)
    wide = "float64" if dtype == "float64" or is_open([shape[a] for a in axes]) else "float32"
    kept = [a for a in range(len(shape)) if a not in axes]

    def mean(value: Any, shape: Sequence[Any], name: str) -> te.Tensor:
        """The mean over the axes of a function of the index, by the axes that are kept."""
        count = reduce(operator.mul, (shape[a] for a in axes), tirx.const(1, "int64")).astype(wide)

        def total(*outer: Any) -> Any:
            loops = {a: te.reduce_axis((0, shape[a]), name=f"k{a}") for a in axes}
            at = {**dict(zip(kept, outer, strict=True)), **loops}
            return te.sum(value([at[a] for a in range(len(shape))]), axis=list(loops.values()))

        sums = te.compute([shape[a] for a in kept], total, name=f"{name}_sum")
        return te.compute(sums.shape, lambda *index: sums(*index) / count, name=name)

    def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor | None = None) -> te.Tensor:
        shape = x.shape  # in the kernel's own variables
        mu = mean(lambda at: x(*at).astype(wide), shape, "mean") if centred else None

        def centre(at: Sequence[Any]) -> Any:
            value = x(*at).astype(wide)
            return value if mu is None else value - mu(*(at[a] for a in kept))

        variance = mean(lambda at: centre(at) * centre(at), shape, "variance")

        def result(*at: Any) -> Any:
            root = tirx.sqrt(variance(*(at[a] for a in kept)) + tirx.const(epsilon, wide))
            value = centre(at) / root
            own = [at[a] for a in where]
            value = value * gamma(*own).astype(wide) if scale else value
            value = value + beta(*own).astype(wide) if center and beta is not None else value
            return value.astype(dtype)

        return te.compute(list(shape), result, name="normalised")

    return bb.call_te(compute, *args, primfunc_name_hint="norm")


LOWERS = {
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.rms_norm": rms_norm,
    "relax.nn.group_norm": group_norm,
    "relax.nn.instance_norm": instance_norm,
}
