"""Operators of ours in another form where the machine has no kernel for them - for one pass an operator."""

from __future__ import annotations

from collections.abc import Callable

from tvmopt.passes.graph import Call, Expr, Rewrite, op_name
from tvmopt.report import DecisionLog

Reason = Callable[[Call], "str | None"]
"""Why the machine has no kernel for this call, or None if it has one."""


class WithoutKernel(Rewrite):
    """Base of a pass that writes the calls of one operator for which there is no kernel in another form.

    Args:
        unsupported: see :data:`Reason`; default: no machine has such kernels.
    """

    operator = ""

    def __init__(self, log: DecisionLog | None = None, unsupported: Reason | None = None) -> None:
        super().__init__(log)
        self.unsupported = unsupported or (lambda call: "no kernel")

    def reason(self, value: Expr) -> str | None:
        """Why a call of the operator needs the other form; None where it does not, and for anything else."""
        return self.unsupported(value) if op_name(value) == self.operator else None
