"""Maximum, minimum and `!=` with NaN as NumPy has them - the last rewrite of loops before code generation.

    Before           After
    max(x, 0)        max(0, x)                                            one instruction, as before
    max(a, b)        let v = a in select(v != v, NaN, max(v, b))          three instructions
    for a GPU        let v = x in select(v < 0, 0, v);  let v = a, w = b in select(v >= v, select(v > w, v, w), v)

    a != b           not (a == b)                                         TVM's own code says false where one is NaN
    cast(a < b)      select(a < b, 1, 0), of vectors                      TVM's analyzer fails at a let of the former

TVM's `max(a, b)` of floats is select(a > b, a, b), on x86 one `vmaxps`: b where one of them is NaN. So Relu(NaN) would
be 0, and a model that has diverged would look healthy. CUDA's `fmaxf` returns the number where the other one is NaN.

A kernel that may lose a NaN there, because its result shows it anyway, writes :func:`larger` for its maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from tvmopt.lowering.loops import with_body

Expr = Any


def larger(a: Expr, b: Expr) -> Expr:
    """The larger of two numbers, and b where one is NaN: one instruction."""
    return tirx.Select(a > b, a, b)


def lower_extrema(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text. Integers stay as they are."""
    target = func.attrs.get("target", None)
    cuda = target is not None and target.kind.name == "cuda"
    extreme = partial(_float, _select if cuda else _ordered)
    rules: list[tuple[Any, Any]] = [(tirx.Max, extreme), (tirx.Min, extreme), (tirx.NE, _unequal)]
    body = structural_map(func.body, rules if cuda else [*rules, (tirx.Cast, _number)])
    return func if body.same_as(func.body) else with_body(func, body)


LowerExtrema = tirx.transform.prim_func_pass(lower_extrema, opt_level=0, name="tvmopt.LowerExtrema")


def _float(lower: Callable[[Any, Expr, Expr], Expr], node: Any) -> Any:
    """`lower(kind, a, b)` of floats, a constant second, the operand with fewer lets first; of two with as many the
    second: a reduction's first one is what it has so far, and to ask that would make every step wait."""
    if not str(node.ty.dtype).startswith(("float", "bfloat")):
        return node
    a, b = node.a, node.b
    if _constant(a) or (not _constant(b) and _lets(a) >= _lets(b)):
        a, b = b, a
    return lower(type(node), a, b)


def _unequal(node: Any) -> Any:
    return tirx.Not(tirx.EQ(node.a, node.b)) if str(node.a.ty.dtype).startswith(("float", "bfloat")) else node


def _number(node: Any) -> Any:
    """A vector of truths as one of numbers: what stands in a select is nothing that TVM's analyzer looks at."""
    lanes = int(node.value.ty.dtype.lanes)
    if lanes == 1 or not str(node.value.ty.dtype).startswith("bool"):
        return node
    one, zero = (tirx.Broadcast(tirx.const(n, str(node.ty.dtype).split("x")[0]), lanes) for n in (1, 0))
    return tirx.Select(node.value, one, zero)


def _ordered(kind: Any, a: Expr, b: Expr) -> Expr:
    """For LLVM, whose code for `kind(a, b)` is b where one is NaN. Lets stand one in another's body: TVM's analyzer
    takes time exponential in the depth of lets in values."""
    if _constant(b):
        return kind(b, a)
    v = tirx.Var("v", a.ty)
    lanes, nan = int(a.ty.dtype.lanes), tirx.const(float("nan"), str(a.ty.dtype).split("x")[0])
    # a constant: with v in its place LLVM joins both selects to one of two comparisons, which takes longer
    return tirx.Let(v, a, tirx.Select(tirx.isnan(v), nan if lanes == 1 else tirx.Broadcast(nan, lanes), kind(v, b)))


def _select(kind: Any, a: Expr, b: Expr) -> Expr:
    """For a GPU, in comparisons only."""
    v, w = tirx.Var("v", a.ty), tirx.Var("w", b.ty)
    wins = tirx.GT if kind is tirx.Max else tirx.LT
    if _constant(b):
        return tirx.Let(v, a, tirx.Select(wins(b, v), b, v))
    # `v >= v` is false for NaN only; isnan becomes `v != v`, which CUDA has not for half4 and float4
    return tirx.Let(v, a, tirx.Let(w, b, tirx.Select(v >= v, tirx.Select(wins(v, w), v, w), v)))


def _constant(value: Expr) -> bool:
    """Whether a value is a constant in every lane, and not NaN."""
    if isinstance(value, tirx.Broadcast | tirx.Cast):
        return _constant(value.value)
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == value.value


def _lets(value: Expr) -> int:
    found: list[Any] = []
    structural_walk(value, (tirx.Let, found.append))
    return len(found)
