"""Values that must be in range, looked at once, by a kernel of their own - before the kernels that index by them.

    bad = 0
    for i:                                                      LLVM makes vectors of it
        y[i] = x[i] + extent if x[i] < 0 else x[i]
        bad |= y[i] not in 0 ... extent - 1
    assert bad == 0

Its readers need no test in their loops: y depends on the check, so nothing reads before it. On a GPU there is no such
kernel: there values are clamped (lowering/clamp.py).
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.ir import StringImm
from tvm.s_tir import SBlock, SBlockRealize

from tvmopt.lowering.common import OPAQUE
from tvmopt.lowering.loops import everything, load, seq, store
from tvmopt.operators.checks import CHECKS, Check, check_of
from tvmopt.runtime.refused import KIND
from tvmopt.targets import Machine


def check(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | None:
    """`tvmopt.checked`, of any shape."""
    (x,) = call.args
    func = kernel(list(x.ty.shape), str(x.ty.dtype), check_of(call))
    return relax.call_tir(bb.add_func(func, "check"), [x], x.ty)


def kernel(shape: list[Any], dtype: str, rule: Check) -> tirx.PrimFunc:
    """The function of x and y; sizes may be symbols."""
    x, y = (tirx.decl_buffer(shape, dtype, name) for name in "xy")
    bad = tirx.decl_buffer((1,), "int32", "bad", scope="local")
    axes = [tirx.Var(f"i{k}", "int64") for k in range(len(shape))]

    def one(at: list[Any], component: int) -> Any:
        value = load(x, *at)
        passed, wrong = _judged(value, rule, component)
        mark = tirx.bitwise_or(load(bad, 0), tirx.Cast("int32", wrong))
        return seq([store(y, passed, *at), store(bad, mark, 0)])

    if len(rule.lowest) > 1:  # components of a position, each with an extent of its own
        *axes, _ = axes
        body = seq([one([*axes, k], k) for k in range(len(rule.lowest))])
    else:
        body = one(axes, 0)
    for var, extent in reversed(list(zip(axes, shape, strict=False))):
        body = tirx.For(var, tirx.const(0, "int64"), extent, tirx.ForKind.SERIAL, body)
    fine = tirx.EQ(load(bad, 0), tirx.const(0, "int32"))
    # TVM 0.27 calls its first two parameters `kind` and `condition`, and takes them the other way round
    said = tirx.AssertStmt(fine, StringImm(KIND), [StringImm(rule.message)])
    statements = seq([store(bad, tirx.const(0, "int32"), 0), body, said])
    root = SBlock([], [everything(x)], [everything(y)], "root", statements, alloc_buffers=[bad])
    function = tirx.PrimFunc([x, y], SBlockRealize([], tirx.const(True, "bool"), root))
    attrs = {"tirx.noalias": True, "op_pattern": OPAQUE, "s_tir": True, "tirx.is_scheduled": True, CHECKS: True}
    return function.with_attrs(attrs)


def _judged(value: Any, rule: Check, component: int) -> tuple[Any, Any]:
    """What a value becomes, and whether it is not allowed."""
    dtype = value.ty.dtype
    if not rule.lowest:
        return value, tirx.EQ(value, tirx.const(0, dtype))
    low, high = rule.lowest[component], rule.highest[component]
    if rule.wrap:
        value = tirx.Select(value < tirx.const(0, dtype), value + tirx.const(high + 1, dtype), value)
        low = 0
    return value, tirx.Or(value < tirx.const(low, dtype), value > tirx.const(high, dtype))
