"""Pictures of float32 in NCHW resized by linear interpolation, a plane a task: first each row, then the columns.

    for a plane, for a row r of the picture
      line[r, x] = x0[x] * in[r, i0[x]] + x1[x] * in[r, i1[x]]
    for a row y of the result
      out[y, x]  = y0[y] * line[j0[y], x] + y1[y] * line[j1[y], x]                whole vectors

The columns of a picture are known: each vector of a line is written out, its neighbours are permutations of the few
vectors of the row that hold them, and nothing is gathered. A row that several rows of the result read is resized once.

floor      4*(inputs + outputs) / bandwidth of the cache they live in; the store of the result is most of it
Measured   one core of a Xeon with AVX-512, us, in brackets TVM's own loops and the better of onnxruntime and OpenVINO:
           64x40x40 by 2 84 (1031, 751), 80x28x28 by 3 139 (1603, 436), 256x13x13 by 2 43 (594, 159)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering.common import OUT_ELEMENTWISE_FUSABLE, known, samples
from tvmopt.lowering.loops import (
    INDEX,
    NANOSECONDS,
    as_index,
    const_index,
    everything,
    in_vectors,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    spread,
    store,
    vector,
)
from tvmopt.lowering.overlap import vector_for
from tvmopt.schedules.cpu._permuted import PARTS, WRITTEN, begins_of, permuted, starts_of
from tvmopt.scheduling.facts import divisors
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
Expr = Any


def resize2d(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined:
    """`R.image.resize2d` of float32, NCHW, linear."""
    x, attrs = call.args[0], call.attrs
    shape, out = samples(x), samples(call)
    if (str(attrs.method), str(attrs.layout)) != ("linear", "NCHW"):
        return Declined(f"{attrs.method} interpolation, {attrs.layout}")
    if shape is None or out is None or {str(x.ty.dtype), str(call.ty.dtype)} != {"float32"}:
        return Declined("an open or empty picture, or another type than float32")
    transform = str(attrs.coordinate_transformation_mode)
    if transform not in ("half_pixel", "align_corners", "asymmetric"):
        return Declined(f"the transformation {transform}")
    plan = Plan(shape[2:], out[2:], transform, machine.lanes())
    if plan.reason(machine):
        return Declined(plan.reason(machine))
    own = shape[0] if isinstance(shape[0], int) else tirx.Var("n", INDEX)
    func = kernel(plan, own, shape[1], machine)
    places, weights = (np.stack(pair) for pair in zip(*neighbours(shape[2], out[2], transform), strict=True))
    tables = [relax.const(places, INDEX), relax.const(weights.astype(np.float32)), relax.const(plan.weights)]
    result = relax.TensorType(list(out), "float32")
    return relax.call_tir(bb.add_func(func, "resize_planes"), [x, *tables], result)


def neighbours(size: int, out: int, transform: str) -> list[tuple[Array, Array]]:
    """The two neighbours of each element of an axis of `out` elements, and their weights.

    >>> [(i.tolist(), w.tolist()) for i, w in neighbours(2, 4, "half_pixel")]
    [([0, 0, 0, 1], [0.25, 0.75, 0.25, 0.75]), ([0, 1, 1, 1], [0.75, 0.25, 0.75, 0.25])]
    """
    at = np.arange(out, dtype=np.float64)
    if transform == "align_corners":
        at = at * (size - 1) / max(out - 1, 1)
    else:
        shift = 0.5 if transform == "half_pixel" else 0.0
        at = (at + shift) * size / out - shift
    low = np.floor(at)
    pairs = ((low, 1 - (at - low)), (low + 1, at - low))
    return [(np.clip(place, 0, size - 1).astype(np.int64), weight) for place, weight in pairs]


class Plan:
    """How rows become lines.

    Attributes:
        size, out: rows and columns of a plane and of the result. wide, narrow: numbers of a vector of each.
        starts: where each vector of a line begins; the last one may overlap the one before.
        places: the two neighbours of each column. weights: float32 [2, columns].
    """

    def __init__(self, size: tuple[int, ...], out: tuple[int, ...], transform: str, lanes: int) -> None:
        self.size, self.out = size, out
        self.wide, self.narrow = vector_for(size[1], lanes), vector_for(out[1], lanes)
        pairs = neighbours(size[1], out[1], transform)
        self.places = [place for place, _ in pairs]
        self.weights = np.stack([weight for _, weight in pairs]).astype(np.float32)
        self.starts = starts_of(out[1], self.narrow)

    def parts(self, start: int) -> list[int]:
        """Where the vectors of a row begin that hold the neighbours of the vector of the line at `start`."""
        columns = slice(start, start + self.narrow)
        return begins_of(np.concatenate([place[columns] for place in self.places]), self.size[1], self.wide)

    def reason(self, machine: Machine) -> str:
        """Why it is not done so; empty where it is."""
        if len(self.starts) > WRITTEN:
            return f"lines of more than {WRITTEN} vectors"
        if max(len(self.parts(start)) for start in self.starts) > PARTS:
            return f"neighbours in more than {PARTS} vectors"
        if 4 * self.size[0] * self.out[1] > machine.l2 // 4:
            return "lines that are more than a quarter of L2"
        return ""


def kernel(plan: Plan, batch: Any, channels: int, machine: Machine) -> tirx.PrimFunc:
    """PrimFunc(x, neighbours of rows, their weights, weights of columns, y). Few planes are cut into pieces of the
    result's rows, each of which makes the lines that it reads."""
    (rows, width), (out_rows, out_width), count = plan.size, plan.out, known(batch) * channels
    most = 4 * machine.cores if machine.cores > 1 and count < 4 * machine.cores else 1
    pieces = next((d for d in divisors(out_rows) if d * count >= most), out_rows)
    x = new_buffer("x", batch, channels, rows, width)
    places, down = new_buffer("places", 2, out_rows, dtype=INDEX), new_buffer("down", 2, out_rows)
    across = new_buffer("across", 2, out_width)
    y = new_buffer("y", batch, channels, out_rows, out_width)
    n, c, piece = at = tuple(tirx.Var(f"v{name}", INDEX) for name in ("n", "c", "piece"))
    lines, per = new_buffer("lines", rows, out_width), out_rows // pieces
    first, last = load(places, 0, piece * per), load(places, 1, piece * per + per - 1)

    def line(r: Expr) -> Any:
        return seq([_line_vector(plan, x, across, lines, (n, c), first + r, start) for start in plan.starts])

    def row(r: Expr) -> Any:
        here = piece * per + r

        def done(start: Any) -> Any:
            to = vector(start, plan.narrow)
            terms = [spread(load(down, k, here), plan.narrow) * load(lines, load(places, k, here), to) for k in (0, 1)]
            return store(y, terms[0] + terms[1], n, c, here, to)

        return in_vectors(out_width, plan.narrow, done)

    body = seq([loop(last - first + 1, line, "r"), loop(per, row, "y")])
    cycles = rows * len(plan.starts) * 5 + out_rows * len(plan.starts) * 3
    notes = {"tvmopt.kernel": "rows", NANOSECONDS: count * cycles / machine.ghz}
    axes = list(zip(at, (as_index(batch), channels, pieces), strict=True))
    starts, extents = (n, c, piece * per, const_index(0)), (1, 1, per, out_width)
    written = [Range.from_min_extent(s, const_index(e)) for s, e in zip(starts, extents, strict=True)]
    loops = nest(
        "resize", axes, ("n", "c", "piece"), [everything(b) for b in (x, places, down, across)],
        [BufferRegion(y, written)], body, [lines], notes,
    )  # fmt: skip
    return prim_func([x, places, down, across, y], loops, OUT_ELEMENTWISE_FUSABLE)


def _line_vector(plan: Plan, x: Any, across: Any, lines: Any, plane: tuple[Expr, ...], r: Expr, start: int) -> Any:
    """One vector of line r."""
    begins = plan.parts(start)

    def picked(places: Array) -> Expr:
        columns = places[start : start + plan.narrow]
        return permuted(lambda begin: load(x, *plane, r, vector(begin, plan.wide)), begins, plan.wide, columns)

    to = vector(start, plan.narrow)
    terms = [load(across, k, to) * picked(places) for k, places in enumerate(plan.places)]
    return store(lines, terms[0] + terms[1], r, to)
