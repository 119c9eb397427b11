"""Loops of kernels for GPUs: vectors are stored at whole vectors, and a grid of no blocks is not launched."""

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmopt.lowering.align_stores import AlignStores
from tvmopt.lowering.drop_empty_launches import DropEmptyLaunches
from tvmopt.targets import Machine

TARGET = Machine.load("nvidia-h100").tvm_target()


def kinds(func: tirx.PrimFunc, rewrite) -> list[int]:
    """The kinds of the loops that a rewrite leaves, from the outermost on."""
    found: list[int] = []
    after = rewrite(tvm.IRModule({"main": func.with_attr({"global_symbol": "main", "target": TARGET})}))["main"]
    structural_walk(after.body, ((tirx.For, lambda loop: found.append(int(loop.kind))),))
    return found[::-1]


def rows(length: int, lanes: int) -> tirx.PrimFunc:
    """Registers for rows of a length, which six threads fill in vectors."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((24,), "float32"), y: T.Buffer((48,), "float32")):
        for t in T.thread_binding(24 // lanes, thread="threadIdx.x"):
            for v in T.vectorized(lanes):
                y[t * lanes % length + v] = x[t * lanes + v]

    return main


VECTORIZED, UNROLLED, BOUND = (int(getattr(tirx.ForKind, n)) for n in ("VECTORIZED", "UNROLLED", "THREAD_BINDING"))


@pytest.mark.parametrize(
    ("length", "lanes", "stays"),
    [(8, 4, True), (12, 4, True), (6, 4, False), (6, 2, True), (7, 2, False), (10, 4, False)],
)
def test_a_vector_that_may_begin_anywhere_is_stored_element_by_element(length: int, lanes: int, stays: bool) -> None:
    """A GPU ended the process at such a store: "misaligned address"."""
    assert kinds(rows(length, lanes), AlignStores) == [BOUND, VECTORIZED if stays else UNROLLED]


@pytest.mark.parametrize(("blocks", "loops"), [(0, []), (1, [BOUND, BOUND])])
def test_a_grid_of_no_blocks_is_not_launched(blocks: int, loops: list[int]) -> None:
    """It was launched as one block, which wrote behind a tensor without elements."""

    @T.prim_func(s_tir=True)
    def main(y: T.Buffer((32 * blocks,), "float32")):
        for b in T.thread_binding(blocks, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                y[b * 32 + t] = T.float32(1)

    assert kinds(main, DropEmptyLaunches) == loops
