"""Matrix products in one form before they are scheduled: the epilogue in one block, all rows in one loop.

    gemm[i0, i1, p, j]  ->  gemm[m, p, j]        m = i0 * I1 + i1; the PrimFunc's own buffers keep their shapes
    bias, add, relu     ->  one block behind it
    out[n, y, x, o]     ->  out[n, y, x, g, o']  o = g * (O / groups) + o', for a convolution in groups

It is done before families see the function, so that a tuning record's workload is this form, and simplified
(`X[m // (H*W), m // W % H, m % W, k]` is `X` read row by row), because TVM infers regions from what it reads.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from tvmopt.scheduling.blocks import annotated, blocks_of, collapse_rows, epilogue_of, extents
from tvmopt.scheduling.chain import merge_chains

_KERNELS = ("gemm", "batch_gemm", "conv2d", "amx_gemm")


def normalize(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with 32-bit indices and its matrix product, if it has one, in normal form."""
    func = merge_chains(narrow(func))
    blocks = {name: annotated(func, name) for name in _KERNELS}
    kernel = next((name for name, block in blocks.items() if block is not None), None)
    out = annotated(func, "unpack")
    if kernel is None or out is None:
        return func
    block: Any = blocks[kernel]
    groups = int(block.annotations.get("tvmopt.groups", 1))
    if kernel == "conv2d" and groups == 1:
        return func
    sch = Schedule(func)
    main = sch.get_sblock(kernel)
    shape = extents(out)
    last = epilogue_of(sch, main, shape)
    if kernel == "conv2d":
        per = shape[-1] // groups
        sch.transform_block_layout(last, lambda n, y, x, o: [n, y, x, o // per, o % per])
    else:
        collapse_rows(sch, main, last, shape[:-2] if kernel == "batch_gemm" else shape[:-1])
    module = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": sch.mod["main"]}))
    return module["main"].with_attrs(func.attrs)


def narrow(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """32-bit indices, where every buffer has fewer than 2**31 elements: TVM narrows them itself later, but then its
    LoopPartition, which finds loops by their variable, no longer knows the loops that families marked.

    A function that computes in 64-bit integers stays as it is: TVM's pass refuses it. So does one with tile
    instructions, whose strides have 64 bits."""
    touched = (region.source for block in blocks_of(func) for region in (*block.reads, *block.writes))
    if any(str(buffer.dtype) == "int64" for buffer in touched) or annotated(func, "amx_attention") is not None:
        return func
    for param in func.params:
        shape = getattr(param.ty, "shape", None)
        if shape is None or not all(isinstance(dim, tirx.IntImm) for dim in shape):
            return func
        if prod(int(dim) for dim in shape) >= 2**31:
            return func
    module = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": func}))
    return module["main"].with_attrs(func.attrs)
