"""Choose channels-last for the poolings that no convolution has turned: a window's vectors are of channels."""

from __future__ import annotations

from math import prod

from tvm import relax

from tvmopt.passes.convert_layout import TO_NCHW, TO_NHWC
from tvmopt.passes.graph import (
    Expr,
    Graph,
    Rewrite,
    Var,
    dtype,
    ints,
    name_of,
    op_name,
    rewrite_pass,
    shape,
    with_attrs,
)

CHANNELS, TAPS = 16, 9
"""The fewest of a pooling that is worth two transposes."""
ROW = 32
"""Pixels of a row from which vectors along it are as good."""


@rewrite_pass("tvmopt.ConvertPoolLayout")
class ConvertPoolLayout(Rewrite):
    """Compute a pooling that is still NCHW in NHWC, between two transposes.

        Before                                  After
        y = R.nn.max_pool2d(x)                  t = R.permute_dims(x, axes=[0, 2, 3, 1])
                                                p = R.nn.max_pool2d(t, layout="NHWC")
                                                y = R.permute_dims(p, axes=[0, 3, 1, 2])

    Applies when   it is a 2-d maximum or average of float32, with 16 channels or more, a window of 9 taps or more, and
                   rows of 32 pixels or fewer.
    Gain           along a short row there are few whole vectors. Alone on one core, transposes included:
                   320 x 28 x 28, 3 x 3 by 2, 221 us before and 57 now; 512 x 14 x 14, 3 x 3, 80 and 67. It is a loss
                   for 64 x 112 x 112 (190 and 220) and for windows of 2 x 2 (512 x 28 x 28: 69 and 126).
    Order          after PropagateTransposes, which would cancel the two transposes.
    """

    rounds = 1

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite an NCHW pooling."""
        name = op_name(value)
        if name not in ("nn.max_pool2d", "nn.avg_pool2d"):
            return None
        attrs, image = value.attrs, shape(value.args[0])
        if str(attrs.layout) != "NCHW" or str(attrs.out_layout or "NCHW") != "NCHW" or image is None:
            return None
        if dtype(value) != "float32" or image[1] < CHANNELS or image[3] > ROW:
            return None
        if prod(ints(attrs.pool_size)) < TAPS:
            return None
        self.applied(var, name)
        data = relax.op.permute_dims(value.args[0], TO_NHWC)
        pooled = graph.emit(with_attrs(value, [data], layout="NHWC", out_layout="NHWC"), name_of(var))
        return relax.op.permute_dims(pooled, TO_NCHW)
