"""Kernels in one form before they are scheduled: elementwise chains merged, 32-bit indices, and what the families ask
for by their field `normalise`: the epilogue in one block, all rows in one loop.

    gemm[i0, i1, p, j]  ->  gemm[m, p, j]        m = i0 * I1 + i1; the PrimFunc's own buffers keep their shapes
    bias, add, relu     ->  one block behind it
    out[n, y, x, o]     ->  out[n, y, x, g, o']  o = g * (O / groups) + o', for a convolution in groups

It is done before families see the function, so that a tuning record's workload is this form, and simplified
(`X[m // (H*W), m // W % H, m % W, k]` is `X` read row by row), because TVM infers regions from what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from tvmopt.scheduling.blocks import annotated, blocks_of, collapse_rows, epilogue_of, extents
from tvmopt.scheduling.chain import merge_chains
from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine

Normalise = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def normalize(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    """The function with 32-bit indices, its chains merged, in the form of the family that it is a kernel of."""
    known = families(machine.kind)
    wide = any(f.INDEX_BITS == 64 and annotated(func, f.NAME) is not None for f in known)
    func = merge_chains(func if wide else narrow(func))
    for family in known:
        if family.normalise is not None:
            func = family.normalise(func)
    return func


def one_row_loop(kernel: str, batched: bool = False) -> Normalise:
    """For a product that is annotated `kernel`, with an epilogue's entry annotated `unpack`: the epilogue in one block,
    the loops over rows one loop; `batched`: over the batch, the loop over rows stays."""

    def rows(sch: Any, main: Any, last: Any, shape: list[int]) -> None:
        collapse_rows(sch, main, last, shape[:-2] if batched else shape[:-1])

    return _with_epilogue(kernel, lambda block: True, rows)


def groups_apart(kernel: str) -> Normalise:
    """For a convolution that is annotated `kernel` and has several groups (`tvmopt.groups`): the epilogue in one block,
    whose channels are [group, channel of the group]."""

    def split(sch: Any, main: Any, last: Any, shape: list[int]) -> None:
        per = shape[-1] // int(sch.get(main).annotations["tvmopt.groups"])
        sch.transform_block_layout(last, lambda n, y, x, o: [n, y, x, o // per, o % per])

    return _with_epilogue(kernel, lambda block: int(block.annotations.get("tvmopt.groups", 1)) > 1, split)


def _with_epilogue(
    kernel: str, concerns: Callable[[Any], bool], transform: Callable[[Any, Any, Any, list[int]], None]
) -> Normalise:
    """A function that normalises products annotated `kernel` of which `concerns` holds by `transform(schedule, product,
    epilogue, extents of the result)`; any other function it leaves alone."""

    def normalise(func: tirx.PrimFunc) -> tirx.PrimFunc:
        block, out = annotated(func, kernel), annotated(func, "unpack")
        if block is None or out is None or not concerns(block):
            return func
        sch, shape = Schedule(func), extents(out)
        main = sch.get_sblock(kernel)
        transform(sch, main, epilogue_of(sch, main, shape), shape)
        module = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": sch.mod["main"]}))
        return module["main"].with_attrs(func.attrs)

    return normalise


def narrow(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """32-bit indices, where every buffer has fewer than 2**31 elements: TVM narrows them itself later, but then its
    LoopPartition, which finds loops by their variable, no longer knows the loops that families marked.

    A function that computes in 64-bit integers stays as it is: TVM's pass refuses it."""
    touched = (region.source for block in blocks_of(func) for region in (*block.reads, *block.writes))
    if any(str(buffer.dtype) == "int64" for buffer in touched):
        return func
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        if shape is None or not all(isinstance(dim, tirx.IntImm) for dim in shape):
            return func
        if prod(int(dim) for dim in shape) >= 2**31:
            return func
    module = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": func}))
    return module["main"].with_attrs(func.attrs)
