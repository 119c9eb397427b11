"""Operators that move, cut, pad and select: everything with static shapes that TVM lacks or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from tvmopt.dims import Dim, OpenSize, Size, interval, is_open, parts_of
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, like, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least, index, within
from tvmopt.importer.converters.padding import Mode, pad_open, positions
from tvmopt.importer.protos import MOST_ELEMENTS

_PAD_MODES: dict[str, Mode] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def pad(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Pad: constant, reflect, edge and wrap; negative pads cut, before anything else is looked at."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    rank = len(shape_of(x))
    pads = attrs.get("pads", attrs.get("paddings")) if ctx.opset < 11 else ctx.array(inputs[1], "pads")
    axes = ctx.array(inputs[3], "axes")
    assert pads is not None
    order = [int(a) % rank for a in axes] if axes is not None else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(order):
        before[axis], after[axis] = (p if is_open((p,)) else int(p) for p in (pads[i], pads[len(order) + i]))
    mode = attrs.get("mode", "constant")
    opened = is_open((*before, *after)) or any(  # a cut may leave less than nothing before there is something behind
        is_open((size,)) and min(pads) < 0 for size, *pads in zip(shape_of(x), before, after, strict=True)
    )
    if mode == "constant" and opened:
        value = inputs[2] if ctx.opset >= 11 else None
        return pad_open(b, x, before, after, attrs.get("value", 0.0) if value is None else b.reshape(value, ()))
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if is_open((low, high)):
            _one_way(axis, low, high)
        elif min(low, high) < 0:
            size = shape_of(x)[axis]
            x = b.slice(x, axis, max(-low, 0), max(size - max(-high, 0), max(-low, 0)))
            before[axis], after[axis] = max(low, 0), max(high, 0)
    if mode == "constant":
        value = inputs[2] if ctx.opset >= 11 else const(attrs.get("value", 0.0), dtype_of(x))
        return _pad_constant(b, ctx, x, before, after, value)
    numpy_mode = _PAD_MODES[mode]
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        size = shape_of(x)[axis]
        if (low, high) == (0, 0):
            continue
        if is_open((size, low, high)):
            told = f"axis {axis} is empty, so there is nothing to pad it with in mode '{mode}'"
            index = at_least(b, ctx, positions(b, numpy_mode, low, size, high), size, 1, told)
        else:
            index = const(np.pad(np.arange(size), (low, high), mode=numpy_mode), "int64")
        x = b.take(x, index, axis)
    return x


def _one_way(axis: int, low: Size, high: Size) -> None:
    """Refuse open amounts of which one may cut an axis before the other one mirrors what is left of it."""
    if min(interval(amount, {})[0] for amount in (low, high)) < 0 and 0 not in (low, high):
        raise OpenSize(f"whether {low} and {high} elements are added to axis {axis}, or cut, is open")


def _pad_constant(b: Build, ctx: Context, x: Any, before: list[int], after: list[int], value: Any) -> Any:
    known = ctx.array(value)
    if value is None or known is not None:
        fill = 0 if known is None else np.ravel(known)[0]
        if 0 in shape_of(x):
            shape = [lo + s + hi for lo, s, hi in zip(before, shape_of(x), after, strict=True)]
            return b.full(shape, fill, dtype_of(x))
        if dtype_of(x) == "bool":
            return b.cast(b.pad(b.cast(x, "int8"), before, after, float(fill)), "bool")
        return b.pad(x, before, after, float(fill))
    inside = np.pad(np.ones(shape_of(x), bool), list(zip(before, after, strict=True)))
    return b.where(const(inside, "bool"), b.pad(x, before, after), b.reshape(value, ()))


def center_crop_pad(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """CenterCropPad: cut or pad with zeros around the centre; the odd element goes to the end."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    rank = len(shape_of(x))
    wanted = ctx.array(inputs[1], "shape")
    assert wanted is not None
    before, after = [0] * rank, [0] * rank
    for axis, want in zip(attrs.get("axes", range(rank)), wanted, strict=True):
        axis %= rank
        extra = int(want) - shape_of(x)[axis]
        if extra < 0:
            x = b.slice(x, axis, -extra // 2, -extra // 2 + int(want))
        else:
            before[axis], after[axis] = extra // 2, extra - extra // 2
    return b.pad(x, before, after)


def reverse_sequence(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """ReverseSequence: reverse the first `sequence_lens[b]` elements of the time axis."""
    x, b = inputs[0], Build(bb, ctx.name)
    time, batch = attrs.get("time_axis", 0), attrs.get("batch_axis", 1)
    longest = shape_of(x)[time]
    if is_open((longest,)):
        lengths = index(b, ctx, 1, (longest + 1,), wrap=False)
    else:
        lengths = within(b, ctx, 1, "a length", 0, longest)

    def reverse_sequence(data: te.Tensor, counts: te.Tensor) -> te.Tensor:
        def element(*i: Any) -> Any:
            place, count = i[time], counts[i[batch]]
            source = list(i)
            source[time] = tirx.Select(place < count, count - 1 - place, place)
            return data(*source)

        return te.compute(data.shape, element, name="reverse_sequence")

    return b.te(reverse_sequence, x, b.cast(lengths, "int64"))


def one_hot(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """OneHot with on and off values known at run time; an index out of range gives a row of off values."""
    b = Build(bb, ctx.name)
    depth_array = ctx.array(inputs[1], "depth")
    assert depth_array is not None
    depth = np.ravel(depth_array)[0]
    depth = depth if isinstance(depth, Dim) else int(depth)
    index = b.cast(inputs[0], "int64")
    shape = shape_of(index)
    axis = attrs.get("axis", -1) % (len(shape) + 1)
    column = b.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    column = b.where(b.less(column, 0), b.add(column, b.number(depth)), column)
    ramp = b.reshape(b.arange(depth), [depth if i == axis else 1 for i in range(len(shape) + 1)])
    off, on = (b.reshape(b.slice(inputs[2], 0, i, i + 1), ()) for i in range(2))
    return relax.op.where(b.equal(column, ramp), on, off)


def eye_like(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """EyeLike: a constant, unless a size is open."""
    b, shape = Build(bb, ctx.name), shape_of(inputs[0])
    dtype = str(helper.tensor_dtype_to_np_dtype(attrs["dtype"])) if "dtype" in attrs else dtype_of(inputs[0])
    if is_open(shape):
        return b.cast(b.equal(_diagonals(b, shape), int(attrs.get("k", 0))), dtype)
    return const(np.eye(shape[0], shape[1], k=attrs.get("k", 0)), dtype)


def split(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Split: sizes from an attribute (before opset 13), an input or `num_outputs`; parts may be empty."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    axis = attrs.get("axis", 0) % len(shape_of(x))
    size = shape_of(x)[axis]
    given = attrs.get("split") if ctx.opset < 13 else ctx.array(inputs[1], "split")
    if given is None:
        count = attrs.get("num_outputs", ctx.num_outputs)
        alike = is_open((size,)) and "num_outputs" not in attrs  # which is a condition then
        sizes = [size // count] * count if alike else parts_of(size, count)
    else:
        sizes = [int(s) for s in given]
    if given is not None and sum(sizes) != size:
        raise ctx.unsupported(f"the parts {sizes} do not add up to {size}")
    if len(sizes) == 1:
        return (x,)
    if 0 not in sizes and not is_open(sizes):
        return relax.op.split(x, [int(v) for v in np.cumsum(sizes)[:-1]], axis)
    parts, start = [], 0
    for part in sizes:
        shape = [part if i == axis else s for i, s in enumerate(shape_of(x))]
        parts.append(b.slice(x, axis, start, start + part) if part else b.zeros(shape, dtype_of(x)))
        start += part
    return tuple(parts)


def space_to_depth(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SpaceToDepth: DCR order puts the block's place before the channel, CRD after it."""
    b = Build(bb, ctx.name)
    batch, channels, height, width = shape_of(inputs[0])
    k = attrs["blocksize"]
    blocks = b.reshape(inputs[0], (batch, channels, height // k, k, width // k, k))
    order = (0, 1, 3, 5, 2, 4) if attrs.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return b.reshape(b.transpose(blocks, order), (batch, channels * k * k, height // k, width // k))


def cum_prod(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """CumProd along an axis, exclusive and reversed on demand."""
    b = Build(bb, ctx.name)
    x = inputs[0]
    where = ctx.array(inputs[1], "axis")
    assert where is not None
    axis = int(np.ravel(where)[0]) % len(shape_of(x))
    if attrs.get("reverse", 0):
        x = b.emit(relax.op.flip(x, axis))
    out = b.emit(relax.op.cumprod(x, axis, exclusive=bool(attrs.get("exclusive", 0))))
    return relax.op.flip(out, axis) if attrs.get("reverse", 0) else out


def max_unpool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MaxUnpool: every value at its flat index in a tensor of zeros (of the size that the pooling came from)."""
    b = Build(bb, ctx.name)
    x, index = inputs[0], b.cast(inputs[1], "int64")
    shape = shape_of(x)
    n = len(shape) - 2
    kernel, strides = attrs["kernel_shape"], attrs.get("strides", [1] * n)
    pads = attrs.get("pads", [0] * (2 * n))
    own = [(shape[2 + i] - 1) * strides[i] - pads[i] - pads[n + i] + kernel[i] for i in range(n)]
    full = [*shape[:2], *own]
    wanted = ctx.array(inputs[2], "output_shape")
    target = full if wanted is None else [int(v) for v in wanted]
    count = int(np.prod(target))
    index = within(b, ctx, 1, "an index", 0, int(np.prod(full)) - 1, index)
    if target != full:  # indices are flat in the inferred shape: recount them in the asked-for one
        place, rest = [], index
        for size in reversed(full):
            place.append(b.emit(relax.op.floor_mod(rest, const(size, "int64"))))
            rest = b.emit(relax.op.floor_divide(rest, const(size, "int64")))
        flat = None
        for position, size in zip(reversed(place), target, strict=True):
            flat = position if flat is None else b.add(b.mul(flat, size), position)
        index = flat
    index = within(b, ctx, 1, "an index", 0, count - 1, index)
    zeros = const(np.zeros(count), dtype_of(x))
    total = int(np.prod(shape))
    out = b.emit(relax.op.scatter_elements(zeros, b.reshape(index, (total,)), b.reshape(x, (total,)), 0))
    return b.reshape(out, target)


def reshape(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Reshape: 0 copies a dimension (unless `allowzero`), -1 is what is left."""
    x = inputs[0]
    given = np.asarray(attrs["shape"] if ctx.opset < 5 else ctx.array(inputs[1], "shape"))
    own = shape_of(x)
    keep = not attrs.get("allowzero", 0)
    wanted = [own[i] if d == 0 and keep else int(d) for i, d in enumerate(np.ravel(given))]
    if -1 in wanted:
        rest = int(np.prod([d for d in wanted if d != -1]))
        wanted[wanted.index(-1)] = int(np.prod(own)) // rest if rest else 0
    if int(np.prod(wanted)) != int(np.prod(own)):
        raise ctx.unsupported(
            f"{list(own)} does not have as many elements as {wanted}",
            "if you gave --shape, it is not one that the model was exported for; else repair the model",
        )
    if 0 in wanted:  # to Relax, as to ONNX, a 0 means: copy
        return relax.op.zeros(wanted, dtype_of(x))
    return Build(bb, ctx.name).reshape(x, wanted)


def unsqueeze(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Unsqueeze: ones at these places of the result's shape."""
    given = np.asarray(attrs["axes"] if ctx.opset < 13 else ctx.array(inputs[1], "axes"))
    rank = len(shape_of(inputs[0])) + int(np.size(given))
    axes = sorted(int(a) % rank for a in np.ravel(given))
    return relax.op.expand_dims(inputs[0], axes) if axes else inputs[0]


def hardmax(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Hardmax: 1 at the first maximum along `axis` (before opset 13: of all axes from `axis` on together)."""
    b = Build(bb, ctx.name)
    shape, dtype = shape_of(inputs[0]), dtype_of(inputs[0])
    axis = attrs.get("axis", 1 if ctx.opset < 13 else -1) % len(shape)
    x = inputs[0]
    if ctx.opset < 13:
        x = b.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
        axis = 1
    best = b.emit(relax.op.argmax(b.wide(x), axis, True))
    own = shape_of(x)
    ramp = b.reshape(b.arange(own[axis]), [d if i == axis else 1 for i, d in enumerate(own)])
    return b.reshape(b.cast(b.equal(ramp, best), dtype), shape)


def trilu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Trilu; a diagonal beyond the corners is the corner's, which kernels can count to in 32 bits."""
    k = ctx.array(inputs[1]) if inputs[1] is not None else np.zeros((), np.int64)
    if k is None:
        return ctx.stock(inputs, attrs)
    rows, columns = shape_of(inputs[0])[-2:]
    first = k.reshape(-1)[0]
    if isinstance(first, Dim):
        b = Build(bb, ctx.name)
        distance, bound = _diagonals(b, (rows, columns)), b.number(first)
        inside = (b.greater_equal if attrs.get("upper", 1) else b.less_equal)(distance, bound)
        return b.where(inside, inputs[0], like(0, inputs[0]))
    low, high = (size if isinstance(size, int) else MOST_ELEMENTS for size in (rows, columns))
    offset = min(max(int(first), -low), high)
    return (relax.op.triu if attrs.get("upper", 1) else relax.op.tril)(inputs[0], offset)


def _diagonals(b: Build, shape: Sequence[Size]) -> Any:
    """Of each element of a matrix the diagonal it lies on: its column less its row, int64."""
    rows, columns = shape
    return b.sub(b.reshape(b.arange(columns), (1, columns)), b.reshape(b.arange(rows), (rows, 1)))


def cum_sum(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """CumSum. Sums of 32 bits, which wrap around, are cut from sums of 64: LLVM takes for granted that none of 32 does,
    and a cast behind it in the same kernel had the bits that the sum has not."""
    wider = {"int32": "int64", "uint32": "uint64"}.get(dtype_of(inputs[0]))
    if wider is None:
        return ctx.stock(inputs, attrs)
    b = Build(bb, ctx.name)
    sums = ctx.stock(Inputs([b.cast(inputs[0], wider), *inputs[1:]]), attrs)
    return b.cast(b.emit(sums), dtype_of(inputs[0]))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "Trilu"): trilu,
    ("", "Pad"): pad,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Hardmax"): hardmax,
    ("", "CenterCropPad"): center_crop_pad,
    ("", "ReverseSequence"): reverse_sequence,
    ("", "OneHot"): one_hot,
    ("", "EyeLike"): eye_like,
    ("", "Split"): split,
    ("", "SpaceToDepth"): space_to_depth,
    ("", "CumProd"): in_float32(cum_prod),
    ("", "CumSum"): in_float32(cum_sum),
    ("", "MaxUnpool"): max_unpool,
}
