"""Transposes as squares that registers transpose, in the place of loops over numbers.

    for c: for r: to[c, r] = from[r, c]     ->    for a task, for a tile of r:
                                                    square(to + ..., from + ...)       side x side numbers, tile.py

Axes that lie together in both tensors count as one, so an image of 7 x 7 pixels is one of 49. Where neighbours come
from several places in turn, as the phases of a transposed convolution do, a square takes as many of each. The last
square of an axis is moved up until it ends with the axis: it writes some numbers twice, and no square is smaller.

Measured, one core, float32, us, beside loops over squares of 16 numbers a side: 256 x 3136 272 and 85; 3136 x 64 65
and 19; 256 x 4096, where rows of the square compete for the same lines of L1, 827 and 187. On a Xeon, whole rows before
the next stretch (`BESIDE`): 7600 x 128 645 to 322, 1536 x 1536 1450 to 1000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer, detect_linear_equation
from tvm.tirx.op import address_of
from tvm_ffi import structural_map, structural_mutate

from tvmopt.schedules.cpu.layout.tile import function_name, llvm_function
from tvmopt.scheduling.blocks import blocks_of, with_llvm
from tvmopt.scheduling.facts import itemsize, largest_divisor

SQUARES = "tvmopt.squares"
"""The annotation of a block whose loops are replaced: the side of the square."""
THREADS = "tvmopt.squares_parallel"
"""Beside it: whether tasks go to threads."""
RUN = 16
"""Squares that a task does one after the other, which write one stretch of memory."""
BESIDE = 32
"""Squares along what is read that are done, one task after the other, before the next stretch of what is written: whole
rows of a page, where single lines of it would be fetched again and again."""
TURNS = (2, 4)
"""Places from which neighbours come in turn: they divide every side."""
LARGEST = 2**31 - 1
"""Numbers of a tensor that indices of 32 bits reach."""


@dataclass(frozen=True)
class Axis:
    """Axes of a block that lie together in both tensors.

    Attributes:
        members: their positions, outermost first. extent: of all of them.
        to, source: by how many numbers the tensors advance with one step.
    """

    members: tuple[int, ...]
    extent: int
    to: int
    source: int


@dataclass(frozen=True)
class Transpose:
    """A block that copies numbers so that neighbours in the source are far from each other in the result.

    Attributes:
        outer: axes around the square. read, written: along which neighbours are read, and written.
        bits: of a number. turn: an axis within `written` whose steps come in turn, or None.
    """

    outer: tuple[Axis, ...]
    read: Axis
    written: Axis
    bits: int
    turn: Axis | None = None

    @property
    def turns(self) -> int:
        """Numbers that one step along `written` writes."""
        return self.turn.extent if self.turn is not None else 1

    @property
    def shorter(self) -> int:
        """Numbers of the shorter side."""
        return min(self.read.extent, self.written.extent * self.turns)


def transpose_of(block: Any) -> Transpose | None:
    """What a block transposes; None for any other block."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, TensorLoad):
        return None
    load, bits = store.value, 8 * itemsize(store.buffer)
    if bits not in (8, 16, 32, 64) or str(load.source.dtype) != str(store.buffer.dtype):
        return None
    variables = [iv.var for iv in block.iter_vars]
    if any(int(iv.iter_type) != 0 or not isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
        return None
    known = ranges_of(block)
    to = _steps(store.buffer, store.indices, variables, known)
    source = _steps(load.source, load.indices, variables, known)
    if to is None or source is None:
        return None
    axes = _merged([int(iv.dom.extent) for iv in block.iter_vars], to, source)
    read = next((axis for axis in axes if axis.source == 1), None)
    written = next((axis for axis in axes if axis.to == 1), None)
    if read is None or written is None or read is written:
        return None
    turn = None
    if written.extent in TURNS and (longer := next((a for a in axes if a.to == written.extent), read)) is not read:
        turn, written = written, longer
    return Transpose(tuple(a for a in axes if a not in (read, written, turn)), read, written, bits, turn)


def ranges_of(block: Any) -> Any:
    """An analyzer that knows the ranges of a block's axes."""
    known = Analyzer()
    for iv in block.iter_vars:
        known.bind(iv.var, iv.dom)
    return known


def finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the loops of its annotated blocks replaced; itself where it has none."""
    if not isinstance(func.body, SBlockRealize) or not any(SQUARES in b.annotations for b in blocks_of(func)):
        return func
    functions: dict[tuple[int, int, int], str] = {}

    def loop(node: Any, mutator: Any) -> Any:
        inner = node.body
        while isinstance(inner, tirx.For):
            inner = inner.body
        if not isinstance(inner, SBlockRealize) or SQUARES not in inner.block.annotations:
            return mutator.default_mutate(node)
        notes = inner.block.annotations
        side = int(notes[SQUARES])
        found = transpose_of(inner.block)
        if found is None or found.shorter < side:  # it has changed since it was scheduled
            return mutator.default_mutate(node)
        functions[side, found.bits, found.turns] = llvm_function(side, found.bits, found.turns)
        return _tasks(inner.block, found, side, bool(notes[THREADS]))

    body = structural_mutate(func.body, ((tirx.For, loop),))
    return with_llvm(func, body, "".join(functions.values())) if functions else func


def _steps(buffer: Any, indices: Sequence[Any], variables: Sequence[Any], known: Any) -> list[int] | None:
    """By how many numbers an access advances along each variable, whose ranges are `known`; None where it is not
    linear."""
    shape = list(buffer.shape)
    if not all(isinstance(d, tirx.IntImm) for d in shape) or prod(int(d) for d in shape) > LARGEST:
        return None
    strides = list(buffer.strides) or [prod(int(d) for d in shape[i + 1 :]) for i in range(len(shape))]
    place: Any = tirx.const(0, "int32")
    for index, stride in zip(indices, strides, strict=True):
        place = place + known.simplify(index) * stride
    linear = detect_linear_equation(known.simplify(place), list(variables))
    if len(linear) != len(variables) + 1 or not all(isinstance(step, tirx.IntImm) for step in linear[:-1]):
        return None
    return [int(step) for step in linear[:-1]]


def _merged(extents: Sequence[int], to: Sequence[int], source: Sequence[int]) -> list[Axis]:
    """The axes longer than one, those put together that lie together in both tensors."""
    axes: list[Axis] = []
    for i, extent in enumerate(extents):
        if extent == 1:
            continue
        before = axes[-1] if axes else None
        if before is not None and before.to == to[i] * extent and before.source == source[i] * extent:
            axes[-1] = Axis((*before.members, i), before.extent * extent, to[i], source[i])
        else:
            axes.append(Axis((i,), extent, to[i], source[i]))
    return axes


def _tasks(block: Any, found: Transpose, side: int, parallel: bool) -> Any:
    """The loops over tasks and squares."""
    columns, rows = -(-found.read.extent // side), -(-found.written.extent * found.turns // side)
    runs = -(-rows // RUN)
    run = -(-rows // runs)
    task, step = tirx.Var("task", "int32"), tirx.Var("square", "int32")
    rest, places = task, {}
    beside = largest_divisor(columns, BESIDE)
    rest, column = rest // beside, rest % beside
    rest, chunk = rest // runs, rest % runs
    rest, column = rest // (columns // beside), rest % (columns // beside) * beside + column
    for axis in reversed(found.outer):
        rest, places[axis] = rest // axis.extent, rest % axis.extent
    places[found.read] = tirx.min(column * side, found.read.extent - side)
    each = side // found.turns
    places[found.written] = tirx.min((chunk * run + step) * each, found.written.extent - each)
    here = {var: tirx.const(0, "int32") for var in (iv.var for iv in block.iter_vars)}
    extents = [int(iv.dom.extent) for iv in block.iter_vars]
    for axis, place in places.items():
        for member in reversed(axis.members):
            inside = member != axis.members[0]
            here[block.iter_vars[member].var] = place % extents[member] if inside else place
            place = place // extents[member]

    def at(buffer: Any, indices: Any) -> Any:
        where = [structural_map(i, (tirx.Var, lambda var: here.get(var, var))) for i in indices]
        return address_of(tirx.BufferLoad(buffer, where))

    store = block.body
    apart = [found.read.to, found.written.source, *([found.turn.source] if found.turn is not None else [])]
    strides = [tirx.const(numbers, "int64") for numbers in apart]
    addresses = (at(store.buffer, store.indices), at(store.value.source, store.value.indices))
    call = tirx.Evaluate(tirx.call_extern("void", function_name(side, found.bits, found.turns), *addresses, *strides))
    squares = tirx.For(step, 0, run, tirx.ForKind.SERIAL, call)
    tasks = prod(axis.extent for axis in found.outer) * columns * runs
    kind = tirx.ForKind.PARALLEL if parallel and tasks > 1 else tirx.ForKind.SERIAL
    return tirx.For(task, 0, tasks, kind, squares)
