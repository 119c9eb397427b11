"""The register tile of a matrix product, as arithmetic - for the legalizers, which pack weights in panels of its
width, and for the families, which unroll its height.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.targets import Machine

LIKED_ROWS = 8
"""Among heights of equal cycles the one nearest to this. Alone and with all in cache 14 rows are as fast as 7; in whole
networks, whose weights and activations are not, 7 or 8 took 0.94 to 0.98 of the time (ResNet-50, MobileNetV2, ConvNeXt
and VGG-19 on two cores of Zen 5), and 6 took 1.12 of it (BERT)."""


@dataclass(frozen=True)
class Tile:
    """`mr` rows by `nv` vectors of accumulators; `nr = nv * lanes` columns.

    Attributes:
        mr: rows of A, one broadcast each and step of k.
        nv: vectors of B, one load each and step of k.
        nr: columns: the width of a packed panel of B.
        cycles: modelled cycles for one step of k over the whole M x N, one core.
    """

    mr: int
    nv: int
    nr: int
    cycles: float


def step_cycles(mr: int, nv: int, machine: Machine) -> float:
    """Cycles one core needs for one step of k of an `mr` x `nv` tile.

    The slowest of four::

        multiply  mr*nv / fma_ports
        load      (mr + nv) / load_ports     one broadcast a row, one vector a column block
        latency   fma_latency                an accumulator is busy until its last FMA is through
        stream    nv * vector bytes / l2_rate  the panel of B comes from L2: it is longer than L1 holds

    >>> m = Machine.load("znver5")
    >>> step_cycles(14, 2, m), step_cycles(14, 1, m), step_cycles(1, 2, m), step_cycles(2, 5, m)
    (14.0, 7.5, 4.0, 10.0)
    """
    bounds = (
        mr * nv / machine.fma_ports,
        (mr + nv) / machine.load_ports,
        machine.fma_latency,
        nv * machine.vector_bits / 8 / machine.l2_rate,
    )
    return float(max(bounds))


def fits(mr: int, nv: int, machine: Machine) -> bool:
    """Whether the accumulators, one row of B and one broadcast stay in registers: mr*nv + nv + 1 <= registers.

    >>> m = Machine("m", "llvm", "x", vector_registers=32)
    >>> fits(14, 2, m), fits(9, 3, m), fits(6, 4, m), fits(7, 4, m), fits(15, 2, m)
    (True, True, True, False, False)

    Measured on Zen 5 (one core, peak 267): 14x2 255, 9x3 255, 6x4 257, 5x5 256 GFLOP/s; 7x4, which spills, 143.
    """
    return bool(mr * nv + nv + 1 <= machine.vector_registers)


def choose_tile(m: int, n: int, machine: Machine, *, rows: int | None = None, dtype: str = "float32") -> Tile:
    """The tile with the fewest modelled cycles for an M x N product.

    Rows beyond the last full tile are computed by a partitioned tail at their own height; columns beyond N are zeros
    of the last panel, computed and dropped. With T panels and P cores, the slower half of an uneven split counts:
    cycles are multiplied by ceil(T / P) * P / T, T counting row tiles too where panels are few.

    Args:
        rows: the extent that the tile's rows must not cross (the width of a convolution's output); default `m`.

    >>> from tvmopt.targets import Machine
    >>> znver5 = Machine.load("znver5")
    >>> t = choose_tile(196, 1024, znver5); (t.mr, t.nr)
    (14, 32)
    >>> t = choose_tile(1, 1000, znver5); t.mr, t.nv >= 2
    (1, True)
    """
    lanes = machine.lanes(dtype)
    rows = min(rows or m, m)
    best: tuple[tuple[float, int, int], Tile] | None = None
    for nv in range(1, 13):
        panels = -(-n // (nv * lanes))
        if nv > 1 and (panels * nv - -(-n // lanes)) >= nv:  # a whole panel's worth of waste
            continue
        for mr in range(1, rows + 1):
            if not fits(mr, nv, machine):
                break
            full, tail = divmod(rows, mr)
            strip = full * step_cycles(mr, nv, machine) + (step_cycles(tail, nv, machine) if tail else 0.0)
            work = strip * (m / rows) * panels
            tasks = panels * max(1, m // rows) if rows < m else panels * (full if not tail else 1)
            idle = -(-tasks // machine.cores) * machine.cores / tasks
            cycles = work * idle
            # between equals: few rows left over, then loads hidden best
            key = (round(cycles, 3), tail, abs(mr - nv * lanes // 2))
            if best is None or key < best[0]:
                best = (key, Tile(mr, nv, nv * lanes, cycles))
    assert best is not None  # mr = nv = 1 always fits
    return best[1]


def common_vector(n: int, lanes: int) -> int:
    """The widest vector whose lanes never straddle the end of a row of `n`: gcd(n, lanes).

    >>> common_vector(1000, 16), common_vector(64, 16), common_vector(17, 16)
    (8, 16, 1)
    """
    from math import gcd

    return gcd(n, lanes)
