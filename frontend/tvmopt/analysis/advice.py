"""From a kernel's place on the roofline to what to do about it, with the gain the whole model would see.

Amdahl's law: a kernel that takes share `p` of the time and gets `s` times faster makes the model
``1 / (1 - p + p / s)`` times faster. What a better schedule can reach is taken to be 85 % of the roof: what
the best kernels reach in practice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.analysis.peaks import Peaks
from tvmopt.analysis.roofline import Position
from tvmopt.scheduling.discover import family_of_any_kind

REACHABLE = 0.85
WORTH = 1.005  # a smaller gain is not worth a sentence
_FEWER_BITS = {"bf16": "bf16 (--precision bf16)", "int8": "int8 (a quantized model)"}  # the easier one first
SMALL = 20e-6  # seconds: below, calling costs as much as computing


@dataclass(frozen=True)
class Advice:
    """A sentence, and how many times faster the whole model would be (1: not at all)."""

    text: str
    gain: float


def amdahl(share: float, faster: float) -> float:
    """The model's speed-up when `share` of its time gets `faster` times faster.

    >>> amdahl(0.5, 2.0)
    1.3333333333333333
    """
    return 1.0 / (1.0 - share + share / faster)


def advise(
    position: Position,
    seconds: float,
    latency: float,
    family: str,
    source: str,
    calls: int,
    peaks: Peaks,
    precision: str = "fp32",
) -> Advice:
    """What to do about a kernel that takes `seconds` (all `calls`) of `latency`."""
    share = min(seconds / latency, 1.0) if latency else 0.0
    headroom = REACHABLE / position.roof_share if position.roof_share else 1.0
    gain = amdahl(share, max(headroom, 1.0))
    if position.bound == "compute":
        lower = [p for p in _FEWER_BITS if p != precision and peaks.compute(p) > peaks.compute(precision)]
        known = family_of_any_kind(family)
        if known is not None and known.AT_ROOF:
            return Advice(known.AT_ROOF, 1.0)
        if not lower:
            return Advice("at the arithmetic roof: only fewer operations would help (Winograd, a smaller model)", 1.0)
        best = lower[0]
        gain = amdahl(share, peaks.compute(best) / peaks.compute(precision))
        return Advice(f"at the {precision} roof: {_FEWER_BITS[best]} has a higher one, if the accuracy allows", gain)
    if position.bound == "memory":
        return Advice("at the bandwidth roof: fuse it with its neighbours, or move fewer bytes (16-bit)", gain)
    if family == "builtin":
        return Advice("a call of TVM's virtual machine, no kernel", 1.0)
    if not position.roof_share:
        return Advice("", 1.0)
    if gain < WORTH:
        return Advice("", gain)
    if source == "generic":
        return Advice("no family knows it: tune it, or write a family for it", gain)
    if seconds / calls < SMALL:
        return Advice("small: calling costs as much as computing; fuse it, or run a larger batch", gain)
    if source == "analytic":
        return Advice("far from both roofs with untuned knobs: tune it", gain)
    return Advice("far from both roofs although tuned: dependencies or too little parallel work", gain)
