"""The sizes of a recurrent kernel - tiles, how cores share it - as arithmetic, for the kernel and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tvmopt.targets import Machine

LLVM_UNROLLS = 75
"""Instructions below which LLVM doubles a loop's body (and its load instructions), again and again."""

Mode = Literal["serial", "tasks", "steps"]


@dataclass(frozen=True)
class GateTile:
    """A register tile: `rows` sequences, all gates of `vectors` * `lanes` hidden units.

    Attributes:
        gates: gates of the pass.
        chains: partial sums of each value, where fewer would wait for the FMA's latency.
        blocks: tiles over the hidden units; the last begins early where they do not divide.
        prefetched: load instructions of a loop that the prefetcher follows.
    """

    gates: int
    lanes: int
    vectors: int
    rows: int
    chains: int
    blocks: int
    prefetched: int = 28

    @property
    def width(self) -> int:
        """Hidden units of a tile."""
        return self.lanes * self.vectors

    @property
    def unroll(self) -> int:
        """Terms of a trip through the product's loop: a multiple of `chains`, enough that LLVM adds none.

        >>> [GateTile(gates, 16, 1, 1, chains, 8).unroll for gates, chains in ((4, 2), (3, 3), (2, 4), (1, 8))]
        [6, 9, 12, 16]
        >>> GateTile(4, 16, 1, 4, 1, 8).unroll
        2
        """
        loads = self.gates * self.vectors
        enough = -(-LLVM_UNROLLS // (self.rows * (3 * loads + 3)))
        return max(1, min(-(-enough // self.chains), self.prefetched // (loads * self.chains))) * self.chains

    def terms(self, hidden: int) -> int:
        """Terms with those added, times zero, that make whole trips."""
        return -(-hidden // self.unroll) * self.unroll

    @property
    def registers(self) -> int:
        """Sums, one vector of R, and h of each row."""
        return self.rows * self.gates * self.vectors * self.chains + self.rows + 1


@dataclass(frozen=True)
class RecurrentPlan:
    """How a recurrence runs.

    Attributes:
        mode: "serial": one core; "tasks": directions and runs of `rows` sequences on cores of their own; "steps": all
            cores share the hidden units of each step and meet after it.
        rows: sequences of a task.
        tiles: of each pass over R in a step.
        nanoseconds: what the model expects.
    """

    mode: Mode
    rows: int
    tiles: tuple[GateTile, ...]
    nanoseconds: float


def tile(hidden: int, gates: int, rows: int, machine: Machine, terms: int | None = None) -> GateTile:
    """The tile with the fewest cycles a step; `terms`: steps of the product with R, of 32 bits a number, if not H.

    >>> m = Machine.load("znver5")
    >>> t = tile(256, 4, 1, m)
    >>> t.vectors, t.rows, t.chains, t.blocks
    (1, 1, 2, 16)
    >>> t = tile(7, 4, 1, m)   # two blocks of four lanes: 0..3 and 3..6
    >>> t.lanes, t.vectors, t.blocks
    (4, 1, 2)
    """
    terms = terms or hidden
    lanes = 1
    while lanes * 2 <= min(hidden, machine.lanes()):
        lanes *= 2
    found = []
    for vectors in range(1, max(1, min(4, hidden // lanes)) + 1):
        for height in range(1, min(rows, 12) + 1):
            sums = gates * vectors * height
            chains = max(1, min(-(-machine.fma_latency * machine.fma_ports // sums), terms, 8))
            blocks = -(-hidden // (lanes * vectors))
            one = GateTile(gates, lanes, vectors, height, chains, blocks, machine.prefetched_loads)
            if one.registers <= machine.vector_registers or (vectors, height) == (1, 1):
                found.append(one)
    return min(found, key=lambda t: (_cycles(t, t.blocks, terms, rows, machine, machine.l2_rate), t.vectors))


def _cycles(t: GateTile, blocks: int, terms: int, rows: int, machine: Machine, rate: float) -> float:
    """One core's cycles for `blocks` blocks of a step; R comes at `rate` bytes a cycle to the first tile of rows."""
    sums = t.gates * t.vectors
    whole, rest = divmod(rows, t.rows)
    bytes_of_r = terms * sums * t.lanes * 4
    total = 0.0
    for height in [t.rows] * whole + [rest] * bool(rest):
        fma = sums * height / machine.fma_ports
        loads = (sums + height) / machine.load_ports
        total += max(fma, loads, machine.fma_latency / t.chains) * terms
    refills = 1 if bytes_of_r <= machine.l1d // 2 else whole + bool(rest)
    gates = rows * t.vectors * (t.gates + 1) * (machine.exp_cycles + 3)
    return blocks * (max(total, refills * bytes_of_r / rate) + gates)


def plan(
    steps: int, batch: int, directions: int, hidden: int, passes: Sequence[int], machine: Machine,
    one_by_one: bool = False, terms: int | None = None,
) -> RecurrentPlan:  # fmt: skip
    """The fastest way by the model. `passes`: gates of each pass over R in a step; `one_by_one`: `batch` is only what
    an open number of sequences is named at, and each is a task; `terms`: see :func:`tile`.

    >>> m = Machine.load("znver5").with_cores(2)
    >>> [plan(64, 1, *sizes, (4,), m).mode for sizes in ((1, 256), (2, 64), (1, 64))]
    ['steps', 'tasks', 'serial']
    """
    found, terms = [], terms or hidden
    for mode, rows in _candidates(batch, directions, machine.cores, one_by_one):
        tiles = tuple(tile(hidden, gates, rows, machine, terms) for gates in passes)
        if mode == "steps" and any(t.blocks == 1 for t in tiles):
            continue
        share = machine.cores if mode == "steps" else 1
        parts = [-(-t.blocks // share) for t in tiles]
        held = sum(n * t.width * t.gates for n, t in zip(parts, tiles, strict=True)) * terms * 4
        rate = _rate(held, machine)
        cycles = sum(_cycles(t, n, terms, rows, machine, rate) for n, t in zip(parts, tiles, strict=True))
        step = cycles / machine.ghz + (len(tiles) * machine.barrier_ns if mode == "steps" else 0.0)
        tasks = directions * (batch // rows)
        turns = -(-tasks // machine.cores) if mode == "tasks" else tasks
        launches = {"serial": 0, "tasks": 1, "steps": directions}[mode]
        found.append(RecurrentPlan(mode, rows, tiles, turns * steps * step + launches * machine.thread_ns))
    return min(found, key=lambda p: (p.nanoseconds, -p.rows))


def _candidates(batch: int, directions: int, cores: int, one_by_one: bool) -> list[tuple[Mode, int]]:
    if one_by_one:
        ways: tuple[Mode, ...] = ("serial", "steps", "tasks") if cores > 1 else ("serial",)
        return [(mode, 1) for mode in ways]
    found: list[tuple[Mode, int]] = [("serial", batch)]
    if cores > 1:
        found.append(("steps", batch))
        for rows in range(1, batch + 1):
            tasks = directions * (batch // rows)
            if batch % rows == 0 and 1 < tasks <= 2 * cores:
                found.append(("tasks", rows))
    return found


def _rate(held: int, machine: Machine) -> float:
    """Bytes a cycle of what a core reads once a step: from L2 where it stays there, half of that from L3."""
    rate: float = machine.bandwidth / (machine.cores * machine.ghz * 1e9)
    if held <= machine.l2 * 3 // 4:
        rate = machine.l2_rate
    elif held <= machine.l3 // machine.cores:
        rate = machine.l2_rate / 2
    return rate
