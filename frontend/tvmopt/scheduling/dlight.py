"""TVM's own GPU schedules (dlight) for what no family of `schedules/cuda` recognises - for schedule_one.

They are the fallback, and the report names the rule that was used: `dlight.Matmul`, `dlight.Fallback`, ...
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from tvmopt.errors import ScheduleError, UnsupportedOp
from tvmopt.operators.register import ON_CPUS
from tvmopt.targets import Machine

WRITTEN_BACK = "_write_back"
"""How TVM's LowerCrossThreadReduction calls the block that writes what threads have added up, behind the sum's name."""


def schedule(name: str, func: Any, machine: Machine) -> tuple[Any, str]:
    """The function under dlight's first fitting rule, and the rule's name.

    Raises:
        ScheduleError: no rule schedules it: it would not run on a GPU.
        UnsupportedOp: a kernel for CPUs only.
    """
    if func.attrs and ON_CPUS in func.attrs:
        what = f"{func.attrs[ON_CPUS]} on CPUs only."
        fix = "compile the model for a CPU (--target cpu), or do this outside of the model"
        raise UnsupportedOp(what, where=f"kernel '{name}'", fix=fix)
    if launches_threads(func):
        return func.with_attr("tirx.is_scheduled", True), "Fallback"
    from tvm import s_tir
    from tvm.s_tir.dlight import gpu

    func = without_sums_of_one(func)
    digits = replace(machine, mcpu=machine.mcpu.rstrip("af"))  # dlight finds no tensor cores on "sm_90a"
    target = digits.tvm_target()
    for rule in (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()):
        with target, suppress(Exception):  # a rule that trips over a function does not fit it
            found = rule.apply(func, target, False)
            if found is not None:
                found = found[0] if isinstance(found, list) else found
                lowered = s_tir.transform.LowerCrossThreadReduction()(found.mod)  # refuses some of Reduction's
                done = with_guarded_sums(found.mod["main"], lowered["main"])
                return done.with_attr("tirx.is_scheduled", True), type(rule).__name__
    raise ScheduleError("no GPU schedule fits a kernel.", where=name, fix="please report it with the model")


def without_sums_of_one(func: Any) -> Any:
    """The function with each reduction over one element written as what it is, a value. dlight loses the axis, and
    then writes what stands behind the sum where the sum is begun, too: x - mean(x) of rows of one was not 0."""
    from tvm import tirx
    from tvm.ir.expr import TensorLoad
    from tvm.s_tir.stmt import SBlock
    from tvm_ffi import structural_map

    def value(block: Any) -> Any:
        reduced = [v for v in block.iter_vars if int(v.iter_type) == tirx.IterVar.CommReduce]
        one = all(isinstance(v.dom.extent, tirx.IntImm) and int(v.dom.extent) == 1 for v in reduced)
        stores = isinstance(block.init, tirx.BufferStore) and isinstance(block.body, tirx.BufferStore)
        if not (reduced and one and stores):
            return block
        first = block.init

        def load(node: Any) -> Any:
            return first.value if node.source.same_as(first.buffer) else node

        stored = structural_map(block.body.value, (TensorLoad, load))
        axes = [tirx.IterVar(v.dom, v.var, tirx.IterVar.DataPar, v.thread_tag) for v in block.iter_vars]
        body = tirx.BufferStore(block.body.buffer, stored, block.body.indices)
        return SBlock(
            axes, block.reads, block.writes, block.name_hint, body, None, block.alloc_buffers, block.match_buffers,
            block.annotations,
        )  # fmt: skip

    body = structural_map(func.body, (SBlock, value))
    return func if body.same_as(func.body) else func.with_body(body)


def with_guarded_sums(func: Any, lowered: Any) -> Any:
    """The function, or what it was lowered to, with guards, where TVM would write sums over threads behind a tensor: a
    block of 16 rows each writes 48 sums of 33 rows. It guards what other blocks write."""
    from tvm import tirx
    from tvm.s_tir.stmt import SBlockRealize
    from tvm_ffi import structural_map, structural_walk

    partial: set[str] = set()

    def look(realize: Any) -> None:
        if not isinstance(realize.predicate, tirx.IntImm):
            partial.add(str(realize.block.name_hint) + WRITTEN_BACK)

    structural_walk(func.body, (SBlockRealize, look))
    found: list[Any] = []

    def guard(realize: Any) -> Any:
        block = realize.block
        if str(block.name_hint) not in partial:
            return realize
        inside = realize.predicate
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            inside = tirx.And(inside, value < axis.dom.min + axis.dom.extent)
        found.append(block)
        return SBlockRealize(realize.iter_values, inside, block)

    body = structural_map(lowered.body, (SBlockRealize, guard))
    return lowered.with_body(body) if found else func


def launches_threads(func: Any) -> bool:
    """Whether a function is one opaque block that starts its own threads, as TVM's ScatterElements does. dlight's
    Fallback leaves such a block as it is too, but only among other blocks: it does not see one that is the root."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    from tvmopt.scheduling.blocks import blocks_of

    if not [block for block in blocks_of(func) if block.same_as(func.body.block)]:
        return False
    found: list[Any] = []
    structural_walk(func.body, (tirx.AttrStmt, found.append))
    return any(node.attr_key == "thread_extent" for node in found)
