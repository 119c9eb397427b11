"""A compile's report in rows and sentences - for the terminal and for pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tvmopt.report import Kernel, Report

FAMILIES = ("family", "knobs", "kernels", "calls", "FLOPs")

OTHER_INPUTS = "`tvmopt compare MODEL.onnx FILE.tvmopt -i NAME=FILE.npy` compares with inputs of yours"
"""What to do where the inputs that are tried by themselves make no numbers of a model."""


def families(report: Report) -> list[tuple[str, str, int, int, str]]:
    """Who computes which share of the model: the rows under :data:`FAMILIES`, the largest share first."""
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in report.kernels:
        groups.setdefault((kernel.family, kernel.source), []).append(kernel)
    total = report.flops or 1.0
    return [
        (family, source, len(kernels), sum(k.calls for k in kernels), f"{100 * _flops(kernels) / total:.1f} %")
        for (family, source), kernels in sorted(groups.items(), key=lambda item: -_flops(item[1]))
    ]


def _flops(group: list[Kernel]) -> float:
    return sum(k.flops * k.calls for k in group)


def records(report: Report) -> str:
    """One line about the tuning records: how many were used and where they lay; `explain` names each."""
    used = [d.reason for d in report.decisions if d.stage == "tvmopt.TuningRecords" and d.verdict == "applied"]
    if not used:
        return "tuning records used: none"
    origins = Counter(word for reason in used for word in ("store", "shipped", "artifact") if f"; {word}, " in reason)
    told = ", ".join(f"{number} {_ORIGINS[origin]}" for origin, number in sorted(origins.items()))
    return f"tuning records used: {len(used)} ({told})"


_ORIGINS = {"store": "from the store", "shipped": "shipped with tvmopt", "artifact": "of the artifact"}


def accuracy(found: dict[str, Any]) -> str:
    """One line about the verification."""
    if not found:
        return "not verified"
    if not found.get("verified"):
        return f"not verified: {found.get('reason', '')}"
    peer = found.get("peer_relative_error")
    return (
        f"agrees with {found['reference']}: "
        f"largest error {found['max_relative_error']:.1e} of the largest value"
        + (f", onnxruntime's {peer:.1e}" if peer is not None else "")
        + f" (tolerance {found['tolerance']:.1e})"
        + (f"; run by {found['emulator']}" if found.get("emulator") else "")
    )


def numberless(outputs: Sequence[str]) -> str:
    """What is told of outputs in which the reference has no number, where the inputs can be given."""
    names = ", ".join(outputs)
    return f"every value of {names} is NaN or infinite: nothing was compared there; give inputs (-i NAME=FILE.npy)"


def verification(report: Report) -> str:
    """The line about the verification, and when it was."""
    then = "verified when it was compiled: " if report.cached and report.accuracy.get("verified") else ""
    return then + accuracy(report.accuracy)
