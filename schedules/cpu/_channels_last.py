"""What a convolution of NCHW pictures takes in channels-last between two transposes - for the families that compute it
as it lies.

The constants are fitted to drawn layers on one core and two of a Xeon (Sapphire Rapids): docs/performance.md. On a
Zen 4 choices by them take 1.02 of the time of the best ones (100 layers, two cores).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvmopt.lowering.window import channel_vector
from tvmopt.schedules.cpu._inside import column_marks, outside, row_marks
from tvmopt.schedules.cpu._winograd import Window, choose_form
from tvmopt.scheduling.cost_model import choose_tile, product_worth_threads
from tvmopt.targets import Machine

MOVE, FAR = 6.0, 16.0
"""Cycles of a vector that is transposed, within L2 and beyond; of several cores one reads what another has written, so
that half of L2 is the bound."""
BORDER = 3.0
"""Cycles of a vector of the copy with a border."""
DEPTHWISE, WIDENED, NARROW = 1.3, 8.0, 1.5
"""How much longer than its products a layer of one channel a group takes, of one with several outputs each, and of
groups of few channels."""
COPIED = 15.0
"""Cycles of a vector that a depthwise layer copies because its channels fill no whole vectors."""
LEFT_OUT = 0.8
"""Of columns of taps outside the picture, the share whose time is saved; of rows all of it."""
RATE = 0.9
"""Of the modelled rate, that of the register tile of a convolution in NHWC."""
BETWEEN, ACROSS = 10_000.0, 12.0
"""Of several cores, cycles that a further kernel takes, and those of a vector that one core has written and
another reads: of what exceeds a quarter of L2, `FAR` says it."""


@dataclass(frozen=True)
class Convolution:
    """A convolution of NCHW pictures.

    Attributes:
        n, channels, size: of the pictures. outputs: channels of the result. out: its rows and columns.
        kernel, strides, dilation: rows and columns. before: rows above and columns left of the picture.
    """

    n: int
    channels: int
    size: tuple[int, int]
    outputs: int
    out: tuple[int, int]
    groups: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]

    @property
    def steps(self) -> int:
        """Products of one output."""
        return self.channels // self.groups * prod(self.kernel)

    def axis(self, axis: int) -> tuple[int, int, int, int, int, int]:
        """Of rows (0) or columns: taps, stride, dilation, what is before the picture, its size and the result's."""
        sizes = (self.kernel, self.strides, self.dilation, self.before, self.size, self.out)
        taps, stride, dilation, before, size, out = (pair[axis] for pair in sizes)
        return taps, stride, dilation, before, size, out

    def used(self, machine: Machine) -> Machine:
        """The machine with the cores that work on it: one, where it is too little for threads."""
        flops = 2.0 * self.n * self.outputs * prod(self.out) * self.steps
        return machine if product_worth_threads(flops, machine) else machine.with_cores(1)

    def offset(self, axis: int, tap: int) -> int:
        """How far before (negative) or behind the output's own place a tap lies, in the picture."""
        return tap * self.dilation[axis] - self.before[axis]

    def phases(self, axis: int) -> list[int]:
        """The phases of rows or columns that taps read: one, or all."""
        used = {self.offset(axis, tap) % self.strides[axis] for tap in range(self.kernel[axis])}
        return sorted(used) if len(used) == 1 else list(range(self.strides[axis]))

    def reach(self, axis: int) -> tuple[int, int]:
        """The first and last place that taps read, in a plane of one phase, counted from the output's own."""
        step = self.strides[axis]
        return self.offset(axis, 0) // step, self.offset(axis, self.kernel[axis] - 1) // step


def between_transposes(conv: Convolution, machine: Machine, exact: bool = False) -> float:
    """Cycles in NHWC, transposes included, cores sharing the work: by rows in one kernel, by channels in the next, so
    that a part of what each reads comes from another core. One channel, or one pixel, need not be transposed."""
    pictures = ((conv.channels, prod(conv.size)), (conv.outputs, prod(conv.out)))
    numbers = [conv.n * channels * pixels for channels, pixels in pictures if min(channels, pixels) > 1]
    return moved(numbers, machine) + in_channels_last(conv, machine, exact)


def moved(numbers: Sequence[int], machine: Machine) -> float:
    """Cycles of transposes of so many numbers each."""
    near, lanes = machine.l2 if machine.cores == 1 else machine.l2 // 2, machine.lanes()
    cycles = sum(n / lanes * (FAR if 8 * n > near else MOVE) for n in numbers) / machine.cores
    if machine.cores > 1:
        cycles += BETWEEN * len(numbers) + ACROSS * sum(min(n, near // 8) for n in numbers) / lanes
    return cycles


def in_channels_last(conv: Convolution, machine: Machine, exact: bool = False) -> float:
    """Cycles of the convolution itself, in NHWC."""
    if (winograd := _winograd(conv, machine)) and not exact:
        return winograd
    lanes, cycles = machine.lanes(), 0.0
    if any(conv.before):
        cycles += BORDER * conv.n * conv.channels * prod(conv.size) / lanes / machine.cores
    pixels, per, in_g = conv.n * prod(conv.out), conv.outputs // conv.groups, conv.channels // conv.groups
    if in_g == 1 and conv.groups > 1:
        copied = COPIED if channel_vector(conv.outputs, per, lanes)[1] else 0.0
        each = copied + (DEPTHWISE if per == 1 else WIDENED) * prod(conv.kernel) / machine.fma_ports
        return cycles + -(-conv.outputs // lanes) * pixels * each / machine.cores
    tile = choose_tile(pixels, per, machine, rows=conv.out[1])
    narrow = NARROW if conv.groups > 1 and min(in_g, per) <= lanes else 1.0
    steps = float(conv.steps)
    for axis, marks, saved in ((0, row_marks, 1.0), (1, column_marks, LEFT_OUT)):
        sizes = conv.axis(axis)
        steps *= 1 - saved * outside(*sizes) if marks(*sizes, in_g) else 1
    return cycles + narrow * tile.cycles * conv.groups * steps / RATE / machine.cores


def _winograd(conv: Convolution, machine: Machine) -> float:
    """Cycles of Winograd's form, where the family takes it; else 0."""
    if (conv.strides, conv.groups) != ((1, 1), 1):
        return 0.0
    window = Window(conv.kernel, conv.dilation, conv.out, conv.channels, conv.outputs, conv.n)
    form, cycles = choose_form(window, machine)
    return cycles if form is not None else 0.0
