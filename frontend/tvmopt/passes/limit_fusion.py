"""Elementwise is what writes as many elements as it reads - between AnnotateTIROpPattern and FuseOps.

    Before                                             After
    op_pattern of y[i, j] = if j < 3: x[i, j] else 0   injective (2): not fused behind a reduction or a product
    with 4 columns in y and 3 in x: elementwise (0)

TVM sees that `i, j` are read where `i, j` are written and calls a Pad behind the last column elementwise. Behind a
reduction, a softmax or a norm its block moves into the rows' loop, whose range TVM derives from what the row has
written: the padding was never written.

A kernel that takes a size as a number - TVM makes that of a size which no shape has by itself, such as `batch*4` - is
fused with nothing: FuseTIR would define the size twice, and fails ("VarRemapGet(source) == nullptr").

A table of the 256 values of a byte is read where a byte says: to TVM that is opaque, and it is elementwise (0): the
table is a constant, and each byte is read where its value is written.

Applies when   1. a block reads a tensor at its own axes, and one of these is longer than the tensor's.
               2. a parameter is no tensor.
               3. the one block reads a table at a byte that it reads at its own axes.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.buffer import BufferType
from tvm_ffi import structural_walk

from tvmopt.operators.lookup import ENTRIES
from tvmopt.scheduling.blocks import blocks_of

ELEMENTWISE, BROADCAST, INJECTIVE, OPAQUE = 0, 1, 2, 8
"""TVM's op patterns (OpPatternKind): up to the first, a kernel is fused behind a reduction or a product."""


def limit_fusion(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    pattern = func.attrs.get("op_pattern", None) if func.attrs else None
    if pattern is not None and any(not isinstance(p.ty, BufferType) for p in func.params):
        return func.with_attr("op_pattern", OPAQUE)
    if pattern is not None and all(_looks_up(b) for b in blocks_of(func)):
        return func.with_attr("op_pattern", ELEMENTWISE)
    if pattern is None or int(pattern) > BROADCAST or not any(_reads_beyond(b) for b in blocks_of(func)):
        return func
    return func.with_attr("op_pattern", INJECTIVE)


LimitFusion = tirx.transform.prim_func_pass(limit_fusion, opt_level=0, name="tvmopt.LimitFusion")


def _reads_beyond(block: Any) -> bool:
    """Whether an axis of the block is longer than an axis of a tensor that it indexes."""
    axes = {iv.var: iv.dom.extent for iv in block.iter_vars}
    loads: list[Any] = []
    structural_walk(block.body, (TensorLoad, loads.append))
    places = [(axes[i], d) for x in loads for i, d in zip(x.indices, x.source.shape, strict=True) if i in axes]
    return any(isinstance(e, tirx.IntImm) and isinstance(d, tirx.IntImm) and int(e) > int(d) for e, d in places)


def _looks_up(block: Any) -> bool:
    """Whether a block writes, at its own axes, what a table of bytes says of the byte at its own axes."""
    store, axes = block.body, [iv.var for iv in block.iter_vars]
    value = getattr(store, "value", None)
    if not isinstance(value, TensorLoad) or [int(d) for d in value.source.shape if isinstance(d, tirx.IntImm)] != [
        ENTRIES
    ]:
        return False
    place = value.indices[0]
    byte = place.value if isinstance(place, tirx.Cast) else None
    if not isinstance(byte, TensorLoad) or str(byte.ty.dtype) != "uint8":
        return False
    return all(
        len(at) == len(axes) and all(i.same_as(axis) for i, axis in zip(at, axes, strict=True))
        for at in (store.indices, byte.indices)
    )
