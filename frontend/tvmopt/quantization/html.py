"""A quantisation as one HTML page with nothing to load: what each layer loses, its range and its histogram."""

from __future__ import annotations

from html import escape

from tvmopt.analysis.svg import COLOURS, Plot, html_table, page
from tvmopt.quantization.records import Layer, Quantized


def html(result: Quantized) -> str:
    """The file's text."""
    parts = [
        f"<h1>{escape(result.model)}, quantised</h1>",
        f"<p>By {escape(result.method)}, preset {escape(result.preset)}, {result.samples} samples "
        f"(sha256 <code>{result.data_sha256[:16]}</code>): {result.bytes_before / 1e6:.2f} MB became "
        f"{result.bytes_after / 1e6:.2f} MB.</p>",
    ]
    if result.attempts:
        rows = [("none, the float model", f"{result.metric:.6g}")]
        rows += [(escape(", ".join(a.excluded) or "no layer left out"), f"{a.value:.6g}") for a in result.attempts]
        parts.append(f"<h2>Metric</h2>{html_table(('layers in floats', 'value'), rows)}")
    if result.outputs:
        rows = [(escape(name), decibels(value)) for name, value in result.outputs.items()]
        parts.append(f"<h2>Outputs</h2>{html_table(('output', 'signal to noise'), rows)}")
    if result.layers:
        parts += [f"<h2>Layers</h2>{_plot(result.layers)}", _table(result.layers)]
    return page(f"{result.model}, quantised", "\n".join(parts))


def decibels(value: float | None) -> str:
    """A ratio of signal to noise, or that there is no noise."""
    return "exact" if value is None else f"{value:.1f} dB"


def _plot(layers: tuple[Layer, ...]) -> str:
    """Signal to noise through the layers."""
    known = [v for one in layers for v in (one.own, one.total) if v is not None]
    low, high = min([*known, 0.0]), max([*known, 40.0])
    plot = Plot(
        (-0.5, len(layers) - 0.5), (low - 2, high + 2), size=(1040, 320), xlabel="layer, in graph order",
        ylabel="signal to noise, dB", title="dark: the layer by itself; light: with the noise of all before it",
    )  # fmt: skip
    for x, one in enumerate(layers):
        words = f"{one.node} ({one.operator})"
        if one.own is not None:
            plot.dot(x, one.own, COLOURS[0], f"{words} by itself: {one.own:.1f} dB", 4, 0.9)
        if one.total is not None:
            plot.dot(x, one.total, COLOURS[1], f"{words} in the whole model: {one.total:.1f} dB", 3, 0.5)
    return plot.render()


def _table(layers: tuple[Layer, ...]) -> str:
    rows = [
        (
            escape(one.node), one.operator, "int8" if one.quantized else "float",
            decibels(one.own) if one.quantized else "", decibels(one.total), f"{one.low:.4g}", f"{one.high:.4g}",
            _bars(one.histogram),
        )
        for one in layers
    ]  # fmt: skip
    head = ("node", "operator", "in", "by itself", "in the model", "least", "largest", "histogram, log")
    return html_table(head, rows, {0, 1, 2})


def _bars(counts: tuple[int, ...]) -> str:
    """A small histogram; heights are logarithms, so that rare values show."""
    most = max([*counts, 1]).bit_length()
    bars = "".join(
        f'<rect x="{2 * i}" y="{20 - 20 * n.bit_length() // most}" width="2" height="{20 * n.bit_length() // most}"/>'
        for i, n in enumerate(counts)
        if n
    )
    return f'<svg width="{2 * len(counts)}" height="20" fill="currentColor">{bars}</svg>'
