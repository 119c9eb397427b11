"""Weights of 2, 4 or 8 bits in blocks with a scale each: MatMulNBits, MatMulBnb4, GatherBlockQuantized."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from tvm import relax, te, tirx

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import index
from tvmopt.operators.codes import Array, is_group, unpack
from tvmopt.operators.packed_product import Packing, matrix, packed_product


def matmul_nbits(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMulNBits: a product of packed weights; with reordered groups, or in 16 bits, one of the unpacked matrix."""
    b = Build(bb, ctx.name)
    packing = Packing(attrs["K"], attrs["N"], attrs.get("bits", 4), attrs["block_size"])
    if packing.bits not in (2, 4, 8):
        raise ctx.unsupported(f"weights of {packing.bits} bits", "quantise to 2, 4 or 8 bits")
    if not is_group(packing.group):
        raise ctx.unsupported(f"blocks of {packing.group}", "quantise by blocks of 16, 32, 64, 128 or 256")
    if attrs.get("weight_prepacked", 0):
        raise ctx.unsupported("weights that are packed for a GPU", "export the model with weight_prepacked = 0")
    packed, scales = ctx.array(inputs[1], "weight"), ctx.array(inputs[2], "scales")
    zeros, order = ctx.array(inputs[3], "zero points"), ctx.array(inputs[4], "groups")
    assert packed is not None and scales is not None
    n, groups = packing.n, packing.groups
    codes = packed.reshape(n, groups, -1).astype(np.uint8)
    scales = scales.reshape(n, groups).astype(np.float32)
    if zeros is not None:
        zeros = unpack(zeros.reshape(n, -1), packing.bits, groups) if zeros.dtype == np.uint8 else zeros
        zeros = zeros.reshape(n, groups).astype(np.float32)
    if order is None and dtype_of(inputs[0]) == "float32":
        points = None if zeros is None else const(zeros, "float32")
        weights = const(codes, "uint8"), const(scales, "float32"), points
        out = b.emit(packed_product(inputs[0], packing, *weights, level=attrs.get("accuracy_level", 0)))
    else:
        if order is None:
            weight = matrix(packing, codes, scales, zeros)
        else:
            weight = _ordered(ctx, packing, order, codes, scales, zeros)
        out = b.matmul(inputs[0], const(weight, dtype_of(inputs[0])))
    return out if inputs[5] is None else relax.op.add(out, inputs[5])


def _ordered(ctx: Context, packing: Packing, order: Array, codes: Array, scales: Array, zeros: Array | None) -> Array:
    """The matrix [k, n] where `order` names the group of each of the k rows."""
    of = order.reshape(-1)[: packing.k]
    if of.min(initial=0) < 0 or of.max(initial=0) >= packing.groups:
        raise ctx.invalid(f"A group of 'g_idx' is not one of {packing.groups}.", "repair the model", 4)
    wide = unpack(codes.reshape(packing.n, -1), packing.bits, packing.k).astype(np.float32)
    wide -= np.float32(2 ** (packing.bits - 1)) if zeros is None else zeros[:, of]
    return np.ascontiguousarray((wide * scales[:, of]).T)


_FP4 = (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_TABLES = {0: (*_FP4, *(-v for v in _FP4)), 1: _NF4}
"""The numbers that the codes of FP4 and NF4 stand for, as bitsandbytes has them."""


def matmul_bnb4(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMulBnb4: the codes of [N, K] one after the other, the first in the high half of a byte, in blocks with a
    largest magnitude each."""
    b = Build(bb, ctx.name)
    if not attrs.get("transB", 1):
        raise ctx.unsupported("a matrix that is not transposed", "export it with transB = 1")
    k, n, block = attrs["K"], attrs["N"], attrs["block_size"]
    packed, largest = ctx.array(inputs[1], "weight"), ctx.array(inputs[2], "scales")
    assert packed is not None and largest is not None
    data = packed.reshape(-1)
    codes = np.stack([data >> 4, data & 15], -1).reshape(-1)[: n * k]
    table = np.array(_TABLES[attrs["quant_type"]], np.float32)
    weight = table[codes] * np.repeat(largest.reshape(-1).astype(np.float32), block)[: n * k]
    return b.matmul(inputs[0], const(np.ascontiguousarray(weight.reshape(n, k).T), dtype_of(inputs[0])))


def gather_block_quantized(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GatherBlockQuantized: rows are gathered as they are stored, and dequantized when they are."""
    b = Build(bb, ctx.name)
    elem = ctx.input_elem_types[0]
    if elem not in (TensorProto.INT4, TensorProto.UINT4, TensorProto.UINT8):
        raise ctx.unsupported("a table of small floats", "quantise it to integers")
    bits = attrs.get("bits", 4) if elem == TensorProto.UINT8 else 8  # a small integer is held in a byte here
    data, scales, zeros = inputs[0], inputs[2], inputs[3]
    rank, block = len(shape_of(data)), attrs.get("block_size", 128)
    gathered, along = attrs.get("gather_axis", 0) % rank, attrs.get("quantize_axis", 1) % rank
    if gathered == along or (bits < 8 and gathered == rank - 1):
        raise ctx.unsupported("it gathers along the axis of the blocks", "quantise along another axis")
    at = index(b, ctx, 1, [shape_of(data)[gathered]])
    parts = [b.take(v, at, gathered) for v in (data, scales, zeros) if v is not None]
    extra = len(shape_of(at)) - 1
    axis = along + extra * (along > gathered)
    per, default = 8 // bits, 2 ** (bits - 1) if elem == TensorProto.UINT8 else 0
    dtype = dtype_of(scales)

    def code(packed: te.Tensor, place: list[Any]) -> Any:
        """The code at a place of the unpacked tensor, as float32."""
        if per == 1:
            return packed(*place).astype("float32")
        byte = packed(*place[:-1], place[-1] // per).astype("int32")
        return ((byte >> (place[-1] % per * bits)) & tirx.const(2**bits - 1, "int32")).astype("float32")

    def dequantize_rows(*given: te.Tensor) -> te.Tensor:
        def element(*place: Any) -> Any:
            own = [p // block if i == axis else p for i, p in enumerate(place)]
            zero = code(given[2], own) if len(given) > 2 else tirx.const(float(default), "float32")
            return ((code(given[0], list(place)) - zero) * given[1](*own).astype("float32")).astype(dtype)

        *lead, packed = given[0].shape
        return te.compute((*lead, packed * per), element, name="dequantize_rows")

    return b.te(dequantize_rows, *parts)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
    ("com.microsoft", "MatMulBnb4"): matmul_bnb4,
    ("com.microsoft", "GatherBlockQuantized"): gather_block_quantized,
}
