"""The last stage of a compile: the module's numbers compared with the model's - for `tvmopt.compile` and `refit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tvmopt.children import Progress
from tvmopt.errors import MissingDependency
from tvmopt.report import Report
from tvmopt.runtime.artifact import Artifact
from tvmopt.targets.detect import host_arch
from tvmopt.toolchain.emulation import find_emulator


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


def verified(
    artifact: Artifact,
    report: Report,
    model: Path,
    tolerance: float | None,
    progress: Progress | None,
) -> tuple[Artifact, Report]:
    """The artifact and report with the accuracy found in them.

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
        accuracy = verify(artifact, model, rtol=tolerance, progress=progress).as_accuracy()
    warnings = report.warnings
    if not accuracy["verified"]:
        warnings += (f"not verified: {accuracy['reason']}",)
    elif accuracy["degenerate"]:
        warnings += ("the outputs hardly vary (untrained weights?): that they agree proves little",)
    report = replace(report, accuracy=accuracy, warnings=warnings)
    kept = {**artifact.manifest.report, "accuracy": accuracy, "warnings": list(warnings)}
    return replace(artifact, manifest=replace(artifact.manifest, accuracy=accuracy, report=kept)), report
