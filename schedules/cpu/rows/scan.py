"""CumSum and CumProd: one pass over memory, the running value in a register, or in the row before.

    y[o, k, i] = y[o, k - 1, i] + x[o, k, i]        vectors along i where it is not 1; a chain of additions where it is

TVM's own kernels start its thread pool for any size, which costs more than a mask of some hundred tokens is worth,
and nothing is fused behind them. The additions keep their order: no other rounding than by definition.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, tirx

from tvmopt.lowering.common import flat, is_empty, sizes, static_shape
from tvmopt.lowering.loops import load, loop, seq, store
from tvmopt.schedules.cpu.rows.norm import row_kernel
from tvmopt.schedules.cpu.rows.program import Row
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
DTYPES = ("float32", "float64", "int8", "uint8", "int16", "int32", "uint32", "int64")
SCANS: dict[str, tuple[Callable[[Expr, Expr], Expr], int]] = {
    "relax.cumsum": (lambda a, b: a + b, 0),
    "relax.cumprod": (lambda a, b: a * b, 1),
}


def program(
    combine: Callable[[Expr, Expr], Expr], start: int, inner: int, dtype: str, exclusive: bool
) -> Callable[[Row, list[Any], tuple[Expr, ...]], None]:
    """One row [n], or [n, inner]; `start`: what combines to the other operand."""
    zero = tirx.const(start, dtype)

    def chain(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, y = buffers
        total = row.local(1, "total", dtype)
        row.statements.append(store(total, zero, 0))

        def step(k: Expr) -> Any:
            add = store(total, combine(load(total, 0), load(x, *at, k).astype(dtype)), 0)
            out = store(y, load(total, 0), *at, k)
            return seq([out, add] if exclusive else [add, out])

        row.statements.append(loop(row.length, step, "k"))

    def strips(row: Row, buffers: list[Any], at: tuple[Expr, ...]) -> None:
        x, y = buffers

        def first(i: Expr) -> Any:
            return store(y, zero if exclusive else load(x, *at, 0, i).astype(dtype), *at, 0, i)

        def step(k: Expr) -> Any:
            def one(i: Expr) -> Any:
                term = load(x, *at, k if exclusive else k + 1, i).astype(dtype)
                return store(y, combine(load(y, *at, k, i), term), *at, k + 1, i)

            return loop(inner, one, "i")

        row.statements += [loop(inner, first, "i"), loop(row.length - 1, step, "k")]

    return chain if inner == 1 else strips


def scan(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.cumsum` or `R.cumprod`, static."""
    x, out = call.args[0], str(call.ty.dtype)
    shape, dtype = static_shape(x), str(x.ty.dtype)
    if is_empty(sizes(x)):  # TVM divides by the elements of an axis
        return relax.op.zeros(call.ty.shape, out)
    if not shape or dtype not in (*DTYPES, "bool") or out not in DTYPES:
        return Declined(f"an open shape, or the type {dtype}")
    combine, start = SCANS[call.op.name]
    axis = call.attrs.axis
    first, after = (0, len(shape)) if axis is None else (int(axis) % len(shape), int(axis) % len(shape) + 1)
    inner = prod(shape[after:])
    whole: tuple[int, ...] = (prod(shape[:first]), prod(shape[first:after]))
    if inner > 1:
        whole = (*whole, inner)
    elif first and after == len(shape):  # as it is: no reshape stands before what follows
        whole = shape
    rows = whole[:1] if inner > 1 else whole[:-1]
    run = program(combine, start, inner, out, bool(call.attrs.exclusive))
    name = call.op.name.removeprefix("relax.")
    func = row_kernel([whole], whole, rows, whole[len(rows)], machine.lanes(), run, name, (dtype, out))
    found = relax.call_tir(bb.add_func(func, name), [flat(bb, x, whole)], relax.TensorType(list(whole), out))
    wanted = static_shape(call) or ()
    return found if whole == wanted else relax.op.reshape(bb.emit(found), wanted)


LOWERS = dict.fromkeys(SCANS, scan)
