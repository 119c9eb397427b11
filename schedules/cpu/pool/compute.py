"""Pooling, NHWC, as TE in vectors of channels - for the pool family. Padding is an expression, not a copy.

What no layout pass has turned (a model without convolutions, a volume, few channels) is pooled channels-first: pictures
of float32 by planes.py, anything else in vectors along a row, one term a tap (:func:`direct_te`).

    acc[n, y, x, b, v] = max or sum over ky, kx of src[n, y*s + ky*d, x*s + kx*d, b*V + v]
    out[n, y, x, c]    = acc (max), acc / count(y, x) (average)

`count` is K*K, or, without count_include_pad, the taps inside the image; a window that ceil_mode lets run
over the padded image counts only what lies in it (as PyTorch and onnxruntime do). Adaptive average pooling
to a divisor of the input's size is ordinary average pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, is_open, pictures, plain, samples, sizes
from tvmopt.lowering.window import Window, channel_vector, padded_source
from tvmopt.schedules.cpu.pool.planes import planes
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

MOST_TAPS = 64
"""Taps of a window up to which it is written out."""
_UNFIT = "an empty image, another layout than NHWC, or another type than float32"


def max_pool2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.nn.max_pool2d`, NHWC, float32, bfloat16 or uint8 (compared in float32, which changes no value)."""
    return _pool(bb, call, machine, "max")


def avg_pool2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.nn.avg_pool2d`, NHWC, float32."""
    return _pool(bb, call, machine, "avg")


def _shape(call: relax.Call, dtypes: tuple[str, ...] = ("float32",)) -> tuple[Any, ...] | None:
    """The input's shape if it is one to pool here: NHWC, of one of `dtypes`, no image empty."""
    shape = pictures(call.args[0])
    if shape is None or str(call.args[0].ty.dtype) not in dtypes:
        return None
    return shape if (call.attrs.layout, call.attrs.out_layout) == ("NHWC", "NHWC") else None


def _pool(bb: relax.BlockBuilder, call: relax.Call, machine: Machine, kind: str) -> relax.Expr | Declined:
    attrs, (x,) = call.attrs, call.args
    shape = _shape(call, ("float32", "bfloat16", "uint8") if kind == "max" else ("float32",))
    if shape is None:
        return Declined(_UNFIT)
    kernel = (int(attrs.pool_size[0]), int(attrs.pool_size[1]))
    window, out = Window.of(attrs, kernel, (shape[1], shape[2])), (sizes(call) or ())[1:3]
    include = bool(getattr(attrs, "count_include_pad", False))
    if is_open(shape[1:3]):
        if getattr(attrs, "ceil_mode", False):
            return Declined("the ceiling of an open size")
        if kind == "avg" and not include and any(window.padding):
            return Declined("averages at the border of an open picture count fewer taps")
        return _emit(bb, x, window, kind, include, machine, out)
    if out != window.out:
        # it computes what it promised
        return Declined("TVM counts the windows of this ceil_mode differently")
    return _emit(bb, x, window, kind, include, machine)


def adaptive_avg_pool2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.nn.adaptive_avg_pool2d`, NHWC, to a divisor of the input's rows and columns."""
    attrs, (x,) = call.attrs, call.args
    shape = _shape(call)
    if shape is None or is_open(shape[1:3]):
        return Declined(_UNFIT)
    out = (shape[1], shape[2]) if attrs.output_size is None else tuple(int(v) for v in attrs.output_size)
    out = out * 2 if len(out) == 1 else out
    if shape[1] % out[0] or shape[2] % out[1]:
        return Declined("windows of different sizes")
    kernel = (shape[1] // out[0], shape[2] // out[1])
    return _emit(bb, x, Window(kernel, kernel, (0, 0, 0, 0), (1, 1), (out[0], out[1])), "avg", True, machine)


def _emit(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    window: Window,
    kind: str,
    include: bool,
    machine: Machine,
    wanted: Sequence[Any] = (),
) -> relax.Expr:
    def compute(data: te.Tensor, *out: tirx.Expr) -> te.Tensor:
        return pool_te(data, window.at(*out), kind, include, machine.lanes())

    return call_fusable(bb, compute, [x], f"{kind}_pool2d", wanted=wanted)


def pool_te(data: te.Tensor, window: Window, kind: str, include_pad: bool, lanes: int) -> te.Tensor:
    """The loops; `kind` is "max" or "avg"."""
    batch, (height, width, channels) = data.shape[0], (plain(d) for d in data.shape[1:])
    vector, copied = channel_vector(channels, 1, lanes)
    fill = float("-inf") if kind == "max" and str(data.dtype) != "uint8" else 0.0
    nothing = kind == "avg" or fill < 0
    source = padded_source(data, window, channels, copied, vector, fill, "pool", nothing)
    ky = te.reduce_axis((0, window.kernel[0]), name="ky")
    kx = te.reduce_axis((0, window.kernel[1]), name="kx")
    (sy, sx), (dy, dx) = window.strides, window.dilation
    combine = _MAX if kind == "max" else te.sum
    acc = te.compute(
        (batch, *window.out, -(-channels // vector), vector),
        lambda n, y, x, b, v: combine(
            source(n, y * sy + ky * dy, x * sx + kx * dx, b * vector + v).astype("float32"), axis=[ky, kx]
        ),
        name="pool",
        attrs={"tvmopt.kernel": "pool"},
    )

    def result(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = acc(n, y, x, c // vector, c % vector)
        if kind == "max":
            return value.astype(data.dtype)
        taps = _taps(y, 0, window, height, include_pad) * _taps(x, 1, window, width, include_pad)
        if isinstance(taps, int):
            return value * tirx.const(1.0 / taps, data.dtype)
        return value / tirx.max(taps, 1).astype(data.dtype)

    return te.compute((batch, *window.out, channels), result, name="unpack", attrs={"tvmopt.kernel": "pool_out"})


_MAX = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda dtype: tirx.const(float("-inf"), dtype), name="max")


def _taps(position: Any, axis: int, window: Window, size: Any, include_pad: bool) -> Any:
    """How many taps of the window at `position` count; all of them where the size is open."""
    if is_open((size, window.out[axis])):
        return window.kernel[axis]
    pads = (window.padding[axis], window.padding[axis + 2])
    of = (window.kernel[axis], window.strides[axis], window.dilation[axis], window.out[axis])
    return _counted(position, *of, pads, size, include_pad)


def _counted(
    position: Any, kernel: int, stride: int, dilation: int, out: int, pads: tuple[int, int], size: int, include: bool
) -> Any:
    """How many taps along one axis lie in the image, or with `include` in the padded one: a number where it is the
    same at every position."""
    before, after = pads
    low, high = (-before, size + after) if include else (0, size)
    last = (out - 1) * stride - before + (kernel - 1) * dilation
    if -before >= low and last < high:
        return kernel
    start = position * stride - before
    # taps at start + k*dilation, 0 <= k < kernel, that lie in [low, high)
    below = tirx.max(0, tirx.floordiv(low - start + dilation - 1, dilation))
    beyond = tirx.min(kernel, tirx.floordiv(high - start + dilation - 1, dilation))
    return beyond - below


def direct(kind: str) -> Any:
    """A pooling of [N, C, ...] with one to three more axes, as it lies: float32 and float64, maxima of 16 bits too."""
    dtypes = ("float32", "float64", *(("float16", "bfloat16") if kind == "max" else ()))

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
        attrs, (x,) = call.attrs, call.args
        shape, out, kernel = samples(x), samples(call), [int(k) for k in attrs.pool_size]
        layout = "NC" + "DHW"[-len(kernel) :]
        if shape is None or out is None or str(x.ty.dtype) not in dtypes:
            return Declined(f"an open or empty image, or another type than {', '.join(dtypes)}")
        if prod(kernel) > MOST_TAPS:
            return Declined(f"a window of more than {MOST_TAPS} taps, in a layout that is not NHWC")
        if str(attrs.layout) != layout or str(attrs.out_layout or layout) != layout:
            return Declined(f"the layout {attrs.layout}")
        strides, dilation, padding = ([int(v) for v in a] for a in (attrs.strides, attrs.dilation, attrs.padding))
        include = bool(getattr(attrs, "count_include_pad", False))

        def compute(data: te.Tensor) -> te.Tensor:
            return direct_te(data, kernel, strides, dilation, padding, out[2:], kind, include)

        return call_fusable(bb, compute, [x], f"{kind}_pool_direct")

    return lowering


def direct_te(
    data: te.Tensor, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    out: Sequence[int], kind: str, include_pad: bool,
) -> te.Tensor:  # fmt: skip
    """One block: the taps joined as a chain; a tap that can lie outside has a condition. `padding`: all befores, then
    all afters."""
    batch, (channels, *size) = data.shape[0], (int(d) for d in data.shape[1:])
    axes = range(len(kernel))
    wide = "float64" if str(data.dtype) == "float64" else "float32"
    fill = tirx.const(float("-inf") if kind == "max" else 0.0, wide)

    def tap(n: Any, c: Any, at: Sequence[Any], k: Sequence[int]) -> Any:
        places, inside = [], []
        for a in axes:
            shift = k[a] * dilation[a] - padding[a]
            places.append(at[a] * strides[a] + shift)
            inside += [places[a] >= 0] if shift < 0 else []
            inside += [places[a] < size[a]] if (out[a] - 1) * strides[a] + shift >= size[a] else []
        value = data(n, c, *places).astype(wide)
        return te.if_then_else(te.all(*inside), value, fill) if inside else value

    def one(n: Any, c: Any, *at: Any) -> Any:
        values = [tap(n, c, at, k) for k in product(*(range(e) for e in kernel))]
        total = values[0]
        for value in values[1:]:
            total = tirx.max(total, value) if kind == "max" else total + value
        if kind == "max":
            return total.astype(data.dtype)
        counts = [
            _counted(at[a], kernel[a], strides[a], dilation[a], out[a], (padding[a], padding[a + len(kernel)]),
                     size[a], include_pad)
            for a in axes
        ]  # fmt: skip
        if all(isinstance(count, int) for count in counts):
            return total * tirx.const(1.0 / prod(counts), wide)
        return total / tirx.max(prod(counts), 1).astype(wide)

    return te.compute((batch, channels, *out), one, name="pool")


def either(*lowerings: Any) -> Any:
    """The first of these forms that takes a call; what the last one declines is declined."""

    def run(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
        result: Any = Declined("no form")
        for lowering in lowerings:
            result = lowering(bb, call, machine)
            if not isinstance(result, Declined):
                return result
        return result

    return run


LOWERS = {
    "relax.nn.max_pool2d": either(max_pool2d, planes("max"), direct("max")),
    "relax.nn.avg_pool2d": either(avg_pool2d, planes("avg"), direct("avg")),
    "relax.nn.adaptive_avg_pool2d": adaptive_avg_pool2d,
    **{f"relax.nn.{kind}_pool{rank}d": direct(kind) for kind in ("max", "avg") for rank in (1, 3)},
}
