"""Values that must be in range, where no kernel can raise an error (a GPU's): clamped, and fused into what reads them.

It is the form of `tvmopt.checked` that TVM's LegalizeOps finds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tvm import relax, te, tirx

from tvmopt.operators.checks import check_of, define


@lru_cache(maxsize=1)
def install() -> None:
    """Register the form with TVM, once a process."""
    define(clamp)


def clamp(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The nearest allowed values; 1 for a divisor of 0."""
    rule = check_of(call)

    def clamped(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            value, dtype = x(*at), x.dtype

            def number(bound: int) -> Any:
                return tirx.const(bound, dtype)

            if not rule.lowest:
                return tirx.Select(tirx.EQ(value, number(0)), number(1), value)
            low, high = number(rule.lowest[0]), number(rule.highest[0])
            for k in range(1, len(rule.lowest)):
                low = tirx.Select(at[-1] == k, number(rule.lowest[k]), low)
                high = tirx.Select(at[-1] == k, number(rule.highest[k]), high)
            value = te.max(te.min(value, high), low)
            return tirx.Select(value < number(0), value + high + number(1), value) if rule.wrap else value

        return te.compute(x.shape, element, name="clamped")

    return bb.call_te(clamped, call.args[0], primfunc_name_hint="clamp")
