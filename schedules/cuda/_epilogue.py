"""The end of a tensor-core kernel: the fused elementwise chain on a tile of accumulators, 16 bytes a store.

The accumulators lie in shared memory as fp32, row by row; each thread takes runs of neighbours in a row. For a run
of 8 columns with `out[m, n] = relu(half(acc[m, n]) + bias[n] + x[m, n])`::

    acc8 = tile[row, col : col+8]                two 16-byte loads
    x8 = x[m, n : n+8]; bias8 = bias[n : n+8]    one each: what moves with the column
    for v in unrolled(8): out8[v] = ...          scalars, in registers
    out[m, n : n+8] = out8                       one

A run never crosses the end of a row: its width divides N. What moves with the column by anything other than 1
is read element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map, structural_walk

from tvmopt.schedules.cuda import _tir as T

Expr = Any


def itemsize(buffer: Any) -> int:
    return max(1, int(buffer.dtype.bits) // 8)


def loads(node: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (TensorLoad, found.append))
    return found


def ends_in(func: Any, block: Any, out: Any) -> bool:
    """Whether `out` is all that follows `block`: it reads its result and parameters, writes a parameter."""
    params = list(func.params)
    touched = [out.body.buffer, *(load.source for load in loads(out.body.value))]
    rest = [b for b in touched if not b.same_as(block.body.buffer)]
    return all(any(b.same_as(p) for p in params) for b in rest)


class Epilogue:
    """The epilogue block of a function, as a program for one run of columns.

    Attributes:
        width: columns of a run.
    """

    def __init__(self, block: Any, acc: Any, columns: int, most: int = 8) -> None:
        """`block`: maps every element of `acc` to the output; its last axis has `columns` elements; runs are
        at most `most` wide."""
        self.block, self.acc = block, acc
        self.width = gcd(columns, min(most, 16 // itemsize(block.body.buffer)))
        self.buffers: list[Any] = []

    def run(self, axes: Sequence[Expr], accumulators: Any) -> list[Any]:
        """Statements for columns axes[-1] .. axes[-1] + width - 1 of the row axes[:-1].

        Args:
            accumulators: a local fp32 buffer that holds the run.
        """
        width, block = self.width, self.block
        lane = tirx.Var("v", T.INDEX)
        variables = [iv.var for iv in block.iter_vars]
        here = dict(zip(variables, [*axes[:-1], axes[-1] + lane], strict=True))
        first = dict(zip(variables, axes, strict=True))
        before: list[Any] = []
        cached: list[tuple[Any, Any]] = []

        def load(node: Any) -> Any:
            if node.source.same_as(self.acc):
                return tirx.BufferLoad(accumulators, [lane])
            if width == 1 or not self._moves_by_one(node.source, node.indices):
                return node
            for known, buffer in cached:
                if structural_equal(known, node):
                    return tirx.BufferLoad(buffer, [lane])
            buffer = self._local(str(node.source.dtype), width)
            before.extend(copy(buffer, None, node.source, [_replace(i, first) for i in node.indices], width))
            cached.append((node, buffer))
            return tirx.BufferLoad(buffer, [lane])

        value, lets = _without_lets(block.body.value)
        steps: list[Any] = []
        for var, expr in lets:  # a value that is used more than once: a register
            buffer = self._local(str(expr.ty.dtype), 1)
            expr = _replace(structural_map(expr, (TensorLoad, load)), here)
            steps.append(tirx.BufferStore(buffer, expr, [T.int_(0)]))
            here[var] = tirx.BufferLoad(buffer, [T.int_(0)])
        result = _replace(structural_map(value, (TensorLoad, load)), here)
        out, index = block.body.buffer, list(block.body.indices)
        after: list[Any] = []
        if width > 1 and self._moves_by_one(out, index):
            buffer = self._local(str(out.dtype), width)
            steps.append(tirx.BufferStore(buffer, result, [lane]))
            after = copy(buffer, out, None, [_replace(i, first) for i in index], width)
        else:
            steps.append(tirx.BufferStore(out, result, [_replace(i, here) for i in index]))
        body = tirx.For(lane, T.int_(0), T.int_(width), tirx.ForKind.UNROLLED, T.seq(steps))
        return [*before, body, *after]

    def _local(self, dtype: str, elements: int) -> Any:
        buffer = T.local(elements, dtype, f"e{len(self.buffers)}")
        self.buffers.append(buffer)
        return buffer

    def _moves_by_one(self, buffer: Any, indices: Sequence[Any]) -> bool:
        """Whether an access of the block walks memory by one per column over a run, from an aligned start."""
        if not _aligned_rows(buffer, self.width):
            return False
        column = self.block.iter_vars[-1].var
        base, lane = tirx.Var("run", T.INDEX), tirx.Var("lane", T.INDEX)
        analyzer = Analyzer()
        for iv in self.block.iter_vars:
            extent = int(iv.dom.extent)
            if iv.var.same_as(column):
                analyzer.bind(base, Range(0, max(1, extent // self.width)))
            else:
                analyzer.bind(iv.var, Range(0, extent))
        analyzer.bind(lane, Range(0, self.width))
        flat: Any = T.int_(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * T.int_(int(extent)) + index
        moving = _replace(flat, {column: base * self.width + lane})
        start = _replace(flat, {column: base * self.width})
        grows = analyzer.simplify(moving - start - lane)
        rest = analyzer.simplify(tirx.floormod(start, T.int_(self.width)))
        return all(isinstance(e, tirx.IntImm) and int(e) == 0 for e in (grows, rest))


def _aligned_rows(buffer: Any, width: int) -> bool:
    """Whether a whole buffer is a multiple of the run: an address that is, is aligned. A vector of truth values has no
    type in CUDA; TVM takes one of twice as many bytes."""
    shape, typed = buffer.shape, str(buffer.dtype) != "bool"
    return typed and all(isinstance(d, tirx.IntImm) for d in shape) and prod(int(d) for d in shape) % width == 0


def copy(buffer: Any, to: Any | None, source: Any | None, index: Sequence[Any], width: int) -> list[Any]:
    """16 bytes at a time between a local buffer and global memory."""
    outer: Any = to if to is not None else source
    step = min(width, 16 // itemsize(outer))
    made = []
    for start in range(0, width, step):
        lanes = T.int_(0) + start if step == 1 else tirx.Ramp(T.int_(start), T.int_(1), step)
        last = index[-1] + start
        place = [*index[:-1], last if step == 1 else tirx.Ramp(last, T.int_(1), step)]
        if to is not None:
            made.append(tirx.BufferStore(to, tirx.BufferLoad(buffer, [lanes]), place))
        else:
            made.append(tirx.BufferStore(buffer, tirx.BufferLoad(source, place), [lanes]))
    return made


def _replace(node: Any, values: dict[Any, Any]) -> Any:
    if not values:
        return node
    return structural_map(node, (tirx.Var, lambda var: values.get(var, var)))


def _without_lets(value: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """The value and what its outer lets bind, in order (see scheduling/chain.py, which nests them)."""
    bound = []
    while isinstance(value, tirx.Let):
        bound.append((value.var, value.value))
        value = value.body
    return value, bound
