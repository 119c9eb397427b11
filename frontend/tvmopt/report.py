"""What was done and why not: the records that every stage of a compile leaves, for reports and `explain`.

A pass never prints. It is handed a :class:`DecisionLog` and records where it applied and where it declined;
`tvmopt explain` renders the log. Refusal is data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tvmopt.errors import ArtifactError, reason
from tvmopt.plain import plain, typed

IMPORTING = "importing"
"""The first stage of a compile, in which what the file says is trusted least."""


@dataclass(frozen=True)
class Decision:
    """One thing that a stage did, or left alone.

    Attributes:
        stage: the pass or family, as it shows in TVM's pass timing: ``"tvmopt.FuseLayerNorm"``.
        verdict: ``"applied"`` or ``"declined"``.
        node: the ONNX node it concerns (inside a pass: the binding, which is named after it).
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
        flops: operations of one call (a multiply-add counts as two), of floats and of products of bytes.
        bytes: bytes of its distinct inputs and outputs, each touched once: the traffic floor of one call.
        launches: on a GPU, the kernels it launches (`tvmopt.toolchain.ptxas.Launch` as dictionaries): grid, threads,
            registers, shared memory, spills, occupancy.
        precision: ``"int8"`` where most operations are products of bytes, else that of the model: ``""``.
        tasks: on a CPU, how many threads can share a call: the iterations of its longest parallel loop; 1 where it has
            none, 0 where open sizes decide.
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
    precision: str = ""
    tasks: int = 0


@dataclass(frozen=True)
class OnnxNode:
    """A node of the model: its ONNX `name`, operator, tensors, the shape of its first output, its FLOPs by
    the operator's definition (a multiply-add is two; None where shapes are not known).
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    flops: float | None = None


@dataclass(frozen=True)
class Value:
    """A tensor of the compiled program.

    Attributes:
        name: the ONNX tensor it is, where it is one.
        kind: ``"input"``, ``"weight"``, ``"activation"``, or ``"output"``: allocated anew by each run.
        storage: which planned block of memory an activation lies in; -1 for the other kinds.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: Literal["input", "weight", "activation", "output"]
    storage: int = -1


@dataclass(frozen=True)
class Step:
    """One call of a kernel (or of the runtime): the ONNX `nodes` it computes, indices of the values it reads
    and writes.
    """

    kernel: str
    nodes: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """One run of the compiled program: what is called, in order, on which tensors.

    Attributes:
        nodes: the model's nodes, by the names that steps, kernels and decisions use for them.
        values: every tensor; a view is the tensor it views.
        steps: the calls, in order.
        outputs: indices of the values that are returned.
        storages: bytes of each block of memory planned for activations.
        folded: nodes of the file that the importer computed at compile time, or that nothing reads.
    """

    nodes: dict[str, OnnxNode] = field(default_factory=dict)
    values: tuple[Value, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[int, ...] = ()
    storages: tuple[int, ...] = ()
    folded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        places, blocks = range(len(self.values)), range(-1, len(self.storages))
        read = {*self.outputs, *(i for step in self.steps for i in (*step.inputs, *step.outputs))}
        if not all(i in places for i in read) or not all(value.storage in blocks for value in self.values):
            raise ValueError("a step names a tensor, or a tensor a block of memory, that there is not")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Flow:
        """From what `plain` made, or from nothing (artifacts of before).

        Raises:
            TypeError, ValueError: it is of other types, or names what it has not.
        """
        made: Flow = typed(cls, dict(data), "flow")
        return made


@dataclass(frozen=True, repr=False)
class Report:
    """What one compile did: `tvmopt compile` prints it, `--json` dumps it, the artifact keeps it.

    Attributes:
        seconds: wall time of each stage; empty where nothing was compiled.
        cached: the artifact is that of an earlier compile.
    """

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
    flow: Flow = field(default_factory=Flow)
    cached: bool = False

    def __repr__(self) -> str:
        return f"<tvmopt.Report {self.summary()}>"

    def summary(self) -> str:
        """The report in a line: model, target, precision, kernels, work."""
        made = f"{len(self.kernels)} kernels, {self.flops / 1e9:.3g} GFLOP"
        return f"{self.model} for {self.target}, {self.precision}: {made}"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """From what :meth:`as_dict` made; an artifact keeps it without its timings.

        Raises:
            ArtifactError: it is not what a compile reports.
        """
        try:
            made: Report = typed(cls, {"seconds": {}, **data}, "report")
        except (TypeError, ValueError, RecursionError) as error:
            fix = "compile the model again"
            raise ArtifactError(f"the report in the artifact is damaged: {reason(error)}", fix=fix) from error
        return made

    def share(self, source: str) -> float:
        """Share (0 to 1) of the model's FLOPs that kernels of this source compute."""
        total = sum(k.flops * k.calls for k in self.kernels) or 1.0
        return sum(k.flops * k.calls for k in self.kernels if k.source == source) / total
