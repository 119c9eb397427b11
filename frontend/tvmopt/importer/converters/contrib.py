"""com.microsoft operators that optimised exports carry: fused GELUs, norms and products."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within
from tvmopt.importer.converters.normalization import layer_norm, rms_norm


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
    if segment is not None and inputs[1] is None:  # all tokens are of the first one
        total = b.add(total, b.slice(segment, 0, 0, 1))
    elif segment is not None:
        at = within(b, ctx, 1, "a segment", 0, shape_of(segment)[0] - 1)
        total = b.add(total, b.take(segment, at, 0))
    epsilon = {"epsilon": attrs.get("epsilon", 1e-12)}
    y = layer_norm(bb, Inputs([total, gamma, beta]), epsilon, ctx)[0]
    lengths = const(np.zeros(batch), "int32") if mask is None else b.sum(b.cast(b.equal(mask, 1), "int32"), 1)
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
}
