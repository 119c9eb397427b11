"""The gates of LSTM, GRU and RNN on one vector of hidden units, as statements - for the recurrent kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmopt.lowering import math
from tvmopt.lowering.loops import load, splat, store, vector
from tvmopt.operators.recurrence import Function, Spec

Expr = Any
Statements = list[Any]


@dataclass(frozen=True)
class Unit:
    """One vector of hidden units of one sequence, as the kernel addresses it.

    Attributes:
        sums: x's share and h R^T, a gate; for linear_before_reset the third is of h R^T alone.
        before: a state by its name, before the step; "peephole0" to "peephole2"; "update", "x2": see Gates.gru.
        local: a buffer of that many lanes, in registers.
    """

    lanes: int
    sums: Sequence[Expr]
    before: Callable[[str], Expr]
    local: Callable[[int], Any]


class Gates:
    """Writes the statements of a step; :attr:`done` has them in order, the methods return the new states.

    A function in another's argument is slow to compile (see :mod:`tvmopt.lowering.name_values`), so every value has a
    buffer of its own; LLVM keeps those in registers.
    """

    def __init__(self, spec: Spec, functions: tuple[Function, ...], unit: Unit) -> None:
        self.spec, self.functions, self.unit = spec, functions, unit
        self.done: Statements = []

    def keep(self, value: Expr) -> Expr:
        """The value, computed now."""
        lanes = self.unit.lanes
        buffer = self.unit.local(lanes)
        self.done.append(store(buffer, value, vector(0, lanes)))
        return load(buffer, vector(0, lanes))

    def act(self, number: int, x: Expr, clip: bool = True) -> Expr:
        """Activation f, g or h."""
        bound, lanes = self.spec.clip, self.unit.lanes
        if clip and bound:
            x = tirx.min(tirx.max(x, splat(-bound, lanes)), splat(bound, lanes))
        return activation(self.functions[number], self.keep(x), self.keep)

    def rnn(self) -> dict[str, Expr]:
        """h = f(x + h R^T)."""
        return {"h": self.act(0, self.unit.sums[0])}

    def lstm(self) -> dict[str, Expr]:
        """Gates i, o, f, c in ONNX's order."""
        (i, o, f, g), before = self.unit.sums, self.unit.before
        old, one = before("c"), splat(1.0, self.unit.lanes)
        peep = (lambda x, k, c: x + before(f"peephole{k}") * c) if "peephole" in self.spec.operands else None
        i = self.act(0, peep(i, 0, old) if peep else i)
        f = one - i if self.spec.input_forget else self.act(0, peep(f, 2, old) if peep else f)
        c = self.keep(f * old + i * self.act(1, g))
        h = self.act(0, peep(o, 1, c) if peep else o) * self.act(2, c, clip=False)
        return {"h": self.keep(h), "c": c}

    def gru(self) -> dict[str, Expr]:
        """linear_before_reset: one pass over R; `before("x2")` is x's share of the third gate."""
        update, reset = self.act(0, self.unit.sums[0]), self.act(0, self.unit.sums[1])
        return self._mix(update, self.act(1, self.unit.before("x2") + reset * self.unit.sums[2]))

    def gru_gates(self) -> dict[str, Expr]:
        """First pass: the update gate, and what the second multiplies by R."""
        update, reset = self.act(0, self.unit.sums[0]), self.act(0, self.unit.sums[1])
        return {"update": update, "reset": reset * self.unit.before("h")}

    def gru_candidate(self) -> dict[str, Expr]:
        """Second pass."""
        return self._mix(self.unit.before("update"), self.act(1, self.unit.sums[0]))

    def _mix(self, update: Expr, new: Expr) -> dict[str, Expr]:
        h = (splat(1.0, self.unit.lanes) - update) * new + update * self.unit.before("h")
        return {"h": self.keep(h)}


def activation(function: Function, x: Expr, keep: Callable[[Expr], Expr]) -> Expr:
    """One of ONNX's eleven activations of a vector; `x` is plain, `keep` names a value."""
    name, alpha, beta = function
    lanes = int(x.ty.dtype.lanes)
    a, b, zero, one = (splat(v, lanes) for v in (alpha, beta, 0.0, 1.0))
    magnitude = tirx.max(x, zero - x)
    forms: dict[str, Callable[[], Expr]] = {
        "sigmoid": lambda: math.sigmoid(x),
        "tanh": lambda: math.tanh(x),
        "relu": lambda: tirx.max(x, zero),
        "affine": lambda: x * a + b,
        "leakyrelu": lambda: tirx.Select(x < zero, x * a, x),
        "thresholdedrelu": lambda: tirx.Select(x > a, x, zero),
        "scaledtanh": lambda: keep(math.tanh(keep(x * b))) * a,
        "hardsigmoid": lambda: tirx.min(tirx.max(x * a + b, zero), one),
        "elu": lambda: tirx.Select(x < zero, (keep(math.exp(x)) - one) * a, x),
        "softsign": lambda: x / (magnitude + one),
        "softplus": lambda: tirx.max(x, zero) + keep(math.log(keep(keep(math.exp(keep(zero - magnitude))) + one))),
    }
    return keep(forms[name]())
