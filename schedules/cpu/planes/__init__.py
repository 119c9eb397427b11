"""Convolution, CPU, NCHW: of a layer beside which nothing asks for channels-last."""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu.planes.ahead import fetch_ahead
from tvmopt.schedules.cpu.planes.choice import stays
from tvmopt.schedules.cpu.planes.compute import conv2d
from tvmopt.schedules.cpu.planes.copy import cut
from tvmopt.schedules.cpu.planes.schedule import apply, knobs, recognise

NAME, VERSION = "planes", 1
LOWERS = {"relax.nn.conv2d": conv2d}
STAYS = {"relax.nn.conv2d": stays}
REREADS = True


def finish(func: Any) -> Any:
    """What is rewritten behind the schedule: the loops that copy rows, and those over channels."""
    return fetch_ahead(cut(func))
