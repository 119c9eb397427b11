"""Make 3-d convolutions and poolings 2-d ones over every frame: the families know two spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    ints,
    name_of,
    op_name,
    rewrite_pass,
    shape,
)

TO_NDHWC, TO_NCDHW = (0, 2, 3, 4, 1), (0, 4, 1, 2, 3)
POOLS = {"nn.max_pool3d": relax.op.nn.max_pool2d, "nn.avg_pool3d": relax.op.nn.avg_pool2d}


@rewrite_pass("tvmopt.ConvertConv3d")
class ConvertConv3d(Rewrite):
    """Write conv3d as conv2d: the taps along depth become channels, and the frames a batch.

        Before                                   After  (T taps along depth, E frames of the result)
        y = R.nn.conv3d(x, W)   # N C D H W      t = R.permute_dims(x, axes=[0, 2, 3, 4, 1])  # N D H W C
                                                 a = R.concat(frames of t a tap, axis=-1)     # N E H W T*C
                                                 b = R.reshape(a, (N * E, H, W, T * C))
                                                 c = R.nn.conv2d(b, W', data_layout="NHWC")
                                                 y = R.permute_dims(R.reshape(c, N E H' W' O), ...)

    One tap along depth needs no concatenation. A kernel of one pixel and several taps, (T, 1, 1), is a convolution
    of the image D x (H * W) by (T, 1). With groups the taps are summed instead, one conv2d a tap. Poolings are
    separable: windows of H x W first, then windows of depth.

    Applies when   the layout is NCDHW, the shapes are static, the weight is a constant.
    Declines when  1. the layout is another, or a shape is not static, or empty   2. the weight is not a constant
                   3. a pooling rounds windows up and averages (ceil_mode: what a window counts is not separable).
    Gain           the convolution family's register tile, where nothing else schedules five axes; the copies are T
                   reads and writes of the input.
    Order          after FoldBatchNorm and FoldScaleShift, before PropagateTransposes.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a 3-d convolution or pooling."""
        name = op_name(value)
        if name != "nn.conv3d" and name not in POOLS:
            return None
        layout = str(value.attrs.data_layout if name == "nn.conv3d" else value.attrs.layout)
        sizes = [shape(value.args[0]), shape(value)]
        if layout != "NCDHW" or any(s is None or 0 in s for s in sizes):
            self.declined(var, f"1: its layout is {layout}, or a shape is not static, or has no elements")
            return None
        if name in POOLS:
            if name == "nn.avg_pool3d" and bool(value.attrs.ceil_mode):
                self.declined(var, "3: it averages windows that are rounded up")
                return None
            self.applied(var, name)
            return _pool(graph, var, POOLS[name], value)
        weight = graph.array(value.args[1])
        if weight is None or str(value.attrs.kernel_layout) != "OIDHW":
            self.declined(var, "2: its weight is not a constant in OIDHW")
            return None
        self.applied(var, name)
        return _conv(graph, var, value, weight)


def _conv(graph: Graph, var: Var, call: Call, weight: Array) -> Expr:
    """The convolution, in NDHWC until the last permutation."""
    attrs, out = call.attrs, shape(call) or ()
    strides, dilation, pads = ints(attrs.strides), ints(attrs.dilation), ints(attrs.padding)
    groups, taps = int(attrs.groups), weight.shape[2]
    n, channels, depth, height, width = shape(call.args[0]) or ()
    emit, name = graph.emit, name_of(var)
    x = emit(relax.op.permute_dims(call.args[0], TO_NDHWC), name)
    frames = (out[0] * out[2], out[3], out[4], out[1])

    def conv2d(data: Expr, array: Array, **geometry: Any) -> Expr:
        ohwi = const(np.transpose(array, (0, 2, 3, 1)))
        call2d = relax.op.nn.conv2d(
            data, ohwi, groups=groups, data_layout="NHWC", kernel_layout="OHWI",
            out_dtype=attrs.out_dtype or None, **geometry,
        )  # fmt: skip
        return emit(call2d, name)

    image = dict(strides=strides[1:], padding=[pads[1], pads[2], pads[4], pads[5]], dilation=dilation[1:])
    if taps > 1 and weight.shape[3:] == (1, 1) and strides[1:] == [1, 1] and not any(image["padding"]):
        rows = emit(relax.op.reshape(x, (n, depth, height * width, channels)), name)
        y = conv2d(rows, weight[..., 0], strides=[strides[0], 1], padding=[pads[0], 0, pads[3], 0],
                   dilation=[dilation[0], 1])  # fmt: skip
    else:
        if pads[0] or pads[3]:
            x = emit(relax.op.nn.pad(x, [0, 0, pads[0], pads[3], 0, 0, 0, 0, 0, 0], "constant", 0.0), name)
        ways = [_frames(graph, x, t * dilation[0], strides[0], out[2], name) for t in range(taps)]
        if groups == 1:
            joined = emit(relax.op.concat(ways, axis=-1), name) if taps > 1 else ways[0]
            data = emit(relax.op.reshape(joined, (out[0] * out[2], height, width, taps * channels)), name)
            # [O, C, T, KH, KW] -> [O, T*C, KH, KW]
            flat = np.swapaxes(weight, 1, 2).reshape(weight.shape[0], -1, *weight.shape[3:])
            y = conv2d(data, flat, **image)
        else:
            flat_frames = (out[0] * out[2], height, width, channels)
            parts = [
                conv2d(emit(relax.op.reshape(way, flat_frames), name), weight[:, :, t], **image)
                for t, way in enumerate(ways)
            ]
            y = parts[0]
            for part in parts[1:]:
                y = emit(relax.op.add(y, part), name)
    y = emit(relax.op.reshape(y, (out[0], out[2], *frames[1:])), name)
    return relax.op.permute_dims(y, TO_NCDHW)


def _frames(graph: Graph, x: Expr, first: int, stride: int, count: int, name: str) -> Expr:
    """Frames first, first + stride, ... of N D H W C: what one tap along depth reads."""
    last = first + (count - 1) * stride + 1
    if first == 0 and stride == 1 and last == (shape(x) or ())[1]:
        return x
    return graph.emit(relax.op.strided_slice(x, [1], [first], [last], [stride]), name)


def _pool(graph: Graph, var: Var, pool: Any, call: Call) -> Expr:
    """Windows of H x W of every frame, then windows of depth of the images D x (H' * W')."""
    attrs, out, name = call.attrs, shape(call) or (), name_of(var)
    n, channels, depth, height, width = shape(call.args[0]) or ()
    window, strides = ints(attrs.pool_size), ints(attrs.strides)
    dilation, pads = ints(attrs.dilation), ints(attrs.padding)
    same = dict(ceil_mode=bool(attrs.ceil_mode), count_include_pad=bool(attrs.count_include_pad), layout="NHWC")
    x = graph.emit(relax.op.permute_dims(call.args[0], TO_NDHWC), name)

    def two(data: Expr, dims: Sequence[int], pick: Sequence[int | None]) -> Expr:
        at = [1 if i is None else window[i] for i in pick]
        return graph.emit(pool(
            graph.emit(relax.op.reshape(data, dims), name), at,
            strides=[1 if i is None else strides[i] for i in pick],
            dilation=[1 if i is None else dilation[i] for i in pick],
            padding=[0 if i is None else pads[i + side] for side in (0, 3) for i in pick], **same,
        ), name)  # fmt: skip

    if window[1:] != [1, 1] or strides[1:] != [1, 1] or any(pads[1:3] + pads[4:]):
        x = two(x, (n * depth, height, width, channels), (1, 2))
    if window[0] != 1 or strides[0] != 1 or pads[0] or pads[3]:
        x = two(x, (n, depth, out[3] * out[4], channels), (0, None))
    y = graph.emit(relax.op.reshape(x, (out[0], *out[2:], out[1])), name)
    return relax.op.permute_dims(y, TO_NCDHW)
