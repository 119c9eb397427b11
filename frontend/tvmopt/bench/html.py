"""A benchmark as one HTML file with nothing to load: tables, ratios, distributions, roofline."""

from __future__ import annotations

from html import escape

import numpy as np

from tvmopt.analysis.peaks import Peaks
from tvmopt.analysis.roofline import roofline_axes
from tvmopt.analysis.svg import COLOURS, Plot, html_table, page
from tvmopt.bench.machine import warnings
from tvmopt.bench.records import BenchResult, Case
from tvmopt.bench.report import facts, heading, machine_words, notes, table


def html(result: BenchResult) -> str:
    """The file's text."""
    parts = ["<h1>Benchmark</h1>", f"<p>{escape(machine_words(result))}</p>"]
    parts += [f'<p class="note">{escape(w)}</p>' for w in warnings(result.machine)]
    if any(case.ratios for case in result.cases):
        first = result.cases[0].engines[0].label
        parts.append(f"<h2>Latency of {escape(first)} over the others</h2>{ratio_plot(result)}")
    for case in result.cases:
        parts.append(_case(case))
    if result.peaks:
        parts.append(f"<h2>Roofline</h2>{model_roofline(result)}")
    return page("tvmopt bench", "\n".join(parts))


def _case(case: Case) -> str:
    header, rows = table(case)
    cells = [[_coloured(cell) for cell in row] for row in rows]
    lines = "".join(f"<li>{escape(note)}</li>" for note in notes(case))
    said = "".join(f"<li>{escape(label)}: {escape(words)}</li>" for label, words in facts(case))
    return (
        f"<h2>{escape(heading(case))}</h2>{html_table(header, cells, {0, len(header) - 1})}"
        f"{distributions(case)}"
        f"<ul>{lines}</ul><details><summary>engines</summary><ul>{said}</ul></details>"
    )


def _coloured(cell: str) -> str:
    for word in ("faster", "slower", "unstable"):
        if cell.endswith(f" {word}") or cell == word:
            return f'<span class="{word}">{escape(cell)}</span>'
    return escape(cell)


def ratio_plot(result: BenchResult) -> str:
    """Each ratio as a dot with its interval; the line at 1 parts faster (left) from slower."""
    items = [
        (f"{case.model} b{case.batch} {case.threads}t / {label}", ratio)
        for case in result.cases
        for label, ratio in case.ratios.items()
        if np.isfinite(ratio.value)
    ]
    if not items:
        return "<p>No ratio could be measured.</p>"
    low = min(0.8, *(r.low for _, r in items)) / 1.05
    high = max(1.25, *(r.high for _, r in items)) * 1.05
    n = len(items)
    plot = Plot(
        (low, high), (-0.5, n - 0.5), xlog=True, size=(760, 80 + 26 * n), title="latency ratios",
        xlabel="latency ratio: left of 1 the first engine is faster",
        yticks=[(n - 1 - i, name) for i, (name, _) in enumerate(items)],
    )  # fmt: skip
    plot.line([(1, -0.5), (1, n - 0.5)])
    colours = {"faster": COLOURS[2], "slower": COLOURS[1], "unstable": COLOURS[7]}
    for i, (name, ratio) in enumerate(items):
        y, colour = n - 1 - i, colours.get(ratio.verdict, COLOURS[0])
        plot.line([(ratio.low, y), (ratio.high, y)], colour, 3)
        plot.dot(
            ratio.value,
            y,
            colour,
            f"{name}: {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {ratio.verdict}",
            5,
        )
    return plot.render()


def distributions(case: Case) -> str:
    """How latencies scatter: for each engine a box from p10 to p90 with the median, and a dot a turn."""
    rows = [row for row in case.engines if row.latency]
    if not rows:
        return ""
    low = min(np.percentile(row.samples, 1) for row in rows) * 1e3
    high = max(np.percentile(row.samples, 99) for row in rows) * 1e3
    n = len(rows)
    plot = Plot(
        (max(0.0, low - 0.1 * (high - low)), high + 0.05 * (high - low)), (-0.5, n - 0.5),
        size=(760, 80 + 44 * n), xlabel="ms: box p10 to p90, bar the median, dots the turns, line p1 to p99",
        title=f"latencies, {case.model}", yticks=[(n - 1 - i, row.label) for i, row in enumerate(rows)],
    )  # fmt: skip
    for i, row in enumerate(rows):
        y, colour, t = n - 1 - i, COLOURS[i % len(COLOURS)], row.latency
        assert t is not None
        p1, p99 = np.percentile(row.samples, (1, 99)) * 1e3
        plot.line([(p1, y), (p99, y)], colour, 1)
        plot.box(
            (t.p10_ms, t.p90_ms),
            (y - 0.2, y + 0.2),
            colour,
            f"{row.label}: p10 {t.p10_ms:.3f}, p90 {t.p90_ms:.3f} ms",
        )
        plot.line([(t.median_ms, y - 0.28), (t.median_ms, y + 0.28)], colour, 3)
        for turn in [s * 1e3 for launch in row.rounds for s in launch]:
            plot.dot(turn, y, colour, f"{turn:.3f} ms", 2.5, 0.7)
    return plot.render()


def model_roofline(result: BenchResult) -> str:
    """Whole models under the machine's roofs: intensity by the bytes that must move."""
    key = max(result.peaks, key=int)
    peaks = Peaks(**result.peaks[key])
    points = [
        (
            case.flops / case.floor_bytes,
            case.flops / (row.latency.median_ms / 1e3),
            i,
            f"{row.label}, {heading(case)}",
        )
        for case in result.cases
        if str(case.threads) == key and case.floor_bytes
        for i, row in enumerate(case.engines)
        if row.latency
    ]
    if not points:
        return ""
    plot = roofline_axes(peaks, [(x, y) for x, y, _, _ in points])
    for x, y, i, name in points:
        plot.dot(x, y, COLOURS[i % len(COLOURS)], f"{name}: {y / 1e9:.1f} GFLOP/s at {x:.1f} FLOP/B", 5)
    engines = dict.fromkeys((i, name.partition(",")[0]) for _, _, i, name in points)
    legend = ", ".join(f'<b style="color:{COLOURS[i % len(COLOURS)]}">{escape(label)}</b>' for i, label in engines)
    return (
        f"<p>{legend}; each dot is a model in an engine, hover for its name. FLOPs are the model's own.</p>"
        + plot.render()
    )
