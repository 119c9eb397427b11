"""The padded source of a sliding window over NHWC: shared by depthwise convolution and pooling.

`src` is zero (or another fill) outside the image. Where the channels fill whole or half vectors it stays an
expression, which the schedule resolves at compile time: padding without a copy. Elsewhere (58 channels; or m
> 1 outputs a channel) it is a buffer of whole vectors that the schedule fills per task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvmopt.lowering.common import is_open, plain, sizes
from tvmopt.scheduling.open_borders import CHANNELS, LEFT, NOTHING, TOP


@dataclass(frozen=True)
class Window:
    """kernel, strides, dilation: (rows, columns); padding: top, left, bottom, right; out: (rows, columns), which may be
    open."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    out: tuple[Any, Any]

    @classmethod
    def of(cls, attrs: Any, kernel: tuple[int, int], size: tuple[Any, Any], border: Border | None = None) -> Window:
        """From the attributes of a Relax convolution or pooling and the input's rows and columns; `border`: in place of
        the attributes' padding. Where a size is open, :meth:`at` says how large the result is."""
        strides = (int(attrs.strides[0]), int(attrs.strides[1]))
        dilation = (int(attrs.dilation[0]), int(attrs.dilation[1]))
        top, left, bottom, right = border.sides if border else (int(v) for v in attrs.padding)
        up = int(bool(getattr(attrs, "ceil_mode", False)))
        out: list[Any] = []
        if is_open(size):  # nothing computes with it before :meth:`at`
            return cls(kernel, strides, (top, left, bottom, right), dilation, size)
        for axis, before, after in ((0, top, bottom), (1, left, right)):
            room = size[axis] + before + after - dilation[axis] * (kernel[axis] - 1) - 1
            count = (room + up * (strides[axis] - 1)) // strides[axis] + 1
            if up and (count - 1) * strides[axis] >= size[axis] + before:  # must start inside the image or its left pad
                count -= 1
            out.append(count)
        return cls(kernel, strides, (top, left, bottom, right), dilation, (out[0], out[1]))

    def at(self, *out: Any) -> Window:
        """The window with a result of another size."""
        return replace(self, out=out) if out else self

    def reaches_outside(self, size: tuple[Any, Any]) -> tuple[bool, bool]:
        """Whether some window reads rows, or columns, outside an image of this size; where that is open, whether it
        could: the last window is not rounded up to there."""
        found = []
        for axis in (0, 1):
            if is_open(size):
                found.append(self.padding[axis] + self.padding[axis + 2] > 0)
                continue
            last = (self.out[axis] - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilation[axis]
            found.append(self.padding[axis] > 0 or last - self.padding[axis] >= size[axis])
        return found[0], found[1]


@dataclass(frozen=True)
class Border:
    """Pixels around an image, and what is in them."""

    top: int
    left: int
    bottom: int
    right: int
    fill: int = 0

    @property
    def sides(self) -> tuple[int, int, int, int]:
        return self.top, self.left, self.bottom, self.right

    def __bool__(self) -> bool:
        return any(self.sides)


def border_marks(top: int, left: int, channels: int, nothing: bool = False) -> dict[str, int]:
    """Annotations of a block that makes a border, which kernels of open pictures read; `nothing`: it changes no
    result."""
    return {TOP: top, LEFT: left, CHANNELS: channels, **({NOTHING: 1} if nothing else {})}


def with_pad(bb: relax.BlockBuilder, x: relax.Expr, border: Border) -> tuple[relax.Expr, Border]:
    """The image before an `R.nn.pad` that has been kept for this convolution, and the border with it."""
    pad = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(pad, relax.Call) or pad.op != tvm.ir.Op.get("relax.nn.pad") or not kept_pad(pad):
        return x, border
    width, fill = [int(v) for v in pad.attrs.pad_width], int(float(pad.attrs.pad_value))
    if any(width[:2]) or any(width[6:]) or (border and fill):
        return x, border
    top, bottom, left, right = width[2:6]
    whole = Border(border.top + top, border.left + left, border.bottom + bottom, border.right + right, fill)
    return pad.args[0], whole


def kept_pad(call: relax.Call) -> bool:
    """Whether an `R.nn.pad` stays in the graph until a convolution takes it over: around a quantised image."""
    image = sizes(call.args[0])
    whole = all(int(v) >= 0 for v in call.attrs.pad_width) and str(call.attrs.pad_mode) == "constant"
    return str(call.ty.dtype) == "uint8" and image is not None and len(image) == 4 and whole


def channel_vector(channels: int, multiplier: int, lanes: int) -> tuple[int, bool]:
    """(V, copied): channels of one vector, and whether the input is copied into whole vectors first.

    Half-filled vectors cost as many instructions as full ones, so a common divisor of at least half a vector
    is used as it is; below that the copy (one move for K*K multiply-adds) is cheaper.

    >>> [channel_vector(c, 1, 16) for c in (96, 24, 58, 3)]
    [(16, False), (8, False), (16, True), (16, True)]
    >>> channel_vector(96, 2, 16), channel_vector(24, 1, 8)
    ((16, True), (8, False))
    """
    common = gcd(channels, lanes)
    return (lanes, True) if multiplier > 1 or 2 * common < lanes else (common, False)


def padded_source(
    data: te.Tensor,
    window: Window,
    channels: int,
    copied: bool,
    vector: int,
    fill: float,
    kernel: str,
    nothing: bool = False,
) -> te.Tensor:
    """`src`: a block annotated `<kernel>_pad` (to be inlined) or `<kernel>_copy`, or `data` itself. What reaches
    outside an image of open size is copied, or left out where `nothing` says that it changes no result."""
    batch, (height, width, in_c) = data.shape[0], (plain(d) for d in data.shape[1:])
    rows, columns = window.reaches_outside((height, width))
    if not (copied or rows or columns):
        return data
    top, left = window.padding[:2]
    multiplier = channels // in_c
    whole = -(-channels // vector) * vector

    def inside(n: Any, y: Any, x: Any, c: Any) -> Any:
        conditions = [y >= top, y < height + top] if rows else []
        conditions += [x >= left, x < width + left] if columns else []
        conditions += [c < channels] if whole != channels else []
        value = data(n, y - top, x - left, c // multiplier if multiplier > 1 else c)
        if not conditions:
            return value
        return te.if_then_else(te.all(*conditions), value, tirx.const(fill, data.dtype))

    extent: list[Any] = [(height, width)[a] + window.padding[a] + window.padding[a + 2] for a in (0, 1)]
    if not is_open((height, width)):
        extent = [
            max(
                (window.out[a] - 1) * window.strides[a] + (window.kernel[a] - 1) * window.dilation[a] + 1,
                (height, width)[a] + window.padding[a],
            )
            for a in (0, 1)
        ]
    kind = f"{kernel}_copy" if copied or is_open((height, width)) else f"{kernel}_pad"
    marks = {"tvmopt.kernel": kind, **border_marks(top, left, channels, nothing)}
    return te.compute((batch, *extent, whole), inside, name="pad", attrs=marks)
