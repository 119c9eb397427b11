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

    digits = replace(machine, mcpu=machine.mcpu.rstrip("af"))  # dlight finds no tensor cores on "sm_90a"
    target = digits.tvm_target()
    for rule in (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()):
        with target, suppress(Exception):  # a rule that trips over a function does not fit it
            found = rule.apply(func, target, False)
            if found is not None:
                found = found[0] if isinstance(found, list) else found
                s_tir.transform.LowerCrossThreadReduction()(found.mod)  # refuses some schedules of Reduction's
                return found.mod["main"].with_attr("tirx.is_scheduled", True), type(rule).__name__
    raise ScheduleError("no GPU schedule fits a kernel.", where=name, fix="please report it with the model")


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
