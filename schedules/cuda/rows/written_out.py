"""Norms that no kernel of rows takes, as Relax operators: of rows of an open length, and over axes that are not last.

TVM's layer, group and instance norms abort for float64 and bfloat16, and are E[x^2] - mu^2 for others; its RMS norm
squares float64 in float32.

    mean = mean(x, axes);  c = x - mean;  y = c * rsqrt(mean(c * c, axes) + eps) * gamma + beta
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

op = relax.op


def written_out(
    bb: relax.BlockBuilder, x: Any, axes: Sequence[Any], epsilon: float, centre: bool, affine: tuple[Any, Any],
    groups: int | None = None, channel: int | None = None,
) -> Any:  # fmt: skip
    """The norm over some axes.

    Args:
        affine: gamma and beta, of the sizes of the axes in ascending order, or of `channel`; None for one that there
            is not.
        groups: of channels, the second axis, of which each is one row with its pixels.
        channel: the axis that gamma and beta are of, where they are not of `axes`.
    """
    dtype, rank = str(x.ty.dtype), int(x.ty.ndim)
    kind = "float64" if dtype == "float64" else "float32"

    def emit(value: Any) -> Any:
        return bb.emit(value)

    def wide(value: Any) -> Any:
        return value if kind == str(value.ty.dtype) else emit(op.astype(value, kind))

    named = sorted(int(a) % rank for a in axes)
    value = wide(x)
    if groups is not None:
        sizes = x.ty.shape.values
        value, over = emit(op.reshape(value, (sizes[0], groups, -1))), [2]
    else:
        over = named
    if centre:
        value = emit(op.subtract(value, emit(op.mean(value, over, keepdims=True))))
    squares = emit(op.mean(emit(op.multiply(value, value)), over, keepdims=True))
    value = emit(op.multiply(value, emit(op.rsqrt(emit(op.add(squares, relax.const(epsilon, kind)))))))
    if groups is not None:
        value = emit(op.reshape(value, x.ty.shape))
    named = named if channel is None else [channel]
    for factor, combine in zip(affine, (op.multiply, op.add), strict=True):
        if factor is not None:
            others = [axis for axis in range(rank) if axis not in named]
            spread = emit(op.expand_dims(wide(factor), others)) if others else wide(factor)
            value = emit(combine(value, spread))
    return value if kind == dtype else op.astype(value, dtype)
