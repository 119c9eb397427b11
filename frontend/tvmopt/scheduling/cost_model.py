"""What a machine needs for the loops of a kernel, as arithmetic: the register tile of a matrix product, weights that
arrive from memory, whether work is worth threads - for the lowerings, which pack weights in panels of the tile's width,
and for the schedules, which unroll its height. Every number of a machine is a field of :class:`tvmopt.targets.Machine`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.scheduling.facts import divisors
from tvmopt.targets import Machine

LOOPS, PRODUCTS, TILES = 3.0, 0.375, 0.95
"""Work from which a kernel gets threads, in `thread_ns`: loops over memory from 15 us on Zen 5, products from 2 us;
below that, waking a thread costs more. Products by tiles of bf16 from 5 us: not timed yet."""

HIGHEST_OPEN = 8
"""Rows of a register tile at most where their number is open: each height is a body of its own. Measured on
Zen 5, 768x3072, 1 to 512 rows: 8 rows 0.93 to 1.03 of a static kernel's time; 14 rows no faster, with more code."""


MANY_ROWS = 2
"""Times as many rows as columns, from which the cores of a product share its rows and not its panels; likewise pixels
and channels of windows. A recogniser of text, two cores of a Xeon: 0.96 (48x64) and 0.91 (48x320) of the time."""

HIGHEST_NARROW = 12
"""Rows of a tile of one vector at most: each row is a stream of its own, and where rows lie some 4 KB apart all of them
want the same lines of L1. On a Xeon, one core, GFLOP/s with 8, 12 and 30 rows: 1960x256 by 16 125, 124 and 111;
197x4096 by 10 84, 82 and 46."""


@dataclass(frozen=True)
class RegisterTile:
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

    A tile of one vector takes `narrow` times as long.

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
    return float(max(bounds)) * (machine.narrow if nv == 1 else 1.0)


def strip_cycles(rows: int, mr: int, nv: int, machine: Machine) -> float:
    """Cycles of one core for one step of k of `rows` rows in tiles of `mr`, the rest of them a tile of its own.

    >>> strip_cycles(197, 14, 2, Machine.load("znver5"))
    200.0
    """
    full, tail = divmod(rows, mr)
    return full * step_cycles(mr, nv, machine) + (step_cycles(tail, nv, machine) if tail else 0.0)


def fits(mr: int, nv: int, machine: Machine) -> bool:
    """Whether the accumulators, one row of B and one broadcast stay in registers: mr*nv + nv + 1 <= registers.

    >>> m = Machine("m", "llvm", "x", vector_registers=32)
    >>> fits(14, 2, m), fits(9, 3, m), fits(6, 4, m), fits(7, 4, m), fits(15, 2, m)
    (True, True, True, False, False)

    Measured on Zen 5 (one core, peak 267): 14x2 255, 9x3 255, 6x4 257, 5x5 256 GFLOP/s; 7x4, which spills, 143.
    """
    return bool(mr * nv + nv + 1 <= machine.vector_registers)


def choose_tile(m: int, n: int, machine: Machine, *, rows: int | None = None, dtype: str = "float32") -> RegisterTile:
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
    >>> [choose_tile(196, 112, Machine.load(name)).nv for name in ("znver5", "sapphirerapids")]
    [1, 2]
    """
    lanes = machine.lanes(dtype)
    rows = min(rows or m, m)
    best: tuple[tuple[float, int, int], RegisterTile] | None = None
    for nv in range(1, 13):
        panels = -(-n // (nv * lanes))
        if nv > 1 and (panels * nv - -(-n // lanes)) >= nv:  # a whole panel's worth of waste
            continue
        for mr in range(1, (rows if nv > 1 else min(rows, HIGHEST_NARROW)) + 1):
            if not fits(mr, nv, machine):
                break
            full, tail = divmod(rows, mr)
            work = strip_cycles(rows, mr, nv, machine) * (m / rows) * panels
            tasks = panels * max(1, m // rows) if rows < m else panels * (full if not tail else 1)
            idle = -(-tasks // machine.cores) * machine.cores / tasks
            cycles = work * idle
            # between equals: few rows left over, then loads hidden best
            key = (round(cycles, 3), tail, abs(mr - nv * lanes // 2))
            if best is None or key < best[0]:
                best = (key, RegisterTile(mr, nv, nv * lanes, cycles))
    assert best is not None  # mr = nv = 1 always fits
    return best[1]


def shared_panels(nr: int, n: int, machine: Machine) -> int:
    """The width of the panels of `n` columns where cores share nothing but panels: `nr`, or what gives each core as
    many of them.

    >>> z = Machine.load("znver4").with_cores(2)
    >>> [shared_panels(64, n, z) for n in (32, 64, 128, 192)], shared_panels(32, 16, z)
    ([16, 32, 64, 48], 32)
    """
    lanes = machine.lanes()
    vectors = -(-n // lanes)
    if machine.cores == 1 or vectors < machine.cores or -(-n // nr) % machine.cores == 0:
        return nr
    widths = [v for v in range(1, nr // lanes + 1) if -(-vectors // v) % machine.cores == 0]
    return min(widths, key=lambda v: (-(-vectors // v) * v, -v), default=nr // lanes) * lanes


def choose_rows(m: int, nr: int, machine: Machine, panels: int | None = None) -> int:
    """The tile's height for panels of width `nr`: the fewest modelled cycles of the slowest core, tail included.

    With `panels` fewer than keep all cores busy, heights count for which the rows can be cut in pieces too.

    >>> z = Machine.load("znver5")
    >>> choose_rows(196, 32, z), choose_rows(197, 32, z), choose_rows(128, 32, z), choose_rows(1, 128, z)
    (7, 8, 8, 1)
    >>> choose_rows(12544, 16, z), choose_rows(3025, 16, z, panels=1)  # 275 tiles: 138 and 137
    (12, 11)
    """
    nv = max(1, nr // machine.lanes())

    def cost(mr: int) -> tuple[float, int, int]:
        full, tail = divmod(m, mr)
        cycles = strip_cycles(m, mr, nv, machine)
        if panels is not None:
            pieces = row_pieces(m, mr, panels, machine.cores)
            cycles *= -(-panels * pieces // machine.cores) * machine.cores / panels
            cycles *= -(-full // pieces) / full if pieces > 1 else 1.0
        return round(cycles, 3), min(tail, 1), abs(mr - machine.tile_rows)

    most = min(m, 32 if nv > 1 else HIGHEST_NARROW)
    return min((mr for mr in range(1, most + 1) if fits(mr, nv, machine) or mr == 1), key=cost)


def open_height(nr: int, machine: Machine) -> int:
    """Rows of the tile for panels of width `nr` where the number of rows is open.

    >>> z = Machine.load("znver5")
    >>> open_height(32, z), open_height(16, z), open_height(96, z)
    (8, 8, 4)
    """
    nv = max(1, nr // machine.lanes())
    return max(r for r in range(1, HIGHEST_OPEN + 1) if fits(r, nv, machine) or r == 1)


def halves(height: int) -> tuple[int, ...]:
    """Rows of tiles each of half of the one before, down to a single row.

    >>> halves(4), halves(6), halves(0)
    ((4, 2, 1), (6, 3, 1), ())
    """
    return (height, *halves(height // 2)) if height else ()


def pixel_widths(widest: int) -> tuple[int, ...]:
    """Pixels of the tiles of a row of open length, the widest first: what is left of a row behind whole tiles is
    computed by the next wider one, so half and three quarters of the widest waste few pixels with little code.

    >>> pixel_widths(8), pixel_widths(6), pixel_widths(4), pixel_widths(1)
    ((8, 6, 4, 1), (6, 4, 3, 1), (4, 3, 2, 1), (1,))
    """
    return tuple(sorted({widest, 3 * widest // 4, widest // 2, 1} - {0}, reverse=True))


def row_pieces(m: int, mr: int, panels: int, cores: int) -> int:
    """Pieces of M with which the slowest core has the fewest tiles; 1 where panels alone divide evenly or are many, or
    where the rows have a tail (its partition needs the whole row loop in one task).

    >>> row_pieces(12544, 14, 1, 2), row_pieces(12544, 30, 1, 2), row_pieces(196, 14, 8, 2), row_pieces(729, 9, 1, 2)
    (2, 1, 1, 2)
    """
    tiles, tail = divmod(m, mr)
    if panels % cores == 0 or panels >= 8 * cores or tail:
        return 1
    return min(range(1, cores + 1), key=lambda c: (-(-panels * c // cores) * -(-tiles // c), c))


def near_rows(m: int, n: int, nr: int, machine: Machine) -> int:
    """The tile's height where each core takes all panels of an even part of the rows; 0 where it takes some panels.

    With parts of the rows a core reads all weights, and the rows that it wrote itself if the kernel before it was cut
    in the same way; with panels it reads all rows, half of which the other core wrote. What another core wrote comes no
    faster than what lies in L3: fewer of both are read by rows where there are more rows than columns.

    >>> z = Machine.load("sapphirerapids").with_cores(2)
    >>> near_rows(768, 64, 32, z), near_rows(192, 240, 32, z), near_rows(770, 64, 32, z), near_rows(25088, 64, 32, z)
    (8, 0, 7, 8)
    >>> near_rows(768, 64, 32, z.with_cores(1)), near_rows(768, 64, 32, z.with_cores(96))
    (0, 0)
    """
    if machine.cores == 1 or m <= MANY_ROWS * n:
        return 0
    nv = max(1, nr // machine.lanes())
    best = machine.tile_rows
    rows = [r for r in range(best - 1, best + 3) if not m % (r * machine.cores) and fits(r, nv, machine)]
    found = min(rows, key=lambda r: (step_cycles(r, nv, machine) / r, abs(r - best)), default=0)
    return found if found and m // (found * machine.cores) >= 2 else 0


def cached_pieces(tiles: int, rows: int, weights: int, panels: int, machine: Machine) -> int:
    """Pieces of the rows of a product, each of which passes all panels from L2, where the rows would come from L3 once
    a panel; 1 where the rows fit L2, or where pieces read more weights anew than they save.

    Args:
        tiles: of rows, which pieces share evenly. rows, weights: bytes of all of them.

    >>> z = Machine.load("sapphirerapids").with_cores(1)
    >>> cached_pieces(392, 3136 * 256 * 4, 256 * 128 * 4, 2, z), cached_pieces(392, 3136 * 64 * 4, 64 * 128 * 4, 2, z)
    (4, 1)
    >>> cached_pieces(8, 128 * 8192 * 4, 8192 * 128 * 4, 2, z)
    1
    """
    if rows <= machine.l2 or panels <= machine.cores:
        return 1
    pieces = next((c for c in divisors(tiles) if c % machine.cores == 0 and rows <= c * machine.l2 // 2), 0)
    again = weights * (pieces - 1) if weights > machine.l2 // 2 else 0
    return pieces if pieces and 2 * again < rows * (panels // machine.cores - 1) else 1


def cached_rows(row: int, weights: int, panels: int, machine: Machine) -> int:
    """Rows of a piece in the same sense, where their number is open; 0 where rows are not cut into pieces.

    Args:
        row, weights: bytes of one row, and of all weights.

    >>> z = Machine.load("sapphirerapids").with_cores(2)
    >>> [cached_rows(4 * k, 4 * k * n, n // 32, z) for k, n in ((768, 768), (768, 3072), (3072, 768), (64, 32))]
    [341, 341, 0, 0]
    """
    if panels <= machine.cores:
        return 0
    rows, least = machine.l2 // 2 // row, 4 * HIGHEST_OPEN
    again = 2 * weights if weights > machine.l2 // 2 else 0  # for each half of L2 full of rows
    return rows if rows >= least and 2 * again < machine.l2 * (panels // machine.cores - 1) else 0


def choose_pixels(ow: int, nr: int, machine: Machine) -> int:
    """The tile's width in output pixels: fewest modelled cycles for one row of `ow`, its tail included.

    >>> z = Machine.load("znver5")
    >>> [choose_pixels(ow, 32, z) for ow in (112, 56, 28, 14, 13, 7, 1)]
    [8, 8, 7, 7, 13, 7, 1]
    """
    nv = max(1, nr // machine.lanes())

    def cost(mr: int) -> tuple[float, int, int]:
        return round(strip_cycles(ow, mr, nv, machine), 3), min(ow % mr, 1), abs(mr - machine.tile_rows)

    return min((mr for mr in range(1, min(ow, 32) + 1) if fits(mr, nv, machine) or mr == 1), key=cost)


def common_vector(n: int, lanes: int) -> int:
    """The widest vector whose lanes never straddle the end of a row of `n`: gcd(n, lanes).

    >>> common_vector(1000, 16), common_vector(64, 16), common_vector(17, 16)
    (8, 16, 1)
    """
    from math import gcd

    return gcd(n, lanes)


def row_vector(n: int, machine: Machine) -> int:
    """The numbers of a vector in which a row of `n` takes the fewest cycles where the last vector may overlap the one
    before; the widest of several. A machine with one port for whole registers does two halves in the same time.

    >>> zen4, zen5 = Machine.load("znver4"), Machine.load("znver5")
    >>> [(row_vector(n, zen4), row_vector(n, zen5)) for n in (1, 9, 15, 16, 17, 20, 24, 32, 40, 72)]
    [(1, 1), (8, 8), (8, 8), (16, 16), (8, 16), (8, 16), (8, 16), (16, 16), (8, 16), (8, 16)]
    """
    lanes, half = machine.lanes(), 0.5 if machine.fma_ports == 1 else 1.0
    widths = [w for w in (lanes >> shift for shift in range(lanes.bit_length())) if w <= n]
    return min(widths, key=lambda w: (-(-n // w) * (1.0 if w == lanes else half), -w))


def panels_of_task(tasks: int, panels: int, cores: int) -> int:
    """Blocks of output channels of one task: all of them, or so many that cores share the work where the pieces of the
    pictures do not.

    >>> [panels_of_task(*x) for x in ((5, 40, 2), (5, 37, 2), (4, 37, 2), (9, 37, 2))]
    [20, 1, 37, 37]
    """
    if tasks % cores and tasks < 4 * cores:
        return next((d for d in reversed(divisors(panels)) if panels // d >= cores), 1)
    return panels


def stream_cycles(weights: int, machine: Machine) -> float:
    """Cycles in which so many bytes of weights arrive, once, for all cores together: from memory, for a network's other
    layers drive them out of L3 between two calls; what fits half of L2 is free."""
    return weights / (machine.bandwidth / machine.ghz / 1e9) if weights > machine.l2 // 2 else 0.0


def worth_threads(nanoseconds: float, machine: Machine, least: float = LOOPS) -> bool:
    """Whether a loop of so much work, one core's time, gains from the pool.

    Args:
        least: work from which it does, in times of waking a thread.

    >>> m = Machine("m", "llvm", "x", cores=8)
    >>> worth_threads(1000.0, m), worth_threads(1e6, m), worth_threads(1e6, m.with_cores(1))
    (False, True, False)
    """
    return machine.cores > 1 and nanoseconds > least * machine.thread_ns


def products_from(flops: float, machine: Machine) -> int:
    """How many products of so many FLOPs gain from the pool, as :func:`product_worth_threads` says.

    >>> z = Machine.load("znver5"); n = products_from(1000, z)
    >>> product_worth_threads(1000 * n, z), product_worth_threads(1000 * (n - 1), z)
    (True, False)
    """
    return int(PRODUCTS * machine.thread_ns * machine.peak_flops / machine.cores / 1e9 / max(1.0, flops)) + 1


def product_worth_threads(flops: float, machine: Machine, tiles: bool = False) -> bool:
    """Whether a matrix product or convolution gains from the pool: some 2 us of one core's full rate do.

    Args:
        tiles: it is multiplied by tiles of bf16.

    >>> z = Machine.load("znver5")
    >>> product_worth_threads(450_000, z), product_worth_threads(550_000, z)
    (False, True)
    """
    peak, least = (machine.peak_tiles, TILES) if tiles else (machine.peak_flops, PRODUCTS)
    return flops / (peak / machine.cores) * 1e9 > least * machine.thread_ns
