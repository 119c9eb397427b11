"""Batched GEMM of two activations, CPU: C[batch, m, n] = sum_k A[batch, m, k] * B[batch, k, n] - the register tile
of gemm.py on unpacked operands.

B's rows are read where they lie: nr consecutive elements a step of k, the next step N*4 bytes further. Packing B would
cost K*N moves for K*N*M/lanes FMAs; below M = 64 or so it does not pay, and above it the hardware prefetcher follows
the stride. Vectors are gcd(N, lanes) wide where N has at least half a vector as a divisor; else whole vectors with a
partitioned tail of columns.
Tasks: batch x row tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import tirx

from tvmopt.scheduling.blocks import annotated, collapse_rows, epilogue_of, extents
from tvmopt.scheduling.family import Knobs, Space
from tvmopt.scheduling.tile import common_vector, fits
from tvmopt.schedules.cpu.gemm import choose_rows
from tvmopt.targets import Machine

NAME, VERSION = "batch_gemm", 1


@dataclass(frozen=True)
class Shape:
    """batch: the leading dimensions; C is [*batch, m, n], the reduction is k long."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    lanes: int


def recognise(func: tirx.PrimFunc, machine: Machine) -> Shape | None:
    """A block that the legalizer marked `batch_gemm`."""
    block = annotated(func, "batch_gemm")
    if block is None or annotated(func, "unpack") is None:
        return None
    *batch, m, n, k = extents(block)
    return Shape(tuple(batch), m, n, k, machine.lanes())


def knobs(shape: Shape, machine: Machine) -> Space:
    """`vec`: lanes of a vector; `nv`: vectors of the tile; `mr`: its rows."""
    vec = vector_width(shape.n, shape.lanes)
    count = -(-shape.n // vec)
    nv = max(v for v in (1, 2, 3, 4) if v <= count and (count % v == 0 or v == 1 or count > 8))
    nv = 2 if count % 2 == 0 else nv
    mr = choose_rows(shape.m, nv * shape.lanes, machine)
    return Space(
        {
            "vec": (vec,),
            "nv": (nv, *(v for v in (1, 2, 3, 4) if v != nv and v <= count)),
            "mr": (mr, *(r for r in (4, 6, 8, 12, 14) if r != mr and r <= shape.m and fits(r, nv, machine))),
        }
    )


def vector_width(n: int, lanes: int) -> int:
    """A vector that divides rows of `n`, if it is at least half full; else a whole one, with a tail.

    >>> vector_width(64, 16), vector_width(24, 16), vector_width(197, 16), vector_width(3, 16)
    (16, 8, 16, 3)
    """
    width = common_vector(n, lanes)
    if width * 2 >= lanes:
        return width
    return lanes if n >= lanes else n


def apply(sch: tvm.s_tir.Schedule, shape: Shape, knobs: Knobs) -> None:
    """Tile rows and columns, accumulate in registers, parallel over batch and row tiles."""
    gemm = sch.get_sblock("batch_gemm")
    out = epilogue_of(sch, gemm, (*shape.batch, shape.m, shape.n))
    collapse_rows(sch, gemm, out, shape.batch)
    lead = sch.get_loops(out)
    m, n = lead[-2:]
    m_tile, m_in = sch.split(m, [None, knobs["mr"]])
    n_tile, n_vec, n_in = sch.split(n, [None, knobs["nv"], knobs["vec"]])
    sch.reorder(n_tile, m_tile, m_in, n_vec, n_in)
    sch.compute_at(gemm, m_tile, preserve_unit_loops=True)
    depth = len(sch.get_loops(out)) - 3
    inner = sch.get_loops(gemm)[depth:]
    *ones, rows, cols, k = inner
    vectors, col = sch.split(cols, [None, knobs["vec"]])
    sch.reorder(k, *ones, rows, vectors, col)
    sch.vectorize(col)
    sch.unroll(vectors)
    sch.unroll(rows)
    for loop, size, step in ((m_tile, shape.m, knobs["mr"]), (n_tile, shape.n, knobs["nv"] * knobs["vec"])):
        if size % step:
            sch.annotate(loop, "pragma_loop_partition_hint", 1)
    if len(lead) > 2 and 2 * prod(shape.batch) * shape.m * shape.n * shape.k > 500_000:
        sch.parallel(lead[0])
    sch.decompose_reduction(gemm, k)
    sch.unroll(m_in)
    sch.unroll(n_vec)
    sch.vectorize(n_in)
