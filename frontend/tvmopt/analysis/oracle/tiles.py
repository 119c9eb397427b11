"""3x3 convolutions as engines compute them for speed: by Winograd's minimal filtering, in tiles of 4x4 outputs - for
runs that round. What it rounds is as large as the largest number of a tile, also where a pixel's own terms are small.

Source: Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.3: Y = A^T [(G g G^T) *
(B^T d B)] A, with the points 0, 1, -1, 2, -2 and infinity.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from tvmopt.analysis.oracle.values import Array, Call
from tvmopt.analysis.oracle.windows import padded, spans, windows

OUT, IN, KERNEL = 4, 6, 3
"""Outputs and inputs of a tile along one axis, and taps."""
DATA = np.array(
    [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
     [0, 4, 0, -5, 0, 1]], np.float32,
)  # fmt: skip
WEIGHT = np.array(
    [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
     [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]], np.float32,
)  # fmt: skip
RESULT = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
"""B^T, G and A^T."""
CHUNK = 1 << 24
"""Numbers of transformed tiles at a time."""


def has_tiles(call: Call, x: Array, w: Array) -> bool:
    """Whether a convolution has this form: two axes, 3x3 taps next to each other, every pixel, one group."""
    plain = set(call.ints("strides") or [1]) == set(call.ints("dilations") or [1]) == {1}
    return w.ndim == 4 and w.shape[2:] == (KERNEL, KERNEL) and plain and x.shape[1] == w.shape[1] and x.size > 0


def conv_by_tiles(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    """The convolution of x (N, C, H, W) and w (M, C, 3, 3), in their type."""
    _, _, before, after, outputs = spans(call, list(x.shape[2:]), [KERNEL, KERNEL])
    rows, columns = (ceil(o / OUT) for o in outputs)
    more = [OUT * t + KERNEL - 1 - n - b for t, n, b in zip((rows, columns), x.shape[2:], before, strict=True)]
    x = padded(np.ascontiguousarray(x), before, [max(a, m) for a, m in zip(after, more, strict=True)], 0.0)
    u = np.einsum("ia,mcab,jb->ijmc", WEIGHT, w, WEIGHT, optimize=True)
    y = np.empty((x.shape[0], w.shape[0], OUT * rows, OUT * columns), x.dtype)
    step = max(1, CHUNK // max(1, IN * IN * columns * (x.shape[1] + w.shape[0])))
    for image in range(len(x)):
        tiles = windows(x[image], [IN, IN], [OUT, OUT], [1, 1], [rows, columns])  # (C, 6, 6, rows, columns)
        for first in range(0, rows, step):
            part = tiles[:, :, :, first : first + step]
            v = np.einsum("ia,cabrt,jb->ijcrt", DATA, part, DATA, optimize=True)
            m = np.matmul(u, v.reshape(IN, IN, x.shape[1], -1)).reshape(IN, IN, w.shape[0], -1, columns)
            made = np.einsum("ki,ijmrt,lj->mrktl", RESULT, m, RESULT, optimize=True)
            y[image, :, OUT * first : OUT * (first + step)] = made.reshape(w.shape[0], -1, OUT * columns)
    y = y[:, :, : outputs[0], : outputs[1]]
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)
