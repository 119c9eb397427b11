"""Schedule every kernel of a module: a tuning record, else the family's analytic point, else the generic family,
on a GPU TVM's dlight."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm_ffi import structural_walk

from tvmopt.errors import ScheduleError
from tvmopt.report import DecisionLog
from tvmopt.scheduling import dlight
from tvmopt.scheduling.blocks import blocks_of, give_first_value, inline_fixed, root_blocks
from tvmopt.scheduling.discover import families
from tvmopt.scheduling.family import Family, Knobs, PixelTiles, RowTiles
from tvmopt.scheduling.normalize import normalize
from tvmopt.scheduling.open_pictures import Pictures, pictures_of
from tvmopt.scheduling.open_rows import Rows, in_tiles, is_open, rows_of
from tvmopt.scheduling.picture_in_place import in_pixels
from tvmopt.scheduling.replay import Replay
from tvmopt.targets import Machine

STAGE = "tvmopt.ApplyFamilies"
WORTH_TRYING = (1, 4, 16, 64, 256, 1024, 4096, 16384)
"""Numbers of open rows, of which one is the least that the family gives to threads."""
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
    if machine.kind == "llvm" and is_open(func):
        return _schedule_open(name, func, machine, log)
    if machine.kind == "cuda" and _writes_nothing(func):
        log.applied(STAGE, name, "its results have no elements")
        done = func.with_body(tirx.Evaluate(0)).with_attr("tirx.is_scheduled", True)
        return done, Scheduled("none", "analytic", {}, "no elements")
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
    return _with_first_values(func), Scheduled("none", "generic", {}, "; ".join(notes) or "unscheduled")


def _schedule_open(
    name: str, func: tirx.PrimFunc, machine: Machine, log: DecisionLog
) -> tuple[tirx.PrimFunc, Scheduled]:
    """Schedule a function with an open size: in tiles of rows, where it has rows and its family can."""
    notes: list[str] = []
    func = inline_fixed(func)
    if (found := _in_pixels(name, func, machine, log, notes)) is not None:
        return found
    rows = rows_of(func)
    if isinstance(rows, Rows):
        try:
            one = normalize(rows.at(1), machine)
            for family in families(machine.kind):
                problem = family.recognise(one, machine) if family.open_rows else None
                if problem is not None and family.open_rows is not None:
                    tiles = family.open_rows(problem, machine)
                    if tiles.together and not rows.together:
                        notes.append(f"{family.NAME} takes rows that lie one behind the other")
                        continue
                    done = _in_tiles(func, rows, family, tiles, machine)
                    log.applied(STAGE, name, f"{family.NAME}, tiles of {tiles.height} open rows")
                    return done, Scheduled(family.NAME, "analytic", {"open_rows": tiles.height})
            notes.append("no family cuts it into tiles of rows")
        except Exception as error:  # any failure of a schedule: TVM raises many kinds
            notes.append(f"tiles of open rows failed: {_first_line(error)}")
    else:
        notes.append(f"no open rows: {rows.reason}")
    log.declined(STAGE, name, notes[-1])
    for family in families(machine.kind):
        if family.open_sizes is not None:
            try:
                if (done := family.open_sizes(func, machine)) is None:
                    continue
                done = done.with_attr("tirx.is_scheduled", True)
                if not family.FALLBACK:
                    log.applied(STAGE, name, f"{family.NAME}, open sizes")
                    return done, Scheduled(family.NAME, "analytic")
                return done, Scheduled(family.NAME, "generic", {}, "; ".join(notes))
            except Exception as error:  # as above
                notes.append(f"{family.NAME} failed: {_first_line(error)}")
                log.declined(STAGE, name, notes[-1])
    return _with_first_values(func), Scheduled("none", "generic", {}, "; ".join(notes))


def _writes_nothing(func: tirx.PrimFunc) -> bool:
    """Whether no block of a function has an element to write: families divide by sizes, and TVM launches a grid of no
    blocks as one."""
    spatial = [[v.dom.extent for v in block.iter_vars if int(v.iter_type) == 0] for block in blocks_of(func)]
    return bool(spatial) and all(any(isinstance(e, tirx.IntImm) and int(e) == 0 for e in one) for one in spatial)


def _with_first_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function whose loops stay as they are; its reductions over what may be empty have a result all the same."""
    if all(block.init is None for block in blocks_of(func)):
        return func
    sch = Schedule(func)
    for block in root_blocks(sch):
        give_first_value(sch, block, sch.get_loops(block))
    return sch.mod["main"]


def _in_pixels(
    name: str, func: tirx.PrimFunc, machine: Machine, log: DecisionLog, notes: list[str]
) -> tuple[tirx.PrimFunc, Scheduled] | None:
    """Schedule a function over pictures of open height or width; None where it is none, or no family cuts it so."""
    kinds = {str(b.annotations.get("tvmopt.kernel", "")) for b in blocks_of(func)}
    known = [f for f in families(machine.kind) if f.open_pixels is not None and f.NAME in kinds]
    if not known:
        return None
    pictures = pictures_of(func)
    if not isinstance(pictures, Pictures):
        notes.append(f"no open pictures: {pictures.reason}")
        log.declined(STAGE, name, notes[-1])
        return None
    try:
        one = normalize(pictures.smallest, machine)
        for family in known:
            problem = family.recognise(one, machine)
            if problem is None or family.open_pixels is None:
                continue
            tiles = family.open_pixels(problem, machine)

            def scheduled(static: tirx.PrimFunc, family: Family = family, tiles: PixelTiles = tiles) -> tirx.PrimFunc:
                return _scheduled(static, family, tiles.knobs, machine)

            done = in_pixels(pictures, tiles, scheduled, machine.cores)
            log.applied(STAGE, name, f"{family.NAME}, tiles of {tiles.widths[0]} open pixels")
            return done, Scheduled(family.NAME, "analytic", {"open_pixels": tiles.widths[0]})
    except Exception as error:  # any failure of a schedule: TVM raises many kinds
        notes.append(f"tiles of open pixels failed: {_first_line(error)}")
        log.declined(STAGE, name, notes[-1])
    return None


def _scheduled(
    static: tirx.PrimFunc, family: Family, knobs: Callable[[Any], Knobs] | None, machine: Machine
) -> tirx.PrimFunc:
    """A tile, scheduled by its family."""
    static = normalize(static, machine)
    problem = family.recognise(static, machine)
    if problem is None:
        raise ScheduleError(f"{family.NAME} takes one row of it, and not several")
    sch = Schedule(static)
    family.apply(sch, problem, knobs(problem) if knobs else family.knobs(problem, machine).analytic)
    return sch.mod["main"]


def _in_tiles(func: tirx.PrimFunc, rows: Rows, family: Family, tiles: RowTiles, machine: Machine) -> tirx.PrimFunc:
    def scheduled(static: tirx.PrimFunc, fetching: bool = False) -> tirx.PrimFunc:
        return _scheduled(static, family, tiles.fetching_knobs if fetching else tiles.knobs, machine)

    def threads(count: int) -> bool:
        return bool(_parallel_loops(scheduled(rows.at(count))))

    parallel_from = tiles.threads_from if machine.cores > 1 else None
    if parallel_from == 0:
        first = bisect_left(WORTH_TRYING, True, key=threads)
        parallel_from = WORTH_TRYING[first] if first < len(WORTH_TRYING) else None
    return in_tiles(func, rows, tiles, scheduled, parallel_from)


def tasks_of(func: tirx.PrimFunc) -> int:
    """The iterations of a function's longest parallel loop: threads that can share it. 1 where it has none, 0 where an
    open size decides."""
    extents = [int(n.extent) if isinstance(n.extent, tirx.IntImm) else 0 for n in _parallel_loops(func)]
    return 0 if 0 in extents else max(extents, default=1)


def _parallel_loops(func: tirx.PrimFunc) -> list[Any]:
    found: list[Any] = []
    structural_walk(func.body, ((tirx.For, lambda n: found.append(n) if n.kind == tirx.ForKind.PARALLEL else None),))
    return found


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "rror" in line), lines[0] if lines else type(error).__name__)[:200]
