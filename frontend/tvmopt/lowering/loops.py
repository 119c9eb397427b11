"""Loops and statements of TIR in a few words - for the families that write their kernels out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx.stmt import BufferRegion
from tvm_ffi import structural_map, structural_mutate, structural_walk

Expr = Any
Index = Any
NANOSECONDS = "tvmopt.nanoseconds"
"""The annotation of a block of rows whose work is not its bytes: one core's time for all rows, roughly."""
UNROLLED = 4
"""Vectors of a row up to which their loop is written out."""
INDEX = "int64"
"""The type of indices that TVM's own legalizations use: FuseTIR refuses to join buffers of other shapes' types."""


def const_index(value: int) -> Expr:
    """A constant index."""
    return tirx.const(value, INDEX)


def with_body(func: tirx.PrimFunc, body: Any) -> tirx.PrimFunc:
    """A kernel whose loops were rewritten. TVM's own method makes the function's type anew, for which it looks through
    the whole body for effects: 5 ms where there are 2,700 loads, and this takes 0.03. The type stays as it is."""
    old = func.body

    def instead(node: Any, mutator: Any) -> Any:
        return body if node.same_as(old) else mutator.default_mutate(node)

    changed: tirx.PrimFunc = structural_mutate(func, ((type(old), instead),))
    return changed


def buffers(body: Any) -> list[Any]:
    """What a kernel's loops have as buffers: its tensors, and those that it allocates."""
    found: list[Any] = []
    structural_walk(body, ((tirx.DeclBuffer, tirx.AllocBuffer), lambda node: found.append(node.buffer)))
    return found


def gpu_pass(name: str, kind: type, rewrite: Callable[[Any], Any]) -> Any:
    """A pass that rewrites each node of a kind in the functions for GPUs, and leaves those of the host as they are."""
    return target_pass("cuda", name, kind, rewrite)


def target_pass(machines: str, name: str, kind: type, rewrite: Callable[[Any], Any]) -> Any:
    """A pass that rewrites each node of a kind in the functions for one kind of machines: "llvm" or "cuda"."""

    def run(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
        target = func.attrs.get("target", None)
        if target is None or target.kind.name != machines:
            return func
        body = structural_map(func.body, (kind, rewrite))
        return func if body.same_as(func.body) else with_body(func, body)

    return tirx.transform.prim_func_pass(run, opt_level=0, name=name)


def unrolled(loop: Any) -> Any:
    """The same loop, written out instead of vectorized."""
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, loop.thread_binding, loop.annotations
    )


def new_buffer(name: str, *shape: Index, dtype: str = "float32") -> Any:
    """A buffer of a kernel: an argument, or memory of its own."""
    return tirx.decl_buffer([as_index(d) for d in shape], dtype, name, layout=None)


def loop(extent: Index, body: Callable[[Expr], Any], name: str = "i") -> Any:
    """`for name in range(extent)`, serial."""
    var = tirx.Var(name, INDEX)
    return _serial(var, extent, body(var))


def _serial(var: Expr, extent: Index, body: Any) -> Any:
    return tirx.For(var, const_index(0), as_index(extent), tirx.ForKind.SERIAL, body)


def seq(statements: Sequence[Any]) -> Any:
    """Statements one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def load(buffer: Any, *indices: Index) -> Expr:
    """buffer[indices]; the last index may be a vector (a ramp)."""
    return tirx.BufferLoad(buffer, [as_index(i) for i in indices])


def store(buffer: Any, value: Expr, *indices: Index) -> Any:
    """buffer[indices] = value."""
    return tirx.BufferStore(buffer, value, [as_index(i) for i in indices])


def as_index(index: Index) -> Expr:
    """A size or an index as an expression."""
    return const_index(index) if isinstance(index, int) else index


def vector(start: Index, lanes: int) -> Expr:
    """Indices start, start + 1, ..., `lanes` of them."""
    return tirx.Ramp(as_index(start), const_index(1), lanes) if lanes > 1 else as_index(start)


def in_vectors(length: int, lanes: int, body: Callable[[Index], Any]) -> Any:
    """`body(start)` for each vector of a row of `length` numbers; the last one may overlap the one before."""
    return each_vector(length, lanes, lambda v, start: body(start))


def each_vector(length: int, lanes: int, body: Callable[[Index, Index], Any]) -> Any:
    """`body(v, start)` for each vector v of a row, as :func:`in_vectors`."""
    count, last = -(-length // lanes), length - lanes
    if count <= UNROLLED:
        return seq([body(v, min(v * lanes, last)) for v in range(count)])
    even = length % lanes == 0
    return loop(count, lambda v: body(v, v * lanes if even else tirx.min(v * lanes, const_index(last))), "v")


def vector_type(dtype: str, lanes: int) -> str:
    """The type of `lanes` numbers, one being no vector."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def splat(value: float, lanes: int, dtype: str = "float32") -> Expr:
    """A constant in every lane."""
    return spread(tirx.const(value, dtype), lanes)


def spread(value: Expr, lanes: int) -> Expr:
    """A value in every lane."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def everything(buffer: Any) -> Any:
    """The region of a whole buffer."""
    return BufferRegion(buffer, [Range.from_min_extent(const_index(0), d) for d in buffer.shape])


def nest(
    name: str, axes: Sequence[tuple[Expr, Index]], names: Sequence[str], reads: Any, writes: Any, body: Any,
    buffers: Sequence[Any], annotations: dict[str, Any],
) -> Any:  # fmt: skip
    """Loops, called `names`, around one block of spatial `axes` (its variable, extent); `buffers` are its own."""
    iterations = [
        tirx.IterVar(Range(const_index(0), as_index(extent)), var, tirx.IterVar.DataPar) for var, extent in axes
    ]
    block = SBlock(iterations, reads, writes, name, body, alloc_buffers=buffers, annotations=annotations)
    loops = [tirx.Var(n, INDEX) for n in names]
    around: Any = SBlockRealize(loops, tirx.const(True, "bool"), block)
    for var, (_, extent) in reversed(list(zip(loops, axes, strict=True))):
        around = _serial(var, extent, around)
    return around


def prim_func(params: Sequence[Any], body: Any, pattern: int, buffers: Sequence[Any] = ()) -> Any:
    """A PrimFunc of one root block, which has `buffers` of its own, without aliasing parameters, with an op pattern for
    FuseOps."""
    root = SBlock([], [], [], "root", body, alloc_buffers=list(buffers))
    realize = SBlockRealize([], tirx.const(True, "bool"), root)
    return tirx.PrimFunc(list(params), realize).with_attrs({"tirx.noalias": True, "op_pattern": pattern, "s_tir": True})
