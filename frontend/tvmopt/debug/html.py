"""A comparison as one HTML file with nothing to load: verdicts, the error through the layers, the cause."""

from __future__ import annotations

from html import escape

from tvmopt.analysis.svg import COLOURS, Plot, html_table, page
from tvmopt.analysis.told import numberless
from tvmopt.debug.records import CompareResult, Trace

FLOOR = 1e-9


def html(result: CompareResult) -> str:
    """The file's text."""
    title = f"Comparison of {result.model}"
    return page(title, f"<h1>{escape(title)}</h1>\n{body(result)}")


def body(result: CompareResult) -> str:
    """What stands below the title."""
    inputs = ", ".join(f"{n} {t}" for n, t in result.inputs.items())
    parts = [f"<p>Against {escape(result.reference)}; inputs {escape(inputs)}: <b>{escape(result.verdict)}</b>.</p>"]
    if result.blame:
        parts.append(f"<h2>Cause</h2><p><b>{escape(result.blame.kind)}</b>: {escape(result.blame.text)}</p>")
        if result.blame.experiments:
            rows = [(escape(e.name), escape(e.verdict), escape(e.text)) for e in result.blame.experiments]
            parts.append(html_table(("the piece, compiled or run", "is", ""), rows, {0, 1, 2}))
    if result.repro:
        nodes = escape(", ".join(result.repro.nodes))
        sure = "reproduces it" if result.repro.confirmed else "was cut out, but does not reproduce it alone"
        parts.append(
            f"<p><code>{escape(result.repro.path)}</code> {sure}: {nodes}.</p><pre>{escape(result.repro.command)}</pre>"
        )
    parts.append(f"<h2>Outputs</h2>{_outputs(result)}")
    for bad in result.nonfinite:
        parts.append(
            f'<p class="note">{escape(bad.node)} ({escape(bad.operator)}) makes {bad.nan} NaN and '
            f"{bad.inf} Inf of finite inputs, in the reference too.</p>"
        )
    notes = [*([numberless(result.numberless)] if result.numberless else []), *result.structure]
    parts += [f'<p class="note">{escape(text)}</p>' for text in notes]
    if result.constants:
        cells = [
            (
                escape(c.name), escape(", ".join(c.nodes)), f"{c.different} of {c.of}", f"{c.largest:.3g}",
                str(list(c.worst)), f"{c.expected:.6g}", f"{c.found:.6g}",
            )
            for c in result.constants
        ]  # fmt: skip
        head = ("constant", "nodes", "elements", "largest difference", "at", "expected", "found")
        parts.append(f"<h2>Constants that differ</h2>{html_table(head, cells, {0, 1})}")
    parts += [_trace(trace) for trace in result.traces]
    return "\n".join(parts)


def _outputs(result: CompareResult) -> str:
    rows: list[tuple[str, ...]] = []
    for row in result.rows:
        if not row.outputs:
            rows.append((escape(row.label), row.status, "", "", "", "", "", escape(row.message)))
        agrees = "agrees" if row.status == "wrong" else ""
        for one in row.outputs:
            figures = [f"{v:.3g}" for v in (one.max_error, one.p99_error, one.scale, one.needed, one.tolerance)]
            rows.append((escape(row.label), row.status, *figures, escape(f"{one.name} {one.problem or agrees}")))
    head = ("row", "verdict", "max error", "p99", "largest value", "relative error", "tolerance", "output")
    return html_table(head, rows, {0, 1, 7})


def _trace(trace: Trace) -> str:
    """The error of every layer over its place, with the tolerance; and a table of all of them."""
    known = [one for one in trace.layers if one.status != "unmatched"]
    if not known:
        return f"<h2>{escape(trace.label)}, layers</h2><p>{escape(trace.how)}</p>"
    values = [max(one.comparison.needed, FLOOR) for one in known]
    limits = [max(one.comparison.tolerance, FLOOR) for one in known]
    plot = Plot(
        (-0.5, len(known) - 0.5), (min(values + limits) / 2, max(values + limits) * 2), ylog=True,
        size=(1040, 320), xlabel="layer, in graph order", ylabel="error / largest value",
        title=f"error through the layers, {trace.label}",
    )  # fmt: skip
    plot.line(list(enumerate(limits)), COLOURS[7], 1.5)
    for x, (one, value) in enumerate(zip(known, values, strict=True)):
        colour = COLOURS[1] if one.status == "differs" else COLOURS[0]
        words = f"{one.node} ({one.operator}) {one.tensor}: "
        words += f"{one.comparison.needed:.3g} of {one.comparison.tolerance:.3g}"
        plot.dot(x, value, colour, words, 6 if one is trace.culprit else 3.5, 0.9)
    culprit = trace.culprit
    first = (
        f"First to leave its tolerance: <b>{escape(culprit.node)}</b> ({escape(culprit.operator)})." if culprit else ""
    )
    rows = [
        (
            escape(one.node), escape(one.operator), escape(one.tensor), escape(one.kernel), one.status,
            f"{one.comparison.max_error:.3g}", f"{one.comparison.needed:.3g}",
            f"{one.comparison.tolerance:.3g}",
        )
        for one in trace.layers
    ]  # fmt: skip
    head = ("node", "operator", "tensor", "kernel", "verdict", "max error", "relative error", "tolerance")
    return (
        f"<h2>{escape(trace.label)}, layers</h2>"
        f"<p>{escape(trace.how)}; the grey line is each layer's tolerance. {first}</p>{plot.render()}"
        f"<details><summary>all {len(rows)} layers</summary>"
        f"{html_table(head, rows, {0, 1, 2, 3, 4})}</details>"
    )
