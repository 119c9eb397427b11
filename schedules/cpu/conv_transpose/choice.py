"""Whether a transposed convolution beside which nothing asks for channels-last is computed as it lies, or as the
convolutions that `tvmopt.passes.lower_conv_transpose` makes of it - for that pass."""

from __future__ import annotations

from math import prod
from typing import Any

from tvmopt.schedules.cpu._channels_last import Convolution, in_channels_last, moved
from tvmopt.schedules.cpu.conv_transpose.compute import transposed_of
from tvmopt.schedules.cpu.conv_transpose.plan import Transposed, best_plan
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

BESIDE = 40.0
"""Cycles of a vector of results that are put together from a convolution a phase: number by number, not in registers
(3 cycles a number; measured on a Zen 4)."""
KERNEL = 2000.0
"""Cycles of one more kernel."""


def stays(call: Any, machine: Machine, exact: bool) -> bool:
    """Whether it is computed as it lies."""
    conv = transposed_of(call)
    if isinstance(conv, Declined) or len(conv.phases) == 1:  # of one phase it is one convolution
        return False
    used = conv.used(machine)
    plan = best_plan(conv, used)
    return plan is not None and plan.time(used) < as_convolutions(conv, used, exact)


def as_convolutions(conv: Transposed, machine: Machine, exact: bool = False) -> float:
    """Cycles of the faster of one convolution for all phases and one a phase, with the transpose of the picture and the
    interleave of the results."""
    axes = (conv.rows, conv.columns)
    if any(axis.dilation > 1 for axis in axes):
        return float("inf")  # the pass leaves it, and TVM's own loops are slow
    counts = [tuple(len(axis.phases[p]) for axis, p in zip(axes, at, strict=True)) for at in conv.phases]
    most = tuple(max(count[a] for count in counts) for a in (0, 1))
    sizes = [conv.n * conv.channels * prod(a.size for a in axes), conv.n * conv.outputs * prod(a.out for a in axes)]
    cycles = in_channels_last(_convolution(conv, most, len(counts)), machine, exact) + 2 * KERNEL
    if conv.groups == 1 and all(map(all, counts)):
        apart = sum(in_channels_last(_convolution(conv, count, 1), machine, exact) + KERNEL for count in counts)
        cycles = min(cycles, apart + KERNEL + BESIDE * sizes[1] / machine.lanes() / machine.cores)
    return moved(sizes, machine) + cycles


def _convolution(conv: Transposed, taps: Any, phases: int) -> Convolution:
    """That of `taps` rows and columns, for so many phases."""
    size, before = (conv.rows.size, conv.columns.size), (taps[0] - 1, taps[1] - 1)
    out = (size[0] + before[0], size[1] + before[1])
    outputs = phases * conv.outputs
    return Convolution(conv.n, conv.channels, size, outputs, out, conv.groups, taps, (1, 1), (1, 1), before)
