"""ArgMax and ArgMin: where the extreme stands, the first of equals - as two reductions without a branch.

    peak = max over k of x[k];   y = min over k of (k where x[k] = peak or x[k] is NaN, else n - 1)

TVM's own form carries (index, value) through one comparison an element, which no compiler makes vectors of. Along the
last axis both reductions are one row program; along another each strip of columns is read once (across.py), or, where
sizes are open, they are two kernels. Of a row with NaN they give the first NaN, as NumPy does; TVM's form gives -1 for
a row of what it begins with, of infinities for example.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import flat, static_shape
from tvmopt.lowering.loops import load, store, vector_type
from tvmopt.schedules.cpu.rows import across
from tvmopt.schedules.cpu.rows.norm import row_kernel
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
LOW_FLOATS = ("float16", "bfloat16")
"""Compared in float32, which has every one of their numbers."""
TYPES = (*DTYPES, *LOW_FLOATS, "uint64")
POSITION = "int32"


def _worst(dtype: str, highest: bool) -> Expr:
    """What every number of the type exceeds, or equals."""
    if dtype.startswith("float"):
        return tirx.const(float("-inf" if highest else "inf"), dtype)
    return tirx.min_value(dtype) if highest else tirx.max_value(dtype)


def _position(index: Expr) -> Expr:
    """An index, or a vector of them, as a position."""
    return tirx.Cast(vector_type(POSITION, int(index.ty.dtype.lanes)), index)


def _found(value: Expr, peak: Expr) -> Expr:
    """Whether a value is the extreme of its row, or NaN."""
    if not str(value.ty.dtype).startswith("float"):
        return value.equal(peak)
    return tirx.any(value.equal(peak), tirx.isnan(value))


def program(highest: bool, dtype: str) -> Callable[[Row, list[Any], tuple[Expr, ...]], None]:
    """The row's two passes; the second reads L1."""
    pick = tirx.max if highest else tirx.min

    def run(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, y = buffers
        worst, last = _worst(dtype, highest).value, row.length - 1
        peak = row.keep(row.reduce(lambda i: load(x, *at, i), lambda a, b: pick(a, b), worst, dtype=dtype), dtype=dtype)

        def here(i: Expr) -> Expr:
            value, place = load(x, *at, i), _position(i if not isinstance(i, int) else tirx.const(i, "int64"))
            lanes = int(place.ty.dtype.lanes)
            beyond = tirx.const(last, POSITION)
            if lanes > 1:
                return tirx.Select(_found(value, tirx.Broadcast(peak, lanes)), place, tirx.Broadcast(beyond, lanes))
            return tirx.Select(_found(value, peak), place, beyond)

        first = row.reduce(here, lambda a, b: tirx.min(a, b), last, dtype=POSITION)
        ones = [0] * (len(y.shape) - len(at))
        row.statements.append(store(y, first.astype("int64"), *at, *ones))

    return run


def _signed(data: te.Tensor) -> te.Tensor:
    """uint64 in the order of int64: the highest bit turned round."""
    half = tirx.const(-(2**63), "int64")
    return te.compute(data.shape, lambda *i: tirx.reinterpret("int64", data(*i)) ^ half, name="signed")


def _open(data: te.Tensor, peak: te.Tensor, axis: int) -> te.Tensor:
    """Positions along an axis, which stays as one of 1, of any sizes; `peak`: the extremes, without the axis."""
    k = te.reduce_axis((0, data.shape[axis]), name="k")
    most = tirx.max_value("int64")
    least = te.comm_reducer(lambda a, b: tirx.min(a, b), lambda dtype: most, name="first")
    shape = [*data.shape[:axis], 1, *data.shape[axis + 1 :]]

    def first(*i: Any) -> Any:
        before, after = i[:axis], i[axis + 1 :]
        here = _found(data(*before, k, *after), peak(*before, *after))
        return least(tirx.Select(here, tirx.Cast("int64", k.var), most), axis=[k])

    return te.compute(shape, first, name="position")


def _of_open_sizes(bb: relax.BlockBuilder, call: relax.Call, highest: bool) -> Any:
    """Both reductions of a tensor whose sizes a run tells."""
    x, axis = call.args[0], int(call.attrs.axis) % len(call.args[0].ty.shape)
    if str(x.ty.dtype) in LOW_FLOATS:
        x = bb.emit(relax.op.astype(x, "float32"))
    peak = bb.emit((relax.op.max if highest else relax.op.min)(x, axis))
    name = "argmax" if highest else "argmin"
    found = bb.call_te(_open, x, peak, axis, primfunc_name_hint=name)
    return found if call.attrs.keepdims else relax.op.reshape(bb.emit(found), call.ty.shape)


def _extreme_at(highest: bool) -> Callable[[relax.BlockBuilder, relax.Call, Machine], Any]:
    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        x, out = call.args[0], static_shape(call)
        shape, dtype = static_shape(x), str(x.ty.dtype)
        if shape is None and x.ty.shape is not None and call.attrs.axis is not None and dtype in TYPES:
            return _of_open_sizes(bb, call, highest)
        if not shape or out is None or 0 in shape or dtype not in TYPES or prod(shape) >= 2**31:
            return Declined(f"an unknown or empty shape, or the type {dtype}")
        if dtype in LOW_FLOATS:
            x, dtype = bb.emit(relax.op.astype(x, "float32")), "float32"
        if dtype == "uint64":
            x, dtype = bb.emit(bb.call_te(_signed, x, primfunc_name_hint="signed")), "int64"
        axis = call.attrs.axis
        first, after = (0, len(shape)) if axis is None else (int(axis) % len(shape), int(axis) % len(shape) + 1)
        name = "argmax" if highest else "argmin"
        n, inner = prod(shape[first:after]), prod(shape[after:])
        if inner == 1:
            rows, wanted = (shape[:first], out) if prod(shape[:first]) > 1 else ((1,), (1,))
            x = flat(bb, x, (*rows, n))
            run = program(highest, dtype)
            func = row_kernel([(*rows, n)], wanted, rows, n, machine.lanes(), run, name, (dtype, "int64"))
            found = relax.call_tir(bb.add_func(func, name), [x], relax.TensorType(list(wanted), "int64"))
            return found if wanted == out else relax.op.reshape(bb.emit(found), out)
        view = (prod(shape[:first]), n, inner)
        data = flat(bb, x, view)
        func, result = across.extreme(view, dtype, highest, machine), relax.TensorType([view[0], inner], "int64")
        found = bb.emit(relax.call_tir(bb.add_func(func, name), [data], result))
        return flat(bb, found, out)

    return lowering


LOWERS = {"relax.argmax": _extreme_at(True), "relax.argmin": _extreme_at(False)}
