"""Depthwise convolution, CPU, NHWC: `wt` output pixels of a row by `cv` vectors of channels in registers.

    registers  wt*cv accumulators + cv (weights) + 1 (input) <= vector_regs       14*1 + 1 + 1 = 16 <= 32
    latency    wt*cv >= fma_latency * fma_ports, or the chain of K*K FMAs shows   14 >= 4 * 2
    loads      per ky: wt + KW - 1 inputs and KW weights for wt*KW FMAs           (16 + 3) / 42 < 1
    order      a task is a channel block: its K rows stay in L1, 11 KB at W = 56 (with the rows outermost
               each input came K times from L2: 38 us instead of 27); of some rows where L2 does not hold
               the picture, all channels before the next rows (112x112x96 3x3/2 on a Xeon: 265 us, not 540)
    floor      max(2*K*K*outputs / peak, 4*(inputs + outputs) / L2 bandwidth)
    Measured   Zen 5, 1 thread, us, beside onnxruntime 1.31 in the same process (FMA peak 267 GFLOP/s):
                 56x56x96 3x3     26 (207 GFLOP/s, 92 GB/s)     onnxruntime 96
                 14x14x384 3x3    5.7 (237)                     32
                 112x112x96 3x3/2 54 (100 GFLOP/s, 112 GB/s)    167
                 28x28x192 5x5    30 (252)                      74
                 56x56x96 7x7     110 (267)

The tile, its borders and its knobs are `_window.py`, which pooling shares.
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu import _window
from tvmopt.schedules.cpu._window import WindowProblem
from tvmopt.scheduling.family import Knobs, PixelTiles, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> WindowProblem | None:
    """The blocks that the lowering marked."""
    return _window.recognise(func, machine, "depthwise")


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`wt` pixels by `cv` channel vectors; `rows` of one task; `unroll`: the loop over ky too."""
    return _window.knobs(problem, machine)


def open_pixels(problem: WindowProblem, machine: Machine) -> PixelTiles:
    """Tiles of a row of open length."""
    return _window.open_pixels(problem, machine)


def apply(sch: Any, problem: WindowProblem, knobs: Knobs) -> None:
    _window.apply(sch, problem, knobs, "depthwise")
