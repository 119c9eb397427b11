"""No loop's variable wraps around a power of two - behind TVM's own passes of loops.

    Before                              After
    for i in range(16):                 for i_0 in range(2):
        y[i * 180] = x[i % 8]               for i_1 in range(8):
                                                y[(i_0 * 8 + i_1) * 180] = x[i_1]

``i % 8`` is the three lowest bits of i to LLVM. Beside another remainder (``x[a % 6 * 80 + j * 8 + i % 8]``), LLVM 22's
vectorizer of loops takes them for what counts on beyond 7: it reads sixteen elements where eight are, eight of them of
another row or behind the tensor. A Tile of two axes behind a transposed convolution was that.

Applies when   a loop from 0 to a number, without vectors in it, has remainders of its own variable by powers of two. It
               is split by the largest of them that is less than its length, and asks for its end if it is no multiple.
Gain           right numbers. Other wraps, of sums or in loops of an open length, :func:`wraps` finds, and the kernel is
               made without LLVM's vectorizer of loops (:mod:`.masked_stores`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_mutate, structural_visit, structural_walk

from tvmopt.lowering.loops import with_body

REMAINDERS = (tirx.FloorMod, tirx.Mod)


def split_wraps(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    if not _powers(func.body, lambda place: True):
        return func
    body = structural_mutate(func.body, ((tirx.For, _split),))
    return func if body.same_as(func.body) else with_body(func, body)


SplitWraps = tirx.transform.prim_func_pass(split_wraps, opt_level=0, name="tvmopt.SplitWraps")


def _split(loop: Any, mutator: Any) -> Any:
    loop = mutator.default_mutate(loop)
    known = isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0
    if not known or not _left_to_llvm(loop):
        return loop
    var, extent, dtype = loop.loop_var, int(loop.extent), str(loop.loop_var.ty.dtype)
    by = max((n for n in _powers(loop.body, lambda place: _plain(place).same_as(var)) if n < extent), default=0)
    if not by:
        return loop
    outer, inner = tirx.Var(f"{var.name}_0", dtype), tirx.Var(f"{var.name}_1", dtype)

    def remainder(node: Any, mutator: Any) -> Any:
        if not (isinstance(node.b, tirx.IntImm) and _plain(node.a).same_as(var) and by % int(node.b) == 0):
            return mutator.default_mutate(node)
        left = inner.astype(str(node.a.ty.dtype))
        return left if int(node.b) == by else type(node)(left, node.b)

    place = outer * by + inner
    counted = (ir.Var, lambda node, mutator: place if node.same_as(var) else node)
    body = structural_mutate(loop.body, (*((kind, remainder) for kind in REMAINDERS), counted))
    if extent % by:
        body = tirx.IfThenElse(place < extent, body, None)
    whole = tirx.For(inner, tirx.const(0, dtype), tirx.const(by, dtype), tirx.ForKind.SERIAL, body)
    return tirx.For(outer, tirx.const(0, dtype), tirx.const(-(-extent // by), dtype), tirx.ForKind.SERIAL, whole)


def _plain(place: Any) -> Any:
    """A place as it was before it was made wider."""
    return _plain(place.value) if isinstance(place, tirx.Cast) else place


def _left_to_llvm(loop: Any) -> bool:
    """Whether LLVM may vectorize a loop: nothing in it has vectors yet, and the loops in it, which it may write out,
    have known lengths."""
    others: list[Any] = []
    structural_walk(loop.body, ((tirx.Ramp, others.append), (tirx.Broadcast, others.append), (tirx.For, others.append)))
    written = all(isinstance(one, tirx.For) and isinstance(one.extent, tirx.IntImm) for one in others)
    return loop.kind == tirx.ForKind.SERIAL and written


def wraps(module: tvm.IRModule) -> bool:
    """Whether a loop that LLVM may vectorize has a remainder of what it counts by a power of two."""
    return any(isinstance(f, tirx.PrimFunc) and _wraps(f) for _, f in module.functions_items())


def _wraps(func: tirx.PrimFunc) -> bool:
    if not _powers(func.body, lambda place: True):
        return False
    counted: list[Any] = []

    def loop(node: Any) -> None:
        if _left_to_llvm(node):
            counted.append(node.loop_var)

    structural_walk(func.body, (tirx.For, loop))

    def counts(place: Any) -> bool:
        """Whether it is computed from what is counted: what is loaded from there wraps as it likes."""
        found: list[Any] = []
        structural_visit(
            place, ((TensorLoad, lambda node, visitor: None), (ir.Var, lambda node, visitor: found.append(node)))
        )
        return any(var.same_as(one) for var in found for one in counted)

    return bool(_powers(func.body, counts))


def _powers(body: Any, of: Any) -> set[int]:
    """The powers of two above 1 by which there are remainders of places that `of` is true for."""
    found: set[int] = set()

    def add(place: Any, by: int) -> None:
        if by > 1 and by.bit_count() == 1 and by not in found and of(place):
            found.add(by)

    def remainder(node: Any) -> None:
        if isinstance(node.b, tirx.IntImm):
            add(node.a, int(node.b))

    def masked(node: Any) -> None:  # what TVM's last passes make of it
        if isinstance(node.b, tirx.IntImm):
            add(node.a, int(node.b) + 1)

    structural_walk(body, (*((kind, remainder) for kind in REMAINDERS), (tirx.BitwiseAnd, masked)))
    return found
