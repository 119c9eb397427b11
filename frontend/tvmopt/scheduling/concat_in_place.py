"""Concatenations without copies: who computes a part writes it into the whole.

        Before                                       After
        a = R.call_tir(conv, (x,))                   t = R.call_tir(conv_part, (x,))             allocates c
        b = R.call_tir(pool, (x,))                   c = R.call_tir_inplace(pool_part, (x, t))   writes into it
        c = R.call_tir(concatenate, (a, b))

The parts' kernels have a parameter of the whole's shape and constants in their indices; nothing else of them changes. A
kernel that also reads a part reads it from the whole. A part may be a concatenation itself (DenseNet's growing tensor):
then its parts go where it goes.

Applies when   each operand is the one result of a kernel, part of nothing else, and not a result of the model.
Declines when  1. an operand is something else, or stands in the list twice   2. somebody reads an operand who is not a
               kernel   3. a kernel cannot have a part as its parameter, or would lose its vectors: a loop over several
               rows at once   4. a row of a part is shorter than a cache line: every part would touch all lines
Gain           a read and a write of the result.

It runs on scheduled kernels, so that workloads, their tuning records and schedules are what they are without it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from tvmopt.report import DecisionLog
from tvmopt.scheduling.apply import Scheduled, schedule_one
from tvmopt.scheduling.discover import family_named
from tvmopt.scheduling.family import Family
from tvmopt.scheduling.parts import Part, Place, concatenation, runs_stay, within
from tvmopt.targets import Machine

STAGE = "tvmopt.ConcatInPlace"
LEAST_RUN = 64
"""Bytes of a part's row next to each other in the whole."""
SUFFIX = "_part"


@dataclass(frozen=True)
class InPlace:
    """What the pass returns.

    Attributes:
        module: scheduled kernels, concatenations in place.
        unscheduled: the given one; its kernels have the new names, its concatenations stand.
        how: with the new names.
        nodes: bindings of `main` that do the work of others too: their variable -> those of all.
    """

    module: tvm.IRModule
    unscheduled: tvm.IRModule
    how: dict[str, Scheduled]
    nodes: dict[Any, tuple[Any, ...]] = field(default_factory=dict)


def concat_in_place(
    module: tvm.IRModule, unscheduled: tvm.IRModule, how: Mapping[str, Scheduled], machine: Machine, log: DecisionLog
) -> InPlace:
    """The scheduled module with producers that write into concatenations.

    Args:
        module, unscheduled: with the same `main`, kernels with and without schedules.
    """
    unchanged = InPlace(module, unscheduled, dict(how))
    if machine.kind != "llvm" or "main" not in [g.name_hint for g in module.get_global_vars()]:
        return unchanged
    main = module["main"]
    if not isinstance(main.body, relax.SeqExpr) or len(main.body.blocks) != 1:
        return unchanged
    kernels = _Kernels(module, unscheduled, how, machine)
    plan = _Plan(main, unscheduled, kernels, log)
    if not plan.dropped:
        return unchanged
    return _Writer(plan, kernels).result()


def whole_name(kernel: str) -> str:
    """The name of a kernel as it was before this pass.

    >>> whole_name("fused_conv2d_relu_part1"), whole_name("winograd3")
    ('fused_conv2d_relu', 'winograd3')
    """
    return re.sub(rf"{SUFFIX}\d*$", "", kernel)


# -- planning ---------------------------------------------------------------------------------------------------


class _Kernels:
    """Kernels with parts as parameters, each made once."""

    def __init__(
        self, module: tvm.IRModule, unscheduled: tvm.IRModule, how: Mapping[str, Scheduled], machine: Machine
    ) -> None:
        self.module, self.unscheduled, self.how, self.machine = module, unscheduled, how, machine
        self.made: dict[Any, tuple[tirx.PrimFunc, Scheduled] | None] = {}

    def moved(
        self, name: str, places: Mapping[int, Place], free: int | None = None
    ) -> tuple[tirx.PrimFunc, Scheduled] | None:
        """The kernel with the parameters `places` as parts, and how it is scheduled: as it was, or again where its
        loops run over rows. `free`: as in :func:`tvmopt.scheduling.parts.within`."""
        key = (name, tuple(sorted(places.items())), free)
        if key not in self.made:
            self.made[key] = self._move(name, places, free)
        return self.made[key]

    def _move(self, name: str, places: Mapping[int, Place], free: int | None) -> tuple[tirx.PrimFunc, Scheduled] | None:
        how = self.how.get(name)
        if how is None:  # it came with its schedule: a sort, say
            return None
        family = family_named(self.machine.kind, how.family)
        if family is not None and not _allowed(family, places, len(self.module[name].params) - 1):
            return None
        stays = runs_stay(self.module[name], places)
        func = within(self.module[name] if stays else self.unscheduled[name], places, free)
        if stays or func is None:
            return None if func is None else (func, how)
        if how.source == "tuned" or family is None or not family.RESCHEDULED_FOR_PARTS:
            return None
        with self.machine.tvm_target():
            again = schedule_one(name, func, self.machine, DecisionLog())
        other = family_named(self.machine.kind, again[1].family)
        return again if other is not None and other.RESCHEDULED_FOR_PARTS else None


def _allowed(family: Family, places: Mapping[int, Place], out: int) -> bool:
    """Whether kernels of a family may have these parameters as parts; `out` is the result's."""
    return (family.WRITES_PARTS or out not in places) and (family.READS_PARTS or not places.keys() - {out})


@dataclass(frozen=True)
class _Site:
    """A call of a kernel in `main`: its `callee`, arguments, and whether it has one static result."""

    callee: str
    args: tuple[Any, ...]
    movable: bool


class _Plan:
    """Which tensors lie in which.

    Attributes:
        places: tensor -> (the whole it lies in, where).
        dropped: concatenations that are no longer computed, as keys.
    """

    def __init__(self, main: Any, unscheduled: tvm.IRModule, kernels: _Kernels, log: DecisionLog) -> None:
        self.main, self.kernels, self.log = main, kernels, log
        self.bindings = list(main.body.blocks[0].bindings)
        self.sites: dict[Any, _Site] = {}
        self.readers: dict[Any, list[tuple[Any, int]]] = defaultdict(list)
        self.seen_by_others: set[Any] = set(relax.analysis.free_vars(main.body.body))
        self.places: dict[Any, tuple[Any, Place]] = {}
        self.dropped: dict[Any, None] = {}
        self._read()
        for var in reversed([b.var for b in self.bindings]):  # outer concatenations first: inner ones go into them
            site = self.sites.get(var)
            found = concatenation(unscheduled[site.callee]) if site and site.movable else None
            if site and found:
                reason = self._place(var, site, *found)
                (log.declined if reason else log.applied)(
                    STAGE, str(var.name), reason or "its parts are written in place"
                )

    def around(self, var: Any) -> list[Any]:
        """The dropped concatenations that a part is in, from the innermost out."""
        found = []
        while var in self.places:
            var = next(reader for reader, _ in self.readers[var] if reader in self.dropped)
            found.append(var)
        return found

    def _read(self) -> None:
        for binding in self.bindings:
            site = _site(binding)
            if site is None:
                self.seen_by_others |= set(relax.analysis.free_vars(binding.value))
                continue
            self.sites[binding.var] = site
            for k, arg in enumerate(site.args):
                if isinstance(arg, relax.Var):
                    self.readers[arg].append((binding.var, k))

    def _place(self, var: Any, site: _Site, axis: int, parts: Sequence[Part]) -> str:
        """Put the operands of a concatenation where its result lies; why not, if not."""
        whole, outer = self.places.get(var, (var, None))
        shape = outer.shape if outer else _shape(var)
        origin = outer.at if outer else (0,) * len(shape)
        chosen: dict[Any, tuple[Any, Place]] = {}
        for part in parts:
            operand = site.args[part.source]
            at = tuple(o + part.start * (k == axis) for k, o in enumerate(origin))
            place = Place(shape, at)
            reason = self._objection(operand, var, place, axis)
            if reason or operand in chosen:
                return reason or f"{operand.name} stands in it twice"
            chosen[operand] = (whole, place)
        self.places.update(chosen)
        self.dropped[var] = None
        return ""

    def _objection(self, operand: Any, var: Any, place: Place, axis: int) -> str:
        """Why an operand cannot lie in the whole, or ""."""
        maker = self.sites.get(operand) if isinstance(operand, relax.Var) else None
        if maker is None or not maker.movable:  # Decline 1
            return f"{getattr(operand, 'name', 'a constant')} is not the result of one kernel"
        if operand in self.places:
            return f"{operand.name} is already a part of {self.places[operand][0].name}"
        if operand in self.seen_by_others:  # Decline 2
            return f"{operand.name} is read other than by kernels"
        shape = _shape(operand)
        if math.prod(place.shape) >= 1 << 31:
            return f"{place.shape} has too many elements for the 32-bit indices of its parts' kernels"
        run = math.prod(shape[axis:]) * max(1, _bits(operand) // 8)
        if run < LEAST_RUN and math.prod(shape[:axis]) > 1:  # Decline 4
            return f"a row of {operand.name} is {run} bytes"
        if self.kernels.moved(maker.callee, {len(maker.args): place}) is None:  # Decline 3
            return f"{maker.callee} cannot write a part of a tensor"
        for reader, k in self.readers[operand]:
            callee = self.sites[reader].callee
            if (
                not reader.same_as(var)
                and reader not in self.dropped
                and self.kernels.moved(callee, {k: place}) is None
            ):
                return f"{callee} cannot read a part of a tensor"
        return ""


def _site(binding: Any) -> _Site | None:
    value = binding.value
    if getattr(getattr(value, "op", None), "name", "") != "relax.call_tir" or not isinstance(
        value.args[1], relax.Tuple
    ):
        return None
    args = tuple(value.args[1].fields)
    plain = all(isinstance(a, relax.Var | tvm.ir.GenericConst) for a in args)
    movable = plain and len(value.args) == 2 and len(value.ty_args) == 1 and bool(_shape(binding.var))
    return _Site(value.args[0].name_hint, args, movable)


def _shape(var: Any) -> tuple[int, ...]:
    """The static shape of a tensor variable, else ()."""
    dims = getattr(getattr(var.ty, "shape", None), "values", None) or ()
    return tuple(int(d) for d in dims) if all(isinstance(d, tirx.IntImm) for d in dims) else ()


def _bits(var: Any) -> int:
    return int(tvm.DataType(str(var.ty.dtype)).bits)


# -- writing ----------------------------------------------------------------------------------------------------


class _Writer:
    """Writes `main` and the moved kernels."""

    def __init__(self, plan: _Plan, kernels: _Kernels) -> None:
        self.plan, self.kernels = plan, kernels
        self.functions = {g.name_hint: (g, f) for g, f in kernels.module.functions_items()}
        self.variants: dict[Any, str] = {}
        self.how: dict[Any, Scheduled] = {}
        self.now: dict[Any, Any] = {}  # a whole -> the variable that holds it at this point of `main`
        self.nodes: dict[Any, tuple[Any, ...]] = {}
        self.renamed: dict[Any, str] = {}  # variable of `main` -> its kernel's new name
        members = [v for v in plan.sites if v in plan.places and v not in plan.dropped]
        self.last = {plan.places[v][0]: v for v in members}
        completed_by: dict[Any, Any] = {}
        for var in members:
            completed_by |= dict.fromkeys(plan.around(var), var)
        self.completes: dict[Any, list[Any]] = defaultdict(list)  # a part -> the concatenations it is the last part of
        for outer, var in completed_by.items():
            self.completes[var].append(outer)
        self.starts: dict[Any, set[tuple[int, ...]]] = defaultdict(set)  # a kernel -> where its result starts
        for var in members:
            key, place = self._key(var)
            self.starts[key].add(place.at)

    def result(self) -> InPlace:
        """The new modules."""
        kept = [b for b in map(self._binding, self.plan.bindings) if b is not None]
        old = self.plan.main
        main = _with_bindings(old, kept)
        used = {b.value.args[0].name_hint for b in kept if _called(b.value)}
        gone = {self.plan.sites[v].callee for v in self.plan.sites} - used
        how = {name: done for name, done in self.kernels.how.items() if name not in gone}
        scheduled = dict(f for name, f in self.functions.items() if name not in gone)
        plain = dict(self.kernels.unscheduled.functions_items())
        for key, new in self.variants.items():
            how[new] = self.how[key]
            plain[self.functions[new][0]] = self.kernels.unscheduled[key[0]]
        scheduled[self.functions["main"][0]] = main
        before = self.kernels.unscheduled
        plain[next(g for g in plain if g.name_hint == "main")] = self._with_new_names(before["main"])
        return InPlace(_module(scheduled, self.kernels.module), _module(plain, before), how, self.nodes)

    def _binding(self, binding: Any) -> Any:
        """A binding of the new `main`; None for a concatenation."""
        plan, var = self.plan, binding.var
        site = plan.sites.get(var)
        if var in plan.dropped:
            return None
        if site is None or (var not in plan.places and not any(a in plan.places for a in site.args)):
            return binding
        args = [self.now[plan.places[a][0]] if a in plan.places else a for a in site.args]
        callee, start = self._variant(var)
        args += start
        if var not in plan.places:
            (kind,) = binding.value.ty_args
            results = list(kind.fields) if isinstance(kind, relax.TupleType) else kind
            return relax.VarBinding(var, relax.op.call_tir(callee, relax.Tuple(args), results))
        whole, _ = plan.places[var]
        if whole in self.now:
            value = relax.op.call_tir_inplace(callee, relax.Tuple([*args, self.now[whole]]), len(args), whole.ty)
        else:
            value = relax.op.call_tir(callee, relax.Tuple(args), whole.ty)
        last = self.last[whole].same_as(var)
        self.now[whole] = whole if last else relax.DataflowVar(str(var.name), whole.ty)
        self.nodes[self.now[whole]] = (var, *self.completes[var])
        return relax.VarBinding(self.now[whole], value)

    def _key(self, var: Any) -> tuple[Any, Place]:
        """What a kernel's calls must have in common to be calls of one function, wherever their results start."""
        site, (_, place) = self.plan.sites[var], self.plan.places[var]
        read = tuple((k, self.plan.places[a][1]) for k, a in enumerate(site.args) if a in self.plan.places)
        return (site.callee, read, place.shape), place

    def _variant(self, var: Any) -> tuple[Any, list[Any]]:
        """The global variable of a kernel with parts as parameters, and its argument that says where, if it has one."""
        site = self.plan.sites[var]
        places = {k: self.plan.places[a][1] for k, a in enumerate(site.args) if a in self.plan.places}
        free, start = None, list[Any]()
        if var in self.plan.places:
            key, place = self._key(var)
            axes = [k for k, starts in enumerate(zip(*self.starts[key], strict=True)) if len(set(starts)) > 1]
            if len(axes) == 1:  # one function for all of them: a large kernel takes a third of a second to compile
                free, start = axes[0], [relax.prim_value(place.at[axes[0]])]
                place = Place(place.shape, tuple(0 if k == free else a for k, a in enumerate(place.at)))
            places[len(site.args)] = place
        name = self._named(site.callee, places, free)
        self.renamed[var] = name
        return self.functions[name][0], start

    def _named(self, callee: str, places: dict[int, Place], free: int | None) -> str:
        """The name of a kernel with parts as parameters, made at the first call."""
        key = (callee, tuple(sorted(places.items())), free)
        if key not in self.variants:
            made = self.kernels.moved(callee, places, free)
            assert made is not None  # the plan has asked
            func, self.how[key] = made
            name = _fresh(callee + SUFFIX, self.functions)
            gvar = tvm.ir.GlobalVar(name)
            relax.expr._update_type(gvar, func.ty)
            self.functions[name] = (gvar, func.without_attr("global_symbol"))
            self.variants[key] = name
        return self.variants[key]

    def _with_new_names(self, main: Any) -> Any:
        """The `main` that still concatenates, calling its kernels by their new names."""
        bindings = []
        for b in main.body.blocks[0].bindings:
            if b.var in self.renamed:
                callee = self.functions[self.renamed[b.var]][0]
                args = [callee, *b.value.args[1:]]
                b = relax.VarBinding(b.var, relax.Call(b.value.op, args, b.value.attrs, b.value.ty_args))
            bindings.append(b)
        return _with_bindings(main, bindings)


def _with_bindings(main: Any, bindings: Sequence[Any]) -> Any:
    """`main` with other bindings in its one block."""
    body = relax.SeqExpr([type(main.body.blocks[0])(bindings)], main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span)


def _called(value: Any) -> bool:
    return str(getattr(getattr(value, "op", None), "name", "")).startswith("relax.call_tir")


def _module(functions: dict[Any, Any], like: tvm.IRModule) -> tvm.IRModule:
    made = tvm.IRModule(functions, attrs=like.attrs, global_infos=like.global_infos)
    return relax.transform.Normalize()(made)  # the types of new expressions


def _fresh(name: str, taken: Mapping[str, Any]) -> str:
    number, candidate = 0, name
    while candidate in taken:
        number += 1
        candidate = f"{name}{number}"
    return candidate
