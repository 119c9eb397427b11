"""Keep remainders and quotients as they are while TVM flattens buffers: what it makes of some of them is wrong.

    Before                           TVM's FlattenBuffer                   With this pass round it
    x[(3 - i) % 2]                   x[i % -2 * -1]                        x[(3 - i) % 2]
    x[((i + 15) // 8 + j) % 2]       x[((i + 7) // 8 + j) % 2]             x[((i + 15) // 8 + j) % 2]

TVM 0.27 writes places as sums of iterators and takes those apart again. Where an iterator runs backwards it loses the
beginning; where a remainder is taken of a quotient with an offset, it loses a part of that: 48 of 700 random places
were wrong. The kernel then reads other elements, or beside the tensor: the last of equal scores of a tensor that was
repeated, a flipped tensor in another shape. A call that TVM does not know stands round such a remainder or quotient and
is taken away behind the pass; TVM leaves places alone that have one.

A row and a column that are quotient and remainder of one number by the length of the row are that number, which needs
neither: `x[a // 39 + k, a % 39]` becomes `x[k, a]`, the same place in memory. Kept apart they cost a convolution with
strides, which reads its copy of a picture so, six times its time: each lane of a vector was loaded alone.

Applies when   an operand of `//` or `%` falls with an index, or a remainder is taken of a quotient with an offset.
Gain           the right element; TVM simplifies all other places as before.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.op import call_intrin
from tvm_ffi import structural_map, structural_mutate

from tvmopt.lowering.intrinsics import called, register
from tvmopt.lowering.loops import with_body
from tvmopt.scheduling.open_loops import whole

KEPT = "tvmopt.kept"
DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)

register({KEPT: 1}, "tvmopt/lowering/keep_remainders.py")


def keep_remainders(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text: before FlattenBuffer."""
    body = structural_mutate(func.body, ((TensorLoad, _load), (tirx.BufferStore, _store)))
    body = structural_map(body, (DIVISIONS, _kept))
    return func if body.same_as(func.body) else with_body(func, body)


def plain_remainders(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """The calls taken away: behind it."""
    body = structural_map(func.body, (tvm.ir.Call, _plain))
    return func if body.same_as(func.body) else with_body(func, body)


KeepRemainders = tirx.transform.prim_func_pass(keep_remainders, opt_level=0, name="tvmopt.KeepRemainders")
PlainRemainders = tirx.transform.prim_func_pass(plain_remainders, opt_level=0, name="tvmopt.PlainRemainders")


def _load(node: Any, mutator: Any) -> Any:
    node = mutator.default_mutate(node)
    indices = None if len(node.source.strides) else whole(node.indices, node.source.shape)
    return node if indices is None else tirx.BufferLoad(node.source, indices)


def _store(node: Any, mutator: Any) -> Any:
    node = mutator.default_mutate(node)
    indices = None if len(node.buffer.strides) else whole(node.indices, node.buffer.shape)
    return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)


def _kept(node: Any) -> Any:
    risky = falls(node.a) or (isinstance(node, tirx.FloorMod) and _divides_an_offset(node.a))
    return call_intrin(node.ty, KEPT, node) if risky else node


def _plain(node: Any) -> Any:
    return node.args[0] if called(node) == KEPT else node


def falls(place: Any) -> bool:
    """Whether a sum may become smaller where an index becomes larger.

    >>> i = tirx.Var("i", "int32")
    >>> falls(3 - i), falls(i * -2 + 7), falls(i - 3), falls(i * 4 + 1)
    (True, True, False, False)
    """
    if isinstance(place, tirx.Sub):
        return not isinstance(place.b, tirx.IntImm) or falls(place.a)
    if isinstance(place, tirx.Mul):
        return any(isinstance(x, tirx.IntImm) and int(x) < 0 for x in (place.a, place.b)) or _any(falls, place)
    if isinstance(place, (tirx.Add, *DIVISIONS, tirx.Min, tirx.Max)):
        return _any(falls, place)
    return isinstance(place, tvm.ir.Call) and called(place) == KEPT


def _divides_an_offset(place: Any) -> bool:
    """Whether a sum contains the quotient of a sum with a constant."""
    if isinstance(place, tirx.FloorDiv):
        return _has_offset(place.a)
    return isinstance(place, (tirx.Add, tirx.Sub, tirx.Mul)) and _any(_divides_an_offset, place)


def _has_offset(place: Any) -> bool:
    if isinstance(place, (tirx.Add, tirx.Sub)):
        return isinstance(place.a, tirx.IntImm) or isinstance(place.b, tirx.IntImm) or _any(_has_offset, place)
    return False


def _any(asked: Any, place: Any) -> bool:
    return bool(asked(place.a) or asked(place.b))
