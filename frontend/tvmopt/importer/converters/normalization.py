"""Normalisations: LayerNorm with all outputs, RMSNorm on any axis, BatchNorm in training mode,
LpNormalization, GroupNorm, InstanceNorm, LRN.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import OpenSize, Size
from tvmopt.floats import HALVES
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

WIDEST_WINDOW = 64
"""Channels of a window up to which LRN is a sum of shifted reads."""


def _inner(b: Build, value: Any, inner: tuple[Size, ...], neutral: int = 1) -> tuple[Any, Any]:
    """A scale or bias over the normalised axes, and one that varies over the others too, left for a step of its own.

    ONNX lets it be any tensor that broadcasts to the input; the operator of Relax takes the normalised axes only.
    """
    shape = shape_of(value)
    extra = len(shape) - len(inner)
    if all(d == 1 for d in shape[: max(extra, 0)]):
        return b.broadcast(b.reshape(value, shape[max(extra, 0) :]), inner), None
    return b.full(inner, neutral, dtype_of(value)), value


def _applied(b: Build, y: Any, factor: Any, shift: Any) -> Any:
    y = y if factor is None else b.mul(y, factor)
    return y if shift is None else b.add(y, shift)


def layer_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LayerNormalization; the mean and the inverse standard deviation only if somebody reads them."""
    b = Build(bb, ctx.name)
    x, scale, bias = inputs[0], inputs[1], inputs[2]
    shape, dtype = shape_of(x), dtype_of(x)
    axis = attrs.get("axis", -1) % len(shape)
    epsilon = attrs.get("epsilon", 1e-5)
    axes = list(range(axis, len(shape)))
    inner, wide = shape[axis:], b.wide(x)
    gamma, factor = _inner(b, b.wide(scale), inner)
    none = b.full(inner, 0, dtype_of(gamma))
    beta, shift = (none, None) if bias is None else _inner(b, b.wide(bias), inner, 0)
    if factor is not None and shift is None:  # the bias is added behind the factor
        beta, shift = none, beta
    if 0 in shape:  # TVM divides by the number of elements
        nothing = b.full((*shape[:axis], *(1 for _ in axes)), np.nan, dtype_of(wide))
        return (x, nothing, nothing)[: max(1, ctx.num_outputs)]
    y = b.emit(relax.op.nn.layer_norm(wide, gamma, beta, axes=axes, epsilon=epsilon))
    y = b.cast(_applied(b, y, factor, shift), dtype)
    mean = inverse = None
    if ctx.wants(1) or ctx.wants(2):
        mean = b.mean(wide, axes, True)
        centred = b.sub(wide, mean)
        variance = b.mean(b.mul(centred, centred), axes, True)
        inverse = b.emit(relax.op.rsqrt(b.add(variance, epsilon)))
    return (y, mean, inverse)[: max(1, ctx.num_outputs)]


def rms_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """RMSNormalization over the axes from `axis` on, computed in float32."""
    b = Build(bb, ctx.name)
    x, scale = inputs[0], inputs[1]
    shape, dtype = shape_of(x), dtype_of(x)
    axis = attrs.get("axis", -1) % len(shape)
    inner = prod(shape[axis:])
    flat = b.reshape(b.wide(x), (*shape[:axis], inner) if axis else (1, inner))
    weight, factor = _inner(b, b.wide(scale), shape[axis:])
    weight = b.reshape(weight, (inner,))
    y = b.emit(relax.op.nn.rms_norm(flat, weight, axes=[-1], epsilon=attrs.get("epsilon", 1e-5)))
    return b.cast(_applied(b, b.reshape(y, shape), factor, None), dtype)


def batch_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """BatchNormalization; in training mode with the batch's own statistics, and the running ones updated."""
    b = Build(bb, ctx.name)
    x, scale, bias, mean, variance = (inputs[i] for i in range(5))
    shape, dtype = shape_of(x), dtype_of(x)
    axes = [i for i in range(len(shape)) if i != 1]
    channel = (1, shape[1], *[1] * (len(shape) - 2))
    if not attrs.get("training_mode", 0):
        known = all(dtype_of(v) == dtype and ctx.array(v) is not None for v in (scale, bias, mean, variance))
        if known:
            return ctx.stock(inputs, attrs)
        wide = b.wide(x)
        each = (b.cast(b.wide(v), dtype_of(wide)) for v in (scale, bias, mean, variance))
        scale, bias, mean, variance = (b.reshape(v, channel) for v in each)
        inverse = b.emit(relax.op.rsqrt(b.add(variance, attrs.get("epsilon", 1e-5))))
        # scale and variance first, as onnxruntime: a large number over a small deviation may leave the type
        return b.cast(b.add(b.mul(b.sub(wide, mean), b.mul(inverse, scale)), bias), dtype)
    momentum = attrs.get("momentum", 0.9)
    own_mean = b.mean(x, axes, True)
    centred = b.sub(x, own_mean)
    centred = b.sub(centred, b.mean(centred, axes, True))  # what the mean's own format has rounded off
    own_variance = b.mean(b.mul(centred, centred), axes, True)
    inverse = b.emit(relax.op.rsqrt(b.add(own_variance, attrs.get("epsilon", 1e-5))))
    y = b.add(b.mul(b.mul(centred, inverse), b.reshape(scale, channel)), b.reshape(bias, channel))

    def blend(running: Any, own: Any) -> Any:
        return b.add(b.mul(running, momentum), b.mul(b.reshape(own, (shape[1],)), 1 - momentum))

    return y, blend(mean, own_mean), blend(variance, own_variance)


def mean_variance_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MeanVarianceNormalization. The variance is of centred values, whose own mean is what the first mean lacks: ONNX's
    definition, E[x^2] - E[x]^2, cancels."""
    b = Build(bb, ctx.name)
    x = b.wide(inputs[0])
    axes = [int(a) % len(shape_of(x)) for a in attrs.get("axes", (0, 2, 3))]
    centred = b.sub(x, b.mean(x, axes, True))
    centred = b.sub(centred, b.mean(centred, axes, True))
    deviation = b.emit(relax.op.sqrt(b.mean(b.mul(centred, centred), axes, True)))
    return b.cast(b.div(centred, b.add(deviation, 1e-9)), dtype_of(inputs[0]))


def lp_normalization(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LpNormalization: x / ||x||_p along an axis, 0 where the norm is 0."""
    b = Build(bb, ctx.name)
    x, axis = inputs[0], attrs.get("axis", -1)
    magnitude = b.emit(relax.op.abs(x))
    if attrs.get("p", 2) == 1:
        norm = b.sum(magnitude, axis, True)
    else:
        norm = b.emit(relax.op.sqrt(b.sum(b.mul(x, x), axis, True)))
    empty = b.equal(norm, 0.0)
    return b.where(empty, 0.0, b.div(x, b.where(empty, 1.0, norm)))


def group_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GroupNormalization; scale and bias are by channel since opset 21, by group before."""
    b = Build(bb, ctx.name)
    x, scale, bias = inputs[0], inputs[1], inputs[2]
    shape, dtype = shape_of(x), dtype_of(x)
    groups, channels = attrs["num_groups"], shape[1]
    if not isinstance(channels, int):
        raise OpenSize("the number of channels, which groups divide, is open")
    if shape_of(scale) != (channels,):
        scale, bias = (b.emit(relax.op.repeat(v, channels // groups, 0)) for v in (scale, bias))
    y = relax.op.nn.group_norm(
        b.wide(x),
        b.wide(scale),
        b.wide(bias),
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, len(shape))),
        epsilon=attrs.get("epsilon", 1e-5),
    )
    return b.cast(b.emit(y), dtype) if dtype in HALVES else y


def instance_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """InstanceNormalization as one operator: exporters write GroupNorm with it."""
    x = inputs[0]
    if len(shape_of(x)) < 3:
        return ctx.stock(inputs, attrs)
    b, dtype = Build(bb, ctx.name), dtype_of(x)
    y = relax.op.nn.instance_norm(
        b.wide(x), b.wide(inputs[1]), b.wide(inputs[2]), channel_axis=1, axes=list(range(2, len(shape_of(x)))),
        epsilon=attrs.get("epsilon", 1e-5),
    )  # fmt: skip
    return b.cast(b.emit(y), dtype) if dtype in HALVES else y


def lrn(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """LRN of [N, C, ...]: y = x / (bias + alpha / size * sum of x * x over neighbouring channels)^beta.

    The sum is one addition a neighbour, of reads of padded channels, which TVM fuses with the rest into one pass.
    16-bit numbers are computed in float32. TVM's own pooling over channels serves wider windows.
    """
    shape, size, b = shape_of(inputs[0]), int(attrs["size"]), Build(bb, ctx.name)
    x = inputs[0]
    if len(shape) < 2 or 0 in shape or size > WIDEST_WINDOW:
        return ctx.stock(inputs, attrs)
    none = [0] * len(shape)
    padded = b.pad(b.mul(x, x), [0, (size - 1) // 2, *none[2:]], [0, size // 2, *none[2:]])
    total = b.slice(padded, 1, 0, shape[1])
    for k in range(1, size):
        total = b.add(total, b.slice(padded, 1, k, k + shape[1]))
    total = b.mul(total, attrs.get("alpha", 1e-4) / size)
    scale = relax.op.power(b.add(total, attrs.get("bias", 1.0)), const(attrs.get("beta", 0.75), dtype_of(x)))
    return relax.op.divide(x, b.emit(scale))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "LayerNormalization"): layer_norm,
    ("com.microsoft", "LayerNormalization"): layer_norm,
    ("", "RMSNormalization"): rms_norm,
    ("", "BatchNormalization"): batch_norm,
    ("", "MeanVarianceNormalization"): mean_variance_norm,
    ("", "LpNormalization"): in_float32(lp_normalization),
    ("", "GroupNormalization"): group_norm,
    ("", "InstanceNormalization"): instance_norm,
    ("", "LRN"): in_float32(lrn),
}
