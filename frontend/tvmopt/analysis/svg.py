"""Plots as inline SVG, with nothing but the standard library - for the HTML reports of `bench` and `profile`.

A :class:`Plot` is a pair of axes (linear or logarithmic) that draws lines, dots, bars and words, and renders to one
``<svg>`` element. Text takes the page's colour, so that a dark page works; :func:`page` makes a whole file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from math import ceil, floor, log10

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a00", "#7f7f7f")
"""Okabe and Ito's palette, told apart by colour-blind readers too (yellow darkened to be read on white)."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1400px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.92em; }
th, td { padding: 0.25em 0.7em; text-align: right; border-bottom: 1px solid #8884; }
th, td { white-space: nowrap; vertical-align: top; }
td.l, th.l { text-align: left; white-space: normal; }
tr.bad td { color: #c33; } .faster { color: #087f5b; font-weight: 600; } .slower { color: #c92a2a;
font-weight: 600; } .unstable, .note { color: #b7791f; } .scroll { overflow-x: auto; } small, .dim {
opacity: 0.7; } svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
td.l { overflow-wrap: anywhere; min-width: 6em; } td.l:first-child { min-width: 13em; }
td.wide { min-width: 17em; } td small { display: block; }
@media (prefers-color-scheme: dark) { tr.bad td, .slower { color: #ff8a80; } .faster { color: #5fd3a5; }
  .unstable, .note { color: #e3b765; } }
details summary { cursor: pointer; } code { font-size: 0.95em; } h1 { overflow-wrap: anywhere; }
@media (max-width: 640px) { .plot { overflow-x: auto; } .plot svg { max-width: none; } body { margin-top: 1em; } }
"""

PLOT_STYLE = """
svg text { fill: currentColor; } svg .grid { stroke: currentColor; stroke-opacity: 0.13; }
svg .axis { stroke: currentColor; stroke-opacity: 0.6; fill: none; }
@media (prefers-color-scheme: dark) { svg circle, svg rect, svg polyline { filter: brightness(1.4); } }
svg .halo { paint-order: stroke; stroke: Canvas; stroke-width: 4px; stroke-linejoin: round; }
"""


class Plot:
    """Axes and what is drawn on them.

    Args:
        x, y: (low, high) in data units; with `log`, positive.
        xlabel, ylabel, title: words; the title becomes the SVG's accessible name.
        xlog, ylog: logarithmic axes.
        xticks, yticks: (position, label) pairs in place of computed ones, for categories.
        left: pixels left of the axis; 0: as many as the labels need.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        title: str = "",
        xlabel: str = "",
        ylabel: str = "",
        xlog: bool = False,
        ylog: bool = False,
        size: tuple[int, int] = (720, 360),
        left: int = 0,
        yticks: Sequence[tuple[float, str]] | None = None,
        xticks: Sequence[tuple[float, str]] | None = None,
    ) -> None:
        self.x, self.y, self.xlog, self.ylog = _wide(x, xlog), _wide(y, ylog), xlog, ylog
        self.width, self.height = size
        longest = max((len(label) for _, label in yticks or ()), default=0)
        self.left = left or max(70, 16 + 7 * longest)  # some 7 pixels a letter of 12 px
        self.right, self.top, self.bottom = 20, 16, 46
        self.title, self.xlabel, self.ylabel = title, xlabel, ylabel
        self.xticks, self.yticks = xticks, yticks
        self.parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixel of a point."""
        u, v = _share(x, *self.x, self.xlog), _share(y, *self.y, self.ylog)
        inner_w, inner_h = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + u * inner_w, self.top + (1 - v) * inner_h

    def line(self, points: Iterable[tuple[float, float]], colour: str = "", width: float = 2, dash: str = "") -> None:
        """A polyline."""
        text = " ".join(f"{a:.1f},{b:.1f}" for a, b in (self.at(*p) for p in points))
        style = f'stroke="{colour}"' if colour else 'class="axis"'
        self.parts.append(
            f'<polyline points="{text}" fill="none" {style} stroke-width="{width}"'
            + (f' stroke-dasharray="{dash}"' if dash else "")
            + "/>"
        )

    def dot(self, x: float, y: float, colour: str, label: str = "", radius: float = 4, opacity: float = 0.85) -> None:
        """A dot with a tooltip."""
        a, b = self.at(x, y)
        tip = f"<title>{escape(label)}</title>" if label else ""
        self.parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="{opacity}">'
            f"{tip}</circle>"
        )

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        colour: str,
        label: str = "",
        opacity: float = 0.35,
    ) -> None:
        """A rectangle between two corners."""
        (a, b), (c, d) = self.at(x[0], y[0]), self.at(x[1], y[1])
        tip = f"<title>{escape(label)}</title>" if label else ""
        self.parts.append(
            f'<rect x="{min(a, c):.1f}" y="{min(b, d):.1f}" '
            f'width="{abs(c - a):.1f}" height="{abs(d - b):.1f}" '
            f'fill="{colour}" fill-opacity="{opacity}">{tip}</rect>'
        )

    def text(self, x: float, y: float, words: str, anchor: str = "start", dx: float = 6, dy: float = -6) -> None:
        """Words beside a point, readable over lines."""
        a, b = self.at(x, y)
        self.parts.append(
            f'<text class="halo" x="{a + dx:.1f}" y="{b + dy:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def render(self) -> str:
        """The ``<svg>`` element."""
        x0, x1, y0, y1 = self.left, self.width - self.right, self.height - self.bottom, self.top
        parts = [
            f'<svg viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(self.title, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        ]
        for value, label in self.xticks if self.xticks is not None else ticks(*self.x, self.xlog):
            a, _ = self.at(value, self.y[0])
            parts.append(f'<line class="grid" x1="{a:.1f}" x2="{a:.1f}" y1="{y0}" y2="{y1}"/>')
            parts.append(f'<text x="{a:.1f}" y="{y0 + 16}" text-anchor="middle">{label}</text>')
        for value, label in self.yticks if self.yticks is not None else ticks(*self.y, self.ylog):
            _, b = self.at(self.x[0], value)
            parts.append(f'<line class="grid" x1="{x0}" x2="{x1}" y1="{b:.1f}" y2="{b:.1f}"/>')
            parts.append(f'<text x="{x0 - 8}" y="{b + 4:.1f}" text-anchor="end">{escape(label)}</text>')
        parts.append(f'<path class="axis" d="M{x0},{y1}V{y0}H{x1}"/>')
        parts += self.parts
        parts.append(
            f'<text x="{(x0 + x1) / 2}" y="{self.height - 8}" text-anchor="middle">{escape(self.xlabel)}</text>'
        )
        if self.ylabel:
            middle = (y0 + y1) / 2
            parts.append(
                f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
                f"{escape(self.ylabel)}</text>"
            )
        return "".join(parts) + "</svg>"


def ticks(low: float, high: float, log: bool = False) -> list[tuple[float, str]]:
    """Round positions for an axis, with labels.

    >>> ticks(0, 10)
    [(0.0, '0'), (2.0, '2'), (4.0, '4'), (6.0, '6'), (8.0, '8'), (10.0, '10')]
    >>> ticks(0.5, 200, log=True)
    [(1.0, '1'), (10.0, '10'), (100.0, '100')]
    """
    if log:
        decades = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
        values = [10.0**d for d in decades]
        if high < 5 * low:
            return ticks(low, high)
        if len(values) < 3:
            values = [m * 10.0**d for d in range(floor(log10(low)), ceil(log10(high)) + 1) for m in (1, 2, 5)]
        return [(v, _label(v)) for v in values if low * 0.999 <= v <= high * 1.001]
    step = 10.0 ** floor(log10((high - low) / 5))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 6)
    first = ceil(low / step - 1e-9)
    values = [round(k * step, 12) for k in range(first, floor(high / step + 1e-9) + 1)]
    return [(v, _label(v)) for v in values]


def _label(value: float) -> str:
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if suffix == "k" else size
            return f"{value / scale:g}{suffix}"
    return f"{value:g}"


def _wide(pair: tuple[float, float], log: bool) -> tuple[float, float]:
    """A range of some width, positive on a logarithmic axis."""
    low, high = pair
    if log:
        low = max(low, 1e-30)
        return (low, high) if high > low * 1.0001 else (low / 2, low * 2)
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        share = (log10(max(value, 1e-30)) - log10(low)) / (log10(high) - log10(low))
    else:
        share = (value - low) / (high - low)
    return min(max(share, -0.02), 1.02)


def standalone(svg: str) -> str:
    """A plot as a file of its own, with the styles that a page gives it; light or dark as the viewer is."""
    style = (
        ":root { color-scheme: light dark; font: 12px system-ui, sans-serif; background: Canvas; "
        f"color: CanvasText; }}{PLOT_STYLE}"
    )
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}<style>{style}</style>{rest}\n"


_SVG = re.compile(r"<svg viewBox.*?</svg>", re.DOTALL)


def page(title: str, body: str, policy: str = "") -> str:
    """A whole HTML file with nothing to load; `policy`: what its browser is to refuse."""
    rule = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    body = _SVG.sub(r'<div class="plot">\g<0></div>', body)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{rule}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{PLOT_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,), wide: int = -1
) -> str:
    """A table; cells are HTML already, the columns in `left` flush left and free to wrap, `wide` has prose."""

    def cells(tag: str, row: Sequence[str]) -> str:
        flush = {i: ' class="l wide"' if i == wide else ' class="l"' for i in left}
        return "".join(f"<{tag}{flush.get(i, '')}>{cell}</{tag}>" for i, cell in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'
