"""Reading `R.quantize` and `R.dequantize` - shared by the passes that keep quantised graphs in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.passes.graph import Array, Call, Expr, Graph, dtype, ints, op_name, rank

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


@dataclass(frozen=True)
class Params:
    """real = (integer - zero) * scale, one scale for the whole tensor."""

    scale: float
    zero: int


def params(graph: Graph, call: Call) -> Params | None:
    """Those of a `R.quantize` or `R.dequantize` of 8-bit integers with one positive, finite scale; else None."""
    scale, zero = graph.array(call.args[1]), graph.array(call.args[2])
    integers = dtype(call) if op_name(call) == "quantize" else dtype(call.args[0])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or integers not in RANGES:
        return None
    value = float(scale.reshape(-1)[0])
    return Params(value, int(zero.reshape(-1)[0])) if 0 < value < float("inf") else None


def dequantized(graph: Graph, expr: Expr) -> tuple[Expr, Params] | None:
    """The 8-bit tensor that `expr` is dequantized from, per tensor."""
    call = graph.call(expr, "dequantize")
    found = params(graph, call) if call is not None and dtype(call) == "float32" else None
    return None if call is None or found is None else (call.args[0], found)


def dequantize(x: Expr, p: Params) -> Any:
    """`R.dequantize` per tensor, float32."""
    zero = relax.const(np.array(p.zero, dtype(x)), dtype(x))
    return relax.op.dequantize(x, relax.const(p.scale, "float32"), zero, axis=-1, out_dtype="float32")


def quantize(x: Expr, p: Params, kind: str) -> Any:
    """`R.quantize` per tensor."""
    zero = relax.const(np.array(p.zero, kind), kind)
    return relax.op.quantize(x, relax.const(p.scale, "float32"), zero, axis=-1, out_dtype=kind)


def constant_weight(graph: Graph, expr: Expr) -> tuple[Array, Array] | None:
    """(integers minus zero points, scales) of a dequantized constant, also through a transpose: int64, and float64 of
    a shape that broadcasts against them; None for any other expression."""
    call = graph.call(expr, "permute_dims")
    if call is not None:
        found = constant_weight(graph, call.args[0])
        axes = None if call.attrs.axes is None else ints(call.attrs.axes)
        return None if found is None else (np.transpose(found[0], axes), np.transpose(found[1], axes))
    call = graph.call(expr, "dequantize")
    if call is None or dtype(call.args[0]) not in RANGES:
        return None
    weight, scale, zero = _integers(graph, call.args[0]), graph.array(call.args[1]), graph.array(call.args[2])
    if weight is None or scale is None or zero is None or max(scale.ndim, zero.ndim) > 1:
        return None
    axis = int(call.attrs.axis) % max(1, rank(call))
    own = spread(zero, axis, weight.ndim).astype("int64")
    return weight.astype("int64") - own, spread(scale, axis, weight.ndim).astype("float64")


def _integers(graph: Graph, expr: Expr) -> Array | None:
    """A constant of 8 bits, also one that is quantized in the model: trainers that simulate quantization (ModelOpt,
    AIMET, PyTorch) keep weights in floats behind QuantizeLinear."""
    call = graph.call(expr, "quantize")
    if call is None:
        return graph.array(expr)
    x, scale, zero = (graph.array(a) for a in call.args[:3])
    if x is None or scale is None or zero is None or max(scale.ndim, zero.ndim) > 1 or x.dtype != np.float32:
        return None
    axis, (low, high) = int(call.attrs.axis) % max(1, x.ndim), RANGES[dtype(call)]
    with np.errstate(all="ignore"):
        steps = np.rint(x / spread(scale, axis, x.ndim)) + spread(zero, axis, x.ndim).astype("float32")
    return None if np.isnan(steps).any() else np.clip(steps, low, high).astype(dtype(call))


def spread(values: Array, axis: int, ndim: int) -> Array:
    """One number, or one for each slice of an axis, shaped to broadcast against a tensor of `ndim` axes."""
    shape = [1] * ndim
    if values.size > 1:
        shape[axis] = values.size
    return values.reshape(shape)
