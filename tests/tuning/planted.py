"""A family with traps: `mode` 0 is right, the others are wrong, crash, abort, hang - while scheduling, building or
running. Importing this changes nothing; `planted_local`, which workers import first, sets the traps."""

from __future__ import annotations

import os
import time
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmopt.scheduling.family import Space
from tvmopt.targets import Machine
from tvmopt.tuning import kernel
from tvmopt.tuning.effort import Kernel
from tvmopt.tuning.record import Candidate, Key, fingerprint, tvm_version, workload_hash
from tvmopt.tuning.tasks import Task, packed

MODES = {"right": 0, "wrong": 1, "refuses": 2, "dies building": 3, "hangs building": 4, "dies running": 5,
         "hangs running": 6, "slow": 7, "nan": 8}  # fmt: skip
LENGTH = 65536


def function(scale: float = 2.0) -> Any:
    """y = x * scale."""
    x = te.placeholder((LENGTH,), name="x")
    value = tvm.tirx.const(scale, "float32")
    return te.create_prim_func([x, te.compute((LENGTH,), lambda i: x[i] * value, name="y")])


def scheduled(self: kernel.Bench, candidate: Candidate) -> Any:
    """In place of `Bench.scheduled`: the trap of a candidate's mode."""
    mode = candidate.knobs["mode"]
    if mode == MODES["wrong"]:
        return function(3.0)
    if mode == MODES["nan"]:
        return function(float("nan"))
    if mode == MODES["refuses"]:
        raise ValueError("no such schedule")
    if mode == MODES["dies building"]:
        os.abort()
    if mode == MODES["hangs building"]:
        time.sleep(1000)
    sch = Schedule(self.func)
    if mode == 0:
        sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, 8])[1])
    return sch.mod["main"]


_build = kernel.Bench.build


def build(self: kernel.Bench, candidate: Candidate) -> None:
    """In place of `Bench.build`: the trap that shows when the candidate runs."""
    _build(self, candidate)
    mode = candidate.knobs["mode"]
    if mode == MODES["dies running"]:
        self.built[candidate.id] = lambda *_: os.kill(os.getpid(), 11)
    if mode == MODES["slow"]:
        function = self.built[candidate.id]
        self.built[candidate.id] = lambda *a: [function(*a) for _ in range(8)]
    if mode == MODES["hangs running"]:
        self.built[candidate.id] = lambda *_: time.sleep(1000)


def task(machine: Machine) -> Task:
    """The task whose candidates these are."""
    func = function()
    key = Key(workload_hash(func), fingerprint(machine), tvm_version(), "planted", 1)
    inner = Kernel(key.workload, packed(func, (), 1), "planted", machine, (), 1, {"mode": 0})
    return Task("planted", key, Space({"mode": tuple(MODES.values())}), inner, floor=1e-7)
