"""LSTM, GRU and RNN, step by step; If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tvmopt.analysis.oracle.elementwise import sigmoid
from tvmopt.analysis.oracle.values import Array, Call, Operator, Result, Unsupported, Value, is_real

_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
Activation = Callable[[Array], Array]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    def pick(value: float | None, default: float) -> float:
        return default if value is None else value

    known: dict[str, Activation] = {
        "sigmoid": sigmoid,
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "affine": lambda x: pick(alpha, 1.0) * x + pick(beta, 0.0),
        "leakyrelu": lambda x: np.where(x < 0, pick(alpha, 0.01) * x, x),
        "thresholdedrelu": lambda x: np.where(x > pick(alpha, 1.0), x, 0),
        "scaledtanh": lambda x: pick(alpha, 1.0) * np.tanh(pick(beta, 1.0) * x),
        "hardsigmoid": lambda x: np.clip(pick(alpha, 0.2) * x + pick(beta, 0.5), 0, 1),
        "elu": lambda x: np.where(x > 0, x, pick(alpha, 1.0) * np.expm1(np.minimum(x, 0))),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.logaddexp(0, x),
    }
    if name.lower() not in known:
        raise Unsupported(f"the activation {name}")
    return known[name.lower()]


def _activations(call: Call, directions: int) -> list[list[Activation]]:
    names = call.get("activations") or _DEFAULTS[call.op] * directions
    alphas, betas = list(call.get("activation_alpha") or []), list(call.get("activation_beta") or [])
    takes = {
        "affine": (1, 1),
        "leakyrelu": (1, 0),
        "thresholdedrelu": (1, 0),
        "scaledtanh": (1, 1),
        "hardsigmoid": (1, 1),
        "elu": (1, 0),
    }
    found = []
    for name in names:
        a, b = takes.get(name.lower(), (0, 0))
        alpha = alphas.pop(0) if a and alphas else None
        beta = betas.pop(0) if b and betas else None
        found.append(_activation(name, alpha, beta))
    per = len(found) // directions
    return [found[i * per : (i + 1) * per] for i in range(directions)]


def recurrence(
    call: Call, x: Array, w: Array, r: Array, b: Array | None = None, lengths: Array | None = None,
    h: Array | None = None, c: Array | None = None, peepholes: Array | None = None, *,
    before: Callable[[Array], Array] = lambda h: h,
) -> Result:  # fmt: skip
    """LSTM, GRU or RNN; `before`: what becomes of the states [B, H] before a step reads them."""
    if call.get("layout", 0):
        x = x.swapaxes(0, 1)
        h, c = (None if v is None else v.swapaxes(0, 1) for v in (h, c))
    directions, hidden = w.shape[0], r.shape[2]
    steps, batch = x.shape[:2]
    gates = _GATES[call.op]
    b = np.zeros((directions, 2 * gates * hidden), x.dtype) if b is None else b
    zero = np.zeros((directions, batch, hidden), x.dtype)
    h, c = (zero if v is None else v for v in (h, c))
    lengths = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
    outputs = np.zeros((steps, directions, batch, hidden), x.dtype)
    last_h, last_c = h.copy(), c.copy()
    for d, functions in enumerate(_activations(call, directions)):
        back = call.get("direction", "forward") == "reverse" or d == 1
        peephole = None if peepholes is None else peepholes[d]
        cell = _Cell(call, w[d], r[d], b[d], functions, peephole)
        state, memory = last_h[d], last_c[d]
        for t in range(steps):
            at = np.where(t < lengths, lengths - 1 - t if back else t, 0)
            now = x[at, np.arange(batch)]
            new, kept = cell(now, before(state), memory)
            live = (t < lengths)[:, None]
            state, memory = np.where(live, new, state), np.where(live, kept, memory)
            rows = np.nonzero(live[:, 0])[0]
            outputs[at[rows], d, rows] = state[rows]
        last_h[d], last_c[d] = state, memory
    made = [outputs, last_h, last_c]
    if call.get("layout", 0):
        made = [outputs.transpose(2, 0, 1, 3), last_h.swapaxes(0, 1), last_c.swapaxes(0, 1)]
    return made[: call.outputs]


class _Cell:
    """One step in one direction."""

    def __init__(
        self, call: Call, w: Array, r: Array, b: Array, functions: list[Activation], peephole: Array | None
    ) -> None:  # fmt: skip
        self.call, self.functions, self.peephole = call, functions, peephole
        self.w, self.r = call.operand(w), r
        half = b.size // 2
        self.wb, self.rb = b[:half], b[half:]
        clip = call.get("clip")
        self.clip: Activation = (lambda v: v) if not clip else (lambda v: np.clip(v, -clip, clip))

    def __call__(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        into = self.call.operand(x) @ self.w.T
        return getattr(self, f"_{self.call.op.lower()}")(into, h, c)  # type: ignore[no-any-return]

    def _rnn(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        return self.functions[0](self.clip(x + h @ self.r.T + self.wb + self.rb)), c

    def _lstm(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        i, o, f, g = np.split(x + h @ self.r.T + self.wb + self.rb, 4, -1)
        holes = np.split(self.peephole, 3) if self.peephole is not None else None

        def seen(hole: int, memory: Array) -> Any:
            return holes[hole] * memory if holes is not None else 0  # without one an infinity is not seen

        i = self.functions[0](self.clip(i + seen(0, c)))
        f = 1 - i if self.call.get("input_forget", 0) else self.functions[0](self.clip(f + seen(2, c)))
        new = f * c + i * self.functions[1](self.clip(g))
        o = self.functions[0](self.clip(o + seen(1, new)))
        return o * self.functions[2](new), new

    def _gru(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        xz, xr, xh = np.split(x + self.wb, 3, -1)
        rz, rr, rh = np.split(self.r, 3)
        bz, br, bh = np.split(self.rb, 3)
        z = self.functions[0](self.clip(xz + h @ rz.T + bz))
        r = self.functions[0](self.clip(xr + h @ rr.T + br))
        if self.call.get("linear_before_reset", 0):
            n = xh + r * (h @ rh.T + bh)
        else:
            n = xh + (r * h) @ rh.T + bh
        return (1 - z) * self.functions[1](self.clip(n)) + z * h, c


# -- control flow ----------------------------------------------------------------------------------------


def _value(array: Any, kind: Any = None) -> Value:
    return Value(array, kind or np.asarray(array).dtype)


def _if(call: Call, condition: Array) -> Result:
    chosen = call.get("then_branch") if bool(np.asarray(condition).reshape(-1)[0]) else call.get("else_branch")
    return list(call.graph(chosen, {}))


def _loop(call: Call, trips: Array | None, condition: Array | None, *carried: Array) -> Result:
    body = call.get("body")
    most = None if trips is None else int(np.asarray(trips).reshape(-1)[0])
    going = True if condition is None else bool(np.asarray(condition).reshape(-1)[0])
    names = [v.name for v in body.input]
    state = [Value(a, k or np.asarray(a).dtype) for a, k in zip(carried, call.kinds[2:], strict=False)]
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    step = 0
    while going and (most is None or step < most):
        given = dict(zip(names, [_value(np.array(step, np.int64)), _value(np.array(going)), *state], strict=True))
        result = call.graph(body, given)
        going = bool(np.asarray(result[0].array).reshape(-1)[0])
        state = result[1 : 1 + len(state)]
        for kept, value in zip(collected, result[1 + len(state) :], strict=True):
            kept.append(value)
        step += 1
    return [*state, *(_stacked(k, 0, made) for k, made in zip(collected, body.output[1 + len(state) :], strict=True))]


def _stacked(kept: list[Value], axis: int, made: Any) -> Value:
    """What the steps made, in one tensor; of no step none, of the shape that the body declares for it."""
    if kept:
        return Value(np.stack([v.array for v in kept], axis), kept[0].kind)
    tensor = made.type.tensor_type
    dims = [d.dim_value for d in tensor.shape.dim]
    if not tensor.HasField("shape") or not tensor.elem_type or not all(dims):
        raise Unsupported("a loop of no step, whose body does not say what a step would make")
    kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return Value(np.zeros((*dims[:axis], 0, *dims[axis:]), np.float64 if is_real(kind) else kind), kind)


def _scan(call: Call, *inputs: Array) -> Result:
    if call.version < 9:
        raise Unsupported("Scan of opset 8")
    body, number = call.get("body"), int(call.get("num_scan_inputs"))
    count = len(inputs) - number
    axes = call.get("scan_input_axes") or [0] * number
    backwards = call.get("scan_input_directions") or [0] * number
    state = [Value(a, k or a.dtype) for a, k in zip(inputs[:count], call.kinds[:count], strict=True)]
    names = [v.name for v in body.input]
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - count)]
    length = inputs[count].shape[axes[0]]
    for step in range(length):
        slices = []
        for a, k, axis, back in zip(inputs[count:], call.kinds[count:], axes, backwards, strict=True):
            slices.append(Value(np.take(a, length - 1 - step if back else step, axis), k or a.dtype))
        result = call.graph(body, dict(zip(names, [*state, *slices], strict=True)))
        state = result[:count]
        for kept, value in zip(collected, result[count:], strict=True):
            kept.append(value)
    turned = call.get("scan_output_directions") or [0] * len(collected)
    into = call.get("scan_output_axes") or [0] * len(collected)
    made = [
        _stacked(k[::-1] if back else k, axis, own)
        for k, axis, back, own in zip(collected, into, turned, body.output[count:], strict=True)
    ]
    return [*state, *made]


TABLE: dict[str, Operator] = {
    "LSTM": recurrence,
    "GRU": recurrence,
    "RNN": recurrence,
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
