"""The last stage of a compile: the module's numbers compared with the model's - for `tvmopt.compile` and `refit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.analysis.told import OTHER_INPUTS
from tvmopt.children import Progress
from tvmopt.compiler.request import Request
from tvmopt.compiler.results import parameter_count
from tvmopt.dims import best_sizes
from tvmopt.errors import InputError, MissingDependency
from tvmopt.importer.protos import byte_size, human
from tvmopt.report import Report
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.draft import Draft
from tvmopt.runtime.sizes import info_at
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
from tvmopt.targets.memory import free_memory
from tvmopt.toolchain.emulation import find_emulator

if TYPE_CHECKING:
    from tvmopt.analysis.verify import Verification
    from tvmopt.importer import Imported


def unable(artifact: Artifact) -> str:
    """Why neither this machine's processor nor an emulator can run the library; empty if one can."""
    reason = artifact.unfit()
    if not reason or artifact.manifest.arch == host_arch():
        return reason
    try:
        find_emulator(artifact.manifest)
    except MissingDependency as error:
        return f"{reason}; {error.what} ({error.fix})"
    return ""


WORKING = 16
"""Bytes that the oracle takes for each number of a weight while a node reads it: it in double precision, and a copy of
that which an operator may make."""

AT_ONCE = 1 << 28
"""Weights of a model up to which its references run while it is compiled: both need memory for several copies."""


def warnings_of(accuracy: Mapping[str, Any]) -> tuple[str, ...]:
    """What an accuracy warns of, in words: other weights make it untrue.

    >>> warnings_of({"verified": False, "reason": "there is no GPU here"}), warnings_of({})
    (('not verified: there is no GPU here',), ())
    """
    if not accuracy:
        return ()
    if not accuracy["verified"]:
        return (f"not verified: {accuracy['reason']}",)
    if outputs := accuracy.get("numberless"):
        others = ", and the others hardly vary" if accuracy.get("degenerate") else ""
        told = f"with the inputs that were tried, every value was NaN or infinite of {', '.join(outputs)}"
        return (f"{told}, which is not verified{others}; {OTHER_INPUTS}",)
    if accuracy.get("degenerate"):
        return ("the outputs hardly vary (untrained weights?): that they agree proves little",)
    return ()


def early(machine: Machine) -> bool:
    """Whether an artifact for this machine will be verified by this one's processor, as far as that is known before it
    is compiled."""
    return machine.kind == "llvm" and machine.arch == host_arch()


def memory_needed(model: Any) -> int:
    """About how many bytes more a compile takes, once its model is imported, if it is verified: the packed weights, and
    what the oracle makes of the largest one (:data:`WORKING`)."""
    stored = [(prod(t.dims), t.data_type) for t in model.graph.initializer]
    return sum(byte_size(kind, size) for size, kind in stored) + WORKING * max((size for size, _ in stored), default=0)


def begin(started: Verification, imported: Imported, request: Request) -> None:
    """Let the references of a model begin, as soon as it is imported; a large one's wait for the artifact.

    Raises:
        InputError: there is not enough memory to verify it; the system would end a process without a word.
    """
    needed, free = memory_needed(imported.model), free_memory()
    if needed > free:
        raise InputError(
            f"compiling and verifying this takes about {human(needed)} of memory more, and {human(free)} are free.",
            where=request.title,
            fix="free some, or leave verification out (--no-verify), which takes the larger part",
        )
    if parameter_count(imported.model) <= AT_ONCE:
        infos = [TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.inputs]
        sizes = best_sizes(imported.ranges, imported.conditions)  # of open ones the first that are verified
        started.begin([info_at(info, sizes) for info in infos], request.values, request.precision)


def verified(
    artifact: Artifact,
    report: Report,
    model: Path,
    tolerance: float | None,
    progress: Progress | None,
    started: Verification | None = None,
    draft: Draft | None = None,
) -> tuple[Artifact, Report]:
    """The artifact and report with the accuracy found in them.

    Args:
        started: the verification of `model`, where it has begun. draft: the artifact's file, likewise.

    Raises:
        AccuracyError: the compiled module is wrong.
    """
    reason = ""
    if artifact.manifest.kind == "cuda":
        from tvmopt.runtime.library import cuda_available

        reason = "" if cuda_available() else "there is no GPU here"
    else:
        reason = unable(artifact)
    if reason:
        accuracy: dict[str, Any] = {"verified": False, "reason": reason}
    else:
        from tvmopt.analysis.verify import verify

        if progress:
            progress("verifying")
        found = (
            started.verdict(artifact, progress, draft)
            if started
            else verify(artifact, model, rtol=tolerance, progress=progress)
        )
        accuracy = found.as_accuracy()
    warnings = report.warnings + warnings_of(accuracy)
    report = replace(report, accuracy=accuracy, warnings=warnings)
    kept = {**artifact.manifest.report, "accuracy": accuracy, "warnings": list(warnings)}
    return replace(artifact, manifest=replace(artifact.manifest, accuracy=accuracy, report=kept)), report
