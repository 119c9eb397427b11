"""LSTM, GRU and RNN as one Relax operator - the importer writes it, and each machine chooses a form of it.

    y, h, [c] = tvmopt.recurrent(projected, recurrence, ...)                G gates, D directions, H hidden units

    projected   [S, B, D*G*H]   x W^T + b of all steps: one matrix product, outside the recurrence
    recurrence  [D, G*H, H]     R, as ONNX has it; or integers, of LSTMs whose state is rounded
    bias        [D, H]          GRU with linear_before_reset only: of h R^T for the third gate
    lengths     [B] int32       steps of each sequence, if they differ
    h0, c0      [D, B, H]       initial states; zero if left out
    peephole    [D, 3*H]        LSTM
    scale       [D, G*H]        LSTM: what the integers of R count, row by row. Then each step rounds h to 8 bits, with
                                the range of each sequence (0 included): h R^T becomes a product of integers
    y           [S, D, B, H]    h of every step; h, c: [D, B, H], the last states

Biases of R that a gate merely adds are part of `projected`. A call's definition is its step-by-step form
(:mod:`tvmopt.importer.converters.unrolled`), which TVM's LegalizeOps uses where a machine has no kernel for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.recurrent"
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONAL = ("bias", "lengths", "h0", "c0", "peephole", "scale")

Function = tuple[str, float, float]
"""An activation: its name in lower case, alpha, beta."""


@dataclass(frozen=True)
class Spec:
    """What a recurrence computes; sizes are its operands'.

    Attributes:
        kind: "LSTM", "GRU" or "RNN".
        functions: f, g, h of each direction; f, g for GRU; f for RNN.
        reverse: the one direction runs backwards; of two, the second does.
        clip: bound of what enters f, g (and h's gate), 0 for none.
        linear_before_reset: GRU: the reset gate multiplies h R^T, not h.
        input_forget: LSTM: the forget gate is 1 - the input gate.
        operands: names of the optional operands given, in the order of :data:`OPTIONAL`.
    """

    kind: str
    functions: tuple[tuple[Function, ...], ...]
    reverse: bool = False
    clip: float = 0.0
    linear_before_reset: bool = False
    input_forget: bool = False
    operands: tuple[str, ...] = ()

    @property
    def gates(self) -> int:
        """Rows of R a hidden unit."""
        return GATES[self.kind]

    @property
    def states(self) -> tuple[str, ...]:
        """What a step hands on."""
        return ("h", "c") if self.kind == "LSTM" else ("h",)

    def backwards(self, direction: int) -> bool:
        """Whether a direction runs from the last step to the first."""
        return self.reverse or direction == 1

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """The operands of a call by name."""
        return dict(zip(("projected", "recurrence", *self.operands), args, strict=True))


def recurrent(spec: Spec, operands: Mapping[str, Any]) -> Any:
    """The call. `spec.operands` is taken from the names given; the types are inferred when it is bound."""
    _register()
    given = tuple(name for name in OPTIONAL if operands.get(name) is not None)
    text = json.dumps(asdict(spec) | {"operands": given})
    args = [operands[name] for name in ("projected", "recurrence", *given)]
    return relax.Call(tvm.ir.Op.get(OP), args, tvm.ir.make_node("ir.DictAttrs", spec=text))


def spec_of(call: Any) -> Spec:
    """What a call of :data:`OP` computes."""
    fields = json.loads(str(call.attrs["spec"]))
    functions = tuple(tuple((str(n), float(a), float(b)) for n, a, b in fs) for fs in fields.pop("functions"))
    return Spec(**fields | {"functions": functions, "operands": tuple(fields["operands"])})


def _types(call: Any, _bb: Any) -> Any:
    (steps, batch, _), (directions, _, hidden) = (list(a.ty.shape) for a in call.args[:2])
    dtype = call.args[0].ty.dtype
    state = relax.TensorType([directions, batch, hidden], dtype)
    return relax.TupleType(
        [relax.TensorType([steps, directions, batch, hidden], dtype), *[state] * len(spec_of(call).states)]
    )


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _types, __name__)


def define(form: Any) -> None:
    """Make `form(bb, call) -> Expr` what LegalizeOps puts in place of a call that no machine's own form took."""
    _register()
    legalize_by(OP, form)
