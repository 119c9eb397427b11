"""The roofline: what bounds a kernel, and the plot that shows it (Williams, Waterman and Patterson, CACM 2009).

Attainable operations a second are ``min(peak, intensity * bandwidth)``. A kernel near neither roof is bound
by latency: dependencies, launch overhead, too little parallel work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvmopt.analysis.peaks import Peaks
from tvmopt.analysis.svg import COLOURS, Plot

Bound = Literal["compute", "memory", "latency"]
NEAR = 0.60  # a unit used above this share of its peak is what bounds the kernel


@dataclass(frozen=True)
class Position:
    """Where a kernel stands.

    Attributes:
        intensity: operations a byte.
        compute_share, memory_share: of the arithmetic peak and of the bandwidth that its working set can
            have.
        roof_share: of the attainable: the larger of the two.
        bound: ``"compute"`` or ``"memory"`` when that unit is above 60 % of its peak, else ``"latency"``.
        floor_s: seconds that nothing can beat.
    """

    intensity: float
    compute_share: float
    memory_share: float
    roof_share: float
    bound: Bound
    floor_s: float


def locate(seconds: float, flops: float, nbytes: float, peaks: Peaks, precision: str = "fp32") -> Position:
    """Where a kernel of so many operations and bytes stands when it takes `seconds`.

    >>> peaks = Peaks("m", 1, {"fp32": 100.0}, {"l2": 10.0, "l3": 10.0, "dram": 10.0}, 0, 0, "x")
    >>> locate(1.0, 80, 2, peaks).bound, locate(1.0, 10, 9, peaks).bound, locate(1.0, 1, 1, peaks).bound
    ('compute', 'memory', 'latency')
    """
    compute = flops / peaks.compute(precision) / seconds if seconds else 0.0
    memory = nbytes / peaks.reach(nbytes) / seconds if seconds else 0.0
    share = max(compute, memory)
    bound: Bound = "latency" if share < NEAR else "compute" if compute >= memory else "memory"
    return Position(
        intensity=flops / nbytes if nbytes else 0.0,
        compute_share=compute,
        memory_share=memory,
        roof_share=share,
        bound=bound,
        floor_s=share * seconds,
    )


def roofline_axes(peaks: Peaks, points: Sequence[tuple[float, float]], precisions: Sequence[str] = ("fp32",)) -> Plot:
    """Axes with the machine's roofs, one for each precision, wide enough for the points (FLOP/B, FLOP/s)."""
    roofs = sorted((peaks.compute(precision), precision) for precision in precisions)
    peak = roofs[-1][0]
    xs = [x for x, _ in points if x > 0] or [1.0]
    ys = [y for _, y in points if y > 0] or [peak / 10]
    ridge = peak / peaks.bandwidth["dram"]
    low, high = min(*xs, 0.1) / 1.5, max(*xs, ridge * 4) * 1.5
    bottom = min(*ys, peak / 100) / 2
    plot = Plot(
        (low, high), (bottom, peak * 2), xlog=True, ylog=True, size=(760, 420), title="roofline",
        xlabel="arithmetic intensity, FLOP/B", ylabel="FLOP/s",
    )  # fmt: skip
    for roof, precision in roofs:
        plot.line([(low, roof), (high, roof)], COLOURS[7], 2)
        plot.text(high, roof, f"{precision} {roof / 1e9:.0f} GFLOP/s, {peaks.threads} thr.", "end", -4)
    for level in ("l2", "l3", "dram"):
        bandwidth = peaks.bandwidth.get(level)
        if not bandwidth:
            continue
        start = max(low, bottom / bandwidth)
        plot.line(
            [(start, start * bandwidth), (peak / bandwidth, peak)],
            COLOURS[7],
            1.5,
            "" if level == "dram" else "5 4",
        )
        middle = (start * peak / bandwidth) ** 0.5
        plot.text(middle, middle * bandwidth, f"{level} {bandwidth / 1e9:.0f} GB/s", "end", -4, -4)
    return plot
