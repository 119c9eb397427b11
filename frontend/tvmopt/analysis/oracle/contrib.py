"""Operators of com.microsoft that optimised exports carry, by their definitions in onnxruntime's documentation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tvmopt.analysis.oracle import quantized, recurrent
from tvmopt.analysis.oracle.elementwise import gelu, sigmoid
from tvmopt.analysis.oracle.quantized import rounded
from tvmopt.analysis.oracle.reductions import layer_norm, normalized, rms_norm
from tvmopt.analysis.oracle.values import ROUNDS, Array, Call, Operator, Result
from tvmopt.operators.codes import round_groups


def _bias_gelu(call: Call, x: Array, bias: Array | None = None) -> Result:
    return gelu(x if bias is None else x + bias, call.op == "FastGelu")


def _quick_gelu(call: Call, x: Array) -> Result:
    alpha = x.dtype.type(call.single("alpha", 1.702))
    return x * sigmoid(alpha * x)


def _bias_add(call: Call, x: Array, bias: Array, skip: Array) -> Result:
    return x + bias + skip


def _skip_norm(call: Call, x: Array, skip: Array, gamma: Array, *rest: Array | None) -> Result:
    simple = call.op == "SkipSimplifiedLayerNormalization"
    beta, bias = (None, *rest, None)[:2] if simple else (*rest, None, None)[:2]
    total = x + skip if bias is None else x + skip + bias
    y, mean, inverse = normalized(total, (total.ndim - 1,), call.single("epsilon", 1e-12), not simple)
    y = y * gamma if beta is None else y * gamma + beta
    return [y, mean, inverse, total][: call.outputs]


def _fused_matmul(call: Call, a: Array, b: Array) -> Result:
    for name in ("transBatchA", "transBatchB"):
        if call.get(name, 0):
            a, b = (np.moveaxis(a, 0, -2), b) if name.endswith("A") else (a, np.moveaxis(b, 0, -2))
    a = a.swapaxes(-1, -2) if call.get("transA", 0) and a.ndim > 1 else a
    b = b.swapaxes(-1, -2) if call.get("transB", 0) and b.ndim > 1 else b
    return np.matmul(call.operand(a), call.operand(b)) * a.dtype.type(call.single("alpha", 1.0))


STATE = 16.0
"""By how many times `Arithmetic.edge` data and states are moved before they are rounded, as shares of the largest: a
state comes from sums of hundreds of products and two functions that engines approximate."""


def _dynamic_lstm(call: Call, x: Array, w: Array, r: Array, *rest: Array | None) -> Result:
    """An LSTM of the dequantized weights, whose data is rounded to 8 bits as a whole, and the state of each sequence in
    each step. onnxruntime rounds several sequences as one where its threads take them together."""
    *states, w_scale, w_zero, r_scale, r_zero = rest

    def wide(codes: Array, scale: Any, zero: Any) -> Array:
        scale, zero = (np.reshape(v, (len(codes), 1, -1)) for v in (scale, zero))
        values: Array = ((codes.astype(call.work) - zero) * scale).swapaxes(1, 2)
        return values

    def codes(values: Array) -> Array:
        return rounded(call.arithmetic.moved(values, np.asarray(STATE * np.abs(values).max(initial=0))))

    node = type(call.node)()
    node.CopyFrom(call.node)
    node.op_type = "LSTM"
    sides = wide(w, w_scale, w_zero), wide(r, r_scale, r_zero)
    return recurrent.recurrence(
        replace(call, node=node), codes(x), *sides, *states, before=lambda h: np.stack([codes(row) for row in h])
    )


def _codes(data: Array, bits: int, count: int) -> Array:
    """The first `count` codes of each row of bytes, the lowest bits first."""
    at = np.arange(count) * bits
    found: Array = (data[..., at // 8].astype(np.int64) >> (at % 8)) & (2**bits - 1)
    return found


def _matmul_nbits(
    call: Call, x: Array, packed: Array, scales: Array, zeros: Array | None = None, order: Array | None = None,
    bias: Array | None = None,
) -> Result:  # fmt: skip
    k, n, bits, block = (int(call.get(name, 4)) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-k // block)
    of = np.arange(k) // block if order is None else order.reshape(-1)[:k]
    if zeros is None:
        middle: Array = np.full((n, blocks), 2 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        middle = _codes(zeros.reshape(n, -1), bits, blocks)
    else:
        middle = zeros.reshape(n, blocks)
    if call.get(ROUNDS, 0):
        codes, steps = round_groups(x, block)
        x = (codes.astype(x.dtype) * steps).reshape(*x.shape[:-1], -1)[..., :k]
    weight = (_codes(packed.reshape(n, -1), bits, k) - middle[:, of]) * scales.reshape(n, blocks)[:, of]
    y = np.matmul(call.operand(x), call.operand(weight.T.astype(x.dtype)))
    return y if bias is None else y + bias


TABLE: dict[str, Operator] = {
    "Gelu": _bias_gelu,
    "BiasGelu": _bias_gelu,
    "FastGelu": _bias_gelu,
    "QuickGelu": _quick_gelu,
    "BiasAdd": _bias_add,
    "LayerNormalization": layer_norm,
    "SimplifiedLayerNormalization": rms_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "MatMulNBits": _matmul_nbits,
    "DynamicQuantizeLSTM": _dynamic_lstm,
    **{name: quantized.TABLE[name] for name in ("QuantizeLinear", "DequantizeLinear")},
}
