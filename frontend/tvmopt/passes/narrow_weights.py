"""Constant weights of products and convolutions as float16 in memory - for `--precision fp16` on CPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tvmopt.passes.graph import Array, Call, Expr, Graph, Rewrite, Var, const, dtype, op_name, rewrite_pass, with_attrs
from tvmopt.report import DecisionLog

PRODUCTS = ("matmul", "nn.conv2d")
LOST = 2.0**-10
"""How far the root mean square of what rounding changes may lie below that of the weights."""

Reason = Callable[[str, Call], "str | None"]
"""Why a call (the name of its operator, the call) keeps weights of fp32, or None if it does not."""


@rewrite_pass("tvmopt.NarrowWeights")
class NarrowWeights(Rewrite):
    """Keep the weights of products in half the bytes; a kernel widens each as it loads it, and computes in float32.

        Before                              After
        y = R.matmul(x, W)                  y = R.matmul(x, W16, out_dtype="float32")

    CPUs have no product of float16 numbers that adds up in float32 and is faster than that of float32, so activations
    stay as they are: nothing overflows that would not in fp32, and only the weights are rounded (to nearest, ties to
    even), here, at compile time.

    Applies when   a float32 product or convolution has a constant of two or more dimensions as its second operand.
    Declines when  1. the weights do not fit into float16: one is more than 65504 or no number, or they are so small
                      that rounding takes more than its 11 digits
                   2. the machine has no such kernel, or one of fp32 that is faster; `unsupported` says why
                   3. a kernel has one input channel a group (depthwise convolution: its weights are few).
    Gain           half the bytes of weights: what a product of few rows takes its time for.
    Order          after everything that looks for float32 patterns, where ConvertPrecision stands for other machines.

    Args:
        unsupported: see :data:`Reason`; default: every kernel is there.
    """

    def __init__(self, log: DecisionLog | None = None, unsupported: Reason | None = None) -> None:
        super().__init__(log)
        self.unsupported = unsupported or (lambda name, call: None)

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite one product."""
        name = op_name(value)
        if name not in PRODUCTS or [dtype(a) for a in value.args[:2]] != ["float32", "float32"]:
            return None
        weight = graph.array(value.args[1])
        if weight is None or weight.ndim < 2:
            return None
        reason = self._declines(name, value, weight)
        if reason:
            self.declined(var, reason)
            return None
        self.applied(var, f"{name} with weights of float16, computed in float32")
        narrow = graph.remade(value.args[1], "float16", lambda: const(weight.astype(np.float16)))
        return with_attrs(value, [value.args[0], narrow], out_dtype="float32")

    def _declines(self, name: str, call: Call, weight: Array) -> str:
        if not fits(weight):
            return "1: the weights do not fit into float16"  # Decline 1
        if (reason := self.unsupported(name, call)) is not None:
            return f"2: {reason}"  # Decline 2
        if name == "nn.conv2d" and weight.shape[str(call.attrs.kernel_layout).find("I")] == 1:
            return "3: one input channel a group"  # Decline 3
        return ""


def fits(weight: Array) -> bool:
    """Whether float16 holds these weights with its 11 digits.

    >>> [fits(np.array([1e-3, w], "float32")) for w in (2.0, 1e-9, 7e4, np.nan)]
    [True, True, False, False]
    >>> fits(np.array([1e-7, 2.5e-7], "float32"))
    False
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exact = weight.astype(np.float64)
        lost = weight.astype(np.float16) - exact
        return bool(np.isfinite(lost).all() and (lost**2).sum() <= LOST**2 * (exact**2).sum())
