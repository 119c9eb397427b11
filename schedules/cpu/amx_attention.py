"""Attention, AMX: heads and runs of 32 queries to threads; the kernel is `tvmopt.legalize.amx_attention`'s.

products   2 * Sq*Sk*D / 8192 tdpbf16ps a head, 16 cycles each: 128 queries, 128 keys, D = 64: 4096 cycles
softmax    Sq*Sk/lanes * 13 cycles of exp: 13300 cycles, the longer part
Measured   not yet: checked by running the machine code in an emulator (tests/amx).
"""

from __future__ import annotations

from typing import Any

from tvmopt.schedules.cpu import attention
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.targets import Machine

NAME, VERSION = "amx_attention", 1
Shape = attention.Shape


def recognise(func: Any, machine: Machine) -> Shape | None:
    """A block that the legalizer marked `amx_attention`."""
    return attention.recognise(func, machine, NAME)


def knobs(shape: Shape, machine: Machine) -> Space:
    """Threads or not."""
    return attention.knobs(shape, machine)


def apply(sch: Any, shape: Shape, knobs: Knobs) -> None:
    """As in attention.py."""
    attention.apply(sch, shape, knobs, NAME)
