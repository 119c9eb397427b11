"""Take the pieces of a loop that copy neighbouring numbers in vectors - behind TVM's LoopPartition.

    Before                                            After
    for j in range(64):                               for i in range(4):
      out[row * 256 + j + 64] = x[row * 64 + j]         for j in vectorized(16):
                                                          out[row * 256 + (i * 16 + j) + 64] = x[...]

LoopPartition cuts the loop of a concatenation into one for each part, of known length. LLVM writes such a short loop
out before it looks for vectors, and then looks for them among the copies, which takes it longer the more there are.

Applies when   an innermost loop of 32, 48, ... 128 iterations stores float32 at neighbouring places, and what it stores
               are loads from such places or from fixed ones and their sums, differences, products and extremes; on a
               CPU.
Gain           code generation of a concatenation of four parts of 64 channels at open sizes: 0.88 -> 0.03 s
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_mutate

from tvmopt.lowering.loops import with_body
from tvmopt.scheduling.open_loops import without

LANES = 16
"""Numbers of a vector; LLVM makes two or more of them where the machine's are narrower."""

WRITTEN_OUT = 128
"""Iterations up to which LLVM writes a loop out, and more."""

PLAIN = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)


def vector_pieces(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""

    def piece(loop: Any, mutator: Any) -> Any:
        loop = mutator.default_mutate(loop)
        return _in_vectors(loop) if _copies(loop) else loop

    body = structural_mutate(func.body, ((tirx.For, piece),))
    return func if body.same_as(func.body) else with_body(func, body)


VectorPieces = tirx.transform.prim_func_pass(vector_pieces, opt_level=0, name="tvmopt.VectorPieces")


def _copies(loop: Any) -> bool:
    """Whether a loop is one of those that the module's text tells of."""
    if loop.kind != tirx.ForKind.SERIAL or loop.annotations or not isinstance(loop.extent, tirx.IntImm):
        return False
    extent, store = int(loop.extent), loop.body
    if not LANES < extent <= WRITTEN_OUT or extent % LANES or not isinstance(store, tirx.BufferStore):
        return False
    if str(store.value.ty.dtype) != "float32":
        return False
    return _steps(store.indices, loop.loop_var) == 1 and _plain(_taken(store.value), loop.loop_var, store.buffer)


def _taken(value: Any) -> Any:
    """What is left of choices that LoopPartition has decided."""
    while isinstance(value, ir.Call) and getattr(value.op, "name", "").endswith("if_then_else"):
        condition, yes, no = value.args
        if not isinstance(condition, tirx.IntImm):
            break
        value = yes if int(condition) else no
    return value


def _plain(value: Any, var: Any, written: Any) -> bool:
    """Whether a value may be computed for several iterations at once; `written`: the buffer that it goes to, of which
    an iteration may read what one before it wrote."""
    if isinstance(value, PLAIN):
        return _plain(value.a, var, written) and _plain(value.b, var, written)
    if isinstance(value, TensorLoad):
        return not value.source.same_as(written) and _steps(value.indices, var) is not None
    return isinstance(value, tirx.FloatImm)


def _steps(indices: Any, var: Any) -> int | None:
    """1 where each iteration is one place further, 0 where all are at one place, None otherwise."""
    if len(indices) != 1:
        return None
    rest = without(indices[0], var)
    if any(other.same_as(var) for other in undefined_vars(indices[0] if rest is None else rest, [])):
        return None
    return int(rest is not None)


def _in_vectors(loop: Any) -> Any:
    kind = str(loop.loop_var.ty.dtype)
    vector, lane = tirx.Var("vector", kind), tirx.Var("lane", kind)
    zero, lanes = tirx.const(0, kind), tirx.const(LANES, kind)
    place = loop.min + (vector * lanes + lane)
    store = tirx.BufferStore(loop.body.buffer, _taken(loop.body.value), loop.body.indices)
    body = structural_map(store, (tirx.Var, lambda v: place if v.same_as(loop.loop_var) else v))
    body = tirx.For(lane, zero, lanes, tirx.ForKind.VECTORIZED, body)
    return tirx.For(vector, zero, tirx.const(int(loop.extent) // LANES, kind), tirx.ForKind.SERIAL, body)
