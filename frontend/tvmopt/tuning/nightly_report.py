"""The morning after: a Markdown and an HTML report of one night, with the history of every model as a
plot."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt.tuning.ledger import Entry

if TYPE_CHECKING:
    from tvmopt.tuning.nightly import Plan

NIGHTS = 60
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { text-align: right; padding: .2rem .8rem .2rem
0; }
th:first-child, td:first-child { text-align: left; } .slower, .failed { color: #b00020; } .faster { color:
#1b7f3b; }
svg { display: block; } .note { color: #666; }
"""


def write_report(plan: Plan, night: str, entries: Sequence[Entry]) -> Path:
    """Write `report-NIGHT.md` and `.html` into the plan's folder; the Markdown file's path."""
    history = {e.job: [h for h in plan.ledger.entries(e.job) if h.night <= night][-NIGHTS:] for e in entries}
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
    cells = "".join(
        f"<tr class={escape(row[1])}>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>"
        for row in rows(entries, history)
    )
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Night of {escape(night)}</title><style>{_STYLE}</style>",
        f"<h1>Night of {escape(night)}</h1>",
        f"<table><tr>{''.join(f'<th>{h}</th>' for h in HEAD)}</tr>{cells}</table>",
    ]
    for e in entries:
        parts.append(f"<h2>{escape(e.job)}</h2>{plot(history[e.job])}")
        parts += [f"<p class=failed>{escape(e.note)}</p>"] if e.note else []
        parts += [f"<p class={'slower' if c.slower else 'faster'}>{escape(str(c))}</p>" for c in e.changes]
        parts.append(f"<p class=note>{escape(e.target)}</p>")
    return "\n".join(parts)


def plot(history: Sequence[Entry], width: int = 640, height: int = 120) -> str:
    """Latency over nights as SVG: medians joined, the interquartile range as bars, regressions marked."""
    points = [e for e in history if e.seconds]
    if not points:
        return "<p class=note>no figures yet</p>"
    top = max(sorted(e.seconds)[3 * len(e.seconds) // 4] for e in points) * 1.1
    step = (width - 60) / max(1, len(points) - 1)

    def at(index: int, seconds: float) -> tuple[float, float]:
        return 50 + index * step, height - 18 - (height - 30) * seconds / top

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i, e.latency) for i, e in enumerate(points)))
    marks = []
    for i, e in enumerate(points):
        ordered = sorted(e.seconds)
        x, low = at(i, ordered[len(ordered) // 4])
        _, high = at(i, ordered[3 * len(ordered) // 4])
        colour = "#b00020" if e.status != "ok" else "#2b6cb0"
        title = f"{e.night}: {1e3 * e.latency:.3f} ms, {e.status}"
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
            f'<circle cx="{x:.1f}" cy="{at(i, e.latency)[1]:.1f}" r="3" fill="{colour}">'
            f"<title>{escape(title)}</title></circle>"
        )
    base, last = height - 4, escape(points[-1].night)
    return (
        f'<svg width="{width}" height="{height}" font-size="11" role="img" aria-label="latency by night">'
        f'<text x="0" y="14">{1e3 * top:.2f} ms</text><text x="0" y="{height - 18}">0</text>'
        f'<polyline points="{line}" fill="none" stroke="#2b6cb0"/>{"".join(marks)}'
        f'<text x="50" y="{base}">{escape(points[0].night)}</text>'
        f'<text x="{width}" y="{base}" text-anchor="end">{last}</text></svg>'
    )
