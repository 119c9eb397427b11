"""Convolutions and poolings along one spatial axis, of images one pixel high - for the passes that find them."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvmopt.passes.graph import Call, Expr, Graph, Var, ints, name_of, op_name, shape


def picture(expr: Expr) -> tuple[int, ...] | None:
    """The sizes of a picture behind its batch, which may be open; None where one of them is not known."""
    known = [int(d.value) for d in _sizes(expr)[1:] if isinstance(d, tirx.IntImm)]
    return tuple(known) if known and len(known) == len(_sizes(expr)) - 1 else None


def is_row(expr: Expr) -> bool:
    """Whether a tensor has three axes, the second of a known size: pictures of one row, channels first."""
    sizes = _sizes(expr)
    return len(sizes) == 3 and isinstance(sizes[1], tirx.IntImm)


def _sizes(expr: Expr) -> list[Any]:
    """TVM's expressions of the shape; none where it is not known."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return []
    return list(ty.shape.values)


def in_one_row(graph: Graph, var: Var, call: Call) -> Expr:
    """The 2-d operator along a row that computes the same, in the shape of `call`.

    Args:
        call: a convolution or pooling, channels first, of known channels. Its first spatial axis is the only one that
            it has or the only one longer than one; nothing is padded along the other.
    """
    attrs, name = call.attrs, op_name(call)
    pads = ints(attrs.padding)
    along = dict(
        strides=(1, ints(attrs.strides)[0]),
        padding=(0, pads[0], 0, pads[len(pads) // 2]),
        dilation=(1, ints(attrs.dilation)[0]),
    )
    row = graph.emit(_row(graph, var, call.args[0]), name_of(var))
    if name.startswith("nn.conv"):
        outputs, inputs, taps = (shape(call.args[1]) or ())[:3]
        weight = relax.op.reshape(call.args[1], (outputs, inputs, 1, taps))
        new = relax.op.nn.conv2d(row, weight, groups=int(attrs.groups), out_dtype=attrs.out_dtype or None, **along)
    else:
        pool = relax.op.nn.max_pool2d if name.startswith("nn.max") else relax.op.nn.avg_pool2d
        new = pool(
            row,
            pool_size=(1, ints(attrs.pool_size)[0]),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            **along,
        )
    return relax.op.reshape(graph.emit(new, name_of(var)), list(call.ty.shape.values))


def _row(graph: Graph, var: Var, x: Expr) -> Expr:
    """A tensor [N, C, W], or [N, C, H, 1], as an image one pixel high. A border around it stays right before what reads
    it: convolutions of bytes take one over that is filled with a zero point."""
    n, channels, length = _sizes(x)[:3]
    pad = graph.call(x, "nn.pad")
    width = [] if pad is None else ints(pad.attrs.pad_width)
    if pad is None or any(width[:4]) or any(width[6:]) or str(pad.attrs.pad_mode) != "constant":
        return relax.op.reshape(x, (n, channels, 1, length))
    row = graph.emit(_row(graph, var, pad.args[0]), name_of(var))
    return relax.op.nn.pad(row, [0, 0, 0, 0, 0, 0, *width[4:6]], pad_value=float(pad.attrs.pad_value))
