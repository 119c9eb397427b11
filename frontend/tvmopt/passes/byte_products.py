"""What the model of costs sees of a product of quantised numbers - for the pass that chooses bytes or floats."""

from __future__ import annotations

from math import prod

from tvmopt.passes.graph import Call, ints, op_name, shape
from tvmopt.scheduling.byte_cost import Product

CONVOLUTIONS = {"nn.conv1d": "NCW", "nn.conv2d": "NCHW"}
"""Operators, and the layout of their data in which they are integer sums."""


def product_of(call: Call, zero: int, constant: bool = True) -> Product | None:
    """The product that a matmul, or a convolution in one of :data:`CONVOLUTIONS`, is; None where a size is open.

    Args:
        zero: the data's zero point. constant: of the second operand.
    """
    data, other, out = (shape(x) for x in (*call.args[:2], call))
    if data is None or other is None or not out or 0 in out:
        return None
    if op_name(call) == "matmul":
        second = 0 if constant else prod(other)
        lead, rows = (1, prod(out[:-1])) if constant else (prod(out[:-2]), out[-2])
        return Product(lead, 1, rows, out[-1], data[-1], read=prod(data), second=second)
    layout = str(call.attrs.kernel_layout)
    kernel = [other[layout.find(axis)] for axis in ("H", "W") if axis in layout]
    groups, pixels = int(call.attrs.groups), out[2:]
    return Product(
        out[0],
        pixels[0] if len(pixels) > 1 else 1,
        pixels[-1],
        out[1] // groups,
        data[1] // groups,
        (kernel[0] if len(kernel) > 1 else 1, kernel[-1]),
        groups,
        dense=set(ints(call.attrs.strides)) == {1} == set(ints(call.attrs.dilation)),
        border=bool(zero) and any(ints(call.attrs.padding)),
        read=prod(data),
    )
