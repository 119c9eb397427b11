"""CumSum and CumProd on a GPU: blocks of 256 threads, 8 neighbouring elements each, barriers between them.

    totals[o, c]     what the 2,048 elements of chunk c combine to                  a block a chunk
    carries[o, c]    what the chunks before c combine to                            a block a row
    y[o, k]          the carry, the threads before, the elements before and k       a block a chunk

A row of one chunk needs the last kernel alone. Rows that lie across memory (an axis that is not the last) are scanned
by a thread each, where there are many or they are short; others are transposed.

TVM's kernels add within a warp without a barrier: they count on threads that run in step, which CUDA has not promised
since compute capability 7.0. Floats of 16 bits are added up in 32.

Floor: bytes of inputs and outputs / bandwidth; three launches read a long row twice.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.s_tir import SBlock, SBlockRealize

from tvmopt.lowering.common import OPAQUE, flat, is_empty, sizes
from tvmopt.lowering.loops import everything, load, store
from tvmopt.schedules.cuda._tir import Expr, GridProgram, barrier, local, seq, when
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Combine = Callable[[Expr, Expr], Expr]
THREADS, EACH = 256, 8
CHUNK = THREADS * EACH
FEW_ROWS, SHORT = 4096, 256
"""Fewer rows across memory than this, each longer than that, are transposed: a thread a row would leave a GPU idle."""
SCANS: dict[str, tuple[Combine, int]] = {
    "relax.cumsum": (lambda a, b: a + b, 0),
    "relax.cumprod": (lambda a, b: a * b, 1),
}
TYPES = {"float16": "float32", "bfloat16": "float32", "bool": "int64"}
"""The types in which others are combined, where these are not their own."""


def scan(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.cumsum` or `R.cumprod`; sizes may be open."""
    x, out = call.args[0], str(call.ty.dtype)
    shape = sizes(x)
    if shape is None:
        return Declined("no known axes")
    if is_empty(shape):
        return relax.op.zeros(call.ty.shape, out)
    one, name = _Scan(*SCANS[call.op.name], str(x.ty.dtype), out, bool(call.attrs.exclusive)), call.op.name[6:]
    axis = call.attrs.axis
    first, after = (0, len(shape)) if axis is None else (int(axis) % len(shape), int(axis) % len(shape) + 1)
    outer, length, inner = prod(shape[:first]), prod(shape[first:after]), prod(shape[after:])
    if _below(inner, 2):
        result = _rows(bb, one, flat(bb, x, (outer, length)), outer, length, name)
    elif _below(outer * inner, FEW_ROWS) and not _below(length, SHORT):
        across = bb.emit(relax.op.permute_dims(flat(bb, x, (outer, length, inner)), [0, 2, 1]))
        rows = _rows(bb, one, flat(bb, across, (outer * inner, length)), outer * inner, length, name)
        result = relax.op.permute_dims(bb.emit(relax.op.reshape(bb.emit(rows), (outer, inner, length))), [0, 2, 1])
    else:
        result = _call(bb, one.across(), [flat(bb, x, (outer, length, inner))], (outer, length, inner), out, name)
    return relax.op.reshape(bb.emit(result), call.ty.shape)


def _rows(bb: relax.BlockBuilder, one: _Scan, x: Any, outer: Expr, length: Expr, name: str) -> Any:
    if _below(length, CHUNK + 1):
        return _call(bb, one.rows(False), [x], (outer, length), one.out, name)
    chunks = (outer, (length + (CHUNK - 1)) // CHUNK)
    totals = bb.emit(_call(bb, one.totals(), [x], chunks, one.kind, f"{name}_totals"))
    carries = bb.emit(_call(bb, one.carries(), [totals], chunks, one.kind, f"{name}_carries"))
    return _call(bb, one.rows(True), [x, carries], (outer, length), one.out, name)


def _call(bb: relax.BlockBuilder, func: Any, args: list[Any], shape: tuple[Expr, ...], dtype: str, name: str) -> Any:
    return relax.call_tir(bb.add_func(func, name), args, relax.TensorType(list(shape), dtype))


def _below(size: Expr, number: int) -> bool:
    """Whether a size is known, and below a number."""
    return isinstance(size, int | tirx.IntImm) and int(size) < number


class _Scan:
    """The kernels of one kind of scan; each is a function of buffers whose sizes are variables.

    Args:
        start: what combines to the other operand. dtype, out: the types of elements and results.
    """

    def __init__(self, combine: Combine, start: int, dtype: str, out: str, exclusive: bool) -> None:
        self.combine, self.dtype, self.out, self.exclusive = combine, dtype, out, exclusive
        self.kind = TYPES.get(out, out)
        self.start = tirx.const(start, self.kind)

    def totals(self) -> tirx.PrimFunc:
        """[rows, n] -> [rows, chunks]."""
        (rows, n, chunks), (x, y) = self._buffers(("x", "rows n", self.dtype), ("y", "rows chunks", self.kind))
        kernel = GridProgram(THREADS, [(rows * chunks).astype("int32")], helpers=False)
        row, chunk = self._place(kernel, chunks)
        block, own = _Block(self, kernel), _Elements(self, kernel, x, row, chunk, n)
        whole = when(kernel.tx < 1, store(y, block.last(), row, chunk))
        return _function(kernel, [x], y, [*own.statements, *block.scan(own.total), whole])

    def carries(self) -> tirx.PrimFunc:
        """[rows, chunks] -> [rows, chunks]: a block walks along a row, 256 chunks at a time."""
        (rows, chunks), (x, y) = self._buffers(("x", "rows chunks", self.kind), ("y", "rows chunks", self.kind))
        kernel = GridProgram(THREADS, [rows.astype("int32")], helpers=False)
        row, block = kernel.block[0].astype("int64"), _Block(self, kernel)
        before, value = (kernel.alloc(local(1, self.kind, name)) for name in ("before", "value"))
        step = tirx.Var("step", "int64")
        at = step * THREADS + kernel.tx.astype("int64")
        given = tirx.if_then_else(at < chunks, load(x, row, at), self.start)
        body = [
            store(value, given, 0),
            *block.scan(load(value, 0)),
            when(at < chunks, store(y, self.combine(load(before, 0), block.before()), row, at)),
            store(before, self.combine(load(before, 0), block.last()), 0),
            barrier(),
        ]
        steps = (chunks + (THREADS - 1)) // THREADS
        walk = tirx.For(step, tirx.const(0, "int64"), steps, tirx.ForKind.SERIAL, seq(body))
        return _function(kernel, [x], y, [store(before, self.start, 0), walk])

    def rows(self, carried: bool) -> tirx.PrimFunc:
        """[rows, n] and, where rows have several chunks, what comes before each -> [rows, n]."""
        given = [("x", "rows n", self.dtype), *([("carries", "rows chunks", self.kind)] if carried else [])]
        sizes, (x, *carries, y) = self._buffers(*given, ("y", "rows n", self.out))
        rows, n = sizes[:2]
        chunks = sizes[2] if carried else tirx.const(1, "int64")
        kernel = GridProgram(THREADS, [(rows * chunks).astype("int32")], helpers=False)
        row, chunk = self._place(kernel, chunks)
        block, own = _Block(self, kernel), _Elements(self, kernel, x, row, chunk, n)
        running = kernel.alloc(local(1, self.kind, "running"))
        before = self.combine(load(carries[0], row, chunk), block.before()) if carried else block.before()
        steps = []
        for k in range(EACH):
            at = own.first + k
            add = store(running, self.combine(load(running, 0), load(own.values, k)), 0)
            out = when(at < n, store(y, load(running, 0).astype(self.out), row, at))
            steps += [out, add] if self.exclusive else [add, out]
        body = [*own.statements, *block.scan(own.total), store(running, before, 0), *steps]
        return _function(kernel, [x, *carries], y, body)

    def across(self) -> tirx.PrimFunc:
        """[outer, n, inner] along the second axis, a thread each of the others."""
        (outer, n, inner), (x, y) = self._buffers(("x", "outer n inner", self.dtype), ("y", "outer n inner", self.out))
        count = outer * inner
        kernel = GridProgram(THREADS, [((count + (THREADS - 1)) // THREADS).astype("int32")], helpers=False)
        at = kernel.block[0].astype("int64") * THREADS + kernel.tx.astype("int64")
        running = kernel.alloc(local(1, self.kind, "running"))
        k = tirx.Var("k", "int64")
        place = (tirx.truncdiv(at, inner), k, tirx.truncmod(at, inner))
        add = store(running, self.combine(load(running, 0), load(x, *place).astype(self.kind)), 0)
        out = store(y, load(running, 0).astype(self.out), *place)
        body = seq([out, add] if self.exclusive else [add, out])
        walk = tirx.For(k, tirx.const(0, "int64"), n, tirx.ForKind.SERIAL, body)
        return _function(kernel, [x], y, [store(running, self.start, 0), when(at < count, walk)])

    def _buffers(self, *described: tuple[str, str, str]) -> tuple[list[Any], list[Any]]:
        """The sizes by the names in the descriptions (name, sizes, type), and the buffers."""
        sizes: dict[str, Any] = {}
        buffers = []
        for name, shape, dtype in described:
            dims = [sizes.setdefault(size, tirx.Var(size, "int64")) for size in shape.split()]
            buffers.append(tirx.decl_buffer(dims, dtype, name))
        return list(sizes.values()), buffers

    def _place(self, kernel: GridProgram, chunks: Expr) -> tuple[Expr, Expr]:
        at = kernel.block[0].astype("int64")
        return tirx.truncdiv(at, chunks), tirx.truncmod(at, chunks)


class _Elements:
    """The neighbouring elements of a thread, read and combined.

    Attributes:
        statements: do so. values: a buffer of the elements. first: the place of the first in its row.
    """

    def __init__(self, one: _Scan, kernel: GridProgram, x: Any, row: Expr, chunk: Expr, n: Expr) -> None:
        self.values = kernel.alloc(local(EACH, one.kind, "elements"))
        self._sum = kernel.alloc(local(1, one.kind, "total"))
        self.first = chunk * CHUNK + kernel.tx.astype("int64") * EACH
        self.statements = [store(self._sum, one.start, 0)]
        for k in range(EACH):
            at = self.first + k
            value = tirx.if_then_else(at < n, load(x, row, at).astype(one.kind), one.start)
            combined = one.combine(load(self._sum, 0), load(self.values, k))
            self.statements += [store(self.values, value, k), store(self._sum, combined, 0)]

    @property
    def total(self) -> Expr:
        """What they combine to."""
        return load(self._sum, 0)


class _Block:
    """What the values of a block's threads combine to, up to each of them: log2(256) steps through shared memory."""

    def __init__(self, one: _Scan, kernel: GridProgram) -> None:
        self.one, self.tx = one, kernel.tx
        self.values = kernel.alloc(tirx.decl_buffer((THREADS,), one.kind, "values", scope="shared"))
        self.left = kernel.alloc(local(1, one.kind, "left"))

    def scan(self, value: Expr) -> list[Any]:
        """The statements."""
        statements, step = [store(self.values, value, self.tx), barrier()], 1
        while step < THREADS:
            before = tirx.if_then_else(self.tx >= step, load(self.values, self.tx - step), self.one.start)
            both = self.one.combine(load(self.left, 0), load(self.values, self.tx))
            statements += [store(self.left, before, 0), barrier(), store(self.values, both, self.tx), barrier()]
            step *= 2
        return statements

    def before(self) -> Expr:
        """Of the threads before this one."""
        return tirx.if_then_else(self.tx >= 1, load(self.values, self.tx - 1), self.one.start)

    def last(self) -> Expr:
        """Of all threads."""
        return load(self.values, THREADS - 1)


def _function(kernel: GridProgram, inputs: list[Any], output: Any, statements: list[Any]) -> tirx.PrimFunc:
    reads = [everything(buffer) for buffer in inputs]
    root = SBlock([], reads, [everything(output)], "root", kernel.body(statements), alloc_buffers=kernel.buffers)
    function = tirx.PrimFunc([*inputs, output], SBlockRealize([], tirx.const(True, "bool"), root))
    attrs = {"tirx.noalias": True, "op_pattern": OPAQUE, "s_tir": True, "tirx.is_scheduled": True}
    return function.with_attrs(attrs)


LOWERS = dict.fromkeys(SCANS, scan)
