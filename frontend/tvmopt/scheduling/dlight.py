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
    from tvm.s_tir.dlight import gpu

    digits = replace(machine, mcpu=machine.mcpu.rstrip("af"))  # dlight finds no tensor cores on "sm_90a"
    target = digits.tvm_target()
    for rule in (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()):
        with target, suppress(Exception):  # a rule that trips over a function does not fit it
            found = rule.apply(func, target, False)
            if found is not None:
                found = found[0] if isinstance(found, list) else found
                return found.mod["main"].with_attr("tirx.is_scheduled", True), type(rule).__name__
    raise ScheduleError("no GPU schedule fits a kernel.", where=name, fix="please report it with the model")
