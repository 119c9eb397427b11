"""Give a convolution or pooling the padding that stands before it as an operator of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmopt.passes.graph import (
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    dtype,
    ints,
    op_name,
    rewrite_pass,
    shape,
    with_attrs,
)

OPERATORS = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.max_pool2d", "nn.avg_pool2d")


@rewrite_pass("tvmopt.FusePad")
class FusePad(Rewrite):
    """Add a pad of zeros to the padding of the operator that reads it.

        Before                                              After
        p = R.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1])           y = R.nn.conv2d(x, W, strides=[2, 2],
        y = R.nn.conv2d(p, W, strides=[2, 2])                               padding=[0, 0, 1, 1])

    TensorFlow's "SAME" padding is not symmetric, and exporters write it as an operator.

    Applies when   the pad is constant, of the image's axes only, and of the value that the operator pads
                   with: zero for convolutions, minus infinity for a maximum, zero that is counted for an
                   average.
    Declines when  1. the value is another one   2. batch or channels are padded
                   3. padding is negative (a crop)   4. the average does not count its padding
    Gain           a read and a write of the image.
    Order          before ConvertConv1d and ConvertLayout; after EliminateIdentities, which drops empty pads.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the reader of a pad."""
        name = op_name(value)
        pad = graph.call(value.args[0], "nn.pad") if name in OPERATORS else None
        if pad is None or shape(pad) is None:
            return None
        width, attrs = ints(pad.attrs.pad_width), value.attrs
        layout = str(getattr(attrs, "data_layout", None) or attrs.layout)
        pairs = [width[2 * i : 2 * i + 2] for i in range(len(layout))]
        reason = self._refusal(name, pad, value, layout, pairs)
        if reason:
            self.declined(var, reason)
            return None
        image = [p for c, p in zip(layout, pairs, strict=True) if c not in "NC"]
        own = ints(attrs.padding)
        more = [p[0] for p in image] + [p[1] for p in image]
        self.applied(var, f"{more}")
        padding = [a + b for a, b in zip(own, more, strict=True)]
        return with_attrs(value, [pad.args[0], *value.args[1:]], padding=padding)

    @staticmethod
    def _refusal(name: str, pad: Call, value: Call, layout: str, pairs: Sequence[Sequence[int]]) -> str:
        filled = float(pad.attrs.pad_value)
        if str(pad.attrs.pad_mode) != "constant":
            return f"1: it pads by mode {pad.attrs.pad_mode}"
        if "max_pool" in name:
            lowest = float(np.finfo(np.float32).min) if dtype(value).startswith("float") else None
            if lowest is None or filled > lowest:
                return "1: a maximum pads with the lowest value"
        elif filled != 0.0:
            return f"1: it pads with {filled:g}"
        if any(any(p) for c, p in zip(layout, pairs, strict=True) if c in "NC"):
            return "2: it pads the batch or the channels"
        if any(w < 0 for p in pairs for w in p):
            return "3: it crops"
        if "avg_pool" in name and not value.attrs.count_include_pad and any(w for p in pairs for w in p):
            return "4: the average does not count its padding"
        if "avg_pool" in name and value.attrs.ceil_mode:
            return "4: the average rounds its windows up"
        return ""
