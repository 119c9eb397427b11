"""Rows rounded to 8 bits, where a file allows it for a product of weights of a few bits."""

from __future__ import annotations

from tvmopt.operators.packed_product import OP, may_round, packing_of, rounded
from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass
from tvmopt.passes.without_kernel import Reason
from tvmopt.report import DecisionLog

STAGE = "tvmopt.RoundActivations"


@rewrite_pass(STAGE)
class RoundActivations(Rewrite):
    """Round the rows of a product of packed weights to 8 bits, and multiply integers.

        Before                                               After
        y = tvmopt.packed_product(x, codes, scales)          y = tvmopt.rounded_product(x, codes, scales)

    Applies when   the node allows it: `accuracy_level` 4, which onnxruntime-genai's builder writes.
    Declines when  1. no products of bytes are wanted, or rounding (`--int8 off`, `--exact`), or this machine multiplies
                   floats faster   2. the machine has no kernel
    Gain           a row waits for its weights only; many rows multiply four numbers a lane. Each number is off by half
                   a step of its group, max |x| / 127, at most: about 0.5 % of a product of random numbers.
    Order          before UnpackWeights, which makes floats of the weights that have no kernel.
    """

    def __init__(self, log: DecisionLog | None = None, unsupported: Reason | None = None, unwanted: str = "") -> None:
        super().__init__(log)
        self.unsupported = unsupported or (lambda call: None)
        self.unwanted = unwanted

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The product of rounded rows."""
        if op_name(value) != OP or not may_round(value):
            return None
        new = rounded(value)
        if self.unwanted or (reason := self.unsupported(new)) is not None:
            self.declined(var, f"1: {self.unwanted}" if self.unwanted else f"2: {reason}")  # Declines 1 and 2
            return None
        by = packing_of(value)
        self.applied(var, f"accuracy_level 4: rows rounded to 8 bits by {by.group}, weights of {by.bits} bits")
        return new
