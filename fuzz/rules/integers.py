"""Quantisation: Q/DQ pairs, chains as quantizers write them, and operators on quantised numbers."""

from __future__ import annotations

import numpy as np

from fuzz.build import F32, I8, I32, U8, Builder, Reject, Value


def _steps(b: Builder, channels: int = 0) -> tuple[Value, Value, int]:
    """Scale and zero point, of the tensor or for each channel, and the quantised type."""
    kind = b.choice([U8, I8])
    shape = (channels,) if channels else ()
    scale = b.constant(b.rng.uniform(0.01, 0.1, shape), F32)
    low, high = (0, 256) if kind == U8 else (-128, 128)
    middle = (low + high) // 2
    zero = np.full(shape, middle) if b.chance(0.5) or channels else b.rng.integers(low, high, shape)
    return scale, b.constant(zero, kind), kind


def _quantised(b: Builder, value: Value) -> Value:
    scale, zero, _ = _steps(b)
    return b.node("DequantizeLinear", [b.node("QuantizeLinear", [value, scale, zero]), scale, zero])


def quantize(b: Builder) -> None:
    a = b.pick((F32,))
    axis = b.integer(0, a.rank - 1)
    channels = a.shape[axis] if b.chance(0.3) else 0
    scale, zero, _ = _steps(b, channels)
    attrs = {"axis": axis} if channels else {}
    q = b.node("QuantizeLinear", [a, scale, *([zero] if b.chance(0.8) else [])], **attrs)
    if b.chance(0.7):
        b.node("DequantizeLinear", [q, scale, *([zero] if q.dtype == zero.dtype else [])], **attrs)


def dequantize(b: Builder) -> None:
    a = b.pick((U8, I8, I32), (1, 2, 3, 4))
    scale = b.constant(b.rng.uniform(0.01, 0.1), F32)
    zero = b.constant(b.integer(0, 100), a.dtype) if a.dtype != I32 and b.chance(0.7) else None
    b.node("DequantizeLinear", [a, scale, *([zero] if zero else [])])


def dynamic(b: Builder) -> None:
    q, scale, zero = b.node("DynamicQuantizeLinear", [b.pick((F32,))], 3)
    b.node("DequantizeLinear", [q, scale, zero])


def weights(b: Builder, shape: list[int], axis: int) -> Value:
    """Weights as a quantizer stores them: integers, a scale for each channel or one, and DequantizeLinear."""
    kind = b.choice([I8, I8, U8])
    data = b.constant(b.rng.integers(0 if kind == U8 else -127, 128, shape), kind)
    per = b.chance(0.6)
    scale = b.constant(b.rng.uniform(0.002, 0.02, shape[axis] if per else ()), F32)
    zero = b.constant(np.zeros(scale.shape), kind)
    operands = [data, scale] + ([zero] if b.chance(0.7) else [])
    return b.node("DequantizeLinear", operands, **({"axis": axis} if per else {}))


def chain(b: Builder) -> None:
    """DQ(x) and DQ(w) into a convolution or a product, then Q: what onnxruntime.quantization writes."""
    if b.chance(0.5):
        a = b.pick((F32,), (4,))
        channels = a.shape[1]
        n = b.choice([1, 4, 8, 15, 16, 17, 32])
        k = b.choice([1, 3])
        if min(a.shape[2:]) < k:
            raise Reject("small")
        y = b.node("Conv", [_quantised(b, a), weights(b, [n, channels, k, k], 0)])
    else:
        a = b.pick((F32,), (2, 3))
        n = b.choice([1, 4, 8, 15, 16, 17, 32])
        y = b.node("MatMul", [_quantised(b, a), weights(b, [a.shape[-1], n], 1)])
    if b.chance(0.4):
        y = b.node("Relu", [y])
    if b.chance(0.7):
        _quantised(b, y)


def integer_product(b: Builder) -> None:
    a = b.pick((U8, I8), (2, 3), fresh=0.5)
    kind = b.choice([U8, I8])
    w = b.fresh(kind, [a.shape[-1], b.choice([1, 5, 8, 16, 17])], 0.7)
    zeros = [b.constant(b.integer(0, 20), a.dtype), b.constant(b.integer(0, 20), kind)]
    b.node("MatMulInteger", [a, w, *zeros[: b.integer(0, 2)]])


def integer_conv(b: Builder) -> None:
    a = b.pick((U8,), (4,), fresh=0.5)
    w = b.fresh(U8, [b.choice([1, 3, 8]), a.shape[1], 1, 1], 0.8)
    b.node("ConvInteger", [a, w, *([b.constant(b.integer(0, 9), U8)] if b.chance(0.5) else [])])


def quantised_product(b: Builder) -> None:
    a = b.pick((U8, I8), (2, 3), fresh=0.5)
    k, n = a.shape[-1], b.choice([1, 5, 8, 16, 17])
    scales = [b.constant(v, F32) for v in (0.05, 0.02, 0.1)]
    zeros = [b.constant(b.integer(0, 9), a.dtype) for _ in range(3)]
    w = b.fresh(a.dtype, [k, n], 0.8)
    b.node("QLinearMatMul", [a, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]])


def quantised_conv(b: Builder) -> None:
    a = b.pick((U8, I8), (4,), fresh=0.6)
    n, k = b.choice([1, 3, 8, 16]), b.choice([1, 3])
    if min(a.shape[2:]) < k:
        raise Reject("small")
    scales = [b.constant(v, F32) for v in (0.05, 0.02, 0.2)]
    zeros = [b.constant(b.integer(0, 9), a.dtype) for _ in range(3)]
    w = b.constant(b.random(a.dtype, [n, a.shape[1], k, k]), a.dtype)
    operands = [a, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2]]
    if b.chance(0.5):
        operands.append(b.constant(b.rng.integers(-50, 50, n), I32))
    b.node("QLinearConv", operands, **({"pads": [k // 2] * 4} if b.chance(0.5) else {}))


RULES = [
    (2, quantize), (0.8, dequantize), (0.6, dynamic), (2, chain), (0.8, integer_product), (0.3, integer_conv),
    (0.6, quantised_product), (0.6, quantised_conv),
]  # fmt: skip
