"""Reports as tables - for `compile` and `explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt.analysis.told import FAMILIES, families, records, verification
from tvmopt.cli.common import escape, human, out, table
from tvmopt.report import Flow, Kernel, Report, Value
from tvmopt.runtime.manifest import Manifest

if TYPE_CHECKING:
    from tvmopt.analysis.about import Fate
    from tvmopt.compiler.carchive.asked import CArchive

NAMED = 3
"""Tensors of floats that are named."""


def c_archive(folder: Path, archive: CArchive, how: str) -> None:
    """What the folder of a C archive holds, and what a run of it needs."""
    name = archive.name
    files = [f"lib{name}.a ({human(archive.library, 'B')})", f"{name}.h", f"{name}_example.c"]
    files += [f"{name}.weights ({human(archive.weights, 'B')})"] if archive.weights else []
    checked = "its outputs are the artifact's, bit by bit" if archive.verified else "not verified"
    out.print(f"[bold]{escape(folder)}[/]: {escape(', '.join(files))}; {checked}, {how}")
    each = f" and {human(archive.scratch, 'B')} a thread" if archive.scratch else ""
    out.print(f"a run needs {human(archive.workspace, 'B')}{each} beside inputs and outputs")


def coverage(report: Report) -> None:
    """The summary that every compile ends with: who computes which share of the model, accuracy, warnings."""
    out.print(
        f"[bold]{escape(report.model)}[/] for {escape(report.target)}, {escape(report.precision)}: "
        f"{human(report.flops, 'FLOP')} executed, "
        f"{human(report.parameters)} parameters, {human(report.activation_bytes, 'B')} of activations"
    )
    table(FAMILIES, families(report), left=2)
    out.print(records(report))
    out.print(escape(verification(report)))
    for warning in report.warnings:
        if not warning.startswith("not verified"):  # the line above
            out.print(f"[yellow]note:[/] {escape(warning)}")


def between(report: Report) -> None:
    """What kernels hand to each other, by type; of a model without bytes nothing is said."""
    if told := activations(report.flow):
        out.print(escape(told))


def activations(flow: Flow) -> str:
    """The bytes that kernels hand to each other, by type, where some of them are integers of 8 bits; and which tensors
    are floats.

    >>> from tvmopt.report import Step
    >>> values = tuple(Value(n, (1,), kind, size, "activation") for n, kind, size in
    ...                (("a", "uint8", 3_000_000), ("norm", "float32", 4000)))
    >>> activations(Flow(values=values, steps=(Step("k", (), (), (0, 1)),)))
    'between kernels: 3.00 MB uint8, 4.00 kB float32 (norm)'
    """
    made = [flow.values[i] for i in dict.fromkeys(i for step in flow.steps for i in step.outputs)]
    sizes: dict[str, list[Value]] = {}
    for value in made:
        if value.kind == "activation":
            sizes.setdefault(value.dtype, []).append(value)
    if not sizes.keys() & {"uint8", "int8"}:
        return ""
    parts = []
    for dtype, group in sorted(sizes.items(), key=lambda item: -sum(v.bytes for v in item[1])):
        names = [v.name or "one of the compiler's" for v in group] if "float" in dtype else []
        rest = f", {len(names) - NAMED} more" if len(names) > NAMED else ""
        told = f" ({', '.join(names[:NAMED])}{rest})" if names else ""
        parts.append(f"{human(sum(v.bytes for v in group), 'B')} {dtype}{told}")
    return f"between kernels: {', '.join(parts)}"


def fleet(manifest: Manifest) -> None:
    """The targets of a file for a fleet: what each needs, its size, whether it runs here; nothing for one target."""
    rows = [
        (
            one.title,
            "chosen" if one.chosen else f"lacks {' '.join(one.lacks)}" if one.lacks else "can run",
            " ".join(one.features) or "-",
            "yes" if one.verified else "no",
            one.threads,
            human(one.library, "B"),
            human(one.weights, "B"),
            human(one.shared, "B"),
        )
        for one in manifest.fleet
    ]
    if rows:
        names = ("target", "here", "needs", "verified", "threads", "library", "weights", "shared")
        table(names, rows, left=4, title="\ntargets of the file")


def kernels(report: Report, top: int = 0) -> None:
    """The kernels with the most FLOPs, or all in order: who scheduled them, and a node that they compute."""
    total = report.flops or 1.0
    shown = sorted(report.kernels, key=lambda k: -k.flops * k.calls)[:top] if top else list(report.kernels)
    rows = [
        (k.name, main_node(report, k.nodes), k.family, k.source, k.calls, f"{100 * k.flops * k.calls / total:.1f} %")
        for k in shown
    ]
    table(("kernel", "ONNX node", "family", "knobs", "calls", "FLOPs"), rows, left=4)
    if rest := len(report.kernels) - len(shown):
        share = 1 - sum(k.flops * k.calls for k in shown) / total
        out.print(f"[dim]and {rest} more, {100 * share:.1f} % of the FLOPs; --top 0 shows all, --kernel NAME one[/]")


def kernel(report: Report, found: Kernel) -> None:
    """All about one kernel: schedule, knobs, cost, and the nodes of each call."""
    knobs = " ".join(f"{name}={value}" for name, value in found.knobs.items())
    share = 100 * found.flops * found.calls / report.flops if report.flops else 0.0
    out.print(f"[bold]{escape(found.name)}[/]: {escape(found.family)}, {found.source}")
    if knobs:
        out.print(f"  knobs: {escape(knobs)}")
    calls = f"{found.calls} call{'s' * (found.calls != 1)}"
    work = f"{human(found.flops, 'FLOP')} and {human(found.bytes, 'B')}"
    out.print(f"  {calls} of {work}, {share:.1f} % of the model's FLOPs")
    if found.tasks:
        out.print(f"  {found.tasks} task{'s' * (found.tasks != 1)}, which threads share")
    if found.note:
        out.print(f"  {escape(found.note)}")
    for number, site in enumerate(found.nodes, 1):
        name = f"  nodes of call {number}:" if len(found.nodes) > 1 else "  nodes:"
        out.print(f"{name} {escape(', '.join(site))}")


def fate(found: Fate) -> None:
    """A node without a kernel, and why."""
    out.print(f"[bold]{escape(found.node)}[/] has no kernel: {escape(found.text)}.")


def main_node(report: Report, sites: Sequence[Sequence[str]]) -> str:
    """The node of a kernel with the most FLOPs, the last of equals, and how many others there are."""
    nodes = list(dict.fromkeys(name for site in sites for name in site))
    known = report.flow.nodes
    return counted(nodes, lambda name: (known[name].flops or 0.0) if name in known else 0.0)


def counted(names: Sequence[str], weight: Callable[[str], float] = lambda name: 0.0) -> str:
    """One name and a count: the heaviest, the first of equals.

    >>> counted(["/conv1/Conv", "/bn1/BatchNormalization", "/act1/Relu"])
    '/conv1/Conv +2'
    """
    if not names:
        return ""
    return max(names, key=weight) + (f" +{len(names) - 1}" if len(names) > 1 else "")


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


def decisions(report: Report, verdict: str, most: int = 0) -> None:
    """What the passes did, or left alone, grouped by pass and reason; at most so many groups (0: all)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for decision in report.decisions:
        if decision.verdict == verdict:
            groups.setdefault((decision.stage, decision.reason), []).append(decision.node)
    if groups:
        rows = [
            (stage.removeprefix("tvmopt."), reason, counted(list(dict.fromkeys(nodes))), len(nodes))
            for (stage, reason), nodes in groups.items()
        ]
        names = ("pass", "reason" if verdict == "declined" else "what", "node", "times")
        shown = rows[:most] if most else rows
        table(names, shown, left=3, title=f"\n{verdict}", prose=(1,))
        if len(rows) > len(shown):
            out.print(f"[dim]and {len(rows) - len(shown)} more; --top 0 shows all, --node NAME those of a node[/]")
