"""How a convolution is computed on planes as they lie: where rows go in the copy that tasks make of their input, the
register tile, the pieces of a task; and what it takes, for who chooses between layouts.

A plane of the copy is one row of numbers, row behind row of the picture, with zeros between them: output pixel
`q = y*P + x` of a task then reads tap (ky, kx) at `q + place(ky, kx)`, and no vector along q is a special case::

    picture, 3 columns, padding 1            copy, pitch P = 4                 results
      a b c                                    . . . . a b c . d e f .           0 1 2 * 4 5 6 *
      d e f                                            ^ row 0                   * computed and dropped

The zeros behind a row are those before the next one, so a border of 1 costs one column, not two. With strides each
phase of rows and columns is a plane of its own, in which neighbours are neighbours again.

Where an output channel has an input channel of its own, a vector that is loaded serves one product, and loads are the
bound. Then a tile is `high` strips of results, each `strip` rows behind the other: the strip r and the row ky of the
window read what r + 1 and ky - strip read, which stays in a register. A strip is several rows where a single one fills
no vectors: the results of 20 columns at a pitch of 23 take two vectors a row, and three for two rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tvmopt.schedules.cpu._channels_last import Convolution
from tvmopt.scheduling.cost_model import panels_of_task
from tvmopt.scheduling.facts import divisors
from tvmopt.targets import Machine

COPY, UNPACK = 2.5, 3.0
"""Cycles of a vector of the copy, and of a vector of results that goes through L1 once more."""
FILLED = {0.5: 1.25, 1.0: 2.0}
"""How many times as long a vector of the copy takes where all of it is more than so much of L2."""
ROW, TILE, TASK = 4.0, 12.0, 100.0
"""Cycles of a row of the copy or of the result, a tile, and a task, besides."""
UNHIDDEN = 0.05
"""Of the cycles of loads, those that are not hidden behind products."""
UNALIGNED = 1.8
"""Loads that a vector anywhere in a row is worth: most of them cross a line."""
WRITTEN = 1000
"""Products of a tile of several strips, all of which are written out."""
CROSSING = 300.0
"""Cycles in which two cores take from each other the lines where the part of a plane that one writes ends and the
other's begins: a prefetcher asks for the lines behind what is written. 8 to 512 channels of 1x320 by 1x3, two cores of
a Zen 4: 139 us where each computes half of a row, 47 where each computes half of the channels."""
SPARE = 16
"""One of so many registers is left for weights that are loaded ahead. Without, tiles of 9 by 3, 5 by 5 and 4 by 6 of 32
registers keep accumulators on the stack and take 1.04 to 1.2 of the time; of 16 registers 4 by 3 does, 6 by 2 does not.
"""
STRIPS = (1, 2, 3)
"""Rows of a strip."""
FLAT = 1 << 17
"""Bytes of results that wait in L2 for their epilogue."""


@dataclass(frozen=True)
class Plan:
    """A convolution and how it is computed.

    Attributes:
        rows, columns: of the result that a task computes: divisors of all of them.
        mr, nv: the register tile: output channels by vectors along the pixels. lanes: of a vector.
        high, strip: the tile's strips, and the rows of each; one strip is all rows of the task (strip 0).
    """

    conv: Convolution
    rows: int
    columns: int
    mr: int
    nv: int
    lanes: int
    high: int = 1
    strip: int = 0

    @cached_property
    def shared(self) -> int:
        """The pitch of rows whose zeros are shared; 0 where a task has parts of rows."""
        if self.columns < self.conv.out[1]:
            return 0
        first, last = self.conv.reach(1)
        wide = -(-self.conv.size[1] // self.conv.strides[1])
        return max(self.conv.out[1], wide + max(-first, self.conv.out[1] + last - wide, 0))

    @cached_property
    def pitch(self) -> int:
        """Numbers from a row of the copy to the next."""
        first, last = self.conv.reach(1)
        apart = self.columns + last - first
        return min(self.shared, apart) if self.shared else apart

    @property
    def left(self) -> int:
        """The column, in its plane and from the task's first, that stands first in a row of the copy."""
        return 0 if self.pitch == self.shared else self.conv.reach(1)[0]

    def inside(self) -> tuple[int, int]:
        """The columns of a row of the copy that are of the picture in every task and phase: first and behind the last;
        twice the same where there are none."""
        step, wide = self.conv.strides[1], self.conv.size[1]
        first = max(0, -self.left)
        parts = self.conv.out[1] // self.columns - 1
        last = min(self.pitch, (wide - 1 - max(self.conv.phases(1))) // step + 1 - self.left - parts * self.columns)
        return (first, last) if last > first else (0, 0)

    @property
    def front(self) -> int:
        """Rows of zeros before the first one: where columns left of the picture are the end of the row before."""
        return int(self.left > self.conv.reach(1)[0])

    @property
    def together(self) -> int:
        """Rows of a strip."""
        return self.strip or self.rows

    @property
    def blocks(self) -> int:
        """Blocks of `high` strips of a task."""
        return -(-self.rows // (self.high * self.together))

    @property
    def pixels(self) -> int:
        """Results of a strip and channel, with those between rows, in whole tiles."""
        tile = self.nv * self.lanes
        return -(-((self.together - 1) * self.pitch + self.columns) // tile) * tile

    @cached_property
    def depth(self) -> int:
        """Rows of a plane of the copy."""
        (top, bottom), right = self.conv.reach(0), self.conv.reach(1)[1]
        before = (self.blocks * self.high - 1) * self.together
        last = (before + self.front + bottom - top) * self.pitch + right - self.left + self.pixels - 1
        return last // self.pitch + 1

    @cached_property
    def loaded(self) -> float:
        """Vectors that a tile of one vector loads for a column of the window, over the rows of the window."""
        c = self.conv
        places = (divmod(c.offset(0, tap), c.strides[0]) for tap in range(c.kernel[0]))
        read = {(row + r * self.together, phase) for row, phase in places for r in range(self.high)}
        return len(read) / c.kernel[0]

    @property
    def planes(self) -> int:
        """Planes of the copy for one channel."""
        return len(self.conv.phases(0)) * len(self.conv.phases(1))

    @property
    def panels(self) -> int:
        """Blocks of `mr` output channels in a group."""
        return -(-self.conv.outputs // self.conv.groups // self.mr)

    @property
    def copied(self) -> int:
        """Bytes of the copy that the channels of a group need."""
        return 4 * self.conv.channels // self.conv.groups * self.planes * self.depth * self.pitch

    @property
    def tasks(self) -> int:
        """Pieces of the pictures, group by group."""
        (rows, columns), c = self.conv.out, self.conv
        return c.n * c.groups * (rows // self.rows) * (columns // self.columns)

    def cycles(self, machine: Machine) -> float:
        """What one core takes for all of it."""
        c, vector, copies = self.conv, self.lanes, -(-self.parts(machine) // machine.cores)  # of each core
        tiles = self.tasks * self.panels * self.blocks * self.pixels / (vector * self.nv)
        rows = self.tasks * copies * c.channels // c.groups * self.planes * self.depth
        copy = rows * (ROW + COPY * -(-self.pitch // vector))
        copy *= max((times for part, times in FILLED.items() if self.copied > part * machine.l2), default=1.0)
        results = c.n * c.outputs * c.out[0] * c.out[1] // self.columns
        unpack = results * (ROW + UNPACK * -(-self.columns // vector))
        return self.tasks * copies * TASK + tiles * (c.steps * self.step(machine) + TILE) + copy + unpack

    def parts(self, machine: Machine) -> int:
        """Into how many parts the blocks of output channels are cut, each of which copies anew."""
        return self.panels // panels_of_task(self.tasks, self.panels, machine.cores)

    def time(self, machine: Machine) -> float:
        """Cycles of the slowest core."""
        shared = self.tasks * self.parts(machine)
        pieces, c = self.tasks // self.conv.groups, self.conv
        crossed = c.outputs if machine.cores > 1 and pieces > c.n and c.n % machine.cores else 0
        return self.cycles(machine) * -(-shared // machine.cores) / shared + CROSSING * crossed

    def step(self, machine: Machine) -> float:
        """Cycles of one step of a tile's sum: it multiplies, loads, or waits for the last products; and for L2, from
        which each row of the copy comes once for all its taps."""
        crossing = UNALIGNED if self.conv.kernel[1] > 1 or self.pitch % self.lanes else 1.0
        rate = machine.l2_rate if self.copied <= machine.l2 else machine.l3_rate
        stream = self.nv * self.loaded * machine.vector_bits / 8 / self.conv.kernel[1] / rate
        loads = (self.mr + self.nv * self.loaded * crossing) / machine.load_ports
        bound = max(self.mr * self.nv * self.high / machine.fma_ports, loads, machine.fma_latency)
        return bound + UNHIDDEN * loads + machine.unhidden * stream


def best_plan(conv: Convolution, machine: Machine) -> Plan:
    """The plan with the fewest cycles of the slowest core."""
    return min(_plans(conv, machine), key=lambda plan: (plan.time(machine), plan.pixels))


def _plans(conv: Convolution, machine: Machine) -> Iterator[Plan]:
    per, registers = conv.outputs // conv.groups, machine.vector_registers
    free = registers - registers // SPARE
    heights = [m for m in range(1, min(per, registers) + 1) if conv.groups == 1 or per % m == 0]
    pieces = _pieces(conv)
    usual = min((c for rows, c in pieces if rows == 1), key=lambda c: abs(c - 64))  # of channels that fill L2 anyway
    for rows, columns in pieces:
        tiles = [(mr, nv, 1, 0) for mr in heights for nv in range(1, registers) if mr * nv + nv + 1 <= free]
        if conv.steps == prod(conv.kernel) and per == 1:
            tiles += _strips(conv, rows, registers)
        for tile in tiles:
            plan = Plan(conv, rows, columns, tile[0], tile[1], machine.lanes(), *tile[2:])
            small = plan.copied <= 2 * machine.l2 and 4 * plan.mr * plan.blocks * plan.high * plan.pixels <= FLAT
            if small or (rows, columns) == (1, usual):
                yield plan


def _strips(conv: Convolution, rows: int, registers: int) -> list[tuple[int, int, int, int]]:
    """The tiles of several strips for a channel of its own: one channel, one vector, strips, and their rows. All
    products are written out; a strip has an accumulator and a vector of the picture. Two vectors are slower."""
    most = min((registers - 2) // 2, WRITTEN // prod(conv.kernel))
    strips = [(high, strip) for strip in STRIPS for high in range(2, min(most, rows // strip) + 1)]
    return [(1, 1, *strip) for strip in strips] if conv.kernel[0] > 1 else []


def _pieces(conv: Convolution) -> list[tuple[int, int]]:
    """Rows and columns that a task may compute: whole rows, or parts of single ones.

    >>> _pieces(Convolution(1, 1, (2, 96), 1, (2, 96), 1, (1, 1), (1, 1), (1, 1), (0, 0)))
    [(1, 96), (2, 96), (1, 32), (1, 48)]
    """
    rows, columns = conv.out
    return [(r, columns) for r in divisors(rows)] + [(1, c) for c in divisors(columns) if 32 <= c < columns]
