"""LSTM, GRU and RNN: the input projection of all steps is one GEMM, the recurrence is unrolled over the
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

_ALPHA = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "hardsigmoid": 0.2, "elu": 1.0, "affine": 1.0}
_BETA = {"hardsigmoid": 0.5}


def activation(b: Build, name: str, x: Any, alpha: float | None, beta: float | None) -> Any:
    """One of ONNX's eleven activations of recurrent operators (names in any case)."""
    key = name.lower()
    a = _ALPHA.get(key, 1.0) if alpha is None else alpha
    c = _BETA.get(key, 0.0) if beta is None else beta
    simple: dict[str, Callable[[Any], Any]] = {
        "sigmoid": relax.op.sigmoid,
        "tanh": relax.op.tanh,
        "relu": relax.op.nn.relu,
        "softplus": relax.op.nn.softplus,
    }
    if key in simple:
        return b.emit(simple[key](x))
    if key == "affine":
        return b.add(b.mul(x, a), c)
    if key == "leakyrelu":
        return b.emit(relax.op.nn.leakyrelu(x, a))
    if key == "thresholdedrelu":
        return b.where(b.greater(x, a), x, 0.0)
    if key == "scaledtanh":
        return b.mul(b.emit(relax.op.tanh(b.mul(x, 1.0 if beta is None else beta))), a)
    if key == "hardsigmoid":
        return b.minimum(b.maximum(b.add(b.mul(x, a), c), 0.0), 1.0)
    if key == "elu":
        return b.where(b.less(x, 0.0), b.mul(b.sub(b.emit(relax.op.exp(x)), 1.0), a), x)
    if key == "softsign":
        return b.div(x, b.add(b.emit(relax.op.abs(x)), 1.0))
    raise ValueError(f"unknown activation {name!r}")


@dataclass
class _Cell:
    """One direction: the projected input of each step and the weights of the recurrence."""

    b: Build
    hidden: int
    clip: float
    recurrent: Any  # R transposed, [H, gates*H]
    bias: Any  # of the recurrence, [1, gates*H] or None
    functions: list[tuple[str, float | None, float | None]]

    def act(self, index: int, x: Any) -> Any:
        """Activation f, g or h, after the clip of the cell."""
        if self.clip:
            x = self.b.minimum(self.b.maximum(x, -self.clip), self.clip)
        return activation(self.b, self.functions[index][0], x, *self.functions[index][1:])

    def recur(self, h: Any) -> Any:
        """``h R^T + Rb``, for all gates."""
        out = self.b.matmul(h, self.recurrent)
        return out if self.bias is None else self.b.add(out, self.bias)

    def gate(self, x: Any, index: int) -> Any:
        """Columns of one gate."""
        return self.b.slice(x, 1, index * self.hidden, (index + 1) * self.hidden)


Step = Callable[[_Cell, Any, tuple[Any, ...]], tuple[Any, ...]]


def _rnn_step(cell: _Cell, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
    return (cell.act(0, cell.b.add(x, cell.recur(state[0]))),)


def _gru_step(linear_before_reset: bool) -> Step:
    def step(cell: _Cell, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        b, n, (h,) = cell.b, cell.hidden, state
        if linear_before_reset:
            recurred = cell.recur(h)
            gates = cell.act(0, b.add(b.slice(x, 1, 0, 2 * n), b.slice(recurred, 1, 0, 2 * n)))
        else:
            both = b.matmul(h, b.slice(cell.recurrent, 1, 0, 2 * n))
            if cell.bias is not None:
                both = b.add(both, b.slice(cell.bias, 1, 0, 2 * n))
            gates = cell.act(0, b.add(b.slice(x, 1, 0, 2 * n), both))
        update, reset = cell.gate(gates, 0), cell.gate(gates, 1)
        if linear_before_reset:
            candidate = b.mul(reset, cell.gate(recurred, 2))
        else:
            candidate = b.matmul(b.mul(reset, h), b.slice(cell.recurrent, 1, 2 * n, 3 * n))
            if cell.bias is not None:
                candidate = b.add(candidate, b.slice(cell.bias, 1, 2 * n, 3 * n))
        new = cell.act(1, b.add(cell.gate(x, 2), candidate))
        return (b.add(b.mul(b.sub(1.0, update), new), b.mul(update, h)),)

    return step


def _lstm_step(peephole: Any, input_forget: bool) -> Step:
    def step(cell: _Cell, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        b, (h, c) = cell.b, state
        gates = b.add(x, cell.recur(h))
        i, o, f, g = (cell.gate(gates, k) for k in range(4))
        if peephole is not None:
            i, f = b.add(i, b.mul(cell.gate(peephole, 0), c)), b.add(f, b.mul(cell.gate(peephole, 2), c))
        i = cell.act(0, i)
        f = b.sub(1.0, i) if input_forget else cell.act(0, f)
        c = b.add(b.mul(f, c), b.mul(i, cell.act(1, g)))
        if peephole is not None:
            o = b.add(o, b.mul(cell.gate(peephole, 1), c))
        cell_out = activation(b, cell.functions[2][0], c, *cell.functions[2][1:])
        return b.mul(cell.act(0, o), cell_out), c

    return step


def _functions(attrs: dict[str, Any], default: list[str], directions: int) -> Iterator[list[Any]]:
    """(name, alpha, beta) of f, g, h, a direction; alphas are listed only for the functions that have one."""
    names = list(attrs.get("activations", default * directions))
    alphas, betas = iter(attrs.get("activation_alpha", ())), iter(attrs.get("activation_beta", ()))
    takes_alpha, takes_beta = {*_ALPHA, "scaledtanh"}, {"affine", "scaledtanh", "hardsigmoid"}
    all_ = [
        (
            name,
            next(alphas, None) if name.lower() in takes_alpha else None,
            next(betas, None) if name.lower() in takes_beta else None,
        )
        for name in names
    ]
    per = len(all_) // directions
    for d in range(directions):
        yield all_[d * per : (d + 1) * per]


def _run(
    b: Build, step: Step, cell: _Cell, projected: Any, states: tuple[Any, ...], lengths: Any, reverse: bool
) -> tuple[list[Any], tuple[Any, ...]]:
    """All steps of one direction over `projected` [S, B, gates*H]: the outputs by time, and the last state.

    A sequence shorter than S gives zeros past its end and keeps its state; backwards, it starts at its own
    end.
    """
    count, batch, width = shape_of(projected)
    outputs: list[Any] = [None] * count
    for t in reversed(range(count)) if reverse else range(count):
        x = b.reshape(b.slice(projected, 0, t, t + 1), (batch, width))
        new = step(cell, x, states)
        out = new[0]
        if lengths is not None:
            alive = b.greater(lengths, const(t, "int32"))
            out = b.where(alive, out, 0.0)
            new = tuple(b.where(alive, a, s) for a, s in zip(new, states, strict=True))
        outputs[t], states = out, new
    return outputs, states


def _recurrent(
    gates: int, default: list[str], make_step: Callable[[Build, dict[str, Any], Any, int], Step]
) -> Converter:
    """The converter of an operator with that many gates."""
    lstm = gates == 4

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        b = Build(bb, ctx.name)
        x, weight, recurrence, bias, lengths = (inputs[i] for i in range(5))
        batch_first = bool(attrs.get("layout", 0))
        if batch_first:
            x = b.transpose(x, (1, 0, 2))
        steps, batch, _ = shape_of(x)
        directions, hidden, dtype = shape_of(weight)[0], shape_of(recurrence)[2], dtype_of(x)
        if lengths is not None:
            known = ctx.array(lengths)
            lengths = (
                None
                if known is not None and (known >= steps).all()
                else b.reshape(b.cast(lengths, "int32"), (batch, 1))
            )
        mode = attrs.get("direction", "forward")
        ys: list[Any] = []
        last: list[tuple[Any, ...]] = []
        for d, functions in enumerate(_functions(attrs, default, directions)):

            def of(value: Any, d: int = d) -> Any:  # this direction's share of a stacked tensor
                return b.reshape(b.slice(value, 0, d, d + 1), shape_of(value)[1:])

            projected = b.matmul(x, b.transpose(of(weight), (1, 0)))
            rbias = None
            if bias is not None:
                both = b.reshape(of(bias), (1, 2 * gates * hidden))
                projected = b.add(projected, b.slice(both, 1, 0, gates * hidden))
                rbias = b.slice(both, 1, gates * hidden, 2 * gates * hidden)
            cell = _Cell(
                b, hidden, attrs.get("clip", 0.0), b.transpose(of(recurrence), (1, 0)), rbias, functions
            )
            states = []
            for i in (5, 6) if lstm else (5,):
                if inputs[i] is None:
                    states.append(const(np.zeros((batch, hidden)), dtype))
                else:
                    states.append(of(b.transpose(inputs[i], (1, 0, 2)) if batch_first else inputs[i]))
            step = make_step(b, attrs, inputs[7] if lstm else None, d)
            reverse = mode == "reverse" or d == 1
            outputs, state = _run(b, step, cell, projected, tuple(states), lengths, reverse)
            ys.append(b.concat([b.reshape(o, (1, 1, batch, hidden)) for o in outputs], 0))
            last.append(tuple(b.reshape(s, (1, batch, hidden)) for s in state))
        y = b.concat(ys, 1)
        finals = [b.concat(list(parts), 0) for parts in zip(*last, strict=True)]
        if batch_first:
            y, finals = b.transpose(y, (2, 0, 1, 3)), [b.transpose(f, (1, 0, 2)) for f in finals]
        return (y, *finals)

    return convert


def _make_lstm(b: Build, attrs: dict[str, Any], peephole: Any, d: int) -> Step:
    if peephole is not None:
        peephole = b.slice(peephole, 0, d, d + 1)
    return _lstm_step(peephole, bool(attrs.get("input_forget", 0)))


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "LSTM"): _recurrent(4, ["Sigmoid", "Tanh", "Tanh"], _make_lstm),
    ("", "GRU"): _recurrent(
        3, ["Sigmoid", "Tanh"], lambda b, attrs, p, d: _gru_step(bool(attrs.get("linear_before_reset", 0)))
    ),
    ("", "RNN"): _recurrent(1, ["Tanh"], lambda b, attrs, p, d: _rnn_step),
}
