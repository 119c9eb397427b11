"""LSTM, GRU and RNN: the input's share of all gates, steps and directions is one matrix product, the rest one operator
(:mod:`tvmopt.operators.recurrence`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Size
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within
from tvmopt.importer.converters.quantized import dynamic_quantize, matmul_integer
from tvmopt.importer.converters.unrolled import unrolled
from tvmopt.operators.recurrence import GATES, Function, Spec, define, recurrent

DYNAMIC = "DynamicQuantizeLSTM"
"""onnxruntime's LSTM of weights in bytes, which rounds its data and its state in each step to 8 bits, too."""
_ALPHA = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "hardsigmoid": 0.2, "elu": 1.0, "affine": 1.0, "scaledtanh": 1.0}
_BETA = {"hardsigmoid": 0.5, "affine": 0.0, "scaledtanh": 1.0}
_PLAIN = ("sigmoid", "tanh", "relu", "softplus", "softsign")
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _functions(kind: str, attrs: dict[str, Any], directions: int, ctx: Context) -> Iterator[tuple[Function, ...]]:
    """f, g, h of each direction; alphas and betas are listed only for the functions that have one."""
    names = [str(name).lower() for name in attrs.get("activations", _DEFAULTS[kind] * directions)]
    alphas, betas = iter(attrs.get("activation_alpha", ())), iter(attrs.get("activation_beta", ()))
    unknown = sorted({*names} - {*_ALPHA, *_PLAIN})
    if unknown:
        raise ctx.unsupported(f"its activation {unknown[0]!r} is not one of ONNX's", "use one of ONNX's activations")
    all_ = [
        (
            name,
            float(next(alphas, _ALPHA[name])) if name in _ALPHA else 0.0,
            float(next(betas, _BETA[name])) if name in _BETA else 0.0,
        )
        for name in names
    ]
    per = len(all_) // directions
    for d in range(directions):
        yield tuple(all_[d * per : (d + 1) * per])


def _biases(b: Build, bias: Any, gates: int, split: bool) -> tuple[Any, Any]:
    """What is added to the projection, [D*G*H], and, if `split`, to the last gate of h R^T, [D, H]."""
    directions, both = shape_of(bias)
    half = both // 2
    ours, theirs = b.slice(bias, 1, 0, half), b.slice(bias, 1, half, both)
    if not split:
        return b.reshape(b.add(ours, theirs), (directions * half,)), None
    added = half // gates * (gates - 1)
    first = b.add(b.slice(ours, 1, 0, added), b.slice(theirs, 1, 0, added))
    whole = b.concat([first, b.slice(ours, 1, added, half)], 1)
    return b.reshape(whole, (directions * half,)), b.slice(theirs, 1, added, half)


def _convert(kind: str) -> Converter:
    gates = GATES[kind]

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        x, weight, recurrence, bias, lengths, *states = (inputs[i] for i in range(7))
        batch_first = bool(attrs.get("layout", 0))
        if batch_first:
            x = b.transpose(x, (1, 0, 2))
            states = [None if s is None else b.transpose(s, (1, 0, 2)) for s in states]
        steps, batch, size = shape_of(x)
        _need_numbers(weight, recurrence, bias)
        if dtype_of(x) != "float32":
            tuple(map(int, (steps, batch)))  # there is no kernel, and its steps as operators need their number
        directions = shape_of(weight)[0]
        if lengths is not None:
            lengths = _lengths(b, ctx, lengths, steps)
            known = ctx.array(lengths)
            full = known is not None and isinstance(steps, int) and (known >= steps).all()
            lengths = None if full else b.reshape(b.cast(lengths, "int32"), (batch,))
        spec = Spec(
            kind,
            tuple(_functions(kind, attrs, directions, ctx)),
            reverse=attrs.get("direction", "forward") == "reverse",
            clip=float(attrs.get("clip", 0.0)),
            linear_before_reset=kind == "GRU" and bool(attrs.get("linear_before_reset", 0)),
            input_forget=kind == "LSTM" and bool(attrs.get("input_forget", 0)),
        )
        scale, held = None, None
        if ctx.op_type == DYNAMIC:
            projected, recurrence, scale = _rounded(b, ctx, x, inputs)
        else:
            weight = b.reshape(b.transpose(weight, (2, 0, 1)), (size, directions * shape_of(weight)[1]))
            projected = b.matmul(x, weight)
        if bias is not None:
            added, held = _biases(b, bias, gates, spec.linear_before_reset)
            projected = b.add(projected, added)
        operands = {"projected": projected, "recurrence": recurrence, "bias": held, "lengths": lengths, "h0": states[0]}
        if kind == "LSTM":
            operands |= {"c0": states[1], "peephole": inputs[7], "scale": scale}
        out = b.emit(recurrent(spec, operands))
        results = [b.emit(relax.TupleGetItem(out, i)) for i in range(1 + len(spec.states))]
        if batch_first:
            results = [b.transpose(results[0], (2, 0, 1, 3)), *(b.transpose(r, (1, 0, 2)) for r in results[1:])]
        return tuple(results)

    return convert


define(unrolled)


def _rounded(b: Build, ctx: Context, x: Any, inputs: Inputs) -> tuple[Any, Any, Any]:
    """x W^T of data that is rounded to 8 bits as a whole when the model runs; R as integers, and their scales.

    Integers of R that are no bytes, less their zero points, are float32, which holds them.
    """
    names = {1: "W", 2: "R", 8: "scale of W", 9: "zero point of W", 10: "scale of R", 11: "zero point of R"}
    w, r, w_scale, w_zero, r_scale, r_zero = (ctx.array(inputs[number], what) for number, what in names.items())
    assert w is not None and r is not None  # or the array was refused
    directions, size, columns = w.shape
    w_scale, w_zero, r_scale, r_zero = (
        np.broadcast_to(np.asarray(v).reshape(directions, -1), (directions, columns))
        for v in (w_scale, w_zero, r_scale, r_zero)
    )
    codes, step, zero = (b.emit(value) for value in dynamic_quantize(b.bb, Inputs([x]), {}, ctx))
    flat = w.transpose(1, 0, 2).reshape(size, directions * columns)
    sides = (codes, const(flat, str(w.dtype)), zero, const(w_zero.reshape(-1), str(w.dtype)))
    total = b.cast(b.emit(matmul_integer(b.bb, Inputs(sides), {}, ctx)), "float32")
    projected = b.mul(total, b.mul(step, const(w_scale.reshape(-1), "float32")))
    centred = r.transpose(0, 2, 1).astype(np.int16) - r_zero[:, :, None]
    kind = "int8" if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127 else "float32"
    return projected, const(centred, kind), const(r_scale, "float32")


def _lengths(b: Build, ctx: Context, lengths: Any, steps: Size) -> Any:
    """Lengths within the number of steps: refused beyond it, or, where that is open, the nearest one there is."""
    if isinstance(steps, int):
        return within(b, ctx, 4, "a length", 0, steps)
    return b.minimum(b.maximum(lengths, 0), b.cast(b.number(steps), dtype_of(lengths)))


def _need_numbers(*weights: Any) -> None:
    """Raise OpenSize where a weight has an open size: gates and hidden units are counted when the model is compiled."""
    for weight in weights:
        if weight is not None:
            tuple(map(int, shape_of(weight)))


CONVERTERS: dict[tuple[str, str], Converter] = {
    **{("", kind): in_float32(_convert(kind)) for kind in GATES},
    ("com.microsoft", DYNAMIC): _convert("LSTM"),
}
