"""How a transposed convolution is computed on planes as they lie: its phases, the register tile, the pieces of a task;
and what it takes.

With a stride s the results of an axis are s phases, each of which has taps of its own and reads the picture without
steps. Result `s*q + r` of an axis with `before` numbers cut off in front is::

    y[s*q + r] = sum over taps t with s | r + before - t*d of  x[q + (r + before - t*d) / s] * w[t]

so no product of a zero is computed: a kernel of 3 by a stride of 2 has phases of 2 taps and of 1. A plane of a task's
copy is one row of numbers, row behind row of the picture, with as many zeros between them as taps read: every vector
along it is a vector of pixels, and none is a special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from tvmopt.schedules.cpu._ahead import channels_ahead
from tvmopt.scheduling.cost_model import panels_of_task, product_worth_threads
from tvmopt.targets import Machine

COPY, UNPACK = 2.5, 3.0
"""Cycles of a vector of the copy, and of a vector of results, which is interleaved and goes through L1 once more."""
ROW, TILE, TASK = 4.0, 12.0, 100.0
"""Cycles of a row of the copy or of the result, a tile, and a task, besides."""
UNHIDDEN = 0.05
"""Of the cycles of loads, those that are not hidden behind products."""
UNALIGNED = 1.8
"""Loads that a vector anywhere in a row is worth: most of them cross a line."""
WRITTEN = 640
"""Products of a tile that are written out for one channel."""
FLAT = 1 << 17
"""Bytes of results that wait in L2 for their epilogue."""


@dataclass(frozen=True)
class Axis:
    """Rows or columns: `size` numbers, `out` results, `taps`, `before` results that are cut off in front.

    >>> Axis(5, 11, 3, 2, 1, 0).phases
    (((0, 0), (2, -1)), ((1, 0),))
    >>> Axis(5, 10, 4, 2, 1, 1).phases, Axis(5, 10, 4, 2, 1, 1).reach
    ((((1, 0), (3, -1)), ((0, 1), (2, 0))), (-1, 1))
    """

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    before: int

    @cached_property
    def phases(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of each phase its taps, and how far from the result's own place in the picture each of them reads."""
        found = []
        for phase in range(self.stride):
            places = [(tap, phase + self.before - tap * self.dilation) for tap in range(self.taps)]
            found.append(tuple((tap, at // self.stride) for tap, at in places if at % self.stride == 0))
        return tuple(found)

    @property
    def reach(self) -> tuple[int, int]:
        """The first and last place that taps read, from the result's own."""
        places = [at for phase in self.phases for _, at in phase]
        return min(places), max(places)

    @property
    def grid(self) -> int:
        """Results of the longest phase."""
        return -(-self.out // self.stride)


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of `n` pictures: `channels` in, `outputs` out."""

    n: int
    channels: int
    outputs: int
    groups: int
    rows: Axis
    columns: Axis

    @property
    def phases(self) -> list[tuple[int, int]]:
        """Those of the rows with those of the columns."""
        return list(product(range(self.rows.stride), range(self.columns.stride)))

    @property
    def flops(self) -> float:
        """Multiply-adds count two; taps that lie outside count."""
        taps = [sum(map(len, axis.phases)) * axis.grid for axis in (self.rows, self.columns)]
        return 2.0 * self.n * self.channels * self.outputs // self.groups * taps[0] * taps[1]

    def used(self, machine: Machine) -> Machine:
        """The machine with the cores that work on it: one, where it is too little for threads."""
        return machine if product_worth_threads(self.flops, machine) else machine.with_cores(1)


@dataclass(frozen=True)
class Plan:
    """A transposed convolution and how it is computed.

    Attributes:
        high: rows of each phase that a task computes; the last task may have fewer.
        mr, nv: the register tile: output channels by vectors of pixels, of each phase of the columns.
        lanes: of a vector.
    """

    conv: Transposed
    high: int
    mr: int
    nv: int
    lanes: int

    @property
    def lead(self) -> int:
        """Zeros before the first row: columns left of the picture are the end of the row before."""
        return max(-self.conv.columns.reach[0], 0)

    @cached_property
    def pitch(self) -> int:
        """Numbers from a row of the copy to the next: zeros behind a row are those before the next one."""
        columns = self.conv.columns
        return max(columns.size + self.lead, columns.grid + max(columns.reach[1], 0))

    @property
    def depth(self) -> int:
        """Rows of a plane of the copy."""
        first, last = self.conv.rows.reach
        return self.high + last - first

    @property
    def tiles(self) -> int:
        """Tiles of a task and a phase of the rows."""
        return -(-((self.high - 1) * self.pitch + self.conv.columns.grid) // (self.nv * self.lanes))

    @property
    def pixels(self) -> int:
        """Results of a phase and channel, with those between rows, in whole tiles."""
        return self.tiles * self.nv * self.lanes

    @cached_property
    def length(self) -> int:
        """Numbers of a plane of the copy, with those that only dropped results read."""
        first, last = self.conv.rows.reach
        read = self.lead + (last - first) * self.pitch + max(self.conv.columns.reach[1], 0) + self.pixels
        return max(read, self.lead + self.depth * self.pitch)

    @property
    def chunks(self) -> int:
        """Pieces of a picture's rows."""
        return -(-self.conv.rows.grid // self.high)

    @property
    def panels(self) -> int:
        """Blocks of `mr` output channels in a group."""
        return -(-self.conv.outputs // self.conv.groups // self.mr)

    @property
    def copied(self) -> int:
        """Bytes of the copy that the channels of a group need."""
        return 4 * self.conv.channels // self.conv.groups * self.length

    @property
    def row(self) -> int:
        """Results of a phase of the rows and a channel, the phases of the columns in turn."""
        return self.conv.columns.stride * self.pixels

    @property
    def block(self) -> int:
        """Results of a task and `mr` channels before their epilogue."""
        return self.mr * self.conv.rows.stride * self.row

    def taps(self, phase: int) -> list[tuple[int, int, int, int, int]]:
        """Of a phase of the rows: (column's phase, row tap, column tap, row place, column place), those that read the
        same place next to each other."""
        columns = self.conv.columns.phases
        found = [
            (rx, ky, kx, dy, dx)
            for ky, dy in self.conv.rows.phases[phase]
            for rx, taps in enumerate(columns)
            for kx, dx in taps
        ]
        return sorted(found, key=lambda tap: (tap[3], tap[4]))

    def ahead(self, phase: int, machine: Machine) -> int:
        """How many channels ahead a tile of a phase of the rows fetches its rows of the copy; 0: none."""
        taps = len(self.taps(phase))
        cycles = taps * self.mr * self.nv / machine.fma_ports
        channels = self.conv.channels // self.conv.groups
        return channels_ahead(channels, cycles, self.nv, self.copied, machine.l2) if taps else 0

    def parts(self, machine: Machine) -> int:
        """Into how many parts the blocks of output channels are cut, each of which copies anew."""
        return self.panels // panels_of_task(self.tasks, self.panels, machine.cores)

    @property
    def tasks(self) -> int:
        """Pieces of the pictures, group by group."""
        return self.conv.n * self.conv.groups * self.chunks

    def time(self, machine: Machine) -> float:
        """Cycles of the slowest core."""
        c, parts = self.conv, self.parts(machine)
        rows = c.channels // c.groups * self.depth
        copy = rows * (ROW + COPY * -(-self.pitch // self.lanes)) * (3 if self.copied > machine.l2 // 2 else 1)
        block = sum(self.tiles * (c.channels // c.groups * self._step(p, machine) + TILE) for p in range(c.rows.stride))
        results = self.mr * self.high * c.rows.stride
        block += results * (ROW + UNPACK * -(-c.columns.out // self.lanes))
        task = TASK + copy + self.panels // parts * block
        return task * -(-self.tasks * parts // machine.cores)

    def _step(self, phase: int, machine: Machine) -> float:
        """Cycles of one channel of a tile of a phase of the rows: it multiplies, loads, or waits for the last products;
        and for L2, from which each line of the copy comes once a step."""
        taps = self.taps(phase)
        places = len({tap[3:] for tap in taps})
        loads = (self.mr * len(taps) + self.nv * places * UNALIGNED) / machine.load_ports
        rows = len({tap[3] for tap in taps})
        stream = (self.nv + 1) * rows * machine.vector_bits / 8 / machine.l2_rate
        depth = max((sum(tap[0] == rx for tap in taps) for rx in range(self.conv.columns.stride)), default=0)
        bound = max(self.mr * self.nv * len(taps) / machine.fma_ports, loads, depth * machine.fma_latency)
        return bound + UNHIDDEN * loads + machine.unhidden * stream


@lru_cache(maxsize=64)
def best_plan(conv: Transposed, machine: Machine) -> Plan | None:
    """The plan with the fewest cycles of the slowest core; None where no tile fits."""
    return min(_plans(conv, machine), key=lambda plan: (plan.time(machine), plan.high, plan.mr), default=None)


def _plans(conv: Transposed, machine: Machine) -> Iterator[Plan]:
    per, turns, registers = conv.outputs // conv.groups, conv.columns.stride, machine.vector_registers
    tiles = [
        (mr, nv)
        for mr in range(1, min(per, registers) + 1)
        for nv in range(1, registers)
        if mr * nv * turns + nv + 1 <= registers and (conv.groups == 1 or per % mr == 0)
    ]
    most = max(len(Plan(conv, 1, 1, 1, 1).taps(phase)) for phase in range(conv.rows.stride))
    for high in sorted({-(-conv.rows.grid // pieces) for pieces in range(1, conv.rows.grid + 1)}):
        for mr, nv in tiles:
            plan = Plan(conv, high, mr, nv, machine.lanes())
            small = plan.copied <= machine.l2 // 2 and 4 * plan.block <= FLAT
            if (small or high == 1) and most * mr * nv <= WRITTEN:
                yield plan
