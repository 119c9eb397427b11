"""Divide by 1 where a size is 0, and plainly where nothing is negative - behind TVM's own passes of loops.

    Before                                            After
    rows = 262144 // columns                          rows = 262144 // (1 if columns == 0 else columns)
    for i in range(height // rows): ...               for i in range(height // rows): ...
    x[(i * width + j) // height]                      x[truncdiv(i * width + j, max(height, 1))]

A selection that finds nothing makes an axis of no elements. No loop along it runs, but what is computed before loops
does: how many rows a task has, and where they begin. A processor traps a division by zero, which ends the process.

Places are rounded down, and a processor rounds towards 0; TVM knows of no size that it is not negative and writes both
cases out, with four comparisons. Quotients of quotients of five open sizes (an InstanceNormalization of volumes) then
take its simplifier more than minutes, each condition simplified twice within the next. A size of a tensor, a place that
a loop counts and their sums, products and quotients are never negative: one division is enough.

Applies when   the divisor is one integer and no constant; plainly, where both operands are never negative.
Gain           compiling ends; a guard costs a comparison beside a division, which takes ten times as long.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_mutate, structural_walk

from tvmopt.lowering.loops import with_body

DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
PLAIN = {tirx.FloorDiv: tirx.Div, tirx.FloorMod: tirx.Mod}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
GROWS = (tirx.Add, tirx.Mul, tirx.Min, *DIVISIONS)


def guard_divisors(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    found: list[Any] = []
    structural_walk(func.body, (DIVISIONS, lambda node: None if _shifts(node.b) else found.append(node)))
    if not found:
        return func
    body = _Rewrite()(func.body)
    return func if body.same_as(func.body) else with_body(func, body)


GuardDivisors = tirx.transform.prim_func_pass(guard_divisors, opt_level=0, name="tvmopt.GuardDivisors")


def _shifts(divisor: Any) -> bool:
    """Whether TVM shifts in place of a division."""
    return isinstance(divisor, tirx.IntImm) and int(divisor).bit_count() == 1


class _Rewrite:
    """Knows the variables that are never negative: sizes of tensors, what loops count from 0, and names of such."""

    def __init__(self) -> None:
        self.counts: set[Any] = set()

    def __call__(self, body: Any) -> Any:
        handlers = [(tirx.DeclBuffer, self._sizes), (tirx.For, self._loop), (tirx.Bind, self._name)]
        return structural_mutate(body, (*handlers, *((kind, self._division) for kind in DIVISIONS)))

    def _sizes(self, node: Any, mutator: Any) -> Any:
        self.counts.update(size for size in node.buffer.shape if isinstance(size, tirx.Var))
        return mutator.default_mutate(node)

    def _loop(self, node: Any, mutator: Any) -> Any:
        if self._never_negative(node.min):
            self.counts.add(node.loop_var)
        return mutator.default_mutate(node)

    def _name(self, node: Any, mutator: Any) -> Any:
        if self._never_negative(node.value):
            self.counts.add(node.var)
        return mutator.default_mutate(node)

    def _division(self, node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        divisor = node.b
        dtype, known = str(divisor.ty.dtype), isinstance(divisor, tirx.IntImm)
        if dtype not in INTEGERS or _shifts(divisor):
            return node
        one = tirx.const(1, dtype)
        if type(node) in PLAIN and self._never_negative(node.a) and self._never_negative(divisor):
            return PLAIN[type(node)](node.a, divisor if known else tirx.Max(divisor, one))
        return node if known else type(node)(node.a, tirx.Select(divisor.equal(tirx.const(0, dtype)), one, divisor))

    def _never_negative(self, place: Any) -> bool:
        """Whether a place is made of such variables alone."""
        if isinstance(place, tirx.IntImm):
            return int(place) >= 0
        if isinstance(place, GROWS):
            return self._never_negative(place.a) and self._never_negative(place.b)
        if isinstance(place, tirx.Max):
            return self._never_negative(place.a) or self._never_negative(place.b)
        return place in self.counts if isinstance(place, tirx.Var) else False
