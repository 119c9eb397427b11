"""Drop the taps of a convolution that only ever meet the border of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, const, ints, op_name, rewrite_pass, shape, with_attrs


@rewrite_pass("tvmopt.TrimTaps")
class TrimTaps(Rewrite):
    """Cut rows and columns of taps off a kernel that lie outside the picture for every output.

        Before                                            After
        y = R.nn.conv2d(x, W, padding=[1, 1, 1, 1])       y = R.nn.conv2d(x, W', padding=[0, 1, 0, 1])
                        # x [N, C, 1, L], W [O, C, 3, 3]                      # W' = W[:, :, 1:2, :]

    Applies when   picture and weights are known, the layout is NCHW, and no border becomes negative.
    Declines when  1. the weights are not finite (nothing is recorded): zeros times them are no zeros.
    Gain           products with zeros: two thirds of a 3x3 kernel over a picture of one row.
    Order          after FusePad, which gives the border to the convolution; before ConvertLayout.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite an NCHW convolution."""
        if op_name(value) != "nn.conv2d" or str(value.attrs.data_layout) != "NCHW":
            return None
        weight, image, out = graph.array(value.args[1]), shape(value.args[0]), shape(value)
        if weight is None or image is None or out is None or str(value.attrs.kernel_layout) != "OIHW":
            return None
        attrs = value.attrs
        padding, parts = ints(attrs.padding), [slice(None), slice(None)]
        for axis in (0, 1):
            first, last = _inside(
                weight.shape[2 + axis], ints(attrs.strides)[axis], ints(attrs.dilation)[axis], padding[axis],
                padding[axis + 2], image[2 + axis], out[2 + axis],
            )  # fmt: skip
            parts.append(slice(first, last))
            padding[axis] -= first * ints(attrs.dilation)[axis]
            padding[axis + 2] -= (weight.shape[2 + axis] - last) * ints(attrs.dilation)[axis]
        left = weight[tuple(parts)]
        if left.shape == weight.shape or not finite(weight):
            return None
        self.applied(var, op_name(value))
        return with_attrs(value, [value.args[0], const(left, value.args[1])], padding=padding)


def _inside(taps: int, stride: int, dilation: int, before: int, after: int, size: int, out: int) -> tuple[int, int]:
    """The first tap and the one behind the last that some output reads from the picture, as far as the border can be
    made so much narrower."""

    def never(tap: int) -> bool:
        places = range(tap * dilation - before, tap * dilation - before + out * stride, stride)
        return not any(0 <= place < size for place in places)

    first, last = 0, taps
    while first + 1 < last and never(first) and (first + 1) * dilation <= before:
        first += 1
    while last - 1 > first and never(last - 1) and (taps - last + 1) * dilation <= after:
        last -= 1
    return first, last


def finite(weight: Any) -> bool:
    """Whether zeros times the weights are zeros."""
    return weight.dtype.kind in "iu" or bool(np.isfinite(weight.astype("float32")).all())
