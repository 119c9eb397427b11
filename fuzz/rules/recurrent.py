"""LSTM, GRU and RNN: directions, biases, initial states, lengths."""

from __future__ import annotations

import numpy as np

from fuzz.build import I32, Builder, Reject, Value

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(b: Builder) -> None:
    op = b.choice(list(GATES))
    fitting = [v for v in b.values if v.dtype == b.float and v.rank == 3 and v.shape[0] <= 9]
    x = (
        b.choice(fitting)
        if fitting and b.chance(0.6)
        else b.input(b.float, [b.choice([1, 2, 5, 7]), b.size([1, 1, 2, 3]), b.choice([1, 3, 8, 9, 16, 17])])
    )
    steps, batch, width = x.shape
    if 0 in x.shape:
        raise Reject("empty")
    hidden = b.choice([1, 3, 4, 7, 8, 9, 16, 17])
    direction = b.choice(["forward", "forward", "reverse", "bidirectional"])
    d, g = 2 if direction == "bidirectional" else 1, GATES[op]
    operands: list[Value | None] = [
        x,
        b.weight(x.dtype, [d, g * hidden, width], width, 0.95),
        b.weight(x.dtype, [d, g * hidden, hidden], hidden, 0.95),
    ]  # fmt: skip
    bias = b.weight(x.dtype, [d, 2 * g * hidden], 4, 0.95) if b.chance(0.7) else None
    lengths = b.constant(b.rng.integers(1, steps + 1, batch), I32) if b.chance(0.2) else None
    start = b.fresh(x.dtype, [d, batch, hidden], 0.3) if b.chance(0.4) else None
    operands += [bias, lengths, start]
    if op == "LSTM" and b.chance(0.4):
        operands.append(b.fresh(x.dtype, [d, batch, hidden], 0.3))
        if b.chance(0.3):
            operands.append(b.weight(x.dtype, [d, 3 * hidden]))
    while operands[-1] is None:
        operands.pop()
    attrs = {"hidden_size": hidden, "direction": direction}
    if op == "GRU" and b.chance(0.5):
        attrs["linear_before_reset"] = 1
    if b.chance(0.1):
        attrs["clip"] = b.number(0.3, 2.0)
    y = b.node(op, operands, b.choice([1, 2, 3 if op == "LSTM" else 2]), **attrs)
    first = y[0] if isinstance(y, list) else y
    if b.chance(0.4):
        b.node("Reshape", [first, b.constant(np.array([steps, batch, -1]))])


RULES = [(1.5, recurrence)]
