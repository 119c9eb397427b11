"""One compile for one machine, whole: taken from the cache, or compiled, verified, kept, written - for `tvmopt.api`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tvmopt import children
from tvmopt.amounts import check_tolerance
from tvmopt.cache import Artifacts
from tvmopt.children import Progress
from tvmopt.compiler.beginning import joined, of_beginning, of_step, two_models
from tvmopt.compiler.carchive.asked import CArchive, check_sizes
from tvmopt.compiler.kept import Kept
from tvmopt.compiler.request import Request, as_file
from tvmopt.files import copied
from tvmopt.report import IMPORTING, Report
from tvmopt.runtime.artifact import Artifact, read
from tvmopt.runtime.draft import Draft
from tvmopt.targets.memory import give_back

if TYPE_CHECKING:
    from tvmopt.importer import Imported
    from tvmopt.importer.pairs import Pair

Made = tuple[Artifact, Report, Path | None, CArchive | None]
"""An artifact, what was done, where it was written, if that was asked for, and what was written in its place."""


@dataclass(frozen=True)
class Order:
    """What is to happen to a compile, beside its request; see :func:`tvmopt.compile`."""

    verify: bool
    tolerance: float | None
    output: str | Path | None
    strip_weights: bool
    cache: bool
    emit: str = "artifact"

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)

    def kept(self, request: Request) -> Kept | None:
        """Where the artifact is kept; None where it is not.

        Raises:
            InputError: the cache's limit is no number.
        """
        keeps = self.cache and self.emit == "artifact"  # of an artifact no other form is made
        return Kept.of(request, self.verify, self.tolerance) if keeps else None


@dataclass(frozen=True)
class CompiledFile:
    """A compile that was written: its report and its path.

    Attributes:
        reports: of a fleet, the report of each target; `report` is then that of the target which this machine runs.
        archive: what the folder `path` holds, if a C archive was asked for.
    """

    report: Report
    path: Path | None
    reports: tuple[Report, ...] = ()
    archive: CArchive | None = None


def compiled(request: Request, order: Order, progress: Progress | None) -> Made:
    """In this process.

    Raises:
        TvmoptError: see :func:`tvmopt.compile`.
    """
    models = two_models(request, order.strip_weights)
    if models is not None:
        apart = replace(order, output=None)
        step, report, *_ = compiled(of_step(request, models), apart, progress)
        if models.beginning is not None:
            asked = of_beginning(request, models, step.manifest)
            step, report = joined(step, report, compiled(asked, apart, _also(progress))[0])
        return step, report, _written(step, order), None
    kept = order.kept(request)
    found = kept.find() if kept is not None else None
    if found is not None:
        return *found, _written(found[0], order), None
    return _compiled(request, order, kept, progress)


def isolated(request: Request, order: Order, progress: Progress | None) -> CompiledFile:
    """In a child process; what is taken from the cache needs none.

    Raises:
        Crash: the compiler died. TvmoptError: see :func:`tvmopt.compile`.
    """
    models = two_models(request, order.strip_weights)
    if models is not None:
        return _both(request, models, order, progress)
    kept = order.kept(request)
    if kept is not None and (found := _found(kept, order)) is not None:
        return found
    arguments = {
        "request": request.to_dict(),
        "kept": kept.start if kept is not None else "",
        "verify": order.verify,
        "tolerance": order.tolerance,
        "output": None if order.output is None else str(order.output),
        "strip_weights": order.strip_weights,
        "cache": order.cache,
        "emit": order.emit,
    }
    call = partial(children.call, "tvmopt.compiler.whole:in_child", progress=progress)
    try:
        try:
            answer = call(arguments | {"careful": False})
        except children.Crash as crash:
            if crash.stage != IMPORTING or crash.bug or children.starved(crash.what):
                raise
            answer = call(arguments | {"careful": True})  # it says what step of the import this model crashes
    except children.Crash as crash:
        raise crash.of_compile(request.source) from crash
    archive = CArchive(**answer["archive"]) if answer["archive"] else None
    path = Path(answer["path"]) if answer["path"] else None
    return CompiledFile(Report.from_dict(answer["report"]), path, archive=archive)


def _both(request: Request, models: Pair, order: Order, progress: Progress | None) -> CompiledFile:
    """Two models, each in a child process, in one file."""
    if models.beginning is None:
        with as_file(models.step) as path:
            return isolated(replace(of_step(request, models), source=str(path)), order, progress)
    with TemporaryDirectory(prefix="tvmopt-pair-") as folder:
        files = [Path(folder) / name for name in ("step.tvmopt", "beginning.tvmopt")]
        with as_file(models.step) as path:
            asked = replace(of_step(request, models), source=str(path))
            report = isolated(asked, replace(order, output=files[0]), progress).report
        step = read(files[0], verify=False)
        with as_file(models.beginning) as path:
            asked = replace(of_beginning(request, models, step.manifest), source=str(path))
            isolated(asked, replace(order, output=files[1]), _also(progress))
        whole, report = joined(step, report, read(files[1], verify=False))
        return CompiledFile(report, None if order.output is None else whole.save(order.output))


def _also(progress: Progress | None) -> Progress | None:
    """Progress of the second of two models."""
    return (lambda stage: progress(f"what it looks at: {stage}")) if progress else None


def warm(verify: bool = True) -> None:
    """In a child that was started ahead: import what every compile needs, and let the process that verifies do so, too.
    It is not the first thing to do: the command's own process may yet find the artifact in the cache."""
    from tvmopt.runtime.library import ffi, load_compiler

    ffi()
    if verify:
        from tvmopt.analysis.verify import prepare

        prepare()
    load_compiler()
    from tvmopt import pipeline  # noqa: F401
    from tvmopt.compiler import driver  # noqa: F401
    from tvmopt.importer import import_model  # noqa: F401
    from tvmopt.scheduling.discover import families

    families("llvm")


def warm_unverified() -> None:
    """The same for a compile whose result is not verified."""
    warm(verify=False)


def in_child(*, request: dict[str, Any], kept: str, careful: bool, progress: Progress, **order: Any) -> dict[str, Any]:
    """The child's part of :func:`isolated`.

    Args:
        careful: steps that may end it are done in processes of their own, all of them.
    """
    children.expendable = not careful
    asked = Request.from_dict(request)
    place = Kept(Artifacts.default(), kept, asked.source) if kept else None
    _, report, path, archive = _compiled(asked, Order(**order), place, progress)
    return {
        "report": report.as_dict(),
        "path": str(path) if path else None,
        "archive": archive.as_dict() if archive else None,
    }


def _compiled(request: Request, order: Order, kept: Kept | None, progress: Progress | None) -> Made:
    """Compiled, verified, kept and written in this process."""
    from tvmopt.compiler.accuracy import begin, early, verified
    from tvmopt.compiler.driver import compile_model

    emitter = None
    if order.emit == "c-archive":
        from tvmopt.compiler.carchive.emit import Emitter

        emitter = Emitter(request, order.output or "", order.strip_weights)
    with ExitStack() as stack:
        path, started = Path(), None
        draft = stack.enter_context(Draft())
        if order.verify:
            from tvmopt.analysis.verify import Verification

            path = stack.enter_context(as_file(request.whole))
            if early(request.machine):
                shapes = None if request.values else request.plain_shapes()
                started = stack.enter_context(Verification(path, order.tolerance, shapes=shapes))

        def told(imported: Imported) -> None:
            if emitter:
                check_sizes(imported)
            if started:
                begin(started, imported, request)

        plain = order.emit == "artifact" and not order.strip_weights  # what is written is the artifact as it is
        wanted = kept is not None or (order.output is not None and plain)
        artifact, report = compile_model(
            request,
            progress,
            told,
            emitter.lowered if emitter else None,
            draft if wanted or started is not None else None,
        )
        if order.verify:
            give_back()  # the references need it
            artifact, report = verified(artifact, report, path, order.tolerance, progress, started, draft)
        if emitter:
            archive = emitter.write(artifact, order.verify, progress)
            return artifact, report, emitter.folder, archive
        file = draft.finish(artifact) if draft.begun and wanted else None
        file = (kept.keep(artifact, order.verify, file) if kept is not None else None) or file
        return artifact, report, _written(artifact, order, file), None


def _written(artifact: Artifact, order: Order, file: Path | None = None) -> Path | None:
    """The path of an artifact that was asked for as a file; `file`: the same elsewhere."""
    if order.output is None:
        return None
    if file is not None and not order.strip_weights and copied(file, order.output):
        return Path(order.output)
    return (artifact.stripped() if order.strip_weights else artifact).save(order.output)


def _found(kept: Kept, order: Order) -> CompiledFile | None:
    """What is kept of a compile, written; None where nothing is."""
    if order.output is None:  # only what was done is asked for
        report = kept.report()
        return None if report is None else CompiledFile(report, None)
    if not order.strip_weights:
        report = kept.copy(order.output)
        return None if report is None else CompiledFile(report, Path(order.output))
    found = kept.find()
    return None if found is None else CompiledFile(found[1], _written(found[0], order))
