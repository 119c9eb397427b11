"""Pixels of several phases side by side, as one Relax operator - for transposed convolutions of pictures of open size.

    y = tvmopt.interleave(z, [sy, sx], [top, left], [H, W])      z: [n, h, w, g * sy*sx * o]      y: [n, H, W, g * o]

    y[n, Y, X, (g, o)] = z[n, (Y + top) // sy, (X + left) // sx, (g, (Y + top) % sy, (X + left) % sx, o)]

As reshapes and transposes it divides by open sizes for each number, and TVM's analyzer takes minutes over it. Here the
divisors are numbers, and the channels of a pixel are copied as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.interleave"


def interleave(z: Any, strides: Sequence[int], begin: Sequence[int], size: Sequence[Any], groups: int = 1) -> Any:
    """The call.

    Args:
        strides: phases of a column and of a row. begin: rows and columns that are cut off in front.
        size: rows and columns of the result.
        groups: parts of the channels that each have all phases.
    """
    _register()
    numbers = [relax.ShapeExpr([int(v) for v in values]) for values in ((*strides, groups), begin)]
    return relax.Call(tvm.ir.Op.get(OP), [z, *numbers, relax.ShapeExpr(list(size))])


def _type(call: Any, _bb: Any) -> Any:
    z, (sy, sx, _), size = call.args[0].ty, map(int, call.args[1].values), list(call.args[3].values)
    batch, _, _, channels = z.shape
    return relax.TensorType([batch, *size, int(channels) // (sy * sx)], z.dtype)


def _loops(bb: relax.BlockBuilder, call: Any) -> Any:
    sy, sx, groups = map(int, call.args[1].values)
    top, left = map(int, call.args[2].values)

    def compute(z: te.Tensor, height: tirx.Expr, width: tirx.Expr) -> te.Tensor:
        phases = sy * sx
        each = int(z.shape[3]) // (phases * groups)

        def value(n: Any, y: Any, x: Any, c: Any) -> Any:
            row, column = y + top, x + left
            phase = row % sy * sx + column % sx
            if groups == 1:
                return z(n, row // sy, column // sx, phase * each + c)
            return z(n, row // sy, column // sx, (c // each * phases + phase) * each + c % each)

        return te.compute((z.shape[0], height, width, groups * each), value, name="interleave")

    return bb.call_te(compute, call.args[0], *call.args[3].values, primfunc_name_hint="interleave")


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, _loops)
