"""Make 3-d convolutions and poolings 2-d ones over every frame: the families know two spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Size, is_open
from tvmopt.importer.sizes import shape_to_tvm
from tvmopt.passes.convert_layout import alone
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
    sizes,
)
from tvmopt.passes.trim_taps import finite

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
    of the image D x (H * W) by (T, 1). With groups, or where the depth is open (TVM has no kernel for concatenations of
    its frames), the taps are summed instead, one conv2d a tap. Poolings are separable: windows of H x W first, then
    windows of depth.

    Applies when   the layout is NCDHW and the weight is a constant; any size may be open. Taps along a known depth that
                   meet only the border of zeros are left out, if the weights are finite: a picture is a volume one
                   frame deep, of which a kernel of 3 x 3 x 3 reads one tap.
    Declines when  1. the layout is another, or a size is not known at all, or zero   2. the weight is not a constant
                   3. a pooling rounds windows up and averages (ceil_mode: what a window counts is not separable)
                   4. a pooling of several frames of open sizes stands alone (see ConvertLayout): the transposes, which
                      would be left, take longer than the loops they replace.
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
        known = [sizes(value.args[0]), sizes(value)]
        if layout != "NCDHW" or any(s is None or 0 in s for s in known):
            self.declined(var, f"1: its layout is {layout}, or a size is not known, or it has no elements")
            return None
        if name in POOLS:
            if name == "nn.avg_pool3d" and bool(value.attrs.ceil_mode):
                self.declined(var, "3: it averages windows that are rounded up")
                return None
            data = sizes(value.args[0]) or ()
            if is_open(data) and data[2] != 1 and alone(graph, var, value):
                self.declined(var, "4: a pooling of frames of open sizes that stands alone")
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
    attrs, out = call.attrs, sizes(call) or ()
    strides, dilation, pads = ints(attrs.strides), ints(attrs.dilation), ints(attrs.padding)
    groups = int(attrs.groups)
    n, channels, depth, height, width = sizes(call.args[0]) or ()
    emit, name = graph.emit, name_of(var)
    x = emit(relax.op.permute_dims(call.args[0], TO_NDHWC), name)

    def conv2d(data: Expr, array: Array, **geometry: Any) -> Expr:
        ohwi = const(np.transpose(array, (0, 2, 3, 1)))
        call2d = relax.op.nn.conv2d(
            data, ohwi, groups=groups, data_layout="NHWC", kernel_layout="OHWI",
            out_dtype=attrs.out_dtype or None, **geometry,
        )  # fmt: skip
        return emit(call2d, name)

    image = dict(strides=strides[1:], padding=[pads[1], pads[2], pads[4], pads[5]], dilation=dilation[1:])
    taps = _met(weight, strides[0], dilation[0], pads[0], depth, out[2])
    if len(taps) > 1 and _along_depth(call, weight):
        rows = _reshape(graph, x, (n, depth, height * width, channels), name)
        y = conv2d(rows, weight[..., 0], strides=[strides[0], 1], padding=[pads[0], 0, pads[3], 0],
                   dilation=[dilation[0], 1])  # fmt: skip
    else:
        ways = _frames(graph, x, [t * dilation[0] - pads[0] for t in taps], strides[0], out[2], pads[3], name)
        if groups == 1 and (len(taps) == 1 or not is_open([depth])):
            joined = emit(relax.op.concat(ways, axis=-1), name) if len(taps) > 1 else ways[0]
            data = _reshape(graph, joined, (out[0] * out[2], height, width, len(taps) * channels), name)
            # [O, C, T, KH, KW] -> [O, T*C, KH, KW]
            flat = np.swapaxes(weight[:, :, taps], 1, 2).reshape(weight.shape[0], -1, *weight.shape[3:])
            y = conv2d(data, flat, **image)
        else:
            flat_frames = (out[0] * out[2], height, width, channels)
            parts = [
                conv2d(_reshape(graph, way, flat_frames, name), weight[:, :, t], **image)
                for t, way in zip(taps, ways, strict=True)
            ]
            y = parts[0]
            for part in parts[1:]:
                y = emit(relax.op.add(y, part), name)
    y = _reshape(graph, y, (out[0], *out[2:], out[1]), name)
    return relax.op.permute_dims(y, TO_NCDHW)


def _along_depth(call: Call, weight: Array) -> bool:
    """Whether a convolution has windows along depth only."""
    pads = ints(call.attrs.padding)
    return weight.shape[3:] == (1, 1) and ints(call.attrs.strides)[1:] == [1, 1] and not any(pads[1:3] + pads[4:])


def _met(weight: Array, stride: int, dilation: int, before: int, depth: Size, count: Size) -> list[int]:
    """The taps along depth that read at least one frame of the input; all of them where that is not known."""
    taps = range(weight.shape[2])
    if is_open((depth, count)) or not finite(weight):
        return list(taps)
    met = [t for t in taps if any(0 <= e * stride + t * dilation - before < depth for e in range(int(count)))]
    return met or [0]


def _frames(
    graph: Graph, x: Expr, starts: Sequence[int], stride: int, count: Size, after: int, name: str
) -> list[Expr]:
    """What the taps along depth read: of N D H W C the `count` frames start, start + stride, ... for each of `starts`,
    ascending numbers; those before the first frame and `after` it are zeros."""
    depth, reach = (sizes(x) or ())[1], (count - 1) * stride + 1
    before = max(0, -starts[0])
    if not is_open((depth, reach)):
        after = max(0, starts[-1] + reach - depth)
    if before or after:
        x = graph.emit(relax.op.nn.pad(x, [0, 0, before, after, 0, 0, 0, 0, 0, 0], "constant", 0.0), name)
    ways = []
    for first in (before + start for start in starts):
        whole = first == 0 and stride == 1 and reach == depth + before + after
        last = shape_to_tvm([first + reach])
        ways.append(x if whole else graph.emit(relax.op.strided_slice(x, [1], [first], last, [stride]), name))
    return ways


def _pool(graph: Graph, var: Var, pool: Any, call: Call) -> Expr:
    """Windows of H x W of every frame, then windows of depth of the images D x (H' * W')."""
    attrs, out, name = call.attrs, sizes(call) or (), name_of(var)
    n, channels, depth, height, width = sizes(call.args[0]) or ()
    window, strides = ints(attrs.pool_size), ints(attrs.strides)
    dilation, pads = ints(attrs.dilation), ints(attrs.padding)
    same = dict(ceil_mode=bool(attrs.ceil_mode), count_include_pad=bool(attrs.count_include_pad), layout="NHWC")
    x = graph.emit(relax.op.permute_dims(call.args[0], TO_NDHWC), name)

    def two(data: Expr, dims: Sequence[Size], pick: Sequence[int | None]) -> Expr:
        at = [1 if i is None else window[i] for i in pick]
        return graph.emit(pool(
            _reshape(graph, data, dims, name), at,
            strides=[1 if i is None else strides[i] for i in pick],
            dilation=[1 if i is None else dilation[i] for i in pick],
            padding=[0 if i is None else pads[i + side] for side in (0, 3) for i in pick], **same,
        ), name)  # fmt: skip

    if window[1:] != [1, 1] or strides[1:] != [1, 1] or any(pads[1:3] + pads[4:]):
        x = two(x, (n * depth, height, width, channels), (1, 2))
    if window[0] != 1 or strides[0] != 1 or pads[0] or pads[3]:
        x = two(x, (n, depth, out[3] * out[4], channels), (0, None))
    y = _reshape(graph, x, (out[0], *out[2:], out[1]), name)
    return relax.op.permute_dims(y, TO_NCDHW)


def _reshape(graph: Graph, x: Expr, dims: Sequence[Size], name: str) -> Expr:
    return graph.emit(relax.op.reshape(x, shape_to_tvm(dims)), name)
