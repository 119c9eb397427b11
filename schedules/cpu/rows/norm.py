"""Softmax, layer, RMS, group and instance norm, and sums, means and extrema of the last axes - as programs over rows.

    softmax       m = max x;  e = exp(x - m), s = sum e;  y = e / s                     3 passes over a row in L1
    log_softmax   m = max x;  s = sum exp(x - m);         y = (x - m) - log s
    layer_norm    mu = sum x / C;  v = sum (x - mu)^2 / C;  y = (x - mu) / sqrt(v + eps) * gamma + beta
    rms_norm      y = x / sqrt(sum x^2 / C + eps) * gamma
    group_norm    layer_norm over (channels of the group, pixels), gamma and beta by channel; instance: one channel
    sum           s = sum f(x), f(x) = x, |x| or x^2: the terms of L1 and L2 norms are not stored

The variance is of centred values: E[x^2] - mu^2 cancels. Float32; anything else is TVM's, and so is a reduction of all
axes where one is open. Several reduced axes become one by a reshape, which is a view.

Measured   one core of a Zen 4, us, in brackets with stored terms and the better of onnxruntime and OpenVINO: L2 norms
           of 256x3000 39 (102, 70), the 3 MB of L3 at 79 GB/s; of 40x100003 237 (1149, 280); of 1000x777 40 (112, 78)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx, topi
from tvm.ir import Range
from tvm.tirx.stmt import BufferRegion

from tvmopt.lowering import math
from tvmopt.lowering.common import (
    OUT_ELEMENTWISE_FUSABLE,
    Symbols,
    flat,
    is_empty,
    same_size,
    same_sizes,
    sizes,
    trailing,
)
from tvmopt.lowering.loops import INDEX, NANOSECONDS, load, loop, new_buffer, prim_func, store
from tvmopt.lowering.lower_extrema import larger
from tvmopt.lowering.overlap import vector_for
from tvmopt.schedules.cpu._loops import STRIPS, strip_of
from tvmopt.schedules.cpu.rows import across
from tvmopt.schedules.cpu.rows.norm_by_channel import channels_last, variance_of
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.scheduling.cost_model import worth_threads
from tvmopt.scheduling.facts import largest_divisor
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
Program = Callable[[Row, list[Any], tuple[Expr, ...]], None]
Term = Callable[[Expr], Expr]
"""What a reduction makes of each number before it combines them."""


def row_kernel(
    inputs: Sequence[Sequence[Any]],
    output: Sequence[Any],
    rows: Sequence[Any],
    length: Any,
    lanes: int,
    program: Program,
    name: str,
    dtypes: tuple[str, str] = ("float32", "float32"),
    handed: Sequence[Any] = (),
    nanoseconds: float = 0.0,
) -> Any:
    """A PrimFunc that runs `program(row, [*inputs, output], row indices)` for every row.

    Inputs whose leading dimensions are `rows` are read row by row, others (gamma, beta) whole. Sizes of rows may be
    open: variables. `dtypes`: of the inputs, and of the output; `handed`: variables that are no tensor's size;
    `nanoseconds`: one core's time for all rows where that is more than their bytes take.
    """
    buffers = [
        new_buffer(f"x{i}", *shape, dtype=dtypes[0]) if i < len(inputs) else new_buffer("y", *shape, dtype=dtypes[1])
        for i, shape in enumerate([*inputs, output])
    ]
    variables = tuple(tirx.Var(f"v{i}", INDEX) for i in range(len(rows)))
    row = Row(length, lanes)
    program(row, buffers, variables)
    regions = [_region(b, variables, rows) for b in buffers]
    notes = {NANOSECONDS: nanoseconds} if nanoseconds else {}
    body = row.block(name, rows, regions[:-1], regions[-1:], variables, "rows", notes)
    return prim_func([*buffers[:-1], *handed, buffers[-1]], body, OUT_ELEMENTWISE_FUSABLE)


def _region(buffer: Any, variables: Sequence[Expr], rows: Sequence[int]) -> Any:
    shape = list(buffer.shape)
    by_row = len(shape) >= len(rows) and all(same_size(a, b) for a, b in zip(shape, rows, strict=False))
    ranges = []
    for axis, extent in enumerate(shape):
        if by_row and axis < len(rows):
            ranges.append(Range.from_min_extent(variables[axis], tirx.const(1, INDEX)))
        else:
            ranges.append(Range.from_min_extent(tirx.const(0, INDEX), extent))
    return BufferRegion(buffer, ranges)


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _max(a: Expr, b: Expr) -> Expr:
    return tirx.max(a, b)


def _min(a: Expr, b: Expr) -> Expr:
    return tirx.min(a, b)


_INF = float("inf")
ROW_CYCLES, VECTOR_CYCLES = 24, 18
"""Of softmax, a row and a vector of it: 2,000 rows of 16, 64 and 512 numbers take 19, 53 and 336 us on one core of a
Zen 4, their bytes a tenth of that."""
SHORT = 8
"""Numbers of a row up to which LLVM writes its loops out. Of longer ones that do not fill a vector it makes scalar
loops: they get shorter vectors, the last of which overlaps the one before. Softmax of 14 takes a third of the time."""
UNFIT = "another type than float32, or an empty shape"
OPEN_ROW = "rows of an open length"
DEQUANTIZE = tvm.ir.Op.get("relax.dequantize")
NOT_LAST = "axes that are not the last"
TERMS = 4
"""Terms of a reduction from which it is worth more than being fused with what computes them."""


def softmax_program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
    x, y = buffers
    peak = row.keep(row.reduce(lambda i: load(x, *at, i), larger, -_INF))  # the sum shows a NaN
    total = row.reduce(
        lambda i: math.exp_nonpositive(load(x, *at, i) - peak), _add, 0.0, lambda i, e: store(y, e, *at, i)
    )
    scale = row.keep(tirx.const(1.0, "float32") / total)
    row.map(lambda c: store(y, load(y, *at, c) * scale, *at, c))


def log_softmax_program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
    x, y = buffers
    peak = row.keep(row.reduce(lambda i: load(x, *at, i), larger, -_INF))  # the sum shows a NaN
    total = row.reduce(lambda i: math.exp_nonpositive(load(x, *at, i) - peak), _add, 0.0)
    shift = row.keep(tirx.log(total))  # subtracted by itself: beside a peak of 1e5 its digits would be lost
    row.map(lambda c: store(y, (load(x, *at, c) - peak) - shift, *at, c))


def _centred(row: Row, x: Any, at: tuple[Expr, ...], epsilon: float) -> Callable[[Expr], Expr]:
    """The function from an index to the normalized value of a row.

    A mean of 1e5 has an error of 4e-3, the rounding of its own format. The mean of the centred values is what it
    lacks: r = sum (x - mu) / C;  v = sum (x - mu)^2 / C - r^2;  y = (x - mu) * s - r * s,  s = 1 / sqrt(v + eps).
    """
    inverse = _inverse(row)
    mean = row.keep(row.reduce(lambda i: load(x, *at, i), _add, 0.0) * inverse)

    def centred(i: Expr) -> Expr:
        return load(x, *at, i) - mean

    total, squares = row.sums(centred, lambda i: centred(i) * centred(i))
    rest = row.keep(total * inverse)
    variance = variance_of(squares * inverse, rest)
    scale = row.keep(_rsqrt(variance + tirx.const(epsilon, "float32")))
    shift = row.keep(rest * scale)
    return lambda i: centred(i) * scale - shift


def _elements(row: Row) -> Expr:
    """How many elements a row has, as a float32; their number may be open."""
    known = isinstance(row.length, int)
    return tirx.const(float(row.length), "float32") if known else tirx.Cast("float32", row.length)


def _inverse(row: Row) -> Expr:
    """One over the elements of a row."""
    if isinstance(row.length, int):
        return tirx.const(1.0 / row.length, "float32")
    return row.keep(tirx.const(1.0, "float32") / _elements(row))


def _rsqrt(value: Expr) -> Expr:
    return tirx.const(1.0, "float32") / tirx.sqrt(value)


def layer_norm_program(epsilon: float, scale: bool, center: bool) -> Program:
    def program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, gamma, beta, y = buffers
        normalized = _centred(row, x, at, epsilon)

        def value(c: Expr) -> Any:
            v = normalized(c)
            v = v * load(gamma, c) if scale else v
            return store(y, v + load(beta, c) if center else v, *at, c)

        row.map(value)

    return program


def rms_norm_program(epsilon: float) -> Program:
    def program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, gamma, y = buffers
        inverse = _inverse(row)
        square = row.reduce(lambda i: load(x, *at, i) * load(x, *at, i), _add, 0.0)
        rsqrt = row.keep(_rsqrt(square * inverse + tirx.const(epsilon, "float32")))
        row.map(lambda c: store(y, load(x, *at, c) * rsqrt * load(gamma, c), *at, c))

    return program


def group_norm_program(epsilon: float, channels: int, scale: bool, center: bool) -> Program:
    """Rows are (n, g); a row is `channels` channels of `length / channels` pixels."""

    def program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, gamma, beta, y = buffers
        pixels = row.length // channels
        normalized = _centred(row, x, at, epsilon)

        def channel(c: Expr) -> Any:
            which = at[-1] * channels + c

            def value(i: Expr) -> Any:
                v = normalized(c * pixels + i)
                v = v * load(gamma, which) if scale else v
                return store(y, v + load(beta, which) if center else v, *at, c * pixels + i)

            return loop(pixels, value, "i")

        row.statements.append(loop(channels, channel, "c"))

    return program


def reduce_program(kind: str, term: Term) -> Program:
    """ "sum", "mean", "max" or "min" of the terms of a row, to one number."""

    def program(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, y = buffers
        combine, identity = {"max": (_max, -_INF), "min": (_min, _INF)}.get(kind, (_add, 0.0))
        value = row.reduce(lambda i: term(load(x, *at, i)), combine, identity)
        if kind == "mean":  # a product with the reciprocal may make another number of equal ones
            value = value / _elements(row)
        ones = [tirx.const(0, INDEX)] * (len(y.shape) - len(at))
        row.statements.append(store(y, value, *at, *ones))

    return program


# -- lowerings ------------------------------------------------------------------------------------


def _float_shape(expr: Any) -> tuple[Any, ...] | None:
    """The shape of a float32 tensor that is not empty; sizes of it may be open."""
    shape = sizes(expr)
    return shape if shape and not is_empty(shape) and str(expr.ty.dtype) == "float32" else None


def _row(shape: Sequence[Any], count: int) -> tuple[tuple[Any, ...], Any]:
    """The sizes of rows of the last `count` axes, and the length of a row."""
    return tuple(shape[: len(shape) - count]), prod(shape[len(shape) - count :])


def _emit(
    bb: relax.BlockBuilder, args: list[Any], output: Sequence[Any], rows: Sequence[Any], length: Any,
    machine: Machine,
    program: Program, name: str, nanoseconds: float = 0.0,
) -> Any:  # fmt: skip
    symbols = Symbols()
    shapes, here = [symbols.of(a) for a in args], (symbols.here(output), symbols.here(rows))
    (length,) = symbols.here([length])
    handed = symbols.to_hand_over()
    lanes = vector_for(length, machine.lanes()) if isinstance(length, int) and length > SHORT else machine.lanes()
    func = row_kernel(shapes, *here, length, lanes, program, name, handed=handed, nanoseconds=nanoseconds)
    result = relax.TensorType(list(output), "float32")
    return relax.call_tir(bb.add_func(func, name), [*args, *symbols.named(handed)], result)


def _softmax(program: Program, name: str) -> Any:
    def along_last(bb: relax.BlockBuilder, x: Any, shape: Sequence[Any], machine: Machine) -> Any:
        time = 0.0
        if all(isinstance(d, int) for d in shape):
            vectors = -(-shape[-1] // machine.lanes())
            time = prod(shape[:-1]) * (ROW_CYCLES + VECTOR_CYCLES * vectors) / machine.ghz
        return _emit(bb, [x], shape, shape[:-1], shape[-1], machine, program, name, time)

    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        x, shape = call.args[0], _float_shape(call.args[0])
        if not shape:
            return Declined(UNFIT)
        axis, last = int(call.attrs.axis) % len(shape), len(shape) - 1
        if not isinstance(shape[axis], int) and axis != last:
            return Declined(OPEN_ROW)
        if axis == last:
            return along_last(bb, x, shape, machine)
        parts = (shape[:axis], shape[axis : axis + 1], shape[axis + 1 :])
        if all(isinstance(d, int) for d in shape):
            view = (prod(parts[0]), prod(parts[1]), prod(parts[2]))
            if across.fits_softmax(view, machine):
                func = across.softmax(view, name == "log_softmax", machine)
                result = relax.TensorType(list(view), "float32")
                y = bb.emit(relax.call_tir(bb.add_func(func, name), [flat(bb, x, view)], result))
                return flat(bb, y, shape)
        swap = list(range(len(shape)))  # its own inverse; rows must be contiguous
        swap[axis], swap[last] = last, axis
        turned = [shape[i] for i in swap]
        x = bb.emit(bb.call_te(topi.transpose, x, swap, primfunc_name_hint="transpose"))
        y = bb.emit(along_last(bb, x, turned, machine))
        return bb.call_te(topi.transpose, y, swap, primfunc_name_hint="transpose")

    return lowering


def layer_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.layer_norm` over the last axes."""
    x, gamma, beta = call.args
    shape = _float_shape(x)
    count = trailing(call.attrs.axes, len(shape)) if shape else None
    if shape is None or not (_float_shape(gamma) and _float_shape(beta)):
        return Declined(UNFIT)
    if count is None:
        return Declined(NOT_LAST)
    rows, length = _row(shape, count)
    args = [flat(bb, x, (*rows, length)), flat(bb, gamma, (length,)), flat(bb, beta, (length,))]
    program = layer_norm_program(float(call.attrs.epsilon), bool(call.attrs.scale), bool(call.attrs.center))
    out = _emit(bb, args, (*rows, length), rows, length, machine, program, "layer_norm")
    return _reshaped(bb, out, (*rows, length), shape)


def rms_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.rms_norm` over the last axes."""
    x, gamma = call.args
    shape = _float_shape(x)
    count = trailing(call.attrs.axes, len(shape)) if shape else None
    if shape is None or not _float_shape(gamma):
        return Declined(UNFIT)
    if count is None:
        return Declined(NOT_LAST)
    rows, length = _row(shape, count)
    args = [flat(bb, x, (*rows, length)), flat(bb, gamma, (length,))]
    program = rms_norm_program(float(call.attrs.epsilon))
    out = _emit(bb, args, (*rows, length), rows, length, machine, program, "rms_norm")
    return _reshaped(bb, out, (*rows, length), shape)


def _reshaped(bb: relax.BlockBuilder, value: Any, shape: Sequence[int], wanted: Sequence[int]) -> Any:
    return value if same_sizes(shape, wanted) else relax.op.reshape(bb.emit(value), tuple(wanted))


def _grouped(bb: relax.BlockBuilder, call: relax.Call, machine: Machine, groups: int | None) -> Any:
    x, gamma, beta = call.args
    shape, attrs = _float_shape(x), call.attrs
    if shape is None or len(shape) < 3 or not (_float_shape(gamma) and _float_shape(beta)):
        return Declined(UNFIT)
    channel = int(attrs.channel_axis) % len(shape)
    if groups is not None and not isinstance(shape[channel], int):
        return Declined("groups of an open number of channels")
    if sorted(int(a) % len(shape) for a in attrs.axes) != [a for a in range(1, len(shape)) if a != channel]:
        return Declined("axes that are not all but the batch's and the channels'")
    if channel == len(shape) - 1:
        if not all(isinstance(d, int) for d in shape):
            return Declined("channels last, and an open size")
        return channels_last(bb, call, shape, groups or shape[channel])
    if channel != 1:
        return Declined("channels that are neither second nor last")
    channels, groups = (1, shape[1]) if groups is None else (shape[1] // groups, groups)
    length = channels * prod(shape[2:])
    program = group_norm_program(float(attrs.epsilon), channels, bool(attrs.scale), bool(attrs.center))
    whole = (shape[0], groups, length)
    out = _emit(bb, [flat(bb, x, whole), gamma, beta], whole, whole[:2], length, machine, program, "group_norm")
    return _reshaped(bb, out, whole, shape)


def group_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.group_norm`, channels second."""
    return _grouped(bb, call, machine, int(call.attrs.num_groups))


def instance_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.instance_norm`, channels second."""
    return _grouped(bb, call, machine, None)


def kept_term(call: relax.Call) -> bool:
    """Whether a call stays in the graph until a reduction computes it on the way: a magnitude, or a square."""
    return str(call.ty.dtype) == "float32" and all(arg.same_as(call.args[0]) for arg in call.args)


TERM_OF: dict[str, Term] = {"relax.abs": tirx.abs, "relax.multiply": lambda x: x * x}
KEEPS = dict.fromkeys(TERM_OF, kept_term)


def _itself(x: Expr) -> Expr:
    return x


def _source(bb: relax.BlockBuilder, x: Any) -> tuple[Any, Term]:
    """What a reduction of `x` reads, and the term that it makes of each number: a norm's magnitudes and squares are
    not stored."""
    made = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    if isinstance(made, relax.Call) and getattr(made.op, "name", "") in TERM_OF and kept_term(made):
        return made.args[0], TERM_OF[made.op.name]
    return x, _itself


def _of_everything(
    bb: relax.BlockBuilder, x: Any, term: Term, length: int, out: Sequence[int], kind: str, machine: Machine
) -> Any:  # fmt: skip
    """A reduction over all axes: of equal parts, which threads share, then of their results. One chain of additions
    would be slow, and its error would grow with the length."""
    parts, name = largest_divisor(length, 64), f"{kind}_rows"
    x = flat(bb, x, (parts, length // parts))
    each = bb.emit(_emit(bb, [x], (parts,), (parts,), length // parts, machine, reduce_program(kind, term), name))
    row = flat(bb, each, (1, parts))
    whole = _emit(bb, [row], (1,), (1,), parts, machine, reduce_program(kind, _itself), name)
    return _reshaped(bb, whole, (1,), out)


def _across(
    bb: relax.BlockBuilder, x: Any, term: Term, shape: Sequence[Any], axes: list[int], out: Sequence[Any], kind: str,
    machine: Machine,
) -> Any:  # fmt: skip
    """A reduction over neighbouring axes before the last one, if the rest has no long strips of whole vectors: LLVM's
    loops add those up in memory, and a tail number by number. What is computed on the way is fused to them alone."""
    first, last = axes[0], axes[-1] + 1
    if not all(isinstance(d, int) for d in shape) or last - first != len(axes):
        return Declined(NOT_LAST)
    view = (prod(shape[:first]), prod(shape[first:last]), prod(shape[last:]))
    lanes = machine.lanes()
    even = view[2] % lanes == 0 and strip_of(view[2], STRIPS[0], lanes) >= STRIPS[0] // 2
    if view[2] < 2 or even or view[1] < 2:
        return Declined(NOT_LAST)
    nanoseconds = 4 * prod(view) / machine.core_bandwidth * 1e9
    if across.Strip(view, "float32", machine).tasks < machine.cores and worth_threads(nanoseconds, machine):
        return Declined(NOT_LAST)
    made = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    strips = lanes <= view[2] < across.VECTORS * lanes and view[1] >= TERMS  # what is worth a kernel of its own
    if isinstance(made, relax.Call) and (not strips or made.op == DEQUANTIZE):
        return Declined(NOT_LAST)
    func, result = across.reduction(view, kind, term, machine), relax.TensorType([view[0], view[2]], "float32")
    y = relax.call_tir(bb.add_func(func, f"{kind}_across"), [flat(bb, x, view)], result)
    return _reshaped(bb, y, (view[0], view[2]), out)


def _reduction(kind: str) -> Any:
    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        x, term = _source(bb, call.args[0])
        shape, out = _float_shape(x), sizes(call)
        if shape is None or out is None:
            return Declined(UNFIT)
        axes = call.attrs.axis if call.attrs.axis is not None else range(len(shape))
        count = trailing(axes, len(shape))
        if count is None:
            return _across(bb, x, term, shape, sorted(int(a) % len(shape) for a in axes), out, kind, machine)
        if len(shape) == count:
            known = all(isinstance(d, int) for d in shape)
            return _of_everything(bb, x, term, prod(shape), out, kind, machine) if known else Declined(OPEN_ROW)
        rows, length = _row(shape, count)
        return _emit(
            bb,
            [flat(bb, x, (*rows, length))],
            out,
            rows,
            length,
            machine,
            reduce_program(kind, term),
            f"{kind}_rows",
        )

    return lowering


LOWERS = {
    "relax.nn.softmax": _softmax(softmax_program, "softmax"),
    "relax.nn.log_softmax": _softmax(log_softmax_program, "log_softmax"),
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.rms_norm": rms_norm,
    "relax.nn.group_norm": group_norm,
    "relax.nn.instance_norm": instance_norm,
    **{f"relax.{kind}": _reduction(kind) for kind in ("sum", "mean", "max", "min")},
}
