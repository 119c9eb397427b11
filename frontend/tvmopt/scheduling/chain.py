"""An elementwise chain as one block: every value is named once, none is computed twice - before scheduling.

    t = exp(-abs(x));  u = where(t == 0, t, t * log(1 + t));  y = x * tanh(u)         three blocks
    y = let t = exp(-abs(x)) in x * tanh(where(t == 0, t, t * log(1 + t)))            one block

TVM's `compute_inline` copies the producer's expression to each of its uses: a chain of n operators that use their
input twice grows to 2**n terms, and its simplifier never comes back (Mish as PyTorch exports it).

Merged are blocks that only map (no reduction), over equal extents, whose value is read only at the reader's own
position and only by merged blocks.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm_ffi import StructuralKey, structural_equal, structural_map, structural_walk

from tvmopt.scheduling.blocks import with_root


def merge_chains(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every elementwise chain merged into its last block; itself where there is none."""
    root = func.body
    if not isinstance(root, SBlockRealize) or not isinstance(root.block.body, tirx.SeqStmt):
        return func
    nests = list(root.block.body.seq)
    blocks: list[Any] = [_single_block(nest) for nest in nests]
    if any(block is None for block in blocks):
        return func
    local = set(root.block.alloc_buffers)
    merged_into = _groups(blocks, local)
    if not merged_into:
        return func
    kept, gone = [], set()
    for index, (nest, block) in enumerate(zip(nests, blocks, strict=True)):
        members = [k for k, last in merged_into.items() if last == index]
        if members:
            gone |= {blocks[k].writes[0].source for k in members}
            nest = _replace_block(nest, _merge([blocks[k] for k in sorted(members)], block))
        if index not in merged_into:
            kept.append(nest)
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    return with_root(func, root, body, [b for b in root.block.alloc_buffers if b not in gone])


def _single_block(nest: Any) -> Any | None:
    """The one block under a nest of plain loops bound to its axes in order, else None."""
    loops = []
    while isinstance(nest, tirx.For):
        loops.append(nest.loop_var)
        nest = nest.body
    if not isinstance(nest, SBlockRealize) or isinstance(nest.block.body, SBlockRealize):
        return None
    return nest.block


def _maps(block: Any) -> bool:
    """Whether a block only writes f(...) at its own position."""
    store = block.body
    return (
        block.init is None
        and isinstance(store, tirx.BufferStore)
        and len(block.writes) == 1
        and all(int(iv.iter_type) == 0 for iv in block.iter_vars)
        and len(block.iter_vars) > 0
        and _at_own_position(store.indices, block)
    )


def _at_own_position(indices: Any, block: Any) -> bool:
    axes = [iv.var for iv in block.iter_vars]
    if len(indices) != len(axes):
        return False
    return all(
        index.same_as(axis) or (_is(iv.dom.extent, 1) and _is(index, 0))
        for index, axis, iv in zip(indices, axes, block.iter_vars, strict=True)
    )


def _is(expr: Any, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def _groups(blocks: list[Any], local: set[Any]) -> dict[int, int]:
    """Block -> the later block it is merged into."""
    readers: dict[Any, list[tuple[int, bool]]] = {}
    for index, block in enumerate(blocks):
        for load in _loads(block.body):
            readers.setdefault(load.source, []).append((index, _at_own_position(load.indices, block)))
        if block.init is not None:
            for load in _loads(block.init):
                readers.setdefault(load.source, []).append((index, False))
    into: dict[int, int] = {}
    for index in range(len(blocks) - 2, -1, -1):
        block = blocks[index]
        buffer = block.writes[0].source if len(block.writes) == 1 else None
        users = readers.get(buffer, [])
        if buffer not in local or not users or not _maps(block):
            continue
        targets = {into.get(user, user) for user, _ in users}
        if len(targets) != 1 or not all(own for _, own in users):
            continue
        last = targets.pop()
        tags = [b for b in (block, blocks[last], *(blocks[k] for k, v in into.items() if v == last)) if b.annotations]
        if last == index or not all(_maps(blocks[user]) for user, _ in users) or len(tags) > 1:
            continue
        if _same_extents(block, blocks[last]):
            into[index] = last
    return into


def _same_extents(a: Any, b: Any) -> bool:
    """Whether two blocks iterate over the same sizes, open ones too."""
    pairs = zip(a.iter_vars, b.iter_vars, strict=False)
    return len(a.iter_vars) == len(b.iter_vars) and all(structural_equal(x.dom.extent, y.dom.extent) for x, y in pairs)


def _loads(node: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (TensorLoad, found.append))
    return found


def _merge(members: list[Any], last: Any) -> Any:
    """`last` with the members' values in its expression; a value used more than once is bound by a let."""
    axes = [iv.var for iv in last.iter_vars]
    values: dict[Any, Any] = {}
    uses: dict[Any, int] = {}
    written = {block.writes[0].source for block in members}
    for block in (*members, last):
        for load in _loads(block.body):
            if load.source in written:
                uses[load.source] = uses.get(load.source, 0) + 1
    lets: list[tuple[Any, Any]] = []
    for block in members:
        value = _rewrite(block.body.value, values, dict(zip((iv.var for iv in block.iter_vars), axes, strict=True)))
        buffer = block.writes[0].source
        if uses[buffer] > 1 and not isinstance(value, TensorLoad | tirx.Var | tirx.FloatImm | tirx.IntImm):
            name = tirx.Var(f"v{len(lets)}", buffer.dtype)
            lets.append((name, value))
            value = name
        values[buffer] = value
    result = _rewrite(last.body.value, values, {})
    for name, value in reversed(lets):
        result = tirx.Let(name, value, result)
    store = tirx.BufferStore(last.body.buffer, result, last.body.indices)
    reads = [r for r in last.reads if r.source not in written]
    for block in members:
        remap = dict(zip((iv.var for iv in block.iter_vars), axes, strict=True))
        reads += [_remap(r, remap) for r in block.reads if r.source not in written]
    reads = [_whole(r) if any(_loads(part.min) for part in r.region) else r for r in reads]
    unique = list({(r.source, StructuralKey(r)): r for r in reads}.values())  # a key alone takes like buffers for one
    annotations = next((b.annotations for b in (last, *members) if b.annotations), last.annotations)
    return SBlock(last.iter_vars, unique, last.writes, last.name_hint, store, None, [], [], annotations)


def _whole(region: Any) -> Any:
    """All of a tensor that is read where a value says, which may be one of a merged block."""
    return tirx.BufferRegion(region.source, [Range(0, extent) for extent in region.source.shape])


def _rewrite(expr: Any, values: dict[Any, Any], remap: dict[Any, Any]) -> Any:
    expr = _remap(expr, remap)

    def load(node: Any) -> Any:
        return values.get(node.source, node)

    return structural_map(expr, (TensorLoad, load))


def _remap(node: Any, remap: dict[Any, Any]) -> Any:
    if not remap:
        return node
    return structural_map(node, (tirx.Var, lambda var: remap.get(var, var)))


def _replace_block(nest: Any, block: Any) -> Any:
    if isinstance(nest, tirx.For):
        return tirx.For(
            nest.loop_var, nest.min, nest.extent, nest.kind, _replace_block(nest.body, block),
            nest.thread_binding, nest.annotations,
        )  # fmt: skip
    return SBlockRealize(nest.iter_values, nest.predicate, block)
