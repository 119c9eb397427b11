"""Lay images that are one pixel wide on their side: the register tile of a convolution lies along a row."""

from __future__ import annotations

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, ints, op_name, rewrite_pass, shape
from tvmopt.passes.one_row import in_one_row, picture


@rewrite_pass("tvmopt.TurnColumns")
class TurnColumns(Rewrite):
    """Write a convolution of a column as one of a row.

        Before                                    After
        y = R.nn.conv2d(x, W)   # [N, C, H, 1]    a = R.reshape(x, (N, C, 1, H))
                                # [O, I, K, 1]    b = R.nn.conv2d(a, W')        # [O, I, 1, K]
                                                  y = R.reshape(b, (N, O, H', 1))

    max_pool2d and avg_pool2d likewise. The reshapes are views, and cancel between two such layers.

    Applies when   image and kernel are one pixel wide, nothing is padded left or right, and the image is higher; the
                   batch may be open.
    Declines when  1. the layout is not NCHW.
    Gain           exporters from JAX and TensorFlow write 1-d convolutions so. 512 x 256 channels, 5 taps, 508 pixels:
                   a tile of one pixel reads a weight for each multiplication, 23 % of the roof. In
                   tiles of an open batch, where a row is one pixel: three to seven times as long (a busy Zen 4).
    Order          beside ConvertConv1d, before ConvertLayout.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a convolution or pooling of a column."""
        name = op_name(value)
        if name not in ("nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d"):
            return None
        attrs, x = value.attrs, picture(value.args[0])
        if x is None or picture(value) is None or len(x) != 3:
            return None
        convolution = name == "nn.conv2d"
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout)) if convolution else (str(attrs.layout), "OIHW")
        if layouts != ("NCHW", "OIHW"):
            self.declined(var, f"1: its layouts are {' and '.join(layouts)}")
            return None
        kernel = shape(value.args[1]) if convolution else (0, 0, *ints(attrs.pool_size))
        _, left, _, right = ints(attrs.padding)
        if kernel is None or (x[2], kernel[3], left, right) != (1, 1, 0, 0) or x[1] == 1:
            return None
        self.applied(var, name)
        return in_one_row(graph, var, value)
