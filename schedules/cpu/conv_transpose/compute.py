"""Transposed convolution of NCHW pictures, written out, on a copy of a task's planes with a border (plan.py).

    for a task (n, ty): rows of the picture and their border to `rows`, channel by channel
      for a block of mr output channels, for a phase ry of the rows, for a tile of nv vectors of pixels q
        acc[rx, m, q] = sum over c and the taps of (ry, rx) of rows[c, q + place(tap)] * w[c, tap, m]
        flat[m, ry, q*S + rx] = acc[rx, m, q]                     S phases of a column, interleaved in registers
      out[o, y, x] = flat[o mod mr, y mod Sy, (y / Sy)*P*S + x]   with the epilogue, in whole vectors

Neither the picture nor the result is transposed, no product with a zero weight is computed, and the result is written
once.

registers  S*mr*nv accumulators + nv (pixels) + 1 (weight) <= vector_regs             2*4*3 + 3 + 1 = 28 <= 32
loads      mr * taps (weights) + nv * places a channel for mr * nv * taps products
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, constant, static_shape
from tvmopt.lowering.loops import (
    INDEX,
    const_index,
    everything,
    in_vectors,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
)
from tvmopt.lowering.overlap import vector_for
from tvmopt.lowering.prefetch import prefetch, with_prefetch
from tvmopt.lowering.repeats import packed_once
from tvmopt.schedules.cpu._ahead import lines
from tvmopt.schedules.cpu.conv_transpose.plan import Axis, Plan, Transposed, best_plan
from tvmopt.scheduling.blocks import annotated
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
Statement = Any
AHEAD = "tvmopt.transpose_ahead"
"""The annotation of products that fetch rows ahead."""
STRIDE = 4
"""Phases of an axis at most."""


def conv2d_transpose(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.nn.conv2d_transpose` that a graph pass has left in NCHW."""
    found = transposed_of(call)
    if isinstance(found, Declined):
        return found
    used = found.used(machine)
    value, plan = constant(bb, call.args[1]), best_plan(found, used)
    if value is None or not np.isfinite(value).all():
        return Declined("a weight that is no constant, or not finite: its products with the border are not zero")
    if plan is None:
        return Declined("more taps of one phase than are written out")
    result = relax.TensorType(list(static_shape(call) or ()), "float32")
    weight = packed_once(value, ("transposed", plan), lambda: relax.const(pack(value, plan), "float32"))
    return relax.call_tir(bb.add_func(kernel(plan, used), "conv_transpose"), [call.args[0], weight], result)


def transposed_of(call: relax.Call) -> Transposed | Declined:
    """What a call computes."""
    attrs, (x, w) = call.attrs, call.args
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "IOHW") or str(attrs.out_layout or "NCHW") != "NCHW":
        return Declined("another layout than NCHW")
    xs, ws, out = static_shape(x), static_shape(w), static_shape(call)
    if xs is None or ws is None or out is None or 0 in (*xs, *ws, *out):
        return Declined("an open or empty picture")
    if {str(x.ty.dtype), str(w.ty.dtype), str(call.ty.dtype)} != {"float32"}:
        return Declined("another type than float32")
    if hasattr(w, "value") and not np.isfinite(w.value.numpy()).all():
        return Declined("a weight that is not finite")
    axes = [
        Axis(xs[2 + a], out[2 + a], ws[2 + a], int(attrs.strides[a]), int(attrs.dilation[a]), int(attrs.padding[a]))
        for a in (0, 1)
    ]
    if any(axis.stride > STRIDE for axis in axes):
        return Declined(f"a stride of more than {STRIDE}")
    if any(int(p) < 0 for p in attrs.padding):
        return Declined("a negative border")
    return Transposed(xs[0], xs[1], out[1], int(attrs.groups), axes[0], axes[1])


def pack(weight: np.ndarray, plan: Plan) -> np.ndarray:
    """w[C, Og, KH, KW] as [G*P, numbers]: of each phase of the rows, channel and tap, `mr` output channels; zeros
    beyond the channels of a group."""
    conv = plan.conv
    groups, in_g, out_g = conv.groups, conv.channels // conv.groups, weight.shape[1]
    whole = np.zeros((groups, in_g, plan.panels * plan.mr, *weight.shape[2:]), weight.dtype)
    whole[:, :, :out_g] = weight.reshape(groups, in_g, out_g, *weight.shape[2:])
    whole = whole.reshape(groups, in_g, plan.panels, plan.mr, *weight.shape[2:])
    parts = []
    for phase in range(conv.rows.stride):
        taps = plan.taps(phase)
        if taps:  # [tap, g, c, p, m] -> [g, p, c, tap, m]
            chosen = np.stack([whole[..., ky, kx] for _, ky, kx, _, _ in taps])
            parts.append(chosen.transpose(1, 3, 2, 0, 4).reshape(groups * plan.panels, -1))
    return np.ascontiguousarray(np.concatenate(parts, 1))


def kernel(plan: Plan, machine: Machine) -> tirx.PrimFunc:
    """PrimFunc(x, packed weights, y): the three blocks of the module's docstring."""
    conv = plan.conv
    rows, columns, panels = conv.rows, conv.columns, conv.groups * plan.panels
    numbers = conv.channels // conv.groups * sum(len(plan.taps(phase)) for phase in range(rows.stride)) * plan.mr
    x = new_buffer("x", conv.n, conv.channels, rows.size, columns.size)
    w = new_buffer("w", panels, numbers)
    y = new_buffer("y", conv.n, conv.outputs, rows.out, columns.out)
    # one axis for all that a block writes whole: compute_at solves `p * extent` for p, and no region from 0 on
    copy = new_buffer("rows", conv.n, plan.chunks, conv.channels * plan.length)
    flat = new_buffer("flat", conv.n, plan.chunks, panels * plan.block)
    blocks = [_copy(plan, x, copy), _products(plan, copy, w, flat, machine), _unpack(plan, flat, y)]
    return prim_func([x, w, y], seq(blocks), OUT_ELEMENTWISE_FUSABLE, [copy, flat])


def _at(buffer: Any, *starts: Any, extent: int = 1) -> Any:
    """The region of one place of all axes but the last, of which it has `extent` numbers."""
    extents = [1] * (len(starts) - 1) + [extent]
    ranges = [Range.from_min_extent(s, const_index(e)) for s, e in zip(starts, extents, strict=True)]
    return BufferRegion(buffer, ranges)


def _copy(plan: Plan, x: Any, copy: Any) -> Statement:
    """The rows of a task and one channel, with zeros before, between and behind them."""
    n, ty, c = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "ty", "c"))
    size, width, first = plan.conv.rows.size, plan.conv.columns.size, plan.conv.rows.reach[0]

    def put(start: Any, value: Expr, wide: int) -> Statement:
        return store(copy, value, n, ty, vector(c * plan.length + start, wide))

    def zeros(start: Any, count: int) -> list[Statement]:
        if count <= 0:
            return []
        wide = vector_for(count, plan.lanes)
        return [in_vectors(count, wide, lambda v: put(start + v, splat(0.0, wide), wide))]

    def row(r: Expr) -> Statement:
        source, to = ty * plan.high + r + first, plan.lead + r * plan.pitch
        wide = vector_for(width, plan.lanes)

        def moved(v: Any) -> Statement:
            return put(to + v, load(x, n, c, source, vector(v, wide)), wide)

        inside = tirx.all(source >= 0, source < size)
        (nothing,) = zeros(to, width)
        picked = tirx.IfThenElse(inside, in_vectors(width, wide, moved), nothing)
        return seq([picked, *zeros(to + width, plan.pitch - width)])

    end = plan.lead + plan.depth * plan.pitch
    body = seq([*zeros(const_index(0), plan.lead), loop(plan.depth, row, "r"), *zeros(end, plan.length - end)])
    axes = list(zip(at, (plan.conv.n, plan.chunks, plan.conv.channels), strict=True))
    written = _at(copy, n, ty, c * plan.length, extent=plan.length)
    return nest("rows", axes, ("n", "ty", "c"), [everything(x)], [written], body, [], {"tvmopt.kernel": "rows_copy"})


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with what its fetches call."""
    block = annotated(func, "conv_transpose")
    return with_prefetch(func) if block is not None and AHEAD in block.annotations else func


def _products(plan: Plan, copy: Any, w: Any, flat: Any, machine: Machine) -> Statement:
    """The products of a task and one block of output channels."""
    conv = plan.conv
    n, ty, p = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "ty", "p"))
    in_g, turns, lanes, mr, nv = conv.channels // conv.groups, conv.columns.stride, plan.lanes, plan.mr, plan.nv
    group = const_index(0) if conv.groups == 1 else p // plan.panels
    acc, top = new_buffer("acc", turns * mr * nv, lanes), conv.rows.reach[0]

    def place(rx: int, m: int, v: int) -> tuple[Any, Any]:
        return const_index((rx * mr + m) * nv + v), vector(0, lanes)

    every = [(rx, m, v) for rx in range(turns) for m in range(mr) for v in range(nv)]

    def tile(phase: int, begin: int, first: Expr) -> Statement:
        taps, ahead = plan.taps(phase), plan.ahead(phase, machine)

        def fetched(c: Expr) -> list[Statement]:
            """The lines of the rows that the taps of a channel read."""
            found, plane = [], (group * in_g + c) * plan.length + first + plan.lead
            for row in sorted({dy for *_, dy, _ in taps}):
                columns = [dx for *_, dy, dx in taps if dy == row]
                left = min(columns)
                for column in lines(max(columns) - left + nv * lanes):
                    place = plane + ((row - top) * plan.pitch + left + column)
                    found.append(prefetch(copy, [n, ty, place]))
            return found

        def channel(c: Expr) -> Statement:
            weights, steps = begin + c * (len(taps) * mr), fetched(c + ahead) if ahead else list[Statement]()
            plane = (group * in_g + c) * plan.length
            for index, (rx, _, _, dy, dx) in enumerate(taps):
                pixels = plane + first + (plan.lead + (dy - top) * plan.pitch + dx)
                for m in range(mr):
                    weight = spread(load(w, p, weights + (index * mr + m)), lanes)
                    for v in range(nv):
                        pixel = load(copy, n, ty, vector(pixels + v * lanes, lanes))
                        to = place(rx, m, v)
                        steps.append(store(acc, load(acc, *to) + pixel * weight, *to))
            return seq(steps)

        start = [store(acc, splat(0.0, lanes), *place(*one)) for one in every]
        return seq([*start, *([loop(in_g, channel, "c")] if taps else []), *written(phase, first)])

    def written(phase: int, first: Expr) -> list[Statement]:
        found = []
        for m in range(mr):
            for v in range(nv):
                phases = [load(acc, *place(rx, m, v)) for rx in range(turns)]
                for part in range(turns):
                    numbers = range(part * lanes, (part + 1) * lanes)
                    turned = [i % turns * lanes + i // turns for i in numbers]
                    value = phases[0] if turns == 1 else tirx.Shuffle(phases, turned)
                    row = (m * conv.rows.stride + phase) * plan.row + (v * turns + part) * lanes
                    found.append(store(flat, value, n, ty, vector(p * plan.block + first * turns + row, lanes)))
        return found

    def tiles(phase: int, begin: int) -> Statement:
        return loop(plan.tiles, lambda t: tile(phase, begin, t * (nv * lanes)), "t")

    body, begin = list[Statement](), 0
    for phase in range(conv.rows.stride):
        body.append(tiles(phase, begin))
        begin += in_g * len(plan.taps(phase)) * mr
    planes = in_g * plan.length
    reads = [_at(copy, n, ty, group * planes, extent=planes), _at(w, p, const_index(0), extent=begin)]
    notes = {
        "tvmopt.kernel": "conv_transpose", "tvmopt.rows": plan.high * conv.rows.stride, "tvmopt.panels": plan.panels,
        "tvmopt.mr": mr, **({AHEAD: 1} if any(plan.ahead(p, machine) for p in range(conv.rows.stride)) else {}),
    }  # fmt: skip
    axes = list(zip(at, (conv.n, plan.chunks, conv.groups * plan.panels), strict=True))
    written_to = _at(flat, n, ty, p * plan.block, extent=plan.block)
    return nest("conv_transpose", axes, ("n", "ty", "p"), reads, [written_to], seq(body), [acc], notes)


def _unpack(plan: Plan, flat: Any, y: Any) -> Statement:
    """Every number of the result from its place."""
    conv = plan.conv
    n, o, row, x = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "o", "y", "x"))
    turns, per, mr = conv.rows.stride, conv.outputs // conv.groups, plan.mr
    high = plan.high * turns
    panel, column = o // mr, o % mr
    if conv.groups > 1 and per % mr:
        panel, column = o // per * plan.panels + o % per // mr, o % per % mr
    within = row % high
    number = (column * turns + within % turns) * plan.row + within // turns * (plan.pitch * conv.columns.stride) + x
    place = (n, row // high, panel * plan.block + number)
    axes = list(zip(at, (conv.n, conv.outputs, conv.rows.out, conv.columns.out), strict=True))
    body = store(y, load(flat, *place), *at)
    marks = {"tvmopt.kernel": "unpack"}
    return nest("unpack", axes, ("n", "o", "y", "x"), [_at(flat, *place)], [_at(y, *at)], body, [], marks)
