"""What a stage of the pipeline is, and how a list of them is run - for `pipeline.py`, which has the list."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tvm
from tvm import tirx

from tvmopt.errors import InputError
from tvmopt.passes.provenance import Provenance
from tvmopt.report import DecisionLog

Watch = Callable[[int, str, tvm.IRModule], None]
"""Is shown the module after each stage, with the stage's number in the whole list, from 1 on, and its name."""

Step = Callable[[tvm.IRModule], tvm.IRModule]


@dataclass(frozen=True)
class Stage:
    """One stage: a module becomes another one.

    Attributes:
        name: how dumps, `without` and reports call it; a pass of TVM has TVM's name.
        run: does it; a function, or a pass of TVM.
        needed: there would be no code without it, or wrong code: `without` refuses it.
        follow: what provenance has to look at behind it: bindings; functions, which it makes of bindings; kernels,
            where it has said itself what became of the bindings.
    """

    name: str
    run: Step
    needed: bool = False
    follow: Literal["bindings", "functions", "kernels"] = "bindings"

    @property
    def short(self) -> str:
        """The name without the package: ``FuseLayerNorm``."""
        return self.name.rpartition(".")[2]

    def called(self, name: str) -> bool:
        """Whether somebody who writes `name` means this stage."""
        return name in (self.name, self.short)

    def left_out(self, without: Collection[str]) -> bool:
        """Whether it is among the names of stages to leave out."""
        return self.name in without or self.short in without


@dataclass(frozen=True)
class Part:
    """Stages that stand together, under a heading."""

    heading: str
    stages: Sequence[Stage]


def stage(one: Any, **fields: Any) -> Stage:
    """A pass of TVM as a stage."""
    return Stage(str(one.info.name), one, **fields)


def each_kernel(name: str, step: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> Stage:
    """A rewrite of each kernel as a stage; what rewrites kernels is needed."""

    def run(module: tvm.IRModule) -> tvm.IRModule:
        functions = {
            gvar: step(func) if isinstance(func, tirx.PrimFunc) else func for gvar, func in module.functions_items()
        }
        return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)

    return Stage(name, run, needed=True)


def through(stages: Iterable[Stage], module: tvm.IRModule) -> tvm.IRModule:
    """The module behind all of these stages."""
    run = Run(module)
    run.through(Part("", tuple(stages)))
    return run.module


def check_names(parts: Iterable[Part], wanted: Iterable[str], optional: bool = False) -> None:
    """Refuse names that no stage has; with `optional`, also those of stages that cannot be left out.

    Raises:
        InputError: with the names there are.
    """
    stages = [s for part in parts for s in part.stages]
    for name in wanted:
        found = [s for s in stages if s.called(name)]
        if not found:
            names = list(dict.fromkeys(s.short for s in stages))
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"there is no stage {name!r}.", fix=f"{guess}The stages are {', '.join(names)}")
        if optional and any(s.needed for s in found):
            raise InputError(f"the stage {name!r} cannot be left out: there is no right code without it.")


@dataclass
class Run:
    """A module on its way through the list.

    Attributes:
        module: as it is now.
        without: names of stages to leave out.
        provenance: follows what becomes of ONNX nodes; None behind the stages that change `main`.
        log: what the stages tell.
        watch: is shown the module after each stage.
        seconds: wall time of each part.
        number: of the last stage, in the whole list.
    """

    module: tvm.IRModule
    without: Collection[str] = ()
    provenance: Provenance | None = None
    log: DecisionLog = field(default_factory=DecisionLog)
    watch: Watch | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    number: int = 0

    def through(self, part: Part) -> None:
        """Run the stages of a part."""
        start = time.perf_counter()
        for one in part.stages:
            self.number += 1
            if one.left_out(self.without):
                continue
            self._run(one)
            if self.watch is not None:
                self.watch(self.number, one.name, self.module)
        self.seconds[part.heading] = self.seconds.get(part.heading, 0.0) + time.perf_counter() - start

    def _run(self, one: Stage) -> None:
        if self.provenance is None or one.follow == "kernels":
            self.module = one.run(self.module)
        elif one.follow == "functions":
            before, self.module = self.module["main"], one.run(self.module)
            self.provenance.fused(before, self.module)
        else:
            self.module = self.provenance.through([one.run], self.module, self.log)
