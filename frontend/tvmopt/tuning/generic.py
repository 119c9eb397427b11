"""The worker's side of MetaSchedule's generic space: multi-level tiling, searched by evolution under XGBoost.

A TuneContext to which nothing was ever measured before: all it knows it was told by `generic_space.py`, from the
store, so a resumed run goes on where the killed one stood.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmopt.scheduling.replay import trace_text
from tvmopt.tuning.effort import Kernel

POPULATION, GENERATIONS, WARM_UP = 64, 2, 16
FAILED = 1e10
"""Seconds that MetaSchedule is told of a candidate that did not run, as its own runner does."""


def without_intrinsics() -> None:
    """Keep TVM from parsing 91 CUDA intrinsics (16 to 24 s) for a search on CPUs. Only in a worker for this alone."""
    for name in ("cuda", "rocm", "hexagon", "arm_cpu", "riscv_cpu"):
        sys.modules.setdefault(f"tvm.s_tir.tensor_intrin.{name}", types.ModuleType(name))


@dataclass
class Search:
    """The worker's side: MetaSchedule's search of one task.

    Attributes:
        told: traces whose result the search knows.
        waiting: candidates handed out in the last batch, by trace.
    """

    kernel: Kernel
    seed: int
    told: set[str] = field(default_factory=set)
    waiting: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kernel.machine.kind == "llvm":
            without_intrinsics()
        import tvm
        from tvm.s_tir import meta_schedule as ms

        space = "llvm" if self.kernel.machine.kind == "llvm" else "cuda"
        self._module = tvm.ir.load_json(self.kernel.module)
        for name in ("tvmopt.constants", "tvmopt.outputs"):
            self._module = tvm.IRModule({"main": self._module["main"].without_attr(name)})
        self._target = self.kernel.machine.tvm_target()
        self._context = ms.TuneContext(
            mod=self._module,
            target=self._target,
            space_generator=ms.space_generator.PostOrderApply(sch_rules=space, postprocs=space, mutator_probs=space),
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=POPULATION, init_min_unmeasured=16, genetic_num_iters=GENERATIONS
            ),
            task_name="main",
            rand_state=self.seed % (2**30) + 1,
            num_threads=1,  # more threads, other candidates every time
        )
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._module)
        self._model = ms.cost_model.XGBModel(num_warmup_samples=WARM_UP, num_tuning_cores=1)
        self._started = False

    def propose(self, count: int, known: Sequence[tuple[str, float]]) -> list[str]:
        """Up to `count` traces; [] when the space is used up."""
        self._learn(known)
        if not self._started:
            self._context.pre_tuning(1 << 30, count, self._context.generate_design_space(), self._database, self._model)
            self._started = True
        candidates = self._context.generate_measure_candidates() or []
        self.waiting = {trace_text(c.sch.trace): c for c in candidates}
        return list(self.waiting)

    def _learn(self, known: Sequence[tuple[str, float]]) -> None:
        """Tell the search of what was measured: its last batch, and what the store had before."""
        from tvm.s_tir import meta_schedule as ms

        results = {trace: seconds for trace, seconds in known if trace not in self.told}
        self.told.update(results)
        batch = list(self.waiting.items())
        older = [(t, s) for t, s in results.items() if t not in self.waiting]
        outcome = [_result(results.get(trace, FAILED)) for trace, _ in batch]
        if batch:
            self._context.notify_runner_results([c for _, c in batch], outcome)
            self._commit([(c.sch.trace, results.get(t, FAILED), c.args_info) for t, c in batch])
            self._model.update(self._context, [c for _, c in batch], outcome)
        replayed = [(made, s) for made, s in ((self._replay(t), s) for t, s in older) if made is not None]
        if replayed:
            info = ms.arg_info.ArgInfo.from_entry_func(self._module, remove_preproc=True)
            self._commit([(sch.trace, s, info) for sch, s in replayed])
            candidates = [ms.search_strategy.MeasureCandidate(sch, info) for sch, _ in replayed]
            self._model.update(self._context, candidates, [_result(s) for _, s in replayed])

    def _commit(self, rows: Sequence[tuple[Any, float, Any]]) -> None:
        from tvm.s_tir import meta_schedule as ms

        for trace, seconds, info in rows:
            if seconds < FAILED:
                record = ms.database.TuningRecord(trace, self._workload, [seconds], self._target, info)
                self._database.commit_tuning_record(record)

    def _replay(self, trace: str) -> Any | None:
        from tvm.s_tir import Schedule

        from tvmopt.scheduling.replay import Replay

        sch = Schedule(self._module)
        try:
            Replay(trace).apply(sch)
        except Exception:  # of another TVM's rules: the search does without
            return None
        return sch


def _result(seconds: float) -> Any:
    from tvm.s_tir import meta_schedule as ms

    return ms.runner.RunnerResult([min(seconds, FAILED)], None)
