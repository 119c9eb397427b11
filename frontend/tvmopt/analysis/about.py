"""The part of a report that concerns some nodes or one kernel, and what became of a node without a kernel."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass, replace

from tvmopt.analysis.attribution import attribute
from tvmopt.errors import InputError
from tvmopt.report import Report


@dataclass(frozen=True)
class Fate:
    """What became of a node that no kernel computes, in words."""

    node: str
    text: str


def about(report: Report, node: str | None = None, kernel: str | None = None) -> Report:
    """The kernels and decisions of `node` (all nodes whose name contains it, if none is called so) and `kernel`
    (likewise).

    Raises:
        InputError: the model has no such node, or the compiled one no such kernel.
    """
    if kernel:
        names = chosen(kernel, [k.name for k in report.kernels], "--kernel", "kernel")
        kernels = tuple(k for k in report.kernels if k.name in names)
        nodes = {n for k in kernels for site in k.nodes for n in site}
        report = replace(
            report, kernels=kernels, decisions=tuple(d for d in report.decisions if d.node in nodes | names)
        )
    if node:
        names = chosen(node, _nodes(report), "--node", "node")
        sites = {k.name: [site for site in k.nodes if names.intersection(site)] for k in report.kernels}
        related = {n for found in sites.values() for site in found for n in site} | names
        related |= {name for name, found in sites.items() if found}
        report = replace(
            report,
            kernels=tuple(k for k in report.kernels if sites[k.name]),
            decisions=tuple(d for d in report.decisions if d.node in related),
        )
    return report


def fates(report: Report, node: str) -> list[Fate]:
    """For each of the nodes that :func:`about` takes `node` for: where it is, if no kernel has its name."""
    names = chosen(node, _nodes(report), "--node", "node")
    named = {n for k in report.kernels for site in k.nodes for n in site}
    home = attribute(report.flow, report.kernels).home if report.flow.nodes else {}
    found = []
    for name in _nodes(report):
        if name not in names or name in named:
            continue
        if name in report.flow.folded:
            text = "it was computed at compile time, or nothing reads its result"
        elif name in home:
            step = report.flow.steps[home[name]]
            text = f"it costs nothing by itself; the next kernel that touches its data is {step.kernel}"
        else:
            text = "no kernel computes it"
        found.append(Fate(name, text))
    return found


def chosen(text: str, known: Collection[str], flag: str, kind: str) -> set[str]:
    """The one of the names that is `text`, else all that contain it.

    Raises:
        InputError: there is none.
    """
    found = {text} if text in known else {name for name in known if text in name}
    if not found:
        near = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"one of {', '.join(list(known)[:3])}, ..."
        raise InputError(f"there is no {kind} {text!r}.", where=flag, fix=hint)
    return found


def _nodes(report: Report) -> list[str]:
    """Every node that the report knows, in the order of the model, folded ones last."""
    kernels = [n for k in report.kernels for site in k.nodes for n in site]
    return list(dict.fromkeys([*report.flow.nodes, *kernels, *report.flow.folded]))
