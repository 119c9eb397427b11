"""Looking at the blocks of a PrimFunc, and the moves that several families share - for the files in `schedules/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm_ffi import structural_walk

from tvmopt.scheduling.facts import BlockFacts, facts


def blocks_of(func: tirx.PrimFunc) -> list[Any]:
    """The leaf blocks of a function, in program order, as IR nodes."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, SBlockRealize):
            inner = len(found)
            visit(node.block.body)
            if len(found) == inner:
                found.append(node.block)
        elif isinstance(node, tirx.SeqStmt):
            for child in node.seq:
                visit(child)
        elif isinstance(node, tirx.For | tirx.AttrStmt):
            visit(node.body)

    visit(func.body)
    return found


def asks(func: tirx.PrimFunc, annotation: str) -> bool:
    """Whether one of the function's loops has an annotation whose value is not 0."""
    found: list[bool] = []
    structural_walk(func.body, ((tirx.For, lambda node: found.append(bool(node.annotations.get(annotation, 0)))),))
    return any(found)


def with_root(func: tirx.PrimFunc, realize: Any, body: Any, buffers: Sequence[Any] | None = None) -> tirx.PrimFunc:
    """The function with `realize`'s root block, but another `body`, and `buffers` if given."""
    root = realize.block
    buffers = root.alloc_buffers if buffers is None else buffers
    outer = SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, buffers, root.match_buffers,
        root.annotations,
    )  # fmt: skip
    return func.with_body(SBlockRealize(realize.iter_values, realize.predicate, outer))


def with_llvm(func: tirx.PrimFunc, realize: Any, code: str) -> tirx.PrimFunc:
    """The function with `realize` as its body, and functions of LLVM IR linked into its module."""
    none, text = StringImm(""), StringImm(code)
    return with_root(func, realize, tirx.AttrStmt(none, "pragma_import_llvm", text, realize.block.body))


def annotated(func: tirx.PrimFunc, kernel: str) -> Any | None:
    """The one block annotated `tvmopt.kernel = kernel`, else None."""
    hits = [b for b in blocks_of(func) if str(b.annotations.get("tvmopt.kernel", "")) == kernel]
    return hits[0] if len(hits) == 1 else None


def consumer(func: tirx.PrimFunc, kernel: str) -> Any | None:
    """The block that reads what the one annotated `kernel` writes: its epilogue, once normalized. Between the two may
    stand what computes another operand of it."""
    blocks = blocks_of(func)
    for place, block in enumerate(blocks):
        if str(block.annotations.get("tvmopt.kernel", "")) == kernel:
            made = block.writes[0].source
            behind = blocks[place + 1 :]
            return next((b for b in behind if any(r.source.same_as(made) for r in b.reads)), None)
    return None


def extents(block: Any) -> list[int]:
    """The extents of a block's iteration variables, in order; [] if one is not a constant."""
    dims = [iv.dom.extent for iv in block.iter_vars]
    return [int(d) for d in dims] if all(isinstance(d, tirx.IntImm) for d in dims) else []


def root_blocks(sch: Schedule) -> list[Any]:
    """The blocks under the root, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def loop_extents(sch: Schedule, block: Any) -> tuple[int, ...]:
    """The extents of the loops around a block."""
    return tuple(int(sch.get(loop).extent) for loop in sch.get_loops(block))


LARGE = 1 << 15
"""Elements from which on threads share the rows of a block."""


def epilogue_of(sch: Schedule, main: Any, out_shape: Sequence[int]) -> Any:
    """Inline the elementwise chain behind `main` into its last block and return that block.

    Blocks whose loops differ from `out_shape` (a broadcast to more dimensions, say: pictures times their gates) stay
    outside: then the last block before them is returned, and the others are parallelised where they stand, over all
    their rows where they are large. Smaller ones, which compute an operand of the chain (a scale that is the product
    of two), are inlined into it.
    """
    _inline_operands(sch, main, tuple(out_shape))
    blocks = root_blocks(sch)
    names = [sch.get(b).name_hint for b in blocks]
    after = blocks[names.index(sch.get(main).name_hint) + 1 :]
    same = 0
    while same < len(after) and loop_extents(sch, after[same]) == tuple(out_shape):
        same += 1
    chain, rest = after[:same], after[same:]
    for block in chain[:-1]:
        sch.compute_inline(block)
    for block in rest:
        loops = sch.get_loops(block)
        rows = len(loops) > 2 and prod(loop_extents(sch, block)) >= LARGE
        sch.parallel(sch.fuse(*loops[:-1]) if rows else loops[0])
    return chain[-1]


def _inline_operands(sch: Schedule, main: Any, shape: tuple[int, ...]) -> None:
    """Inline the blocks behind `main` that compute fewer numbers than `shape` has, for blocks further behind; of one
    row also as many, in other loops."""
    name = sch.get(main).name_hint
    seen = False
    for block in root_blocks(sch):
        here = loop_extents(sch, block)
        less = prod(here) < prod(shape) or (prod(here) == prod(shape) and len(here) < len(shape))
        if seen and less and not sch.get(block).annotations and sch.get_consumers(block):
            try:
                sch.compute_inline(block)
            except ScheduleError:  # not a plain function of its operands: it stays a stage of its own
                continue
        seen = seen or sch.get(block).name_hint == name


OPERAND = 1 << 14
"""Elements of an operand, at most, that is computed where it is read: a number a channel."""


def inline_fixed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function of open sizes around the kernel of a family, with what it computes of known size inlined where it is
    read behind the kernel: the scale of a dynamic quantization, a bias in steps of it. No row or pixel leads there."""
    if not any(block.annotations for block in blocks_of(func)):
        return func
    sch, found = Schedule(func), False
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))}
    for block in root_blocks(sch):
        here, readers = sch.get(block), [sch.get(c) for c in sch.get_consumers(block)]
        if here.name_hint in outputs or any(one.annotations for one in (here, *readers)) or compared(sch, block):
            continue
        shapes = [region.source.shape for region in here.writes]
        if all(isinstance(d, tirx.IntImm) for shape in shapes for d in shape) and _elements(shapes) <= OPERAND:
            try:
                sch.compute_inline(block)
                found = True
            except ScheduleError:
                continue  # it stays a stage of its own
    return sch.mod["main"] if found else func


def compared(sch: Schedule, block: Any) -> bool:
    """Whether a reduction and another block read products of a block, as a softmax reads its scores. A product that is
    inlined into a difference becomes a fused multiply-add, which does not round it: the largest one of scores of 1e18
    would be 1e11 off its own difference, whose exponential is infinite or 0 then."""
    readers = [sch.get(one) for one in sch.get_consumers(block)]
    if len(readers) < 2 or not any(int(v.iter_type) == tirx.IterVar.CommReduce for r in readers for v in r.iter_vars):
        return False
    products: list[Any] = []
    structural_walk(sch.get(block).body, ((tirx.Mul, products.append),))
    return any("float" in str(product.ty.dtype) for product in products)


def _elements(shapes: Sequence[Sequence[Any]]) -> int:
    return sum(prod(int(d) for d in shape) for shape in shapes)


def collapse_rows(sch: Schedule, main: Any, out: Any, rows: Sequence[int]) -> None:
    """Make the leading loops (`rows`) of `main` and `out`, and the buffer between them, one loop over their product.

    Row-major buffers need no copy: TVM's simplifier turns X[m // (H*W), m // W % H, m % W, k] back into m*K + k.
    """
    if len(rows) < 2:
        return
    depth = len(rows)

    def flatten(*index: Any) -> list[Any]:
        flat = index[0]
        for position, dim in zip(index[1:depth], rows[1:], strict=True):
            flat = flat * dim + position
        return [flat, *index[depth:]]

    tail = len(sch.get(main).writes[0].region) - depth
    sch.transform_layout(main, ("write", 0), named_arguments(flatten, depth + tail))
    sch.transform_block_layout(main, named_arguments(flatten, len(sch.get_loops(main))))
    sch.transform_block_layout(out, named_arguments(flatten, len(sch.get_loops(out))))


def named_arguments(fn: Any, arity: int) -> Any:
    """`fn(*args)` with a fixed number of named arguments: TVM's IndexMap counts them in the signature."""
    names = ", ".join(f"i{k}" for k in range(arity))
    return eval(f"lambda {names}: fn({names})", {"fn": fn})


Stays = Callable[[Any, BlockFacts, dict[str, BlockFacts]], bool]
"""Whether a block (in the schedule, its facts, the facts of all by name) is not to be inlined."""


def inline_spatial(sch: Schedule, stays: Stays = lambda block, mine, known: False) -> list[Any]:
    """Inline every spatial block into its readers; returns the blocks that remain: outputs, reductions, kernels of a
    family, and those of which `stays` says so."""
    root = sch.get_sblock("root")
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks(root)}
    known = {b.name: b for b in facts(sch.mod["main"]) or ()}
    for block in sch.get_child_blocks(root):
        name = sch.get(block).name_hint
        mine = known.get(name)
        if name in outputs or mine is None or not mine.spatial or mine.kernel or mine.store is None:
            continue
        if stays(block, mine, known):
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue  # it stays a stage of its own: slower, not wrong
    return list(sch.get_child_blocks(root))


def extent(sch: Schedule, loop: Any) -> int:
    """The extent of a loop; 0 where it is open."""
    found = sch.get(loop).extent
    return int(found) if isinstance(found, tirx.IntImm) else 0


def fused(sch: Schedule, loops: Sequence[Any]) -> Any:
    """One loop over all of `loops`, which lie in each other in this order."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def give_first_value(sch: Schedule, block: Any, loops: Sequence[Any]) -> None:
    """Give a reduction over an open axis its first value in front of its loops: TVM's is given in their first step, and
    there is none where values have selected nothing.

    Args:
        loops: those of the reduction, or all; the outermost one first.
    """
    if sch.get(block).init is not None and not all(extent(sch, loop) for loop in loops):
        sch.decompose_reduction(block, loops[0])
