"""A state rounded to 8 bits, in front of each step of a recurrence whose weights are bytes - for compute.py.

    step = (max(h, 0) - min(h, 0)) / 255, or 1       zero = round(-min(h, 0) / step)
    code = round(h / step) + zero, in 0 ... 255       halves to even, as DynamicQuantizeLinear and onnxruntime round

of each sequence. Where the weights are bytes the codes are, too; else they are float32, less their zero point. Cores
that share a step each round all of the state, into memory of their own, rather than meet once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import load, loop, seq, splat, spread, store, vector, vector_type

Expr = Any
HIGHEST = 255.0


class Rounded:
    """The codes of `rows` states, their steps and zero points, and what computes them.

    Args:
        states: rows of `width` numbers, a multiple of `lanes`; behind a state's own numbers stand zeros.
        of_bytes: whether codes are bytes.
        local: makes a buffer of the kernel, by name, size and type.
    """

    def __init__(
        self, states: Any, rows: int, width: int, lanes: int, of_bytes: bool, local: Callable[..., Any]
    ) -> None:  # fmt: skip
        self.states, self.rows, self.width, self.lanes, self.of_bytes, self.local = (
            states, rows, width, lanes, of_bytes, local
        )  # fmt: skip
        self.codes = local("codes", rows * width, "uint8" if of_bytes else "float32")
        self.steps, self.zeros = local("steps", rows), local("zeros", rows, "int32")

    def statements(self, base: Expr) -> list[Any]:
        """Round the states from `base` on."""
        return [loop(self.rows, lambda row: self._row(base + row * self.width, row), "row")]

    def _row(self, first: Expr, row: Expr) -> Any:
        lanes, whole = self.lanes, vector(0, self.lanes)
        high, low, ends = self.local("high", lanes), self.local("low", lanes), self.local("ends", 2)
        zero, place = splat(0.0, lanes), row * self.width

        def numbers(v: Expr) -> Expr:
            return load(self.states, vector(first + v * lanes, lanes))

        def widen(v: Expr) -> Any:
            return seq([
                store(high, tirx.max(load(high, whole), numbers(v)), whole),
                store(low, tirx.min(load(low, whole), numbers(v)), whole),
            ])  # fmt: skip

        def join(i: Expr) -> Any:
            return seq([
                store(ends, tirx.max(load(ends, 0), load(high, i)), 0),
                store(ends, tirx.min(load(ends, 1), load(low, i)), 1),
            ])  # fmt: skip

        def code(v: Expr) -> Any:
            bounds = splat(0.0, lanes), splat(HIGHEST, lanes)
            point = spread(load(self.zeros, row).astype("float32"), lanes)
            value = tirx.nearbyint(numbers(v) / spread(load(self.steps, row), lanes)) + point
            value = tirx.min(tirx.max(value, bounds[0]), bounds[1])
            value = value.astype(vector_type("uint8", lanes)) if self.of_bytes else value - point
            return store(self.codes, value, vector(place + v * lanes, lanes))

        one, none = tirx.const(1.0, "float32"), tirx.const(0.0, "float32")
        step = (load(ends, 0) - load(ends, 1)) / tirx.const(HIGHEST, "float32")
        point = tirx.nearbyint((none - load(ends, 1)) / load(self.steps, row))
        return seq([
            store(high, zero, whole), store(low, zero, whole), loop(self.width // lanes, widen, "v"),
            store(ends, none, 0), store(ends, none, 1), loop(lanes, join, "i"),
            store(self.steps, tirx.Select(step.equal(none), one, step), row),
            store(self.zeros, tirx.max(tirx.min(point, tirx.const(HIGHEST, "float32")), none).astype("int32"), row),
            loop(self.width // lanes, code, "v"),
        ])  # fmt: skip
