"""From a difference to its cause: the layer, then the pass, kernel, constant or precision; and a small model.

The layer that leaves its tolerance first is cut out and fed with the reference's values. Does the piece still
differ, it is made smaller, and compiled in other ways: what makes it right is to blame. Does it not, the whole
model is bisected, unless every kernel was compared and is right: then no piece of it is wrong. A piece takes a second
to compile where the model takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.judge import Judge
from tvmopt.bench.records import Job
from tvmopt.children import Progress
from tvmopt.debug import constants
from tvmopt.debug.check import Finding, Numbers
from tvmopt.debug.engines import job_of, run_engine
from tvmopt.debug.records import Blame, CompareResult, Experiment, Repro, Row, Trace
from tvmopt.debug.reduce import Search, smallest
from tvmopt.debug.session import Session
from tvmopt.errors import TvmoptError, first_line
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import node_name


def explain(
    session: Session, result: CompareResult, spec: str, precision: str, row: Row, trace: Trace | None
) -> CompareResult:
    """The result with the cause of one row's difference and a model that reproduces it."""
    if not spec:
        found = constants.explain(session, result, row, trace)
        if found is not None:
            return found
    ours = not spec or spec.partition(":")[0] == "tvmopt"
    check: Numbers | EngineCheck
    if ours:
        check = _numbers(session, spec, precision, row)
    else:
        job = job_of(spec, "", precision, session.settings.threads, {})
        check = EngineCheck(job, precision, session.settings.limits(""), session.folder)
    search = Search(session.layers, check, True, session.progress)
    search.finding = Finding("numbers") if row.status != "failed" else search.whole()
    if not search.finding.fails:
        return replace(result, blame=Blame("unknown", "", "the failure did not happen again"))
    inside = _suspects(session, trace, search)
    sound = ours and precision in ("", "fp32") and not inside and _sound(trace)
    if not inside and not sound:
        inside = _bisected(search)
    if not inside:
        if _preparation_differs(session):
            text = "the importer's preparation (shapes bound, constants folded) changes what the model computes"
            return replace(result, blame=Blame("converter", "preparation", text))
        if sound:
            text = "every kernel is right, given what the kernels before it wrote: the model amplifies what they round"
            return replace(result, blame=Blame("rounding", "", text))
        text = "no piece of the model reproduces the difference with the reference's values"
        culprit = trace.culprit if trace else None
        at = f"; the first layer that leaves its tolerance is {culprit.node}" if culprit else ""
        return replace(result, blame=Blame("unknown", culprit.node if culprit else "", text + at))
    reduced = search.result(inside, session.settings.repro)
    piece = session.layers.piece(inside)
    path = session.layers.write(piece, "blamed.onnx")
    feeds = session.layers.inputs(piece)
    if isinstance(check, Numbers):
        blame = blame_tvmopt(check, path, piece, feeds, reduced.names, session.progress)
    else:
        blame = blame_engine(check, path, piece, feeds, reduced.names)
    words = spec if not ours else "tvmopt"
    command = f"tvmopt compare {reduced.path} -i {reduced.inputs}" + (
        f" --engines {words}" if words != "tvmopt" else ""
    )
    command += f" --precision {precision}" if precision not in ("", "fp32") else ""
    command += session.settings.flags
    repro = Repro(reduced.path, reduced.inputs, reduced.names, "", command, reduced.confirmed)
    return replace(result, blame=blame, repro=repro)


def _preparation_differs(session: Session) -> bool:
    """Whether the prepared model computes something else than the file, both by the reference."""
    from tvmopt.analysis.verify import run_reference

    expected = session.reference()
    try:
        _, (found,) = isolated(lambda: run_reference(session.layers.path, [session.feeds]), "reference run")
    except TvmoptError:
        return False
    return not Judge(session.model).judged(session.feeds, expected, found).ok


def _numbers(session: Session, spec: str, precision: str, row: Row) -> Numbers:
    """The check that compiles a piece as the row's model was."""
    from tvmopt.bench.runners import parse

    options = parse(spec)[1] if spec else {}
    limits = session.settings.limits("")
    target = options.pop("target", session.settings.target)
    flags = {k: v in ("on", "true", "1", "yes") for k, v in options.items()}
    crashed = row.status == "failed" and " run " in row.message
    return Numbers(
        target, precision or "fp32", limits["rtol"], limits["atol"], flags,
        compare=row.status != "failed" or crashed,
    )  # fmt: skip


def _suspects(session: Session, trace: Trace | None, search: Search) -> set[int]:
    """The nodes of the first layer that differs, made smaller; empty when they are right on their own."""
    culprit = trace.culprit if trace else None
    if culprit is None:
        return set()
    names = {node_name(n): i for i, n in enumerate(session.layers.nodes)}
    inside = {names[n] for n in culprit.nodes if n in names}
    for wider in (inside, _with_readers(session, inside)):
        if search.fails(wider):
            return search.without_singles(wider)
    return set()


def _sound(trace: Trace | None) -> bool:
    """Whether every kernel of a compiled model was compared, and is right."""
    return trace is not None and bool(trace.layers) and all(one.status == "ok" for one in trace.layers)


def _with_readers(session: Session, inside: set[int]) -> set[int]:
    """The nodes and those that read them: fusion may have gone wrong at the seam."""
    made = {o for i in inside for o in session.layers.nodes[i].output}
    return inside | {i for i, n in enumerate(session.layers.nodes) if made.intersection(n.input)}


def _bisected(search: Search) -> set[int]:
    """The whole model bisected."""
    everything = set(range(len(search.layers.nodes)))
    return search.run("bisect") if search.fails(everything) else set()


# -- tvmopt ------------------------------------------------------------------------------------------------


def blame_tvmopt(
    check: Numbers, path: Path, piece: onnx.ModelProto, feeds: Mapping[str, Array], nodes: Sequence[str],
    progress: Progress,
) -> Blame:  # fmt: skip
    """The piece compiled without one thing at a time; what makes it right is to blame."""
    tried: list[Experiment] = []
    where = " + ".join(nodes)

    def right(name: str, **changes: Any) -> bool:
        progress(f"{where}: {name}")
        options = {**check.options, **{k: v for k, v in changes.items() if k != "precision"}}
        found = replace(check, options=options, precision=changes.get("precision", check.precision))(path, piece, feeds)
        tried.append(Experiment(name, _verdict(found), first_line(found.text)))
        return not found.fails

    def result(kind: str, name: str, text: str) -> Blame:
        return Blame(kind, name, text, tuple(tried))

    if check.precision != "fp32" and right("in fp32", precision="fp32"):
        return result("precision", check.precision, f"{where} is right in fp32 and wrong in {check.precision}")
    if right("without tuning records", records=False):
        return result("record", "", f"{where} is right with analytic schedules: a tuning record is to blame")
    if right("exact algorithms only", exact=True):
        return result("algorithm", "Winograd", f"{where} is right with --exact: its transformed algorithm is to blame")
    try:
        kernels, passes = isolated(lambda: _anatomy(check, path), "anatomy", str(path))
    except (TvmoptError, RuntimeError):  # it does not compile: every pass is a suspect
        kernels, passes = [], _every_pass(check)
    if right("all kernels scheduled by the generic family", generic=("*",)):
        for name, family in kernels:
            if right(f"kernel {name} by the generic family", generic=(name,)):
                return result(
                    "kernel",
                    name,
                    f"the {family} schedule of kernel {name} ({where}) is to blame: the generic one is right",
                )
        return result(
            "kernel",
            ", ".join(n for n, _ in kernels),
            f"the schedules of {where} are to blame: right with generic ones",
        )
    guilty = [name for name in passes if right(f"without {name}", without=(name,))]
    if len(guilty) != 1 and passes:
        guilty = _first_wrong(passes, guilty, right)
    if guilty:
        more = f" (also right without {', '.join(guilty[1:])})" if len(guilty) > 1 else ""
        return result("pass", guilty[0], f"pass {guilty[0]} is to blame for {where}{more}")
    kinds = ", ".join(sorted({n.rpartition(" (")[2].rstrip(")") for n in nodes}))
    return result(
        "converter",
        kinds,
        f"{where} is wrong however it is compiled: its converter or its lowering to loops is to blame",
    )


def _first_wrong(passes: Sequence[str], guilty: Sequence[str], right: Callable[..., bool]) -> list[str]:
    """The pass with which the result becomes wrong when passes are added one after the other."""
    if not right("without any graph pass", without=tuple(passes)):
        return list(guilty)
    found = smallest(
        len(passes),
        lambda k: not right(f"passes up to {passes[k]}", without=tuple(passes[k + 1 :])),
        "bisect",
    )
    first = [] if found is None else [passes[found]]
    return first + [g for g in guilty if g not in first]


def _every_pass(check: Numbers) -> list[str]:
    """The names of all stages that can be left out, in order."""
    from tvmopt import pipeline
    from tvmopt.targets import Machine

    parts = pipeline.stages(pipeline.Job(Machine.load(check.target), precision=check.precision, lift=True))
    return list(dict.fromkeys(one.name for part in parts for one in part.stages if not one.needed))


def _anatomy(check: Numbers, path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """In a fork: kernels that a family of its own scheduled, and stages that can be left out and change the piece."""
    import tvm_ffi

    from tvmopt import pipeline
    from tvmopt.importer import import_model
    from tvmopt.importer.provenance import without_names
    from tvmopt.targets import Machine

    module = import_model(path).module
    before = [without_names(module)[0]]  # as the first stage is given it
    changed: list[str] = []

    def watch(number: int, name: str, after: Any) -> None:
        if not tvm_ffi.structural_equal(before.pop(), after):
            changed.append(name)
        before.append(after)

    machine, options = Machine.load(check.target), dict(check.options)
    known = {name: options[name] for name in ("exact", "without", "generic") if name in options}
    made = pipeline.lower(module, machine, precision=check.precision, lift=True, watch=watch, **known)
    run, _ = pipeline.plan_memory(made, machine)
    pipeline.lower_loops(run, made.job)
    passes = [name for name in _every_pass(check) if name in changed]
    return [(k.name, k.family) for k in made.kernels if k.source != "generic"], passes


def _verdict(found: Finding) -> str:
    return "right" if not found.fails else "wrong" if found.kind == "numbers" else "fails"


# -- other engines -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineCheck:
    """Whether another engine computes a piece wrongly."""

    job: Job
    precision: str
    limits: Mapping[str, Any]
    folder: Path

    def __call__(self, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Finding:
        from tvmopt.analysis.verify import run_reference

        try:
            outputs, _ = run_engine(replace(self.job, model=str(path)), feeds, self.folder)
            _, (expected,) = isolated(lambda: run_reference(path, [dict(feeds)]), "reference run", str(path))
        except TvmoptError as error:
            return Finding(f"engine: {type(error).__name__}", str(error))
        chosen = {n: np.asarray(outputs[n]) for n in expected if n in outputs}
        found = Judge(path, self.precision, **self.limits).judged(feeds, chosen, expected)
        return Finding() if found.ok else Finding("numbers", str(found), found.max_error)


def blame_engine(
    check: EngineCheck, path: Path, piece: onnx.ModelProto, feeds: Mapping[str, Array], nodes: Sequence[str]
) -> Blame:
    """The piece run with other settings of the same engine."""
    where = " + ".join(nodes)
    tried = []
    for name, other in _settings(check):
        found = other(path, piece, feeds)
        tried.append(Experiment(name, _verdict(found), first_line(found.text)))
        if not found.fails:
            kind = "precision" if "precision" in name else "engine"
            return Blame(kind, name, f"{check.job.engine} computes {where} rightly with {name}", tuple(tried))
    return Blame(
        "engine",
        check.job.engine,
        f"{check.job.engine} computes {where} wrongly in every way it was asked",
        tuple(tried),
    )


def _settings(check: EngineCheck) -> Iterator[tuple[str, EngineCheck]]:
    if check.job.precision != "fp32":
        yield "precision fp32", replace(check, job=replace(check.job, precision="fp32"), precision="fp32")
    if check.job.engine == "onnxruntime":
        for level in ("none", "basic", "extended"):
            options = {**check.job.options, "opt_level": level}
            if options != check.job.options:
                yield f"opt_level={level}", replace(check, job=replace(check.job, options=options))
