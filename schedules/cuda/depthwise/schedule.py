"""Depthwise convolution on a GPU, NHWC: the window of `_window.py` over the input and one weight a channel and tap.

weights    packed [kh, kw, c] at compile time: a tap's weights are one vector, which all pixels share through L1
floor      bytes of input, weights and output once / bandwidth: 2 * kh * kw operations for 2 * itemsize bytes is far
           below what the multiprocessors need, so tensor cores would not help
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cuda import _window
from tvmopt.schedules.cuda._window import WindowProblem
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> WindowProblem | None:
    """A window over two tensors, neither of which is summed over channels."""
    return _window.recognise(func, machine, 2)


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`vector`: channels a thread; `threads` a block."""
    return _window.knobs(problem, machine)


def apply(sch: Any, problem: WindowProblem, knobs: Knobs) -> None:
    _window.apply(sch, problem, knobs)
