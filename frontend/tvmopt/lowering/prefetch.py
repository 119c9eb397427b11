"""Prefetching the next panel of weights while this one is multiplied - the step between scheduling and code generation,
for families that annotate their loops.

A family marks the loops that count the steps of one panel with `STEP` (the row tiles, then the reduction), and the
innermost of them with `PREFETCH`, the numbers of weight to fetch ahead a step::

    for panel:                             for panel:
      for tile:        # STEP                for tile:
        for k:         # STEP, PREFETCH=5      for k:
          acc += x * W[panel, k, :]              prefetch W + panel_size * (panel + 1) + 5 * (tile * K + k)
                                                 acc += x * W[panel, k, :]

Steps times `PREFETCH` is the panel's size or a little more, so the whole next panel is in L2, or L1, when its turn
comes. Winograd's weights have a panel for each place of a tile, [panel, i, j, c, column]; the next one is that of
j + 1, which behind the last j is, in memory, the first of i + 1. Behind the last panel it fetches a few lines that
nobody reads; a prefetch never faults.

Where the number of rows is open, the outermost of these loops is one over two tiles or more of them, which a run counts
(scheduling/open_rows.py): the numbers to fetch a step are divided by it.

A panel that is read once, by one tile, leaves no time for the next one. There `AHEAD` numbers of the same panel are
skipped instead: the processor's own prefetchers keep fewer lines on their way than its memory can deliver.

These lines go to L2, not to L1: a core has some 16 places for lines that L1 waits for, and loads need them, too.
BERT-base on two threads of a Xeon, lines to L2 instead of L1: 8 rows 0.935 of the time, 16 rows 0.97, 32 rows and one
row the same. (A step over weights of 4 bits, whose kernels fetch by themselves, takes 1.05 on one thread: those to L1.)
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.target import Target
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.scheduling.blocks import asks, with_llvm
from tvmopt.scheduling.facts import itemsize
from tvmopt.scheduling.open_loops import STEP
from tvmopt.targets.detect import host_arch

PREFETCH, AHEAD = "tvmopt.prefetch", "tvmopt.prefetch_ahead"
"""Annotations of loops, beside `STEP`."""
LINE = 64
"""Bytes of a cache line."""
INSTRUCTIONS = {
    "x86_64": ("prefetcht0 ($0)", "prefetcht1 ($0)"),
    "aarch64": ("prfm pldl1keep, [$0]", "prfm pldl2keep, [$0]"),
}
"""To L1, and to L2."""
LLVM = """
define void @tvmopt_prefetch_LEVEL(ptr %p) alwaysinline nounwind willreturn memory(inaccessiblemem: readwrite) {
  call void asm sideeffect "INSTRUCTION", "r"(ptr %p) nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}
"""
"""Not `llvm.prefetch`, which may touch what its argument points to: LLVM then stores the accumulators of a tile each
step, because their buffer might be there (128x64x768: 3.1 times as long)."""


def panel_stride(size: int, columns: int, tiles: int, steps: int, least: int = 2) -> int:
    """Numbers to prefetch a step, so that `tiles` passes of `steps` steps over a panel of weights fetch the next one of
    `size` numbers, in rows of `columns`; 0: do not.

    With fewer than `least` passes there is no time to spare; with more than columns the first one, which waits, is a
    small part of all.

    >>> panel_stride(160 * 32, 32, 7, 160), panel_stride(96 * 32, 32, 28, 96), panel_stride(960 * 32, 32, 7, 240)
    (5, 2, 19)
    >>> panel_stride(1280 * 48, 48, 1, 1280), panel_stride(32 * 32, 32, 98, 32)
    (0, 0)
    """
    return -(-size // (tiles * steps)) if least <= tiles <= columns else 0


def lower_prefetch(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with the prefetches that its loops' annotations ask for."""
    if not asks(func, PREFETCH):
        return func
    around: list[Any] = []

    def loop(node: Any, mutator: Any) -> Any:
        notes = dict(node.annotations)
        if STEP not in notes:
            return mutator.default_mutate(node)
        around.append(node)
        fetch = _fetch(node, around, int(notes[PREFETCH]), int(notes.get(AHEAD, 0))) if PREFETCH in notes else []
        body = mutator.default_mutate(node).body
        around.pop()
        kept = {key: value for key, value in notes.items() if key not in (STEP, PREFETCH, AHEAD)}
        body = tirx.SeqStmt([*fetch, body]) if fetch else body
        return tirx.For(node.loop_var, node.min, node.extent, node.kind, body, None, kept)

    return with_prefetch(func, structural_mutate(func.body, ((tirx.For, loop),)))


def with_prefetch(func: tirx.PrimFunc, body: Any = None) -> tirx.PrimFunc:
    """The function, with another body if one is given, and with what :func:`prefetch` calls."""
    body = func.body if body is None else body
    text = [LLVM.replace("INSTRUCTION", one).replace("LEVEL", f"l{n}") for n, one in enumerate(INSTRUCTIONS[arch()], 1)]
    return with_llvm(func, body, "".join(text))


def arch() -> str:
    """The instruction set that code is made for: the current target's, else this machine's."""
    target = Target.current(allow_none=True)
    triple = str(target.attrs.get("mtriple", "")) if target is not None else ""
    return triple.split("-")[0] or host_arch()


def _fetch(loop: Any, steps: list[Any], stride: int, ahead: int) -> list[Any]:
    """Prefetches of what stands in the next panel as far in as this step's number says, or `ahead` of it in its own, a
    line each."""
    realize = _block(loop.body)
    load = _weights(realize.block) if realize is not None else None
    if realize is None or load is None:
        return []
    step: Any = 0
    for outer in steps:
        step = step * outer.extent + outer.loop_var
    passes, each, most = steps[0].extent, stride, stride
    if not isinstance(passes, tirx.IntImm):
        passes = tirx.max(passes, tirx.const(2, str(passes.ty.dtype)))  # of none, too, it must divide
        each, most = tirx.floordiv(stride + passes - 1, passes), -(-stride // 2)
    block = realize.block
    values = dict(zip((iv.var for iv in block.iter_vars), realize.iter_values, strict=True))
    inner: dict[Any, Any] = {}  # loops of one step around the place of the weights
    structural_walk(loop.body, ((tirx.For, lambda node: inner.update({node.loop_var: node.min})),))
    sums = {iv.var for iv in block.iter_vars if int(iv.iter_type) != 0}
    fixed = [index for index in load.indices[:-1] if not any(var in sums for var in undefined_vars(index, []))]
    for known in (values, inner):
        fixed = [structural_map(i, (tirx.Var, lambda var, known=known: known.get(var, var))) for i in fixed]
    zeros = [0] * (len(load.indices) - 1 - len(fixed))
    line = LINE // itemsize(load.source)
    panel = fixed[-1] if ahead else fixed[-1] + 1  # one more than there are carries over into the index before it
    place = [*fixed[:-1], panel, *zeros]
    return [prefetch(load.source, [*place, step * each + ahead + at], level=2) for at in range(0, most, line)]


def prefetch(buffer: Any, place: list[Any], level: int = 1) -> Any:
    """A statement that fetches the line of a place, which may be outside the buffer, to a level of the cache, 1 or 2;
    see :func:`with_prefetch`."""
    address = tirx.address_of(tirx.BufferLoad(buffer, place))
    return tirx.Evaluate(tirx.call_extern("void", f"tvmopt_prefetch_l{level}", address))


def _block(node: Any) -> Any | None:
    """The one block under a loop."""
    found: list[Any] = []
    structural_walk(node, ((SBlockRealize, found.append),))
    return found[0] if len(found) == 1 else None


def _weights(block: SBlock) -> Any | None:
    """The load of packed weights [panel, ..., column] in a block of multiplications: the one that ends with an output's
    axis; the other operand ends with the sum's."""
    found: list[Any] = []
    structural_walk(block.body, ((TensorLoad, found.append),))
    outputs = [iv.var for iv in block.iter_vars if int(iv.iter_type) == 0]
    sums = [region.source for region in block.writes]
    for load in found:
        if any(load.indices[-1].same_as(var) for var in outputs) and not any(load.source.same_as(s) for s in sums):
            return load
    return None
