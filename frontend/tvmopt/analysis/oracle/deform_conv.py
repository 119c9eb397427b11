"""DeformConv: a convolution whose taps are shifted, each by an offset of its own, and read between the pixels."""

from __future__ import annotations

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported


def deform_conv(
    call: Call, x: Array, w: Array, offset: Array, bias: Array | None = None, mask: Array | None = None
) -> Result:
    """x (N, C, H, W), w (M, C / groups, kH, kW), offset (N, 2 kH kW parts, oH, oW), mask (N, kH kW parts, oH, oW).

    onnx.reference has the same, in float32.
    """
    if x.ndim != 4:
        raise Unsupported("DeformConv of other than two axes")
    (batch, channels, *image), (results, _, *kernel), out = x.shape, w.shape, offset.shape[2:]
    strides, dilations = call.get("strides", [1, 1]), call.get("dilations", [1, 1])
    pads, groups, parts = call.get("pads", [0] * 4), call.get("group", 1), call.get("offset_group", 1)
    taps = kernel[0] * kernel[1]
    shifts = offset.reshape(batch, parts, taps, 2, *out)
    number = np.arange(taps)
    first = [number // kernel[1] * dilations[0], number % kernel[1] * dilations[1]]
    places = []
    for axis in range(2):
        start = np.arange(out[axis]) * strides[axis] - pads[axis]
        base = first[axis][:, None, None] + (start[:, None] if axis == 0 else start[None, :])
        places.append(base + shifts[:, :, :, axis])
    floors = [np.floor(p) for p in places]
    planes = x.reshape(batch, parts, channels // parts, *image)
    read = np.zeros((batch, parts, channels // parts, taps, *out), x.dtype)
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        index, weight, inside = [], np.ones(places[0].shape, x.dtype), np.ones(places[0].shape, bool)
        for place, floor, step, size in zip(places, floors, corner, image, strict=True):
            at, share = floor + step, place - floor
            inside &= (at >= 0) & (at < size) | np.isnan(at)
            weight = weight * (share if step else 1 - share)
            index.append(np.clip(np.nan_to_num(at), 0, size - 1).astype(np.int64))
        n, g = np.ogrid[:batch, :parts]
        corners = planes[n[..., None, None, None], g[..., None, None, None], :, index[0], index[1]]
        read += np.where(inside[:, :, None], np.moveaxis(corners, -1, 2) * weight[:, :, None], 0)
    if mask is not None:
        read = read * mask.reshape(batch, parts, 1, taps, *out)
    columns = call.operand(read.reshape(batch, groups, channels // groups * taps, -1))
    y = call.operand(w.reshape(groups, results // groups, -1)) @ columns
    y = y.reshape(batch, results, *out)
    return y if bias is None else y + bias[:, None, None]


TABLE: dict[str, Operator] = {"DeformConv": deform_conv}
