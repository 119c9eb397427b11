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
    n, channels, length = list(call.args[0].ty.shape.values)[:3]
    pads = ints(attrs.padding)
    along = dict(
        strides=(1, ints(attrs.strides)[0]),
        padding=(0, pads[0], 0, pads[len(pads) // 2]),
        dilation=(1, ints(attrs.dilation)[0]),
    )
    row = relax.op.reshape(call.args[0], (n, channels, 1, length))
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
