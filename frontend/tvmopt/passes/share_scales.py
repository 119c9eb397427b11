"""Scales of weights are tensors beside the weights, so that layers which differ in nothing else share a kernel."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tvmopt.passes.graph import Array, Expr, Graph, Rewrite, Var, const, op_name, rank, rewrite_pass, shape, with_attrs


@rewrite_pass("tvmopt.ShareScales")
class ShareScales(Rewrite):
    """Take a constant that scales a scale of a run as a tensor of one element.

        Before                                           After
        y = R.multiply(p, R.multiply(s, 0.00128))        y = R.multiply(p, R.multiply(s, [0.00128]))

    That is how a product of rows which are rounded to 8 bits ends: with the scale `s` of the rows times that of the
    weights (onnxruntime's quantize_dynamic). A single number would become a part of the kernel's code, and each layer's
    kernel another one; a tensor is an argument. BERT-base in dynamic int8 has 24 kernels in place of 92.

    Applies when   `s` is one element that is no constant, `p` a float tensor of more.
    Gain           what the compiler takes for a kernel, for each further layer.
    Order          after the passes that look for scales, and know them by their number.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite one product of a tensor and a scale."""
        if op_name(value) != "multiply":
            return None
        for tensor, scale in graph.binary(var, "multiply"):
            if not _is_one(scale) or _is_one(tensor) or rank(tensor) < 1:
                continue
            for known, number in graph.binary(scale, "multiply"):
                given = graph.array(number)
                if given is None or given.shape != () or given.dtype != np.float32 or graph.is_const(known):
                    continue
                more = graph.emit(
                    with_attrs(graph.value(scale), [known, graph.remade(number, "a tensor", partial(_raised, given))]),
                    str(var.name),
                )
                self.applied(var, f"of {float(given):.3g}")
                return with_attrs(value, [tensor, more])
        return None


def _is_one(expr: Expr) -> bool:
    """Whether a tensor has one element."""
    sizes = shape(expr)
    return sizes is not None and math.prod(sizes) == 1


def _raised(number: Array) -> Expr:
    return const(number.reshape(1))
