"""Convolutions and poolings of one to three axes: odd pads, strides, dilations, groups, auto_pad, ceil_mode; Resize."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz.build import Builder, Reject, Value
from fuzz.inputs import PLACES

SPATIAL = (1, 2, 2, 2, 2, 3)


def image(b: Builder) -> Value:
    """A value with a batch, channels, and one to three axes."""
    rank = 2 + b.choice(SPATIAL)
    fitting = [v for v in b.values if v.dtype == b.float and v.rank == rank]
    if fitting and b.chance(0.6):
        return b.choice(fitting)
    sizes = {3: (1, 5, 9, 17, 32, 50), 4: (1, 3, 5, 7, 8, 9, 14, 16, 17), 5: (1, 3, 4, 5, 6, 7)}[rank]
    channels = b.choice([1, 2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33])
    return b.fresh(b.float, [b.size([1, 1, 1, 2, 3]), channels, *(b.size(sizes) for _ in range(rank - 2))], 0.03)


def window(b: Builder, spatial: tuple[int, ...], small_pads: bool, dilations: bool = True) -> dict[str, Any]:
    """kernel_shape, strides, dilations and pads or auto_pad of a window that fits into the image."""
    n = len(spatial)
    same = b.chance(0.5)
    kernel = [b.choice([1, 2, 3, 3, 3, 4, 5, 7])] * n if same else [b.choice([1, 2, 3, 3, 5, 7]) for _ in range(n)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    dilation = [1] * n
    if b.chance(0.6):
        attrs["strides"] = [b.choice([1, 1, 2, 2, 3])] * n if same else [b.choice([1, 2, 3, 4]) for _ in range(n)]
    if dilations and b.chance(0.25):
        attrs["dilations"] = dilation = [b.choice([1, 2, 2, 3]) for _ in range(n)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    how = b.rng.random()
    pads = [0] * (2 * n)
    if how < 0.5:
        most = [k - 1 if small_pads else r for k, r in zip(kernel, reach, strict=True)]
        halves = [min(m, r // 2) for m, r in zip(most, reach, strict=True)]
        pads = halves * 2 if b.chance(0.5) else [b.integer(0, min(m, 4)) for m in most * 2]
        attrs["pads"] = pads
    elif how < 0.65:
        attrs["auto_pad"] = b.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    padded = [s + pads[i] + pads[i + n] for i, s in enumerate(spatial)]
    if any(r > p for r, p in zip(reach, padded, strict=True)) and not attrs.get("auto_pad", "").startswith("SAME"):
        raise Reject("the window is larger than the image")
    return attrs


def conv(b: Builder) -> None:
    x = image(b)
    channels = x.shape[1]
    groups = b.choice([g for g in (1, 1, 1, 1, 2, 3, 4, channels, channels) if g and channels % g == 0])
    outputs = groups * b.choice([1, 1, 2, 3, 4, 8] if groups > 1 else [1, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33])
    if outputs > 64:
        raise Reject("many channels")
    attrs = window(b, x.shape[2:], False)
    shape = [outputs, channels // groups, *attrs["kernel_shape"]]
    operands = [x, b.weight(x.dtype, shape, int(np.prod(shape[1:])), 0.9)]
    if b.chance(0.5):
        operands.append(b.weight(x.dtype, [outputs]))
    if b.chance(0.2):
        del attrs["kernel_shape"]
    value = b.node("Conv", operands, group=groups, **attrs)
    if b.chance(0.4):
        b.node(b.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"]), [value])


def conv_transpose(b: Builder) -> None:
    x = image(b)
    channels = x.shape[1]
    groups = b.choice([g for g in (1, 1, 1, 2, channels) if g and channels % g == 0])
    attrs = window(b, x.shape[2:], True)
    per_group = b.choice([1, 2, 3, 8, 16] if groups == 1 else [1, 2, 3])
    if groups * per_group > 64:
        raise Reject("many channels")
    shape = [channels, per_group, *attrs["kernel_shape"]]
    strides = attrs.get("strides", [1] * (x.rank - 2))
    if b.chance(0.3):
        attrs["output_padding"] = [b.integer(0, s - 1) for s in strides]
    operands = [x, b.weight(x.dtype, shape, int(np.prod(shape[2:])) * channels // groups, 0.9)]
    if b.chance(0.4):
        operands.append(b.weight(x.dtype, [groups * per_group]))
    b.node("ConvTranspose", operands, group=groups, **attrs)


def pool(b: Builder) -> None:
    x = image(b)
    op = b.choice(["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"])
    dilations = op == "MaxPool" or b.opset >= (19 if op == "AveragePool" else 18)
    attrs = window(b, x.shape[2:], True, dilations)
    if (op != "LpPool" or b.opset >= 18) and b.chance(0.3) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and b.chance(0.5):
        attrs["count_include_pad"] = 1
    if op == "LpPool":
        attrs["p"] = b.integer(1, 3)
    if op == "MaxPool" and b.chance(0.15):
        b.node(op, [x], 2, **attrs)
    else:
        b.node(op, [x], **attrs)


def global_pool(b: Builder) -> None:
    b.node(b.choice(["GlobalAveragePool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]), [image(b)])


def resize(b: Builder) -> None:
    x = image(b)
    mode = b.choice(["nearest", "nearest", "linear", "cubic"])
    if mode == "cubic" and x.rank != 4:
        raise Reject("cubic in two axes only")
    attrs: dict[str, Any] = {"mode": mode}
    ways = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    attrs["coordinate_transformation_mode"] = b.choice(ways)
    region = None
    if attrs["coordinate_transformation_mode"] == ways[-1]:  # it may begin outside, or end before it begins
        sides = b.rng.uniform(-0.3, 1.3, (2, x.rank - 2))
        region = b.constant(np.concatenate([np.zeros(2), sides[0], np.ones(2), sides[1]]).astype(np.float32))
        attrs["extrapolation_value"] = b.choice([0.0, 7.5])
    if mode == "nearest":
        attrs["nearest_mode"] = b.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if b.chance(0.5):
        factors = [1.0, 1.0, *(b.choice([0.5, 1.0, 1.5, 2.0, 3.0]) for _ in x.shape[2:])]
        if any(int(f * s) == 0 for f, s in zip(factors, x.shape, strict=True)):
            raise Reject("empty")
        b.node("Resize", [x, region, b.constant(np.array(factors, np.float32))], **attrs)
    else:
        sizes = [*x.shape[:2], *(b.choice([1, 4, 7, 8, 15, 16]) for _ in x.shape[2:])]
        b.node("Resize", [x, region, None, b.constant(np.array(sizes, np.int64))], **attrs)


def grid_sample(b: Builder) -> None:
    b.since(20)
    x = image(b)
    if x.rank != 4:
        raise Reject("two axes only")
    shape = [x.shape[0], b.choice([1, 5, 8]), b.choice([1, 7, 9]), 2]
    known = b.chance(0.2)
    grid = b.constant(b.random(x.dtype, shape), x.dtype) if known else b.input(x.dtype, shape, PLACES)
    attrs = {
        "mode": b.choice(["linear", "nearest", "cubic"]),
        "padding_mode": b.choice(["zeros", "border", "reflection"]),
    }
    b.node("GridSample", [x, grid], align_corners=b.integer(0, 1), **attrs)


RULES = [(8, conv), (2.5, conv_transpose), (4, pool), (1, global_pool), (2, resize), (0.5, grid_sample)]
