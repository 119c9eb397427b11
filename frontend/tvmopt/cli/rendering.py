"""Reports as tables - for `compile` and `explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from tvmopt.cli.common import human, out, table
from tvmopt.report import Kernel, Report


def coverage(report: Report) -> None:
    """The summary that every compile ends with: who computes which share of the model, accuracy, warnings."""
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in report.kernels:
        groups.setdefault((kernel.family, kernel.source), []).append(kernel)
    total = report.flops or 1.0
    rows = [
        (
            family,
            source,
            len(kernels),
            sum(k.calls for k in kernels),
            f"{100 * _flops(kernels) / total:.1f} %",
        )
        for (family, source), kernels in sorted(groups.items(), key=lambda item: -_flops(item[1]))
    ]
    out.print(
        f"[bold]{escape(report.model)}[/] for {report.target}, {report.precision}: "
        f"{human(report.flops, 'FLOP')} executed, "
        f"{human(report.parameters)} parameters, {human(report.activation_bytes, 'B')} of activations"
    )
    table(("family", "knobs", "kernels", "calls", "FLOPs"), rows, left=2)
    out.print(records(report))
    out.print(accuracy(report.accuracy))
    for warning in report.warnings:
        if not warning.startswith("not verified"):  # the line above
            out.print(f"[yellow]note:[/] {escape(warning)}")


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
    return (
        f"agrees with {found['reference']}: "
        f"largest error {found['max_relative_error']:.1e} of the largest value "
        f"(tolerance {found['tolerance']:.1e})"
    )


def kernels(report: Report) -> None:
    """Every kernel with its schedule in words and the nodes it computes."""
    rows = []
    for k in report.kernels:
        knobs = " ".join(f"{name}={value}" for name, value in k.knobs.items())
        nodes = sites(k.nodes) + (f" ({k.note})" if k.note else "")
        rows.append((k.name, k.family, k.source, knobs, k.calls, human(k.flops, "FLOP"), nodes))
    table(("kernel", "family", "knobs from", "knobs", "calls", "FLOP", "ONNX nodes"), rows, left=4)


def sites(nodes: Sequence[Sequence[str]], most: int = 3) -> str:
    """The ONNX nodes of a kernel's calls: the first ones, and how many more there are (`--json` has all).

    >>> sites([("a", "b"), ("c",), ("d",), ("e",)])
    'a+b; c; d; and 1 more'
    """
    more = [f"and {len(nodes) - most} more"] if len(nodes) > most else []
    return "; ".join(["+".join(site) for site in nodes[:most]] + more)


def launches(report: Report) -> None:
    """What each GPU kernel takes of a multiprocessor; nothing for a CPU."""
    rows = []
    for launch in (one for kernel in report.kernels for one in kernel.launches):
        registers, spilled = ("?" if launch[key] < 0 else launch[key] for key in ("registers", "spilled"))
        occupancy = f"{100 * launch['occupancy']:.0f} % ({launch['limit']})"
        grid = launch["grid"] or "?"
        rows.append(
            (launch["name"], grid, launch["threads"], registers, human(launch["shared"], "B"), spilled, occupancy)
        )
    if rows:
        names = ("GPU kernel", "blocks", "threads", "registers", "shared", "spilled", "occupancy")
        table(names, rows, left=1)


def decisions(report: Report, verdict: str) -> None:
    """What the passes did, or left alone, grouped by pass and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for decision in report.decisions:
        if decision.verdict == verdict:
            groups.setdefault((decision.stage, decision.reason), []).append(decision.node)
    if groups:
        rows = [(stage, len(nodes), reason, _some(nodes)) for (stage, reason), nodes in groups.items()]
        table(
            ("pass", "times", "reason" if verdict == "declined" else "gain", "nodes"),
            rows,
            left=4,
            title=f"\n{verdict}",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flops(group: list[Kernel]) -> float:
    return sum(k.flops * k.calls for k in group)
