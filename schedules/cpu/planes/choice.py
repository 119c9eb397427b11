"""Whether a convolution beside which nothing asks for channels-last is faster as it lies, or in NHWC between two
transposes - for the pass that chooses layouts."""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu._channels_last import between_transposes
from tvmopt.schedules.cpu.planes.compute import convolution_of
from tvmopt.schedules.cpu.planes.plan import best_plan
from tvmopt.targets import Machine


def stays(call: Any, machine: Machine, exact: bool) -> bool:
    """Whether NCHW is ahead."""
    conv = convolution_of(call)
    if conv is None:
        return False
    used = conv.used(machine)
    return best_plan(conv, used).time(used) < between_transposes(conv, used, exact)
