"""Tensors that are parts of larger ones, the loops: what a concatenation copies where, and a kernel whose parameter is
a part - for :mod:`tvmopt.scheduling.concat_in_place`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.ir.expr import TensorLoad, TensorRegion
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tvmopt.scheduling.blocks import blocks_of, extents
from tvmopt.scheduling.strides import evaluate

SAMPLES = 8
_ADDRESSES = ("address_of", "access_ptr")


@dataclass(frozen=True)
class Part:
    """What a concatenation copies from parameter `source` to the positions `start` to `stop` of its axis."""

    source: int
    start: int
    stop: int


@dataclass(frozen=True)
class Place:
    """Where a part lies: the `shape` of the whole, the position of the part's first element in it."""

    shape: tuple[int, ...]
    at: tuple[int, ...]


# -- recognising ------------------------------------------------------------------------------------------------


def concatenation(func: tirx.PrimFunc) -> tuple[int, tuple[Part, ...]] | None:
    """The axis and the parts, in order, of a function that copies each of its other parameters, or some of them more
    than once, next to each other into its last one; None for any other function, and where anything is computed."""
    blocks = blocks_of(func)
    out = func.params[-1]
    if len(blocks) != 1 or not isinstance(blocks[0].body, tirx.BufferStore) or not extents(blocks[0]):
        return None
    block, store = blocks[0], blocks[0].body
    axes = [iv.var for iv in block.iter_vars]
    shape = tuple(extents(block))
    if not store.buffer.same_as(out) or _static(out.ty.shape) != shape or not _at(store.indices, axes, shape):
        return None
    chosen = _choices(store.value, axes)
    if chosen is None:
        return None
    axis, starts, loads = chosen
    parts = []
    for load, start, stop in zip(loads, starts, [*starts[1:], shape[axis]], strict=True):
        want = tuple(stop - start if k == axis else d for k, d in enumerate(shape))
        here = [v - start if k == axis else v for k, v in enumerate(axes)]
        source = next((k for k, p in enumerate(func.params[:-1]) if p.same_as(load.source)), -1)
        if source < 0 or _static(load.source.ty.shape) != want or not _at(load.indices, here, want):
            return None
        parts.append(Part(source, start, stop))
    return axis, tuple(parts)


def _static(dims: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(d) if isinstance(d, tirx.IntImm) else -1 for d in dims)


def _at(indices: Sequence[Any], wanted: Sequence[Any], shape: Sequence[int]) -> bool:
    """Whether indices are the wanted ones; where an axis has one position, any are."""
    return len(indices) == len(wanted) and all(
        extent == 1 or _constant(index - want) == 0 for index, want, extent in zip(indices, wanted, shape, strict=True)
    )


def _constant(expr: Any) -> int | None:
    value = Analyzer().simplify(expr)
    return int(value) if isinstance(value, tirx.IntImm) else None


def _choices(value: Any, axes: Sequence[Any]) -> tuple[int, list[int], list[Any]] | None:
    """The axis, where parts start, and their loads, of ``if_then_else(c2 <= v, x2[..], if_then_else(c1 <= v, x1[..],
    x0[..]))``."""
    axis, starts, loads = -1, list[int](), list[Any]()
    while isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith("if_then_else"):
        test, then, value = value.args
        if type(test).__name__ not in ("LE", "LT") or not isinstance(test.a, tirx.IntImm):
            return None
        here = next((k for k, v in enumerate(axes) if v.same_as(test.b)), -1)
        start = int(test.a) + (type(test).__name__ == "LT")
        if here < 0 or axis not in (-1, here) or (starts and start >= starts[0]) or start <= 0:
            return None
        axis, starts, loads = here, [start, *starts], [then, *loads]
    loads = [value, *loads]
    if axis < 0 or not all(isinstance(load, TensorLoad) for load in loads):
        return None
    return axis, [0, *starts], loads


# -- moving -----------------------------------------------------------------------------------------------------


def within(func: tirx.PrimFunc, places: Mapping[int, Place], free: int | None = None) -> tirx.PrimFunc | None:
    """The function with larger tensors as the parameters `places`: it reads and writes the part of each that was a
    tensor of its own; None where it uses one other than by element.

    It may be scheduled: only a start is added to an index, so that every loop stays as it is. Code generation derives
    what it assumes of alignment from the new indices.

    Args:
        free: the axis of the last parameter along which its part starts where a further parameter says, an int64 before
            the last one; its place says nothing there.
    """
    start = None if free is None else tirx.Var("start", "int64")
    new = {}
    for k, place in places.items():
        old = func.params[k]
        dims = [tirx.IntImm(d.ty, w) for d, w in zip(old.ty.shape, place.shape, strict=True)]
        new[k] = tirx.decl_buffer(dims, old.dtype, str(old.name))
    strange: list[Any] = []

    def moved(k: int, indices: Sequence[Any]) -> list[Any]:
        strange.extend(i for i in indices if "x" in str(i.ty.dtype))
        at: list[Any] = list(places[k].at)
        if start is not None and free is not None and k == len(func.params) - 1:
            at[free] = start.astype(str(indices[free].ty.dtype))
        return [i if isinstance(a, int) and not a else i + a for i, a in zip(indices, at, strict=True)]

    def place_of(buffer: Any) -> int | None:
        return next((k for k in places if buffer.same_as(func.params[k])), None)

    def load(node: Any) -> Any:
        k = place_of(node.source)
        return node if k is None else tirx.BufferLoad(new[k], moved(k, node.indices))

    def store(node: Any) -> Any:
        k = place_of(node.buffer)
        return node if k is None else tirx.BufferStore(new[k], node.value, moved(k, node.indices))

    def region(node: Any) -> Any:
        k = place_of(node.source)
        if k is None:
            return node
        starts = moved(k, [r.min for r in node.region])
        return tirx.BufferRegion(
            new[k],
            [ir.Range.from_min_extent(s, r.extent) for s, r in zip(starts, node.region, strict=True)],
        )

    def pointer(node: Any) -> None:
        if str(getattr(node.op, "name", "")).endswith(_ADDRESSES):
            strange.append(node)

    structural_walk(func.body, ((ir.Call, pointer), (SBlock, lambda b: strange.extend(b.match_buffers))))
    body = structural_map(func.body, ((TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)))
    structural_walk(body, (ir.Var, lambda v: None if place_of(v) is None else strange.append(v)))
    if strange:
        return None
    params = [new.get(k, p) for k, p in enumerate(func.params)]
    if start is not None:
        params.insert(-1, start)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


# -- judging ----------------------------------------------------------------------------------------------------


def runs_stay(func: tirx.PrimFunc, places: Mapping[int, Place]) -> bool:
    """Whether every loop in which a parameter's elements lie next to each other stays such a loop in the whole: a
    loop over several rows at once does not. Sampled, not proved: it decides about speed only."""
    for loops, realize in _leaves(func.body, []):
        block = realize.block
        touched: list[tuple[int, Any]] = []

        def note(buffer: Any, indices: Any, touched: list[tuple[int, Any]] = touched) -> None:
            touched.extend((k, indices) for k in places if buffer.same_as(func.params[k]))

        structural_walk(
            block.body,
            (
                (TensorLoad, lambda n, note=note: note(n.source, n.indices)),
                (tirx.BufferStore, lambda n, note=note: note(n.buffer, n.indices)),
            ),
        )
        for k, indices in touched:
            old, new = _static(func.params[k].ty.shape), places[k].shape
            if not _same_steps(loops, realize, indices, old, new):
                return False
    return True


def _leaves(node: Any, loops: list[Any]) -> Iterator[tuple[list[Any], Any]]:
    """Every innermost block with the loops around it."""
    if isinstance(node, SBlockRealize):
        inner = list(_leaves(node.block.body, loops))
        yield from inner or [(list(loops), node)]
    elif isinstance(node, tirx.SeqStmt):
        for child in node.seq:
            yield from _leaves(child, loops)
    elif isinstance(node, tirx.For):
        yield from _leaves(node.body, [*loops, node])
    elif isinstance(node, tirx.AttrStmt):
        yield from _leaves(node.body, loops)


def _same_steps(loops: Sequence[Any], realize: Any, indices: Any, old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a step of any loop that moves by one element in the part does so in the whole."""
    draw = random.Random(0)
    spans = [int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 8 for loop in loops]

    def address(values: Sequence[int]) -> tuple[int, int] | None:
        env = {loop.loop_var: v for loop, v in zip(loops, values, strict=True)}
        for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            found = evaluate(value, env)
            if found is None:
                return None
            env[iv.var] = found
        index = [evaluate(i, env) for i in indices]
        return None if None in index else (_flat(index, old), _flat(index, new))

    for place, span in enumerate(spans):
        for _ in range(SAMPLES if span > 1 else 0):
            at = [draw.randrange(s) for s in spans]
            first, second, last = (address([*at[:place], v, *at[place + 1 :]]) for v in (0, 1, span - 1))
            if first is None or second is None or last is None:
                return False
            if second[0] - first[0] != 1:
                break  # not a run
            if last[1] - first[1] != last[0] - first[0]:
                return False
    return True


def _flat(index: Sequence[Any], shape: Sequence[int]) -> int:
    return sum(i * math.prod(shape[k + 1 :]) for k, i in enumerate(index))
