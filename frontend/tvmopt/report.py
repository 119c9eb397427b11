"""What was done and why not: the records that every stage of a compile leaves, for reports and `explain`.

A pass never prints. It is handed a :class:`DecisionLog` and records where it applied and where it declined;
`tvmopt explain` renders the log. Refusal is data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Decision:
    """One thing that a stage did, or left alone.

    Attributes:
        stage: the pass or family, as it shows in TVM's pass timing: ``"tvmopt.FuseLayerNorm"``.
        verdict: ``"applied"`` or ``"declined"``.
        node: the binding it concerns; bindings are named after the ONNX node they come from.
        reason: why it declined (the number of the condition in the pass's docstring, and the words), or what it gained.
    """

    stage: str
    verdict: Literal["applied", "declined"]
    node: str
    reason: str = ""


@dataclass
class DecisionLog:
    """The decisions of one compile, in order."""

    decisions: list[Decision] = field(default_factory=list)

    def applied(self, stage: str, node: str, reason: str = "") -> None:
        self.decisions.append(Decision(stage, "applied", node, reason))

    def declined(self, stage: str, node: str, reason: str) -> None:
        decision = Decision(stage, "declined", node, reason)
        if decision not in self.decisions:  # a pass that runs to a fixed point sees the same refusal again
            self.decisions.append(decision)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def count(self, stage: str, verdict: str = "applied") -> int:
        """How often `stage` applied (or declined)."""
        return sum(d.stage == stage and d.verdict == verdict for d in self.decisions)


@dataclass(frozen=True)
class Kernel:
    """One kernel of the compiled module.

    Attributes:
        name: the PrimFunc's symbol in the library.
        family: the schedule family that scheduled it, ``"generic"`` where none did, ``"builtin"`` for a runtime call.
        source: where its knobs came from: ``"tuned"``, ``"analytic"`` or ``"generic"``.
        knobs: the values used.
        calls: how often one inference calls it.
        nodes: the ONNX nodes it computes, one tuple a call site.
        flops: floating point operations of one call (a multiply-add counts as two).
        bytes: bytes of its distinct inputs and outputs, each touched once: the traffic floor of one call.
        launches: on a GPU, the kernels it launches (`tvmopt.ptxas.Launch` as dictionaries): grid, threads, registers,
            shared memory, spills, occupancy.
    """

    name: str
    family: str
    source: Literal["tuned", "analytic", "generic", "builtin"]
    knobs: dict[str, Any]
    calls: int
    nodes: tuple[tuple[str, ...], ...]
    flops: float
    bytes: float
    note: str = ""
    launches: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Report:
    """What one compile did: `tvmopt compile` prints it, `--json` dumps it, the artifact keeps it."""

    model: str
    target: str
    precision: str
    kernels: tuple[Kernel, ...]
    decisions: tuple[Decision, ...]
    seconds: dict[str, float]
    flops: float
    parameters: int
    weight_bytes: int
    activation_bytes: int
    accuracy: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return asdict(self)

    def share(self, source: str) -> float:
        """Share (0 to 1) of the model's FLOPs that kernels of this source compute."""
        total = sum(k.flops * k.calls for k in self.kernels) or 1.0
        return sum(k.flops * k.calls for k in self.kernels if k.source == source) / total
