"""A recurrence step by step, in operators that every machine has: what :mod:`tvmopt.operators.recurrence` means.

The input projection is one product for all steps already; here each step becomes a product with R, the gates, and a
place in the output. Code and compile time grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.elementwise import leaky
from tvmopt.importer.converters.quantized import step_and_zero
from tvmopt.operators.recurrence import Function, Spec, spec_of


def activation(b: Build, function: Function, x: Any) -> Any:
    """One of ONNX's eleven activations of recurrent operators."""
    name, alpha, beta = function
    simple: dict[str, Callable[[Any], Any]] = {
        "sigmoid": relax.op.sigmoid,
        "tanh": relax.op.tanh,
        "relu": relax.op.nn.relu,
        "softplus": relax.op.nn.softplus,
    }
    if name in simple:
        return b.emit(simple[name](x))
    if name == "affine":
        return b.add(b.mul(x, alpha), beta)
    if name == "leakyrelu":
        return leaky(b, x, alpha)
    if name == "thresholdedrelu":
        return b.where(b.greater(x, alpha), x, 0.0)
    if name == "scaledtanh":
        return b.mul(b.emit(relax.op.tanh(b.mul(x, beta))), alpha)
    if name == "hardsigmoid":
        return b.minimum(b.maximum(b.add(b.mul(x, alpha), beta), 0.0), 1.0)
    if name == "elu":
        return b.where(b.less(x, 0.0), b.mul(b.sub(b.emit(relax.op.exp(x)), 1.0), alpha), x)
    if name == "softsign":
        return b.div(x, b.add(b.emit(relax.op.abs(x)), 1.0))
    raise ValueError(f"unknown activation {name!r}")


@dataclass
class _Direction:
    """One direction: R transposed, [H, G*H], and its share of the optional operands."""

    b: Build
    spec: Spec
    functions: tuple[Function, ...]
    hidden: int
    recurrent: Any
    given: dict[str, Any]

    def act(self, index: int, x: Any) -> Any:
        """Activation f, g or h, after the clip of the cell."""
        if self.spec.clip:
            x = self.b.minimum(self.b.maximum(x, -self.spec.clip), self.spec.clip)
        return activation(self.b, self.functions[index], x)

    def gate(self, x: Any, first: int, count: int = 1) -> Any:
        """Columns of one or more gates."""
        return self.b.slice(x, 1, first * self.hidden, (first + count) * self.hidden)

    def step(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The states after a step; x: [B, G*H], the step's projected input."""
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.spec.kind](x, state)

    def _rnn(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.act(0, self.b.add(x, self.b.matmul(state[0], self.recurrent))),)

    def _gru(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        b, (h,) = self.b, state
        if self.spec.linear_before_reset:
            recurred = b.matmul(h, self.recurrent)
            both = self.gate(recurred, 0, 2)
        else:
            both = b.matmul(h, self.gate(self.recurrent, 0, 2))
        gates = self.act(0, b.add(self.gate(x, 0, 2), both))
        update, reset = self.gate(gates, 0), self.gate(gates, 1)
        if self.spec.linear_before_reset:
            candidate = self.gate(recurred, 2)
            if "bias" in self.given:
                candidate = b.add(candidate, self.given["bias"])
            candidate = b.mul(reset, candidate)
        else:
            candidate = b.matmul(b.mul(reset, h), self.gate(self.recurrent, 2))
        new = self.act(1, b.add(self.gate(x, 2), candidate))
        return (b.add(b.mul(b.sub(1.0, update), new), b.mul(update, h)),)

    def _lstm(self, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        b, (h, c), peephole = self.b, state, self.given.get("peephole")
        gates = b.add(x, self._rounded(h) if "scale" in self.given else b.matmul(h, self.recurrent))
        i, o, f, g = (self.gate(gates, k) for k in range(4))
        if peephole is not None:
            i, f = (b.add(v, b.mul(self.gate(peephole, k), c)) for v, k in ((i, 0), (f, 2)))
        i = self.act(0, i)
        f = b.sub(1.0, i) if self.spec.input_forget else self.act(0, f)
        c = b.add(b.mul(f, c), b.mul(i, self.act(1, g)))
        if peephole is not None:
            o = b.add(o, b.mul(self.gate(peephole, 1), c))
        return b.mul(self.act(0, o), activation(b, self.functions[2], c)), c

    def _rounded(self, h: Any) -> Any:
        """h R^T of a state rounded to 8 bits with the range of each sequence, as DynamicQuantizeLinear rounds it."""
        b = self.b
        step, zero = step_and_zero(b, *(b.emit(op(h, 1, keepdims=True)) for op in (relax.op.max, relax.op.min)))
        codes = b.add(b.emit(relax.op.round(b.div(h, step))), zero)
        codes = b.sub(b.minimum(b.maximum(codes, 0.0), 255.0), zero)
        total = b.matmul(codes, b.cast(self.recurrent, dtype_of(h)))
        return b.mul(total, b.mul(step, self.given["scale"]))

    def run(self, projected: Any, state: tuple[Any, ...], backwards: bool) -> tuple[list[Any], tuple[Any, ...]]:
        """The outputs by time and the last states, over `projected` [S, B, G*H].

        A sequence shorter than S gives zeros past its end and keeps its state; backwards, it starts at its own end.
        """
        b, lengths = self.b, self.given.get("lengths")
        count, batch, width = shape_of(projected)
        outputs: list[Any] = [None] * count
        for t in reversed(range(count)) if backwards else range(count):
            new = self.step(b.reshape(b.slice(projected, 0, t, t + 1), (batch, width)), state)
            out = new[0]
            if lengths is not None:
                alive = b.greater(lengths, const(t, "int32"))
                out = b.where(alive, out, 0.0)
                new = tuple(b.where(alive, after, before) for after, before in zip(new, state, strict=True))
            outputs[t], state = out, new
        return outputs, state


def unrolled(bb: relax.BlockBuilder, call: Any) -> Any:
    """The step-by-step form of a call of `tvmopt.recurrent`: a tuple of the same types."""
    b, spec = Build(bb, "step"), spec_of(call)
    given = spec.named(call.args)
    projected, recurrence = given.pop("projected"), given.pop("recurrence")
    directions, width, hidden = shape_of(recurrence)
    batch, dtype = shape_of(projected)[1], dtype_of(projected)
    lengths = given.pop("lengths", None)
    ys: list[Any] = []
    last: list[tuple[Any, ...]] = []
    for d in range(directions):
        own = {k: b.slice(v, 0, d, d + 1) for k, v in given.items()}
        if lengths is not None:
            own["lengths"] = b.reshape(lengths, (batch, 1))
        state = tuple(
            b.reshape(own[f"{s}0"], (batch, hidden)) if f"{s}0" in own else b.zeros((batch, hidden), dtype)
            for s in spec.states
        )
        turned = b.transpose(b.reshape(b.slice(recurrence, 0, d, d + 1), (width, hidden)), (1, 0))
        one = _Direction(b, spec, spec.functions[d], hidden, turned, own)
        outputs, final = one.run(b.slice(projected, 2, d * width, (d + 1) * width), state, spec.backwards(d))
        steps = [b.reshape(o, (1, 1, batch, hidden)) for o in outputs]
        ys.append(b.concat(steps, 0) if steps else b.zeros((0, 1, batch, hidden), dtype))
        last.append(tuple(b.reshape(s, (1, batch, hidden)) for s in final))
    finals = [b.concat(list(parts), 0) for parts in zip(*last, strict=True)]
    return relax.Tuple([b.concat(ys, 1), *finals])
