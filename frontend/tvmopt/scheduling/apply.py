"""Schedule every kernel of a module: a tuning record, else the family's analytic point, else the generic family,
on a GPU TVM's dlight."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import tvm
from tvm import tirx
from tvm.s_tir import Schedule

from tvmopt.report import DecisionLog
from tvmopt.scheduling import dlight
from tvmopt.scheduling.discover import families
from tvmopt.scheduling.family import Family
from tvmopt.scheduling.normalize import normalize
from tvmopt.scheduling.replay import Replay
from tvmopt.targets import Machine

STAGE = "tvmopt.ApplyFamilies"
Source = Literal["tuned", "analytic", "generic"]


@dataclass(frozen=True)
class Scheduled:
    """How one PrimFunc was scheduled (see `tvmopt.report.Kernel`)."""

    family: str
    source: Source
    knobs: dict[str, int] = field(default_factory=dict)
    note: str = ""


Lookup = Callable[[tirx.PrimFunc, Family, Any], "dict[str, int] | Replay | None"]
"""Finds the knobs, or the trace of a generic schedule, that tuning recorded for a normalized function, or None."""


@runtime_checkable
class Records(Protocol):
    """A lookup that wants to hear of a record that could not be applied."""

    def refused(self, func: tirx.PrimFunc, family: Family, reason: str) -> None: ...


def apply_families(
    module: tvm.IRModule,
    machine: Machine,
    log: DecisionLog,
    lookup: Lookup | None = None,
    generic: Collection[str] = (),
) -> tuple[tvm.IRModule, dict[str, Scheduled]]:
    """A new module with every PrimFunc scheduled, and how each was; those named in `generic` (``"*"``: all) only by
    the generic family.

    A family that fails on a function it recognised is a bug of that family: it is logged, and the generic family
    takes over, so that a model still compiles.
    """
    how: dict[str, Scheduled] = {}
    functions = {}
    with machine.tvm_target():
        for gvar, func in module.functions_items():
            if isinstance(func, tirx.PrimFunc) and not func.attrs.get("tirx.is_scheduled", False):
                func, how[gvar.name_hint] = schedule_one(
                    gvar.name_hint, func, machine, log, lookup, bool({"*", gvar.name_hint} & {*generic})
                )
            functions[gvar] = func
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos), how


def schedule_one(
    name: str,
    func: tirx.PrimFunc,
    machine: Machine,
    log: DecisionLog,
    lookup: Lookup | None = None,
    generic: bool = False,
) -> tuple[tirx.PrimFunc, Scheduled]:
    """Schedule one function; `name` is for the log; `generic`: with the generic family only."""
    notes = []
    original = func
    try:
        func = normalize(func, machine)
    except Exception as error:  # as below: then no GEMM family recognises it
        notes.append(f"not normalized: {_first_line(error)}")
    for family in families(machine.kind):
        shape = family.recognise(func, machine) if family.FALLBACK or not generic else None
        if shape is None:
            continue
        recorded = lookup(func, family, shape) if lookup else None
        space = family.knobs(shape, machine)
        source: Source
        for source, knobs in (("tuned", recorded), ("analytic", space.analytic)):
            if knobs is None:
                continue
            sch = Schedule(func)
            try:
                if isinstance(knobs, Replay):
                    knobs.apply(sch)
                else:
                    family.apply(sch, shape, knobs)
            except Exception as error:  # any failure of a schedule: TVM raises many kinds
                notes.append(f"{family.NAME} failed: {_first_line(error)}")
                log.declined(STAGE, name, notes[-1])
                if source == "tuned" and isinstance(lookup, Records):
                    lookup.refused(func, family, notes[-1])
                continue
            if family.FALLBACK and source == "analytic":
                source = "generic"
            if isinstance(knobs, Replay):
                notes, knobs = [*notes, knobs.note], {}
            log.applied(STAGE, name, f"{family.NAME}, {source}")
            done = sch.mod["main"].with_attr("tirx.is_scheduled", True)
            return done, Scheduled(family.NAME, source, dict(knobs), "; ".join(notes))
    if machine.kind == "cuda":
        done, rule = dlight.schedule(name, original, machine)
        log.declined(STAGE, name, f"no family recognised it: dlight.{rule}")
        return done, Scheduled(f"dlight.{rule}", "generic", {}, "; ".join(notes))
    log.declined(STAGE, name, "no family recognised it: unscheduled loops")
    return func, Scheduled("none", "generic", {}, "; ".join(notes) or "unscheduled")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0] if lines else type(error).__name__)[:200]
