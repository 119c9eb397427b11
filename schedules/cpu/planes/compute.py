"""Convolution of NCHW pictures as TE, on a copy of a task's planes with a border (plan.py).

    rows[n, ty, tx, c, f, r, e] = X[n, c, (ty*R + r + ..)*sy + fy, (tx*C + e + ..)*sx + fx], or zero outside
    acc[n, ty, tx, p, j, b, s, q] = sum_{c, ky, kx} rows[n, ty, tx, c, f(ky, kx), at / P, at mod P] * W[p, c, ky, kx, j]
                                  at = q + place(b, s, ky, kx)
    out[n, o, y, x]               = acc[n, y / R, x / C, o / mr, o mod mr, .., (y mod S)*P + x mod C]

Tasks (ty, tx) compute R rows by C columns, in blocks b of strips s of S rows; f: phases of rows and columns where there
are strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, constant, static_shape
from tvmopt.lowering.overlap import vector_for
from tvmopt.lowering.repeats import packed_once
from tvmopt.lowering.strided_loads import WIDEST
from tvmopt.schedules.cpu._channels_last import Convolution
from tvmopt.schedules.cpu.planes.copy import FIRST, LAST, VECTOR
from tvmopt.schedules.cpu.planes.plan import Plan, best_plan
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def conv2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.nn.conv2d` that a graph pass has left in NCHW."""
    found = convolution_of(call)
    if found is None:
        return None
    value = constant(bb, call.args[1])
    if value is None:
        return Declined("a weight that is no constant")
    plan = best_plan(found, found.used(machine))
    packed = packed_once(value, ("planes", plan), lambda: relax.const(pack(value, plan), "float32"))
    return call_fusable(bb, lambda x, w: planes_te(x, w, plan), [call.args[0], packed], "conv2d_planes")


def convolution_of(call: relax.Call) -> Convolution | None:
    """A convolution of float32 pictures, NCHW, of known sizes, none of which is 0; else None."""
    attrs, (x, w) = call.attrs, call.args
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or str(attrs.out_layout or "NCHW") != "NCHW":
        return None
    xs, ws, out = static_shape(x), static_shape(w), static_shape(call)
    if xs is None or ws is None or out is None or len(xs) != 4 or 0 in (*xs, *ws, *out):
        return None
    if {str(x.ty.dtype), str(w.ty.dtype), str(call.ty.dtype)} != {"float32"}:
        return None

    def pair(values: Any) -> tuple[int, int]:
        return int(values[0]), int(values[1])

    return Convolution(
        xs[0], xs[1], (xs[2], xs[3]), ws[0], (out[2], out[3]), int(attrs.groups), (ws[2], ws[3]),
        pair(attrs.strides), pair(attrs.dilation), pair(attrs.padding),
    )  # fmt: skip


def pack(weight: np.ndarray, plan: Plan) -> np.ndarray:
    """W[O, Cg, KH, KW] as [G*P, Cg, KH, KW, mr], zeros beyond the channels of a group."""
    out_c, *rest = weight.shape
    groups, per = plan.conv.groups, out_c // plan.conv.groups
    whole = np.zeros((groups, plan.panels * plan.mr, *rest), weight.dtype)
    whole[:, :per] = weight.reshape(groups, per, *rest)
    return np.ascontiguousarray(np.moveaxis(whole.reshape(groups * plan.panels, plan.mr, *rest), 1, -1))


def planes_te(data: te.Tensor, weight: te.Tensor, plan: Plan) -> te.Tensor:
    """The blocks of the module's docstring; `weight` as :func:`pack` leaves it."""
    conv, pitch = plan.conv, plan.pitch
    (tasks_y, tasks_x), in_g = (conv.out[0] // plan.rows, conv.out[1] // plan.columns), conv.channels // conv.groups
    source = _rows(data, plan, (tasks_y, tasks_x))
    c = te.reduce_axis((0, in_g), name="c")
    ky, kx = te.reduce_axis((0, conv.kernel[0]), name="ky"), te.reduce_axis((0, conv.kernel[1]), name="kx")

    def term(n: Any, ty: Any, tx: Any, p: Any, j: Any, b: Any, r: Any, q: Any) -> Any:
        (y, fy), (x, fx) = _place(conv, 0, ky), _place(conv, 1, kx)
        first = (b * plan.high + r) * plan.together
        at = q + (first + y + plan.front) * pitch + x + conv.reach(1)[0] - plan.left
        channel = c if conv.groups == 1 else p // plan.panels * in_g + c
        read = source(n, ty, tx, channel, fy * len(conv.phases(1)) + fx, at // pitch, at % pitch)
        return read * weight(p, c, ky, kx, j)

    shape = (conv.n, tasks_y, tasks_x, conv.groups * plan.panels, plan.mr, plan.blocks, plan.high, plan.pixels)
    acc = te.compute(
        shape,
        lambda *i: te.sum(term(*i), axis=[c, ky, kx]),
        name="planes",
        attrs={"tvmopt.kernel": "planes", **_marks(plan)},
    )
    flat = te.compute(shape, lambda *i: acc(*i), name="flat", attrs={"tvmopt.kernel": "flat"})
    per = conv.outputs // conv.groups

    def place(o: Any) -> tuple[Any, Any]:
        if conv.groups == 1 or per % plan.mr == 0:
            return o // plan.mr, o % plan.mr
        return o // per * plan.panels + o % per // plan.mr, o % per % plan.mr

    def entry(n: Any, o: Any, y: Any, x: Any) -> Any:
        strip, row = y % plan.rows // plan.together, y % plan.rows % plan.together
        within = (strip // plan.high, strip % plan.high, row * pitch + x % plan.columns)
        return flat(n, y // plan.rows, x // plan.columns, *place(o), *within)

    return te.compute(
        (conv.n, conv.outputs, *conv.out),
        entry,
        name="unpack",
        attrs={"tvmopt.kernel": "unpack"},
    )


def _marks(plan: Plan) -> dict[str, int]:
    """What the schedule needs and the blocks do not say."""
    first, last = plan.conv.reach(1)
    return {
        "tvmopt.groups": plan.conv.groups, "tvmopt.rows": plan.rows, "tvmopt.columns": plan.columns,
        "tvmopt.tile": plan.nv * plan.lanes, "tvmopt.pitch": plan.pitch,
        "tvmopt.phases": min(len(plan.conv.phases(1)), plan.conv.kernel[1]), "tvmopt.reach": last - first,
    }  # fmt: skip


def _place(conv: Convolution, axis: int, tap: Any) -> tuple[Any, Any]:
    """Where a tap lies in its plane, from the first place that any tap reads, and the number of its phase."""
    step, offset = conv.strides[axis], tap * conv.dilation[axis] - conv.before[axis]
    first, phases = conv.reach(axis)[0], conv.phases(axis)
    if step == 1:
        return tap * conv.dilation[axis], 0
    phase = 0 if len(phases) == 1 else tirx.floormod(offset, step)
    return tirx.floordiv(offset, step) - first, phase


def _rows(data: te.Tensor, plan: Plan, tasks: tuple[int, int]) -> te.Tensor:
    """The copy of each task's planes."""
    conv = plan.conv
    (fy, fx), top = (conv.phases(0), conv.phases(1)), conv.reach(0)[0]

    def value(n: Any, ty: Any, tx: Any, c: Any, f: Any, r: Any, e: Any) -> Any:
        row = ty * plan.rows + r + (top - plan.front)
        column = tx * plan.columns + e + plan.left
        y = row * conv.strides[0] + (fy[0] if len(fy) == 1 else f // len(fx))
        x = column * conv.strides[1] + (fx[0] if len(fx) == 1 else f % len(fx))
        inside = te.all(y >= 0, y < conv.size[0], x >= 0, x < conv.size[1])
        return te.if_then_else(inside, data(n, c, y, x), tirx.const(0.0, "float32"))

    shape = (conv.n, *tasks, conv.channels, plan.planes, plan.depth, plan.pitch)
    first, last = plan.inside()
    near = conv.strides[1] <= WIDEST  # vectors of neighbours are taken apart
    vector = vector_for(last - first, plan.lanes) if near and last > first + 1 else 0
    marks = {FIRST: first, LAST: last, VECTOR: vector} if last > first else {}
    return te.compute(shape, value, name="rows", attrs={"tvmopt.kernel": "rows_copy", **marks})
