"""One run of a compiled model, compared: what a worker is asked for, and what it answers."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx

from fuzz.guard import Overwritten
from fuzz.inputs import OUTSIDE, feeds_of
from fuzz.reference import Reference, Unable
from fuzz.verdict import Unjudged, Verdicts

Say = Callable[[str], None]
BEYOND = re.compile(r"out of (data )?bounds|within bounds|invalid ind")
"""How onnxruntime says that an index is out of range."""

SCARCE = "there is not enough memory"
"""How we say that a run needs more than there is."""


@dataclass(frozen=True)
class Options:
    """How models are compiled and what they are run on.

    Attributes:
        kinds: of inputs; empty: those that fit the model.
        valid: the model is valid: to refuse it is a finding, unless an operator is not supported.
    """

    target: str = "cpu"
    precision: str = "fp32"
    kinds: tuple[str, ...] = ()
    valid: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Finding:
    """What went wrong.

    Attributes:
        kind: "death", "hang", "exception", "refused", "memory", "error"; "wrong", or the kind of inputs: wrong numbers;
            "alarm": the judge refuses numbers that seem right; "accepted": it accepts numbers that seem wrong;
            "sizes": sizes that the model cannot have are taken, or refused when kernels have run.
        inputs: the kind of inputs, where it showed in a run.
    """

    kind: str
    text: str
    inputs: str = ""


@dataclass
class Outcome:
    """What became of one model: ``status`` is "checked", "refused", "skipped" or "found"."""

    status: str = "checked"
    why: str = ""
    runs: int = 0
    unjudged: int = 0
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def refused(error: Exception, valid: bool) -> Outcome:
    """The outcome of a compile that raised; of a `valid` model only an operator that is not supported is no finding."""
    from tvmopt.errors import TvmoptError, UnsupportedOp

    if isinstance(error, UnsupportedOp):
        outcome = Outcome("refused", error.what[:160])
        if "Error: " in error.what and valid:  # TVM's words: nobody decided that it is not supported
            outcome.findings.append(Finding("refused", f"{error}"[:1500]))
        return outcome
    if isinstance(error, TvmoptError):
        outcome = Outcome("refused", f"{type(error).__name__}: {error.what}"[:200])
        if valid:
            outcome.findings.append(Finding("refused", f"{error}"[:1500]))
        return outcome
    return Outcome("found", findings=[Finding("exception", told(error))])


def run_once(
    model: onnx.ModelProto, engine: Any, reference: Reference | None, verdicts: Verdicts | Unjudged | None, kind: str,
    seed: int, valid: bool, say: Say, outcome: Outcome,
) -> Finding | None:  # fmt: skip
    """What is found in one run of one kind of inputs, if anything."""
    from tvmopt.errors import TvmoptError

    try:
        feeds = feeds_of(model, kind, seed)
    except ValueError:
        return None
    outcome.runs += 1
    say(f"run: {kind}")
    refusal = ""
    found = {}
    try:
        found = engine.run(feeds)
    except Overwritten as error:
        return Finding("memory", str(error), kind)
    except TvmoptError as error:
        refusal = str(error)
    except MemoryError:  # a result larger than this child may hold
        return None
    except Exception as error:
        return Finding("exception", told(error), kind)
    if reference is None or verdicts is None:
        return None
    say(f"reference: {kind}")
    try:
        expected = reference.run(feeds)
    except Unable as error:
        raises = engine.model is not None  # a kernel of a GPU cannot: it takes the nearest valid index
        silent = kind == OUTSIDE and found and raises and BEYOND.search(str(error)) and not has_unread(model.graph)
        return Finding("wrong", f"numbers, where onnxruntime says: {error}"[:400], kind) if silent else None
    if refusal and SCARCE in refusal:  # a child may hold as much as it may
        return None
    if refusal:  # the oracle alone divides by zero and goes on
        damaged = not valid and "out of range" in refusal  # classes and lengths that onnxruntime does not look at
        allowed = kind == OUTSIDE or reference.session is None or damaged
        return None if allowed else Finding("error", f"the run is refused: {refusal}", kind)
    problem = reference.agrees(expected, found, feeds)
    say(f"judge: {kind}")
    try:
        judged = verdicts.problem(feeds, expected if reference.session is not None else None)
    except Exception as error:
        return Finding("exception", f"the judge: {told(error)}", kind)
    if not problem and not judged:
        return None
    if judged and not problem:
        return Finding("alarm", judged, kind) if valid else None
    if problem and judged == "":
        return Finding("accepted", problem, kind)
    text = f"{problem}\nthe judge: {judged}"
    return Finding("wrong" if kind in ("normal", "offset", "edge", OUTSIDE) else kind, text, kind)


def has_unread(graph: onnx.GraphProto) -> bool:
    """Whether some node's results are asked for their shape alone: we do not compute it, and find no index outside."""
    from tvmopt.importer.protos import node_reads

    read = {o.name for o in graph.output}
    unread = False
    for node in reversed(graph.node):
        if not read.intersection(node.output):
            unread = True
        elif node.op_type not in ("Shape", "Size"):
            read |= node_reads(node)
    return unread


def told(error: Exception) -> str:
    """An error that is none of ours, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}"
        for f in frames
        if "tvmopt" in f.filename or "schedules" in f.filename
    ]
    text = str(error).strip()
    ends = text if len(text) < 600 else f"{text[:300]} ... {text[-300:]}"
    return f"{type(error).__name__}: {ends}\n  in {' < '.join(reversed(ours[-4:]))}"


def options_of(fields: dict[str, Any]) -> Options:
    return Options(**{**fields, "kinds": tuple(fields.get("kinds", ()))})
