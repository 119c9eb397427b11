"""LSTM, GRU and RNN: the input's share of all gates, steps and directions is one matrix product, the rest one operator
(:mod:`tvmopt.operators.recurrence`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import relax

from tvmopt.dims import Size
from tvmopt.importer.converters.common import Build, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within
from tvmopt.importer.converters.unrolled import unrolled
from tvmopt.operators.recurrence import GATES, Function, Spec, define, recurrent

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
        weight = b.reshape(b.transpose(weight, (2, 0, 1)), (size, directions * shape_of(weight)[1]))
        projected, held = b.matmul(x, weight), None
        if bias is not None:
            added, held = _biases(b, bias, gates, spec.linear_before_reset)
            projected = b.add(projected, added)
        operands = {"projected": projected, "recurrence": recurrence, "bias": held, "lengths": lengths, "h0": states[0]}
        if kind == "LSTM":
            operands |= {"c0": states[1], "peephole": inputs[7]}
        out = b.emit(recurrent(spec, operands))
        results = [b.emit(relax.TupleGetItem(out, i)) for i in range(1 + len(spec.states))]
        if batch_first:
            results = [b.transpose(results[0], (2, 0, 1, 3)), *(b.transpose(r, (1, 0, 2)) for r in results[1:])]
        return tuple(results)

    return convert


define(unrolled)


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


CONVERTERS: dict[tuple[str, str], Converter] = {("", kind): in_float32(_convert(kind)) for kind in GATES}
