"""Max and average pooling on a GPU, NHWC: the window of `_window.py` over one tensor."""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cuda import _window
from tvmopt.schedules.cuda._window import WindowProblem
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine


def recognise(func: Any, machine: Machine) -> WindowProblem | None:
    """A window over one tensor, with enough outputs for a thread each; fewer are `reduce`."""
    return _window.recognise(func, machine, 1)


def knobs(problem: WindowProblem, machine: Machine) -> Space:
    """`vector`: channels a thread; `threads` a block."""
    return _window.knobs(problem, machine)


def apply(sch: Any, problem: WindowProblem, knobs: Knobs) -> None:
    _window.apply(sch, problem, knobs)
