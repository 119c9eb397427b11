"""The last stage of a compile: the module's numbers compared with the model's - for `tvmopt.compile` and `refit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.children import Progress
from tvmopt.compiler.request import Request
from tvmopt.compiler.results import parameter_count
from tvmopt.errors import MissingDependency
from tvmopt.report import Report
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine
from tvmopt.targets.detect import host_arch
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


AT_ONCE = 1 << 28
"""Weights of a model up to which its references run while it is compiled: both need memory for several copies."""


def early(machine: Machine) -> bool:
    """Whether an artifact for this machine will be verified by this one's processor, as far as that is known before it
    is compiled."""
    return machine.kind == "llvm" and machine.arch == host_arch()


def begin(started: Verification, imported: Imported, request: Request) -> None:
    """Let the references of a model begin, as soon as it is imported; a large one's wait for the artifact."""
    if parameter_count(imported.model) <= AT_ONCE:
        infos = [TensorInfo(t.name, tuple(t.shape), t.dtype) for t in imported.inputs]
        started.begin(infos, request.values, request.precision)


def verified(
    artifact: Artifact,
    report: Report,
    model: Path,
    tolerance: float | None,
    progress: Progress | None,
    started: Verification | None = None,
) -> tuple[Artifact, Report]:
    """The artifact and report with the accuracy found in them.

    Args:
        started: the verification of `model`, where it has begun.

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
            started.verdict(artifact, progress)
            if started
            else verify(artifact, model, rtol=tolerance, progress=progress)
        )
        accuracy = found.as_accuracy()
    warnings = report.warnings
    if not accuracy["verified"]:
        warnings += (f"not verified: {accuracy['reason']}",)
    elif accuracy["degenerate"]:
        warnings += ("the outputs hardly vary (untrained weights?): that they agree proves little",)
    report = replace(report, accuracy=accuracy, warnings=warnings)
    kept = {**artifact.manifest.report, "accuracy": accuracy, "warnings": list(warnings)}
    return replace(artifact, manifest=replace(artifact.manifest, accuracy=accuracy, report=kept)), report
