"""From the words of :func:`tvmopt.compile` to requests; what cannot be made is refused before any work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.compiler.beginning import two_models
from tvmopt.compiler.carchive.asked import EMITTED, check_request
from tvmopt.compiler.dump import Dumps
from tvmopt.compiler.request import Request, model_files
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, compiled_already
from tvmopt.files import check_writable
from tvmopt.runtime.artifact import is_artifact
from tvmopt.runtime.choice import titles
from tvmopt.runtime.pool import check_threads
from tvmopt.runtime.sizes import given_sizes
from tvmopt.targets import Machine
from tvmopt.targets.fleet import machines as fleet_of

if TYPE_CHECKING:
    from tvmopt.preprocessing.asked import Stages


def request_for(
    model: Any,
    machine: Machine,
    *,
    precision: str = "fp32",
    shape: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    preprocess: Stages = None,
    postprocess: Stages = None,
    threads: int | None = None,
    without: Sequence[str] | None = None,
    dump_after: Mapping[str, str | Path] | None = None,
    dump_all: str | Path | None = None,
    dump_code: Mapping[str, str | Path] | None = None,
    **options: Any,
) -> Request:
    """What :func:`tvmopt.compile` is asked for; `options` are further fields of a request."""
    if threads is not None:
        machine = machine.with_threads(check_threads(threads, "threads"))
    before, behind, labels = _stages(machine, preprocess, postprocess)
    after, code = (tuple((n, str(f)) for n, f in (wanted or {}).items()) for wanted in (dump_after, dump_code))
    dumps = Dumps(after, str(dump_all or ""), code)
    return Request(
        model, machine, precision, given_sizes(shape or {}), values or {}, without=tuple(without or ()), dumps=dumps,
        preprocess=before, postprocess=behind, labels=labels, **options,
    )  # fmt: skip


def _stages(
    machine: Machine, preprocess: Stages, postprocess: Stages
) -> tuple[dict[str, str], dict[str, str], dict[str, tuple[str, ...]]]:
    """The texts of the stages before and behind a model, and the names of classes in files that these ask for."""
    if preprocess is None and postprocess is None:
        return {}, {}, {}
    from tvmopt.preprocessing import boxes
    from tvmopt.preprocessing.asked import stages, stages_behind

    behind, labels = stages_behind(postprocess)
    if machine.kind != "llvm" and (selected := [text for text in behind.values() if text.startswith(boxes.PREFIX)]):
        where, fix = f"--postprocess {selected[0]}", "compile without it for a GPU, and select behind the model"
        raise InputError("boxes are selected on CPUs only.", where=where, fix=fix)
    return stages(preprocess), behind, labels


def check_output(emit: str, requests: Mapping[str, Request], output: str | Path | None) -> None:
    """Refuse what cannot be written, before anything is compiled.

    Raises:
        ModelError: the model is a compiled one.
        InputError: there is no such form, or none of these targets, or the path cannot be written.
        MissingDependency: a program that makes it is not installed.
    """
    if emit not in EMITTED:
        raise InputError(f"there is nothing of the kind {emit!r} to write.", where="--emit", fix=" or ".join(EMITTED))
    for source in {r.source for r in requests.values() if isinstance(r.source, str | os.PathLike)}:
        if os.path.isfile(source) and is_artifact(Path(source)):  # its default output would be itself
            raise compiled_already(os.fspath(source))
    if emit == "artifact":
        check_writable(output, reads=model_files(*(request.source for request in requests.values())))
    elif len(requests) > 1:
        raise InputError(f"a C archive is of one target and one number of threads, not {len(requests)}.",
            where="--emit c-archive", fix="write a folder for each")  # fmt: skip
    else:
        check_request(next(iter(requests.values())), output)


def _plans(threads: Any) -> tuple[int | None, ...]:
    """The numbers of threads that were asked for, one or several; what is no number is refused behind this."""
    return tuple(threads) if isinstance(threads, Iterable) and not isinstance(threads, str) else (threads,)


def requests_of(
    model: Any, *, target: str | Path | Machine = "cpu", threads: int | Sequence[int] | None = None, **options: Any
) -> dict[str, Request]:
    """What :func:`tvmopt.compile` is asked for, of each target and number of threads, by its title in the file.

    Raises:
        TargetError, InputError: a target cannot be what is asked for.
    """
    machines, plans = fleet_of(target), _plans(threads)
    if not plans or len(set(plans)) < len(plans):
        raise InputError(f"the numbers of threads are {plans}.", fix="give each once: threads=(1, 2, 8)")
    if len(plans) > 1 and machines[0].kind != "llvm":
        raise InputError("threads are of CPUs.", where=f"target {str(target)!r}", fix="leave them out for a GPU")
    requests = [request_for(model, machine, threads=plan, **options) for machine in machines for plan in plans]
    if len(requests) > 1 and two_models(requests[0]) is not None:
        what = "a decoder whose file has two forms, or two files, is compiled for one target."
        raise InputError(what, where=f"target {str(target)!r}", fix=f"--target {machines[0].name}, and one --threads")
    if len(requests) > 1 and any(options.get(f"dump_{what}") for what in ("after", "all", "code")):
        fix = f"dump with --target {machines[0].name}" + (f" --threads {plans[0]}" if plans[0] else "")
        raise InputError("dumps are of one target.", where=f"target {str(target)!r}", fix=fix)
    return dict(zip(titles([(r.machine.name, r.machine.cores) for r in requests]), requests, strict=True))
