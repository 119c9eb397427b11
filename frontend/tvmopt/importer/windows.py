"""Where the windows of a pooling or a convolution lie: one arithmetic for shape inference and for the converters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmopt.dims import least, most

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


@dataclass(frozen=True)
class Windows:
    """The windows along each spatial axis.

    Attributes:
        begin, end: the padding as the model asks for it.
        out: how many windows there are; 0 or less where the window is larger than the padded image.
        over: how far the last window reaches beyond the padded image, which `ceil_mode` allows.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]
    over: tuple[int, ...]


def windows(given: Mapping[str, Any], image: Sequence[int], kernel: Sequence[int]) -> Windows:
    """The windows of a node with the attributes `given` over an image of this size.

    With s the stride, w = (k - 1) * dilation + 1 the window, p the padded size and n windows:

        NOTSET, VALID   n = floor((p - w) / s) + 1
        ceil_mode       n = ceil((p - w) / s) + 1, less a window that would start behind image and front padding
        SAME_*          n = ceil(size / s), padded by (n - 1) * s + w - size in all, if that is positive

    The odd element of SAME_UPPER lies at the end, that of SAME_LOWER at the beginning. The window that starts in the
    padding is left out at every opset, as onnxruntime does; ONNX says so from opset 22 on.
    """
    n = len(kernel)
    mode = given.get("auto_pad") or "NOTSET"
    strides, dilations = given.get("strides") or [1] * n, given.get("dilations") or [1] * n
    pads = (given.get("pads") if mode == "NOTSET" else None) or [0] * (2 * n)
    begin, end, out, over = [], [], [], []
    for i, (size, k, s, d) in enumerate(zip(image, kernel, strides, dilations, strict=True)):
        before, after, window = int(pads[i]), int(pads[n + i]), (k - 1) * d + 1
        if mode.startswith("SAME"):
            count = (size + s - 1) // s
            total = most((count - 1) * s + window - size, 0)
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
            after = total - before
        else:
            room = size + before + after - window
            count = room // s + 1
            if given.get("ceil_mode", 0):
                count = least((room + s - 1) // s + 1, (size + before - 1) // s + 1)
        begin.append(before)
        end.append(after)
        out.append(count)
        over.append(most((count - 1) * s + window - (size + before + after), 0) if given.get("ceil_mode", 0) else 0)
    return Windows(tuple(begin), tuple(end), tuple(out), tuple(over))
