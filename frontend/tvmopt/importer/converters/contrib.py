"""com.microsoft operators that optimised exports carry: fused GELUs and norms, packed and quantised operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within
from tvmopt.importer.converters.normalization import layer_norm, rms_norm
from tvmopt.importer.converters.quantized import ELEMENT_TYPES, real, saturate, stepped


def gelu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Gelu and BiasGelu: the exact one, of x or x + bias."""
    b = Build(bb, ctx.name)
    x = inputs[0] if inputs[1] is None else b.add(inputs[0], inputs[1])
    return b.unary(relax.op.nn.gelu, x)


def fast_gelu(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """FastGelu: the tanh approximation, of x or x + bias."""
    b = Build(bb, ctx.name)
    x = inputs[0] if inputs[1] is None else b.add(inputs[0], inputs[1])
    return b.unary(relax.op.nn.gelu_tanh, x)


def bias_add(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """BiasAdd: x + bias + residual."""
    return relax.op.add(Build(bb, ctx.name).add(inputs[0], inputs[1]), inputs[2])


def simplified_layer_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SimplifiedLayerNormalization is RMSNormalization; its second output is the inverse root mean square."""
    y = rms_norm(bb, inputs, attrs, ctx)
    if not ctx.wants(1):
        return y
    b = Build(bb, ctx.name)
    x = b.wide(inputs[0])
    axes = list(range(attrs.get("axis", -1) % len(shape_of(x)), len(shape_of(x))))
    mean = b.mean(b.mul(x, x), axes, True)
    return y, relax.op.rsqrt(b.add(mean, attrs.get("epsilon", 1e-5)))


def _skip_norm(simplified: bool) -> Converter:
    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        gamma = inputs[2]
        beta, bias = (None, inputs[3]) if simplified else (inputs[3], inputs[4])
        total = b.add(inputs[0], inputs[1])
        if bias is not None:
            total = b.add(total, bias)
        epsilon = {"epsilon": attrs.get("epsilon", 1e-12 if not simplified else 1e-5)}
        norm = rms_norm if simplified else layer_norm
        result = norm(bb, Inputs([total, gamma, beta]), epsilon, ctx)
        y, mean, inverse = (*(result if isinstance(result, tuple) else (result,)), None, None)[:3]
        return (y, mean, inverse, total)[: max(1, ctx.num_outputs)]

    return convert


def embed_layer_norm(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """EmbedLayerNormalization: word + position + segment embeddings, normalised; then lengths and the sum."""
    b = Build(bb, ctx.name)
    ids, _, word, position, segment, gamma, beta, mask, positions = (inputs[i] for i in range(9))
    batch, length = shape_of(ids)
    total = b.take(word, within(b, ctx, 0, "a token", 0, shape_of(word)[0] - 1), 0)
    if positions is None:
        total = b.add(total, b.slice(position, 0, 0, length))
    else:
        at = within(b, ctx, 8, "a position", 0, shape_of(position)[0] - 1)
        total = b.add(total, b.take(position, at, 0))
    if segment is not None:
        at = within(b, ctx, 1, "a segment", 0, shape_of(segment)[0] - 1)
        total = b.add(total, b.take(segment, at, 0))
    epsilon = {"epsilon": attrs.get("epsilon", 1e-12)}
    y = layer_norm(bb, Inputs([total, gamma, beta]), epsilon, ctx)[0]
    lengths = const(np.zeros(batch), "int32") if mask is None else b.cast(b.sum(mask, 1), "int32")
    return (y, lengths, total)[: max(1, ctx.num_outputs)]


def fused_matmul(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """FusedMatMul: ``alpha * op(A) op(B)``, transposing the last two axes (or batch with the rows)."""
    b = Build(bb, ctx.name)
    sides = []
    for x, side in zip(inputs[:2], "AB", strict=True):
        rank = len(shape_of(x))
        axes = list(range(rank))
        if attrs.get(f"transBatch{side}", 0):
            axes = [*axes[1:-1], axes[0], axes[-1]]
        if attrs.get(f"trans{side}", 0) and rank > 1:
            axes = [*axes[:-2], axes[-1], axes[-2]]
        sides.append(b.transpose(x, axes))
    out = b.matmul(*sides)
    alpha = attrs.get("alpha", 1.0)
    return out if alpha == 1 else b.mul(out, alpha)


def matmul_nbits(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MatMulNBits: a constant weight of 2, 4 or 8 bits, quantised by blocks, is unpacked when the model is compiled."""
    b = Build(bb, ctx.name)
    k, n, bits, block = attrs["K"], attrs["N"], attrs.get("bits", 4), attrs["block_size"]
    packed, scales = ctx.array(inputs[1], "weight"), ctx.array(inputs[2], "scales")
    zeros = ctx.array(inputs[3], "zero points")
    if inputs[4] is not None:
        raise ctx.unsupported("g_idx (reordered groups) is given", "quantise without act_order")
    assert packed is not None and scales is not None
    blocks = -(-k // block)

    def unpack(data: Any, count: int) -> Any:
        data = data.reshape(n, -1).astype(np.uint8)
        parts = [(data >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(n, -1)[:, :count]

    weight = unpack(packed, blocks * block).reshape(n, blocks, block).astype(np.float32)
    if zeros is None:
        offset: Any = np.float32(2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        offset = unpack(zeros, blocks).reshape(n, blocks, 1).astype(np.float32)
    else:
        offset = zeros.reshape(n, blocks, 1).astype(np.float32)
    weight = (weight - offset) * scales.reshape(n, blocks, 1).astype(np.float32)
    weight = np.ascontiguousarray(weight.reshape(n, -1)[:, :k].T)
    out = b.matmul(inputs[0], const(weight, dtype_of(inputs[0])))
    return out if inputs[5] is None else relax.op.add(out, inputs[5])


def _real(b: Build, x: Any, scale: Any, zero: Any) -> Any:
    """Dequantise, per tensor: by `R.dequantize` where the scale is a constant."""
    found = real(b, x, scale, zero)
    if found is not None:
        return found
    value = b.cast(x, "float32")
    if zero is not None:
        value = b.sub(value, b.cast(b.reshape(zero, ()), "float32"))
    return b.mul(value, b.reshape(scale, ()))


def _quantised(b: Build, x: Any, scale: Any, zero: Any, dtype: str) -> Any:
    """Quantise, per tensor: by `R.quantize` where the scale is a constant."""
    found = stepped(b, x, scale, zero, dtype)
    if found is not None:
        return b.emit(found)
    value = b.emit(relax.op.round(b.div(x, b.reshape(scale, ()))))
    if zero is not None:
        value = b.add(value, b.cast(b.reshape(zero, ()), "float32"))
    return saturate(b, value, ELEMENT_TYPES[dtype])


def _qlinear_binary(op: Callable[[Any, Any], Any]) -> Converter:
    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        left, right = _real(b, *[inputs[i] for i in range(3)]), _real(b, *[inputs[i] for i in range(3, 6)])
        return _quantised(b, b.emit(op(left, right)), inputs[6], inputs[7], dtype_of(inputs[0]))

    return convert


def _qlinear_unary(op: Callable[[Build, Any, dict[str, Any]], Any]) -> Converter:
    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        value = op(b, _real(b, *[inputs[i] for i in range(3)]), attrs)
        return _quantised(b, b.emit(value), inputs[3], inputs[4], dtype_of(inputs[0]))

    return convert


def _global_pool(b: Build, x: Any, attrs: dict[str, Any]) -> Any:
    rank = len(shape_of(x))
    axes = range(1, rank - 1) if attrs.get("channels_last", 0) else range(2, rank)
    return b.mean(x, list(axes), True)


def qlinear_concat(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """QLinearConcat: each part brought to the output's scale."""
    b = Build(bb, ctx.name)
    parts = []
    for i in range(2, len(inputs), 3):
        value = _real(b, inputs[i], inputs[i + 1], inputs[i + 2])
        parts.append(_quantised(b, value, inputs[0], inputs[1], dtype_of(inputs[i])))
    return b.concat(parts, attrs["axis"] % len(shape_of(parts[0])))


def _leaky(b: Build, x: Any, attrs: dict[str, Any]) -> Any:
    return relax.op.nn.leakyrelu(x, attrs.get("alpha", 0.01))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("com.microsoft", "Gelu"): gelu,
    ("com.microsoft", "BiasGelu"): gelu,
    ("com.microsoft", "FastGelu"): fast_gelu,
    ("com.microsoft", "BiasAdd"): bias_add,
    ("", "SimplifiedLayerNormalization"): simplified_layer_norm,
    ("com.microsoft", "SimplifiedLayerNormalization"): simplified_layer_norm,
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm(False),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_norm(True),
    ("com.microsoft", "EmbedLayerNormalization"): embed_layer_norm,
    ("com.microsoft", "FusedMatMul"): fused_matmul,
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
    ("com.microsoft", "QLinearAdd"): _qlinear_binary(relax.op.add),
    ("com.microsoft", "QLinearMul"): _qlinear_binary(relax.op.multiply),
    ("com.microsoft", "QLinearSigmoid"): _qlinear_unary(lambda b, x, attrs: relax.op.sigmoid(x)),
    ("com.microsoft", "QLinearLeakyRelu"): _qlinear_unary(_leaky),
    ("com.microsoft", "QLinearGlobalAveragePool"): _qlinear_unary(_global_pool),
    ("com.microsoft", "QLinearConcat"): qlinear_concat,
}
