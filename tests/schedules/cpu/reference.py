"""Convolution by its definition, in float64: what the kernels are compared with."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def definition(x, w, strides, pads, dilation, groups):
    """x NHWC, w OHWI, float64."""
    top, left, bottom, right = pads
    x = np.pad(x.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    out, kh, kw, per = w.shape
    span = ((kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1)
    win = sliding_window_view(x, span, axis=(1, 2))[:, :: strides[0], :: strides[1], :, :: dilation[0], :: dilation[1]]
    parts = [
        np.einsum(
            "nyxchw,ohwc->nyxo",
            win[:, :, :, g * per : (g + 1) * per],
            w[g * out // groups : (g + 1) * out // groups],
        )
        for g in range(groups)
    ]
    return np.concatenate(parts, -1)
