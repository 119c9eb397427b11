"""Loads from a table of 256 bytes at places that are bytes, as permutations of registers - behind TVM's vectorizer.

    Before                              After
    table[int32x16(q)]                  tvmopt_lookup_16(&table[0], q)         q uint8x16

A byte's low six bits choose among 64, and `vpermi2b` has two registers to choose from: two of them, and the topmost bit
between the two, find a byte among 256 for each lane. Without AVX512-VBMI the loads stay loads, one a lane.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import StringImm
from tvm.ir.expr import TensorLoad
from tvm.target.codegen import target_has_features
from tvm_ffi import structural_map

from tvmopt.lowering.intrinsics import llvm_type
from tvmopt.lowering.loops import buffers, vector_type, with_body
from tvmopt.operators.lookup import ENTRIES

FUNCTION = "tvmopt_lookup"
FEATURE = "avx512vbmi"
REGISTER = 64
"""Bytes of a vector register."""


def lower_lookups(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    target = func.attrs.get("target", None)
    if target is None or target.kind.name != "llvm" or not target_has_features(FEATURE, target):
        return func
    if not any(map(_is_table, buffers(func.body))):  # there are a few buffers, and thousands of loads
        return func
    widths: set[int] = set()

    def load(node: Any) -> Any:
        index = node.indices[-1]
        if not _bytes_of_a_table(node, index):
            return node
        lanes, kind = int(index.ty.dtype.lanes), str(node.source.dtype)
        widths.add(lanes)
        first = tirx.BufferLoad(node.source, [tirx.const(0, "int32")])
        place = tirx.address_of(first)
        return tirx.call_pure_extern(vector_type(kind, lanes), f"{FUNCTION}_{lanes}", place, index.value)

    body = structural_map(func.body, (TensorLoad, load))
    if not widths:
        return func
    text = StringImm("".join(llvm_function(n) for n in sorted(widths)))
    return with_body(func, tirx.AttrStmt(StringImm(""), "pragma_import_llvm", text, body))


LowerLookups = tirx.transform.prim_func_pass(lower_lookups, opt_level=0, name="tvmopt.LowerLookups")


def _is_table(buffer: Any) -> bool:
    shape = buffer.shape
    return (
        str(buffer.dtype) in ("uint8", "int8")
        and len(shape) == 1
        and isinstance(shape[0], tirx.IntImm)
        and int(shape[0]) == ENTRIES
    )


def _bytes_of_a_table(node: Any, index: Any) -> bool:
    return (
        _is_table(node.source)
        and isinstance(index, tirx.Cast)
        and str(index.value.ty.dtype).startswith("uint8x")
        and 1 < int(index.ty.dtype.lanes) <= REGISTER
    )


@cache
def llvm_function(lanes: int) -> str:
    """`tvmopt_lookup_<lanes>(table, q)` as LLVM IR."""
    own, wide = llvm_type(lanes, "i8"), llvm_type(REGISTER, "i8")
    instruction = "@llvm.x86.avx512.vpermi2var.qi.512"
    text = f"declare {wide} {instruction}({wide}, {wide}, {wide})\n"
    text += f"define {own} @{FUNCTION}_{lanes}(ptr %t, {own} %q) {{\n"
    for part in range(ENTRIES // REGISTER):
        text += f"  %p{part} = getelementptr i8, ptr %t, i64 {REGISTER * part}\n"
        text += f"  %t{part} = load {wide}, ptr %p{part}, align 1\n"
    text += f"  %i = shufflevector {own} %q, {own} poison, {_lanes(range(REGISTER), lanes)}\n"
    text += f"  %a = call {wide} {instruction}({wide} %t0, {wide} %i, {wide} %t1)\n"
    text += f"  %b = call {wide} {instruction}({wide} %t2, {wide} %i, {wide} %t3)\n"
    for name in "ab":
        text += f"  %{name}n = shufflevector {wide} %{name}, {wide} poison, {_lanes(range(lanes), lanes)}\n"
    high = llvm_type(lanes, "i1")
    text += f"  %h = icmp slt {own} %q, zeroinitializer\n"
    text += f"  %r = select {high} %h, {own} %bn, {own} %an\n"
    return text + f"  ret {own} %r\n}}\n"


def _lanes(places: range, known: int) -> str:
    """A mask of `shufflevector` that takes lane by lane, as far as there are so many."""
    parts = [f"i32 {place}" if place < known else "i32 poison" for place in places]
    return f"<{len(parts)} x i32> <{', '.join(parts)}>"
