"""What `tvmopt compare` found: plain data for the table, the page and `--json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tvmopt.analysis.comparator import OutputComparison


@dataclass(frozen=True)
class Row:
    """One engine, precision, artifact or second model against the reference.

    Attributes:
        status: ``"ok"``, ``"wrong"``, ``"missing"`` (package or device) or ``"failed"``.
        message: why, where it is not ok.
        facts: version, threads, precision as the engine tells them.
        outputs: each output compared.
    """

    label: str
    status: str = "ok"
    message: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    outputs: tuple[OutputComparison, ...] = ()

    @property
    def within_rounding(self) -> bool:
        """Whether rounding explains the differences: only the tolerance that was asked for does not allow them."""
        wrong = [o for o in self.outputs if not o.ok]
        return bool(wrong) and all(o.problem == "differs" and 0 < o.excess <= 1 for o in wrong)

    @property
    def needed(self) -> float:
        """The relative tolerance that would pass."""
        return max((o.needed for o in self.outputs), default=0.0)


@dataclass(frozen=True)
class Layer:
    """One inner tensor of one row.

    Attributes:
        index: of the node that computes it, in graph order; `node`, `operator` its name and operator.
        tensor: the tensor.
        kernel: the kernel that computed it, in a compiled model.
        status: ``"ok"``, ``"differs"``, ``"unmatched"`` (the kernel's result is no tensor of the model).
        comparison: with the reference.
        weights: indices of the artifact's weights that the kernel reads.
        nodes: all nodes that the kernel computes.
    """

    index: int
    node: str
    operator: str
    tensor: str
    status: str
    comparison: OutputComparison
    kernel: str = ""
    weights: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The inner tensors of one row, in graph order.

    Attributes:
        how: "every kernel of the compiled model, observed" or "every tensor marked as an output".
        first: the position in `layers` of the first that leaves its tolerance, or None.
    """

    label: str
    how: str
    layers: tuple[Layer, ...]
    first: int | None = None

    @property
    def culprit(self) -> Layer | None:
        return None if self.first is None else self.layers[self.first]


@dataclass(frozen=True)
class NonFinite:
    """A node that makes NaN or Inf out of finite inputs."""

    node: str
    operator: str
    tensor: str
    nan: int
    inf: int
    of: int


@dataclass(frozen=True)
class Constant:
    """A constant that differs: of two models, or of an artifact and what its model compiles to.

    Attributes:
        name: the initialiser, or the artifact's weight.
        nodes: that read it.
        different, of: elements.
        largest: the largest difference, at `worst`.
    """

    name: str
    nodes: tuple[str, ...]
    different: int
    of: int
    largest: float
    worst: tuple[int, ...]
    expected: float
    found: float
    text: str = ""


@dataclass(frozen=True)
class Experiment:
    """The reproducing piece, compiled or run in another way; `verdict`: right, wrong, or fails."""

    name: str
    verdict: str
    text: str = ""


@dataclass(frozen=True)
class Blame:
    """Who is to blame for a difference.

    Attributes:
        kind: ``"pass"``, ``"kernel"``, ``"algorithm"``, ``"record"``, ``"precision"``, ``"constant"``,
        ``"node"``,
            ``"converter"``, ``"engine"``, ``"fusion"``, ``"tolerance"``, ``"rounding"`` or ``"unknown"``.
        name: which one.
        text: a sentence.
        experiments: what was tried.
    """

    kind: str
    name: str
    text: str
    experiments: tuple[Experiment, ...] = ()


@dataclass(frozen=True)
class Repro:
    """A small model that reproduces a difference.

    Attributes:
        path, inputs: the ONNX file and the .npz with its inputs' values.
        nodes: its nodes, ``name (Operator)``.
        other: a second file that it must be compared with: the other model's piece, or an artifact.
        command: reproduces it.
        confirmed: the piece was run and is wrong.
    """

    path: str
    inputs: str
    nodes: tuple[str, ...]
    other: str = ""
    command: str = ""
    confirmed: bool = False


@dataclass(frozen=True)
class CompareResult:
    """One `tvmopt compare`.

    Attributes:
        reference: what was compared against.
        inputs: names and types.
        rows: one an engine; `traces` layer by layer, where wanted or needed.
        nonfinite: nodes of the reference that make NaN or Inf.
        constants: that differ, where two files were compared.
        structure: how two models differ in their nodes.
        blame, repro: for the first row that is wrong.
    """

    model: str
    reference: str
    inputs: dict[str, str]
    rows: tuple[Row, ...]
    traces: tuple[Trace, ...] = ()
    nonfinite: tuple[NonFinite, ...] = ()
    constants: tuple[Constant, ...] = ()
    structure: tuple[str, ...] = ()
    blame: Blame | None = None
    repro: Repro | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether something ran, and everything that ran agrees, layers included.

        Constants of a second model may differ without harm; those of an artifact make its row wrong.
        """
        return any(r.status == "ok" for r in self.rows) and not self.differs

    @property
    def differs(self) -> bool:
        """Whether a row is wrong or failed, or a layer leaves its tolerance."""
        return any(r.status in ("wrong", "failed") for r in self.rows) or any(t.culprit for t in self.traces)

    @property
    def missing(self) -> tuple[str, ...]:
        """The rows that could not run here, for want of a package or a device."""
        return tuple(r.label for r in self.rows if r.status == "missing")

    @property
    def verdict(self) -> str:
        """The answer, for people."""
        absent = f"{', '.join(self.missing)} {'is' if len(self.missing) == 1 else 'are'} missing"
        if self.differs:
            return f"there are differences; {absent}" if self.missing else "there are differences"
        if not self.ok or not self.compared:
            return f"nothing was compared: {absent}" if self.missing else "nothing was compared"
        return f"what ran agrees; {absent}" if self.missing else "everything agrees"

    @property
    def numberless(self) -> tuple[str, ...]:
        """The outputs in which the reference has no number, so that nothing of them was compared."""
        return tuple(dict.fromkeys(o.name for row in self.rows for o in row.outputs if not o.numbers))

    @property
    def compared(self) -> bool:
        """Whether there was a number to compare, or an engine failed."""
        outputs = [o for row in self.rows for o in row.outputs]
        return self.differs or not outputs or any(o.numbers for o in outputs)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self) | {"ok": self.ok, "missing": self.missing}


def result_from(data: dict[str, Any]) -> CompareResult:
    """A result from its plain data."""
    plain = {k: v for k, v in data.items() if k not in ("ok", "missing")}
    return CompareResult(
        **{
            **plain,
            "rows": tuple(Row(**{**r, "outputs": tuple(map(_output, r["outputs"]))}) for r in data["rows"]),
            "traces": tuple(Trace(**{**t, "layers": tuple(map(_layer, t["layers"]))}) for t in data["traces"]),
            "nonfinite": tuple(NonFinite(**n) for n in data["nonfinite"]),
            "constants": tuple(Constant(**_tuples(c, "nodes", "worst")) for c in data["constants"]),
            "structure": tuple(data["structure"]),
            "blame": _blame(data["blame"]),
            "repro": Repro(**_tuples(data["repro"], "nodes")) if data["repro"] else None,
        }
    )


def _blame(data: dict[str, Any] | None) -> Blame | None:
    return Blame(**{**data, "experiments": tuple(Experiment(**e) for e in data["experiments"])}) if data else None


def _layer(data: dict[str, Any]) -> Layer:
    return Layer(**_tuples({**data, "comparison": _output(data["comparison"])}, "weights", "nodes"))


def _output(data: dict[str, Any]) -> OutputComparison:
    return OutputComparison(**_tuples(data, "worst"))


def _tuples(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: tuple(v) if k in keys else v for k, v in data.items()}
