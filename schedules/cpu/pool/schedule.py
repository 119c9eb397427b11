"""Max and average pooling, CPU, NHWC: the window tile of depthwise convolution without weights.

    loads      per ky: wt*s + KW - s inputs for wt*KW operations (LLVM keeps what neighbouring windows share)
    floor      4*(inputs + outputs) / bandwidth of the cache they live in
    Measured   Zen 5, 1 thread: 112x112x64 3x3/2 max 45 us (89 GB/s), 56x56x128 2x2/2 average 23 us (86 GB/s),
               28x28x192 3x3 max 11 us (107 GB/s), 224x224x64 2x2/2 max 149 us (108 GB/s)

The tile, its borders and its knobs are `_window.py`.
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu import _window
from tvmopt.schedules.cpu._window import WindowProblem
from tvmopt.scheduling.family import Knobs, PixelTiles, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> WindowProblem | None:
    """The blocks that the lowering marked."""
    return _window.recognise(func, machine, "pool")


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`wt` pixels by `cv` channel vectors; `rows` of one task; `unroll`: the loop over ky too."""
    return _window.knobs(problem, machine)


def open_pixels(problem: WindowProblem, machine: Machine) -> PixelTiles:
    """Tiles of a row of open length."""
    return _window.open_pixels(problem, machine)


def apply(sch: Any, problem: WindowProblem, knobs: Knobs) -> None:
    _window.apply(sch, problem, knobs, "pool")
