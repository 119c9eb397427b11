"""Weights that are subnormal numbers count as zero: a processor takes a hundred cycles for each."""

from __future__ import annotations

from functools import partial

import numpy as np

from tvmopt.passes.graph import Array, Expr, Graph, Rewrite, Var, const, op_name, rewrite_pass, with_attrs

PRODUCTS = ("matmul", "nn.conv2d", "nn.conv1d", "nn.conv3d", "nn.conv2d_transpose", "nn.conv1d_transpose")
LEAST = float(np.finfo(np.float32).smallest_normal)
"""The smallest normal number of float32, 2^-126."""
LARGEST = 2.0**-64
"""The largest weight is at least this where subnormal ones count as zero: they are less than 2^-62 of it."""

PIECE = 1 << 16
"""Weights that are looked at together."""


@rewrite_pass("tvmopt.ZeroSubnormals")
class ZeroSubnormals(Rewrite):
    """Make zeros of subnormal weights and biases of float32 products and convolutions.

        Before                              After
        y = R.add(R.matmul(x, W), b)        y = R.add(R.matmul(x, W'), b')   # W' = W where |W| >= 2^-126, else 0

    Training with weight decay leaves them in channels that are not used: a quarter of the weights of PP-OCRv4's
    recogniser's gates, six tenths of a layer of PP-OCRv6's detector. A product with one of them is done by microcode,
    for all lanes of the vector: one row times 480 x 120 weights took 181 us instead of 7 (Xeon), a whole text of
    48x64 pixels 1.57 ms instead of 1.32. OpenVINO leaves such weights out, too. Where all weights of a channel are
    zero, its results are its bias, and so is what is done with them: two layers of that detector, each with a GELU,
    took 9.5 ms instead of 3.9.

    Applies when   an operand of a float32 product or convolution is a constant of two or more dimensions, or a
                   constant is added to its result.
    Declines when  1. its largest number is below 2^-64: small numbers are what it is about then.
    Gain           some 150 cycles for each vector of weights that has one, a row of the other operand.
    Order          after everything that scales weights.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite one product."""
        product = op_name(value) in PRODUCTS
        if not product and not any(graph.op(data) in PRODUCTS for data, _ in graph.binary(value, "add")):
            return None
        args, found = list(value.args), 0
        for i, arg in enumerate(args):
            weight = graph.array(arg)
            if weight is None or weight.ndim < 1 + product or weight.dtype != np.float32:
                continue
            if not _has_subnormal(weight):
                continue
            small = subnormal(weight)
            if not np.abs(weight).max() >= LARGEST:
                self.declined(var, "1: all of its numbers are tiny")
                continue
            args[i] = graph.remade(arg, "zeros", partial(_without, weight, small))
            found += int(small.sum())
        if not found:
            return None
        self.applied(var, f"{found} of the {'weights of ' + op_name(value) if product else 'biases'}")
        return with_attrs(value, args)


def _without(weight: Array, small: Array) -> Expr:
    return const(np.where(small, np.float32(0), weight))


def _has_subnormal(weight: Array) -> bool:
    """Whether there is one: most weights have none, and to look piece by piece, in cache, takes a sixth of the time."""
    flat = weight.reshape(-1)
    return any(subnormal(flat[i : i + PIECE]).any() for i in range(0, flat.size, PIECE))


def subnormal(weight: Array) -> Array:
    """Which numbers of float32 are neither zero nor normal.

    >>> subnormal(np.array([0, -0.0, 1e-40, -1e-40, 2e-38, np.nan, np.inf], "float32")).tolist()
    [False, False, True, True, False, False, False]
    """
    bits = np.ascontiguousarray(weight).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return np.asarray(bits - np.uint32(1) < np.uint32(0x007FFFFF))
