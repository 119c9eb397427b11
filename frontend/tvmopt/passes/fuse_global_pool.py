"""Make one global pooling of two reduce-means, and of a pooling window that covers the whole image."""

from __future__ import annotations

from tvm import relax

from tvmopt.passes.graph import Call, Expr, Graph, Rewrite, Var, ints, op_name, rewrite_pass, shape

REDUCE = ("mean", "max", "min", "sum")


@rewrite_pass("tvmopt.FuseGlobalPool")
class FuseGlobalPool(Rewrite):
    """Reduce the image in one step.

        Before                                             After
        a = R.mean(x, axis=[3], keepdims=True)             b = R.mean(x, axis=[2, 3], keepdims=True)
        b = R.mean(a, axis=[2], keepdims=True)

        y = R.nn.avg_pool2d(x, pool_size=[7, 7])  # 7x7    y = R.mean(x, axis=[2, 3], keepdims=True)
        y = R.nn.adaptive_avg_pool2d(x, 1)                 y = R.mean(x, axis=[2, 3], keepdims=True)
        y = R.nn.max_pool2d(x, pool_size=[7, 7])           y = R.max(x, axis=[2, 3], keepdims=True)

    Also means without keepdims, maxima, minima and sums.

    Applies when   the window is the image and nothing is padded; the inner reduction has no other user.
    Declines when  1. the inner reduction is used elsewhere too
                   2. the window is the image, and padding is counted.
    Gain           a kernel; and one form for the reduction family.
    Order          after EliminateIdentities; before ConvertLayout.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite a pooling or the outer of two reductions."""
        name = op_name(value)
        if name in REDUCE:
            return self._pair(graph, var, name, value)
        if name in ("nn.avg_pool2d", "nn.max_pool2d", "nn.adaptive_avg_pool2d"):
            return self._window(var, name, value)
        return None

    def _pair(self, graph: Graph, var: Var, name: str, outer: Call) -> Expr | None:
        inner = graph.call(outer.args[0], name)
        if inner is None or inner.attrs.axis is None or outer.attrs.axis is None or shape(inner) is None:
            return None
        if bool(outer.attrs.keepdims) and not inner.attrs.keepdims:
            return None
        if not graph.single(outer.args[0]):
            self.declined(var, "1: the inner reduction is used elsewhere too")
            return None
        n = len(shape(inner.args[0]) or ())
        first = sorted(a % n for a in ints(inner.attrs.axis))
        if inner.attrs.keepdims:
            second = [a % n for a in ints(outer.attrs.axis)]
        else:
            left = [i for i in range(n) if i not in first]
            second = [left[a % len(left)] for a in ints(outer.attrs.axis)]
        axes, keep = sorted({*first, *second}), bool(outer.attrs.keepdims)
        reduce = getattr(relax.op, name)
        self.applied(var, f"{name} over {axes}")
        if inner.attrs.keepdims and not keep:  # the inner axes stay, with size 1, unless the outer names them
            return relax.op.reshape(reduce(inner.args[0], axes, keepdims=True), shape(outer))
        return reduce(inner.args[0], axes, keepdims=keep)

    def _window(self, var: Var, name: str, value: Call) -> Expr | None:
        layout, dims, out = str(value.attrs.layout), shape(value.args[0]), shape(value)
        if dims is None or out is None or layout not in ("NCHW", "NHWC"):
            return None
        axes = [layout.find("H"), layout.find("W")]
        image = [dims[a] for a in axes]
        if any(out[a] != 1 for a in axes):
            return None
        if not name.startswith("nn.adaptive"):
            window = ints(value.attrs.pool_size)
            if any(w < n for w, n in zip(window, image, strict=True)) or set(ints(value.attrs.dilation)) != {1}:
                return None  # a window beyond the image (ceil_mode) counts what it covers
            if any(ints(value.attrs.padding)):
                self.declined(var, "2: the window is the image, and padding is counted")
                return None
        self.applied(var, f"{name} of the whole image")
        reduce = relax.op.max if "max" in name else relax.op.mean
        return reduce(value.args[0], axes, keepdims=True)
