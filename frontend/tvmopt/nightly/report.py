"""The morning after: a Markdown and an HTML report of one night, with the history of every model as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tvmopt.analysis.svg import COLOURS, Plot, html_table, page
from tvmopt.nightly.history import Entry
from tvmopt.nightly.plan import Plan

NIGHTS = 60


def write_report(plan: Plan, night: str, entries: Sequence[Entry]) -> Path:
    """Write `report-NIGHT.md` and `.html` into the plan's folder; the Markdown file's path."""
    history = {e.job: [h for h in plan.history.entries(e.job) if h.night <= night][-NIGHTS:] for e in entries}
    path = plan.folder / f"report-{night}.md"
    path.write_text(markdown(night, entries, history))
    path.with_suffix(".html").write_text(html(night, entries, history))
    return path


def rows(entries: Sequence[Entry], history: dict[str, list[Entry]]) -> list[tuple[str, ...]]:
    """Job, status, latency, against the night before, kernels tuned, trials, error."""
    made = list[tuple[str, ...]]()
    for e in entries:
        earlier = [h for h in history[e.job] if h.night < e.night and h.seconds]
        ratio = f"{e.latency / earlier[-1].latency:.3f}" if earlier and e.seconds else ""
        made.append(
            (e.job, e.status, f"{1e3 * e.latency:.3f} ms" if e.seconds else "", ratio,
             f"{e.tuned} of {len(e.kernels)}", str(e.trials), f"{e.accuracy:.1e}" if e.accuracy else "")
        )  # fmt: skip
    return made


HEAD = ("job", "status", "latency", "of the night before", "kernels tuned", "trials", "largest error")


def markdown(night: str, entries: Sequence[Entry], history: dict[str, list[Entry]]) -> str:
    """The report as Markdown."""
    lines = [f"# Night of {night}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines += [f"| {' | '.join(row)} |" for row in rows(entries, history)]
    for e in entries:
        if e.changes or e.note:
            lines += ["", f"## {e.job}", ""]
            lines += [f"- {e.note}"] if e.note else []
            lines += [f"- {change}" for change in e.changes]
    versions = sorted({f"{n} {v}" for e in entries for n, v in e.versions.items()})
    targets = sorted({e.target for e in entries})
    lines += ["", f"{', '.join(versions)}; {'; '.join(targets)}", ""]
    return "\n".join(lines)


def html(night: str, entries: Sequence[Entry], history: dict[str, list[Entry]]) -> str:
    """The report as one HTML file without scripts or links."""
    cells = [[_coloured(cell, row[1]) for cell in row] for row in rows(entries, history)]
    parts = [f"<h1>Night of {escape(night)}</h1>", html_table(HEAD, cells, {0, 1})]
    for e in entries:
        parts.append(f"<h2>{escape(e.job)}</h2>{plot(history[e.job])}")
        parts += [f'<p class="slower">{escape(e.note)}</p>'] if e.note else []
        parts += [f'<p class="{"slower" if c.slower else "faster"}">{escape(str(c))}</p>' for c in e.changes]
        parts.append(f'<p class="dim">{escape(e.target)}</p>')
    return page(f"Night of {night}", "\n".join(parts))


def _coloured(cell: str, status: str) -> str:
    if cell != status or status == "ok":
        return escape(cell)
    return f'<span class="slower">{escape(cell)}</span>'


def plot(history: Sequence[Entry]) -> str:
    """Latency over nights as SVG: medians joined, the interquartile range as bars, regressions marked."""
    points = [e for e in history if e.seconds]
    if not points:
        return '<p class="dim">no figures yet</p>'
    top = 1e3 * max(sorted(e.seconds)[3 * len(e.seconds) // 4] for e in points) * 1.1
    axes = Plot(
        (-0.5, len(points) - 0.5), (0, top), size=(760, 190), ylabel="ms", title="latency by night",
        xlabel=f"{points[0].night} to {points[-1].night}: {len(points)} nights with figures", xticks=[],
    )  # fmt: skip
    axes.line([(i, 1e3 * e.latency) for i, e in enumerate(points)], COLOURS[0], 1.5)
    for i, e in enumerate(points):
        ordered = sorted(e.seconds)
        low, high = (1e3 * ordered[k * len(ordered) // 4] for k in (1, 3))
        colour = COLOURS[1] if e.status != "ok" else COLOURS[0]
        axes.line([(i, low), (i, high)], colour, 2)
        axes.dot(i, 1e3 * e.latency, colour, f"{e.night}: {1e3 * e.latency:.3f} ms, {e.status}", 4)
    return axes.render()
