"""Truths in memory are read and written one by one on a GPU - before TVM's vectorizer.

    Before                                          After
    for k in vectorized(4):                         for k in unrolled(4):
        y[4 * i + k] = a[4 * i + k] < b[4 * i + k]      y[4 * i + k] = a[4 * i + k] < b[4 * i + k]

CUDA has no vectors of bool. TVM 0.27 takes vectors of 16-bit numbers for them, also in memory, where a truth is one
byte: four truths were written to the places of eight, which are not aligned to eight bytes either, and read likewise;
of eight or sixteen truths it has no type at all. In registers, within an expression, they are right.

Applies when   a vectorized loop reads or writes a tensor of bool, or gives a truth a name: TVM's analyzer fails at a
               let of a vector of truths.
Cost           its other tensors are read element by element too; neighbouring threads still take neighbouring lines.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_walk

from tvmopt.lowering.loops import gpu_pass, unrolled


def _one_by_one(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not _has_truths(loop.body):
        return loop
    return unrolled(loop)


def _has_truths(body: Any) -> bool:
    found: list[bool] = []

    def look(dtype: Any) -> None:
        found.append(str(dtype) == "bool")

    structural_walk(body, [
        (TensorLoad, lambda node: look(node.source.dtype)), (tirx.BufferStore, lambda node: look(node.buffer.dtype)),
        (tirx.Let, lambda node: look(node.var.ty.dtype)),
    ])  # fmt: skip
    return any(found)


UnrollTruths = gpu_pass("tvmopt.UnrollTruths", tirx.For, _one_by_one)
