"""Convolutions and products of dequantized operands become products of the integers themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.lowering.quads import MOST_TERMS
from tvmopt.passes.byte_products import CONVOLUTIONS, product_of
from tvmopt.passes.convert_signed_quantization import OFFSET, signed, unsigned
from tvmopt.passes.graph import (
    Array,
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    ints,
    name_of,
    op_name,
    rewrite_pass,
    shape,
    sizes,
    with_attrs,
)
from tvmopt.passes.quantized import Params, constant_weight, dequantized
from tvmopt.report import DecisionLog
from tvmopt.scheduling.byte_cost import Product

LARGEST = 2**31 - 1
WORD = 4
Predicted = Callable[[Product], tuple[float, float]]
"""From a product to its nanoseconds in bytes and in floats."""


@dataclass(frozen=True)
class Operands:
    """x: uint8, real = (x - zero) * scale; weight + shifts: the integers less their zero points, weight fits into int8,
    shifts are one per column; scales: one per column, or one."""

    x: Expr
    params: Params
    weight: Array
    shifts: Array
    scales: Array


Activation = tuple[Expr, Params]
"""A tensor of bytes, and what numbers they stand for."""


@rewrite_pass("tvmopt.ConvertIntegerProducts")
class ConvertIntegerProducts(Rewrite):
    """Multiply uint8 by int8 and add up in int32; one multiplication behind it makes the real number.

        Before                                      After
        a = R.dequantize(q, s, z)                   p = R.nn.pad(q, [..., 1, 1, 1, 1], pad_value=z)
        w = R.dequantize(W, t, 0)                   i = R.nn.conv2d(p, W, padding=0, out_dtype="int32")
        y = R.nn.conv2d(a, w, padding=1)            j = R.add(i, -z * sum(W))
                                                    y = R.multiply(R.astype(j, "float32"), s * t)

    The border holds the zero point, which stands for the number 0: the constant that takes the zero point off is then
    the same for every pixel. It is an integer, so that the sum is exact. A zero point of 0 leaves the convolution's own
    padding and needs no constant. What follows (bias, activation, a residual, the next quantization) stays as it is and
    fuses into the product's kernel.

    A weight that does not fit into int8 less its zero points (uint8 around any number) is shifted, a number for each
    column, and the shift times the sum of what the weight is multiplied by is added: sums of rows, or of windows, which
    are a convolution with ones.

    A product of two activations, as attention has, takes both zero points off with sums of rows and columns:

        a = R.dequantize(p, s, z)                   i = R.matmul(p, q - 128, out_dtype="int32")
        b = R.dequantize(q, t, u)                   j = i + (128 - u) * sum(p, -1) + (const - z * sum(q - 128, -2))
        y = R.matmul(a, b)                          y = R.multiply(R.astype(j, "float32"), s * t)

    Applies when   the data is dequantized per tensor from 8 bits, the weight from a constant of 8 bits, per tensor or
                   per output channel; or both operands of a product of known sizes are such data.
    Declines when  1. an operand is not dequantized, or not per tensor
                   2. the weight is no constant, and of a convolution, or a product of open sizes
                   3. the weight less its zero points does not fit into int8, and there are groups of channels
                   4. its scales are not one an output channel
                   5. the sum can leave int32   6. channels of a group are not whole words of four
                   7. it would take longer in bytes, by the model of costs (`--int8 auto`)
    Gain           a quarter of the multiplications' instructions and of the bytes. Attention's products of 12 heads of
                   197 tokens, one thread, packing included: 780 -> 236 us and 526 -> 175 us.
    Order          before FoldConstant, which would make floats of the weights.
    """

    rounds = 1

    def __init__(self, log: DecisionLog | None = None, predicted: Predicted | None = None) -> None:
        super().__init__(log)
        self.predicted = predicted

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite one product."""
        name = op_name(value)
        if name not in (*CONVOLUTIONS, "matmul") or dtype(value) != "float32" or sizes(value) is None:
            return None
        if not _quantized(graph, value):
            return None
        if name == "matmul" and (both := _activations(graph, value)) is not None:
            if 4 * (shape(value.args[0]) or (0,))[-1] > MOST_TERMS:
                self.declined(var, "5: the sum can leave int32")  # Decline 5
                return None
            if not self._pays(var, value, both[0][1].zero, "matmul of uint8 and int8, two activations"):
                return None
            return _both(graph, both, name_of(var))
        found = self._operands(graph, name, value)
        if isinstance(found, str):
            self.declined(var, found)
            return None
        shifted = bool(found.shifts.any())
        if not self._pays(var, value, found.params.zero, f"{name} of uint8 and int8", constant=True, shifted=shifted):
            return None
        product = _convolution if name in CONVOLUTIONS else _matmul
        call = product(graph, value, found, name_of(var))
        total = graph.emit(call, name_of(var))
        if shifted:
            total = graph.emit(relax.op.add(total, _shifted(graph, call, found, name_of(var))), name_of(var))
        return _real(graph, value, total, found, name_of(var))

    def _pays(self, var: Var, call: Call, zero: int, what: str, constant: bool = False, shifted: bool = False) -> bool:
        """Whether a product is to be one of bytes; if not, what was predicted is recorded."""
        product = product_of(call, zero, constant) if self.predicted is not None else None
        if product is None or self.predicted is None:
            self.applied(var, what)
            return True
        taken, floats = (ns / 1e3 for ns in self.predicted(replace(product, shifted=shifted)))
        if taken > floats:
            self.declined(var, f"7: predicted to take {taken:.1f} us in bytes, {floats:.1f} in floats")  # Decline 7
            return False
        self.applied(var, what)
        return True

    def _operands(self, graph: Graph, name: str, call: Call) -> Operands | str:
        data, weight = dequantized(graph, call.args[0]), constant_weight(graph, call.args[1])
        if data is None:
            return "1: the data is not dequantized per tensor"  # Decline 1
        if weight is None:
            return "2: the weight is not a dequantized constant"  # Decline 2
        x, own = data
        integers, scales = weight
        columns = integers.ndim - 1
        if name in CONVOLUTIONS:
            columns = str(call.attrs.kernel_layout).find("O")
            if str(call.attrs.data_layout) != CONVOLUTIONS[name] or integers.ndim != len(CONVOLUTIONS[name]):
                return "1: the data is not an image, channels first"
            each = integers.shape[str(call.attrs.kernel_layout).find("I")]
            if int(call.attrs.groups) > 1 and each > 1 and each % WORD:
                return f"6: {each} channels a group"  # Decline 6
        elif integers.ndim != 2:
            return "2: the weight is not one matrix"
        if any(n != 1 for axis, n in enumerate(scales.shape) if axis != columns):
            return "4: the weight's scales are not one an output channel"  # Decline 4
        rest = tuple(axis for axis in range(integers.ndim) if axis != columns)
        shifts = np.zeros(integers.shape[columns], "int64")
        if integers.min(initial=0) < -128 or integers.max(initial=0) > 127:
            if name in CONVOLUTIONS and int(call.attrs.groups) > 1:
                return "3: the weight less its zero point does not fit into int8, in groups"  # Decline 3
            low = integers.min(axis=rest, keepdims=True) + 128
            integers, shifts = integers - low, low.reshape(-1)
        if int(np.abs(integers).sum(axis=rest).max(initial=0)) * 255 > LARGEST:
            return "5: the sum can leave int32"  # Decline 5
        if dtype(x) == "int8":
            x, own = graph.emit(unsigned(x), "unsigned"), Params(own.scale, own.zero + OFFSET)
        return Operands(x, own, integers, shifts, scales.reshape(-1))


def _activations(graph: Graph, call: Call) -> tuple[Activation, Activation] | None:
    """The operands of a product of two dequantized activations of known sizes, as uint8 and int8."""
    data = [dequantized(graph, a) for a in call.args[:2]]
    if data[0] is None or data[1] is None or constant_weight(graph, call.args[1]) is not None:
        return None
    if any((dims := shape(a)) is None or len(dims) < 2 or 0 in dims for a in call.args[:2]):
        return None  # Decline 2
    (x, own), (w, other) = data[0], data[1]
    if dtype(x) == "int8":
        x, own = graph.emit(unsigned(x), "unsigned"), Params(own.scale, own.zero + OFFSET)
    if dtype(w) == "uint8":
        w, other = graph.emit(signed(w), "signed"), Params(other.scale, other.zero - OFFSET)
    return (x, own), (w, other)


def _both(graph: Graph, operands: tuple[Activation, Activation], name: str) -> Expr:
    """The product of two activations: of the integers, less what their zero points add, times both scales."""
    (x, own), (w, other) = operands
    length = (shape(x) or (0,))[-1]
    total = graph.emit(relax.op.matmul(x, w, out_dtype="int32"), name)
    for tensor, axis, factor, more in ((x, -1, -other.zero, 0), (w, -2, -own.zero, length * own.zero * other.zero)):
        if factor:
            sums = graph.emit(relax.op.sum(graph.emit(relax.op.astype(tensor, "int32"), name), axis, True), name)
            shift = graph.emit(relax.op.multiply(sums, relax.const(np.int32(factor), "int32")), name)
            if more:
                shift = graph.emit(relax.op.add(shift, relax.const(np.int32(more), "int32")), name)
            total = graph.emit(relax.op.add(total, shift), name)
    real = graph.emit(relax.op.astype(total, "float32"), name)
    return relax.op.multiply(real, relax.const(np.float32(own.scale * other.scale), "float32"))


def _quantized(graph: Graph, call: Call) -> bool:
    return any(graph.op(a) == "dequantize" or constant_weight(graph, a) is not None for a in call.args[:2])


def _convolution(graph: Graph, call: Call, operands: Operands, name: str) -> Expr:
    padding = ints(call.attrs.padding)
    axes = len(padding) // 2
    x, changes = operands.x, {}
    if operands.params.zero and any(padding):
        width = [0, 0, 0, 0, *(padding[axis + side] for axis in range(axes) for side in (0, axes))]
        x = graph.emit(relax.op.nn.pad(x, width, pad_value=float(operands.params.zero)), name)
        changes = {"padding": [0] * len(padding)}
    return with_attrs(call, [x, _int8(operands.weight)], out_dtype="int32", **changes)


def _matmul(graph: Graph, call: Call, operands: Operands, name: str) -> Expr:
    return with_attrs(call, [operands.x, _int8(operands.weight)], out_dtype="int32")


def _shifted(graph: Graph, call: Call, operands: Operands, name: str) -> Expr:
    """What the shifts of the weight's columns add to a product of integers."""
    x = call.args[0]
    if op_name(call) == "matmul":
        sums = relax.op.sum(graph.emit(relax.op.astype(x, "int32"), name), -1, True)
        shifts = operands.shifts
    else:
        columns = str(call.attrs.kernel_layout).find("O")
        ones = np.ones_like(np.take(operands.weight, [0], axis=columns))
        sums = with_attrs(call, [x, _int8(ones)])
        shifts = operands.shifts.reshape(-1, *[1] * (operands.weight.ndim - 2))
    factor = relax.const(np.ascontiguousarray(shifts.astype("int32")), "int32")
    return graph.emit(relax.op.multiply(graph.emit(sums, name), factor), name)


def _int8(weight: Array) -> Any:
    return relax.const(np.ascontiguousarray(weight.astype("int8")), "int8")


def _real(graph: Graph, call: Call, total: Expr, operands: Operands, name: str) -> Expr:
    """The real numbers that sums of integers stand for."""
    dims, weight, own = sizes(call) or (), operands.weight, operands.params
    channel, columns = len(dims) - 1, 1
    if op_name(call) in CONVOLUTIONS:
        channel, columns = 1, str(call.attrs.kernel_layout).find("O")
    sums = weight.sum(axis=tuple(axis for axis in range(weight.ndim) if axis != columns))
    sums = sums + operands.shifts * (weight.size // len(sums))
    scale = own.scale * np.broadcast_to(operands.scales, sums.shape)

    def vector(values: Array) -> Any:
        return const(values.reshape([len(values) if axis == channel else 1 for axis in range(len(dims))]), like=call)

    if own.zero:
        shift = (-own.zero * sums).reshape([len(sums) if axis == channel else 1 for axis in range(len(dims))])
        total = graph.emit(relax.op.add(total, relax.const(shift.astype("int32"), "int32")), name)
    return relax.op.multiply(graph.emit(relax.op.astype(total, "float32"), name), vector(scale))
