"""Make 1-d convolutions and poolings 2-d, with an image one pixel high: one family then serves both."""

from __future__ import annotations

from tvmopt.passes.graph import Expr, Graph, Rewrite, Var, op_name, rewrite_pass, shape
from tvmopt.passes.one_row import in_one_row, is_row


@rewrite_pass("tvmopt.ConvertConv1d")
class ConvertConv1d(Rewrite):
    """Write conv1d as conv2d.

        Before                                After
        y = R.nn.conv1d(x, W)   # [N, C, W]   a = R.reshape(x, (N, C, 1, W))
                                              b = R.nn.conv2d(a, W')        # [O, I, 1, K]
                                              y = R.reshape(b, (N, O, W))

    max_pool1d and avg_pool1d likewise. The reshapes are views, and cancel between two such layers.

    Applies when   the layout is NCW and the channels are known; batch and length may be open.
    Declines when  1. the layout is another, or the number of channels is not known.
    Gain           the convolution family's register tile (its 14 pixels are along W anyway).
    Order          before ConvertLayout, which knows 2-d convolutions; after FoldBatchNorm or before it.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a 1-d convolution or pooling."""
        name = op_name(value)
        if name not in ("nn.conv1d", "nn.max_pool1d", "nn.avg_pool1d"):
            return None
        attrs = value.attrs
        layout = str(attrs.data_layout if name == "nn.conv1d" else attrs.layout)
        if layout != "NCW" or not is_row(value.args[0]) or not is_row(value):
            self.declined(var, f"1: its layout is {layout}, or its channels are not known")
            return None
        if name == "nn.conv1d" and (shape(value.args[1]) is None or str(attrs.kernel_layout) != "OIW"):
            self.declined(var, f"1: its kernel layout is {attrs.kernel_layout}, or not static")
            return None
        self.applied(var, name)
        return in_one_row(graph, var, value)
