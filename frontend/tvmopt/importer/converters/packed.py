"""Weights of 2, 4 or 8 bits in blocks with a scale each: MatMulNBits, MatMulBnb4, GatherBlockQuantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from tvm import relax, te, tirx

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within

Array = npt.NDArray[Any]


def unpack(data: Array, bits: int, count: int) -> Array:
    """The first `count` codes of each row of bytes, the lowest bits of a byte first: [..., B] gives [..., count]."""
    if bits not in (2, 4, 8):
        raise ValueError(f"{bits} bits")
    parts = [(data >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1)[..., :count]


def matmul_nbits(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMulNBits: a constant weight of 2, 4 or 8 bits, quantised by blocks, is unpacked when the model is compiled."""
    b = Build(bb, ctx.name)
    k, n, bits, block = attrs["K"], attrs["N"], attrs.get("bits", 4), attrs["block_size"]
    if bits not in (2, 4, 8):
        raise ctx.unsupported(f"weights of {bits} bits", "quantise to 2, 4 or 8 bits")
    if attrs.get("weight_prepacked", 0):
        raise ctx.unsupported("weights that are packed for a GPU", "export the model with weight_prepacked = 0")
    packed, scales = ctx.array(inputs[1], "weight"), ctx.array(inputs[2], "scales")
    zeros, groups = ctx.array(inputs[3], "zero points"), ctx.array(inputs[4], "groups")
    assert packed is not None and scales is not None
    blocks = -(-k // block)
    codes = unpack(packed.reshape(n, -1).astype(np.uint8), bits, k)
    if zeros is None:
        offset: Array = np.full((n, blocks), 2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        offset = unpack(zeros.reshape(n, -1), bits, blocks)
    else:
        offset = zeros.reshape(n, blocks)
    of = np.arange(k) // block if groups is None else groups.reshape(-1)[:k]
    if groups is not None and (of.min(initial=0) < 0 or of.max(initial=0) >= blocks):
        raise ctx.invalid(f"A group of 'g_idx' is not one of the {blocks} of its weight.", "repair the model", 4)
    weight = codes.astype(np.float32) - offset.astype(np.float32)[:, of]
    weight *= scales.reshape(n, blocks).astype(np.float32)[:, of]
    out = b.matmul(inputs[0], const(np.ascontiguousarray(weight.T), dtype_of(inputs[0])))
    return out if inputs[5] is None else relax.op.add(out, inputs[5])


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
    k, n, block = attrs["K"], attrs["N"], attrs["block_size"]
    packed, largest = ctx.array(inputs[1], "weight"), ctx.array(inputs[2], "scales")
    assert packed is not None and largest is not None
    data = packed.reshape(-1)
    codes = np.stack([data >> 4, data & 15], -1).reshape(-1)[: n * k]
    table = np.array(_TABLES[attrs["quant_type"]], np.float32)
    weight = table[codes] * np.repeat(largest.reshape(-1).astype(np.float32), block)[: n * k]
    weight = weight.reshape(n, k).T if attrs.get("transB", 1) else weight.reshape(n, k)
    return b.matmul(inputs[0], const(np.ascontiguousarray(weight), dtype_of(inputs[0])))


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
    at = within(b, ctx, 1, "an index", -shape_of(data)[gathered], shape_of(data)[gathered] - 1)
    at = b.where(b.less(at, 0), b.add(at, shape_of(data)[gathered]), at)
    parts = [b.take(v, at, gathered) for v in (data, scales, zeros) if v is not None]
    extra = len(shape_of(at)) - 1
    axis = along + extra * (along > gathered)
    per, default = 8 // bits, 2 ** (bits - 1) if elem == TensorProto.UINT8 else 0
    shape = list(shape_of(parts[0]))
    shape[-1] *= per
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

        return te.compute(shape, element, name="dequantize_rows")

    return b.te(dequantize_rows, *parts)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
    ("com.microsoft", "MatMulBnb4"): matmul_bnb4,
    ("com.microsoft", "GatherBlockQuantized"): gather_block_quantized,
}
