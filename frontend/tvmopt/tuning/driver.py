"""`tvmopt.tune`: from an ONNX model to records in the store, and the proof that they made the model faster."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tvmopt import ending
from tvmopt.amounts import check_seed
from tvmopt.analysis.samples import sample_inputs
from tvmopt.children import Progress
from tvmopt.dims import Shapes, is_open
from tvmopt.errors import InputError, TuningError
from tvmopt.runtime.library import cuda_architecture
from tvmopt.runtime.tensors import TensorInfo
from tvmopt.targets import Machine
from tvmopt.targets.detect import usable_cores
from tvmopt.targets.precision import check as check_precision
from tvmopt.tuning.compare import model_verdict
from tvmopt.tuning.effort import Effort
from tvmopt.tuning.record import Verdict
from tvmopt.tuning.search import BATCH, Budget, Generic, Observer, State, Tuner
from tvmopt.tuning.statistics import median
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task


@dataclass(frozen=True)
class Tuned:
    """One task after tuning.

    Attributes:
        calls: in one inference. seconds: of the analytic schedule, one call. ratio: of the winner to it; 1:
            none won.
        trials: measured candidates. share: of the model's estimated time.
        nodes: the ONNX nodes it computes.
        note: why it could not be tuned, if so.
    """

    name: str
    family: str
    shape: str
    calls: float
    seconds: float
    ratio: float
    knobs: str
    trials: int
    share: float
    nodes: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class TuningResult:
    """What one `tune` did.

    Attributes:
        trials, elapsed: of the session, all its runs together; `resumed`: trials known when this run began.
        estimate: seconds of one inference from the kernels' times: untuned, tuned.
        model: the tuned model against the untuned one, both run in turn; None: not asked for, or nothing to
            compare.
        onnxruntime: seconds of one inference before tuning began, median; 0: not measured.
        curve: (trials, seconds spent, estimated seconds of one inference) as this run went on.
        spent: why this run measured nothing, in words; "" if it did. The winners are those of the run before then.
        warnings: what a user should know of the store.
    """

    session: str
    store: Path
    target: str
    trials: int
    resumed: int
    elapsed: float
    estimate: tuple[float, float]
    tasks: tuple[Tuned, ...]
    model: Verdict | None = None
    onnxruntime: float = 0.0
    interrupted: bool = False
    curve: tuple[tuple[int, float, float], ...] = ()
    spent: str = ""
    warnings: tuple[str, ...] = ()


def tune(
    model: str | Path,
    *,
    target: str | Path | Machine = "cpu",
    precision: str = "fp32",
    trials: int | None = None,
    budget: str | float | None = None,
    shape: Shapes | None = None,
    threads: int | None = None,
    seed: int = 0,
    store: str | Path | None = None,
    generic: bool = True,
    compare: bool = True,
    only: str = "",
    session: str = "",
    runner: Any = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Tune a model's kernels for a target; go on where an earlier run, ended or killed, stood.

    Args:
        model: the ONNX file.
        precision: as for `tvmopt.compile`: another precision has other kernels.
        trials: measured candidates, all runs of this model together. budget: seconds of the search, or "90m", "2h",
            "1d"; the comparison at the end is not counted. Neither: 64 trials a kernel.
        seed: of every random choice.
        store: the tuning store; default: the user's.
        generic: search MetaSchedule's space beside the families' knobs.
        compare: run tuned and untuned model in turn at the end.
        only: tune kernels whose name, or one of whose ONNX nodes, contains this.
        session: whose budget is used; default: one per model and target.
        runner: measures; default: this machine.
        observer: is told of every measurement.

    Raises:
        InputError: a budget that cannot be read or is 0, a name that no kernel has, a precision the target lacks.
        TuningError: the store cannot be used; the target is another machine's and no runner was given.
    """
    check_seed(seed)
    limits = _limits(trials, budget)
    machine = Machine.load(target).with_threads(threads)
    check_precision(precision, machine)
    own = runner is None
    if own:
        refuse_foreign(machine)
    tell = progress or (lambda stage: None)
    tell("importing")
    sizes = sizes_of(model, shape or {})
    module = module_at(model, sizes)
    peer = onnxruntime_seconds(model, sizes.shapes, cpu_threads(machine)) if own else 0.0
    tell("optimizing the graph")
    tasks = choose(tasks_of(module, machine, precision), only)
    limits = limits or Budget(64 * len(tasks))
    runner = runner if runner is not None else _local(machine, tasks)
    if getattr(runner, "effort", 0) is None:  # whoever made it did not know the tasks
        runner.effort = _effort(machine, tasks)
    second = _generic(machine, seed, runner) if generic else None
    try:
        with Store(store) as opened:
            tuner = Tuner(
                tasks, runner, opened, limits, session=session, model=Path(model).name, seed=seed,
                generic=second, observer=observer, peer=peer, batch=max(BATCH, getattr(runner, "batch", BATCH)),
            )  # fmt: skip
            spent = _spent(tuner)
            outcome, interrupted = None, not _searched(tuner)
            if compare and own and not interrupted:  # elsewhere measured, elsewhere to be compared
                outcome = _judged(module, machine, tuner, tell, precision)
            idle = tuner.trials == tuner.resumed and not interrupted
            found = result(tuner, outcome, interrupted)
            return replace(found, spent=spent if idle else "", warnings=(*sizes.notes, *found.warnings))
    finally:
        if second is not None:
            second.close()
        if own:
            runner.close()


def _spent(tuner: Tuner) -> str:
    """Why nothing will be measured, if nothing will."""
    if tuner.share_left > 0:
        return "nothing is left to measure: every point of these kernels is known"
    known = f"{tuner.trials} of {tuner.budget.trials} trials" if tuner.budget.trials else ""
    known = known or f"{tuner.seconds:.0f} of {tuner.budget.seconds:.0f} s"
    return f"the budget is spent ({known}, all runs together): nothing was measured; a larger one goes on from here"


def _judged(module: Any, machine: Machine, tuner: Tuner, tell: Progress, precision: str) -> Verdict | None:
    """The model's verdict. Where nothing was measured since the last one, that one: judging the same candidates again
    would choose among equals by chance."""
    known = tuner.store.facts(tuner.session).get("judged")
    if known and known["trials"] == tuner.trials == tuner.resumed:
        verdict = known.get("verdict")  # the store keeps no key whose value is None
        return Verdict(**verdict) if verdict else None
    tell("comparing the tuned model with the untuned one" + (", beyond the budget" if tuner.budget.seconds else ""))
    found = model_verdict(module, machine, tuner, tell, precision)
    kept = asdict(found) if found else None
    tuner.store.tell(tuner.session, {"judged": None})  # a patch keeps what it does not name
    tuner.store.tell(tuner.session, {"judged": {"trials": tuner.trials, "verdict": kept}})
    return found


def _limits(trials: int | None, budget: str | float | None) -> Budget | None:
    """What was asked for; None if nothing was.

    Raises:
        InputError: it allows nothing to be measured.
    """
    seconds = None if budget is None else parse_duration(budget)
    for flag, limit, example in (("--trials", trials, "500"), ("--budget", seconds, "90m")):
        if limit is not None and limit <= 0:
            fix = f"{flag} {example}; without it 64 candidates a kernel are measured"
            raise InputError(f"with {flag} {limit:g} nothing would be measured.", where=flag, fix=fix)
    return None if trials is None and seconds is None else Budget(trials or 0, seconds or 0.0)


def _searched(tuner: Tuner) -> bool:
    """Whether the search ran to its end: Ctrl-C ends it early, and what was measured stays."""
    try:
        tuner.run()
    except KeyboardInterrupt:
        return False
    except Exception:  # what TVM's FFI makes of Ctrl-C
        if not ending.interrupted():
            raise
        return False
    return True


@dataclass(frozen=True)
class Sizes:
    """The sizes at which a model is tuned.

    Attributes:
        shapes: of its inputs. bound: the inputs that have open sizes, which are bound to the named ones.
    """

    shapes: dict[str, tuple[int, ...]]
    bound: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """That kernels of these sizes are used where these are known alone."""
        if not self.bound:
            return ()
        words = " ".join(f"--shape {shlex.quote(n)}:{'x'.join(map(str, self.shapes[n]))}" for n in self.bound)
        return (f"kernels of open sizes are not tuned, these have known ones: compile the model with {words}",)


def sizes_of(model: str | Path, shape: Shapes) -> Sizes:
    """The sizes of an ONNX file, open ones as they are named."""
    from tvmopt.importer import load, prepare
    from tvmopt.importer.prepare import at_named
    from tvmopt.importer.protos import input_shapes, open_shape

    loaded = load(model)
    prepared = prepare(loaded, shape)
    static = at_named(loaded, prepared)
    bound = [v.name for v in prepared.graph.input if is_open(open_shape(v.type) or ())]
    return Sizes(input_shapes(static), tuple(bound))


def imported_module(model: str | Path, shape: Shapes, tell: Progress | None = None) -> Any:
    """The Relax module of an ONNX file, open sizes at the named ones."""
    if tell:
        tell("importing")
    return module_at(model, sizes_of(model, shape))


def module_at(model: str | Path, sizes: Sizes) -> Any:
    """The Relax module of an ONNX file at these sizes."""
    from tvmopt.importer import import_model

    return import_model(model, sizes.shapes).module


def cpu_threads(machine: Machine) -> int:
    """Threads for work on this machine's CPU: the target's cores, if the target is a CPU."""
    return machine.cores if machine.kind == "llvm" else int(usable_cores())


def onnxruntime_seconds(
    model: str | Path, shapes: Mapping[str, tuple[int, ...]], threads: int, runs: int = 15
) -> float:
    """Median of one inference in onnxruntime, for orientation: not in turn with anything; 0 if it cannot run it.

    Args:
        shapes: of the inputs, as they are tuned.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        infos = [TensorInfo(i.name, shapes[i.name], i.type.removeprefix("tensor(").rstrip(")"))
                 for i in session.get_inputs()]  # fmt: skip
        names = {"float": "float32", "double": "float64"}
        feeds = sample_inputs([replace(i, dtype=names.get(i.dtype, i.dtype)) for i in infos])
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - start)
    except Exception:  # it is a figure to look at, and no reason not to tune
        return 0.0
    return median(times)


def tasks_of(module: Any, machine: Machine, precision: str = "fp32") -> list[Task]:
    """The tasks of a Relax module: the kernels that `compile` would build, the most expensive first."""
    from tvmopt import pipeline
    from tvmopt.tuning.tasks import extract

    return extract(pipeline.lower(module, machine, precision=precision), machine)


def choose(tasks: Sequence[Task], only: str) -> list[Task]:
    """Those whose name, or one of whose nodes, contains `only`.

    Raises:
        InputError: there is none.
    """
    found = [t for t in tasks if not only or only in t.name or any(only in n for site in t.nodes for n in site)]
    if not found:
        what = f"no kernel is called {only!r}" if only else "the model has no kernel to tune"
        raise InputError(what, fix="`tvmopt tune MODEL --list-tasks` shows them")
    return found


def parse_duration(text: str | float) -> float:
    """Seconds.

    >>> parse_duration("90m"), parse_duration("2h"), parse_duration("1.5"), parse_duration("1h30m")
    (5400.0, 7200.0, 1.5, 5400.0)

    Raises:
        InputError: it is not a duration.
    """
    words = str(text).strip()
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
    part = r"([0-9]+(?:\.[0-9]+)?)\s*([dhms]?)"
    parts = re.findall(part, words)
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    if not parts or re.sub(part, "", words).strip() or math.isinf(seconds):
        raise InputError(f"{words!r} is not a duration", where="--budget", fix="90m, 2h, 1h30m, or seconds")
    return seconds


def refuse_foreign(machine: Machine) -> None:
    """A kernel is measured where it runs.

    Raises:
        TuningError: this machine lacks the target's instructions, or has no GPU for it.
    """
    missing = ", ".join(sorted(set(machine.features) - set(Machine.load("cpu").features)))
    if machine.kind == "cuda":
        missing = _missing_gpu(machine.mcpu, cuda_architecture())
    if missing:
        raise TuningError(
            f"this machine cannot measure for {machine.name}: it lacks {missing}",
            fix="measure on one that has it: --rpc-tracker HOST:PORT --rpc-key KEY, or --ray ADDRESS "
            "(docs/how-to/device-farm.md); --list-tasks works anywhere",
        )


def _missing_gpu(wanted: str, here: str) -> str:
    """What a GPU lacks to run code for another architecture; "" if it can.

    Code for sm_80 runs on sm_86, not on sm_90; code for sm_90a on sm_90 only.

    >>> [_missing_gpu("sm_80", here) for here in ("sm_80", "sm_86", "sm_90", "")]
    ['', '', 'sm_80 (its GPU is sm_90)', 'sm_80 (it has no GPU that can be used)']
    >>> _missing_gpu("sm_90a", "sm_90"), _missing_gpu("sm_120", "sm_100")
    ('', 'sm_120 (its GPU is sm_100)')
    """
    if not here:
        return f"{wanted} (it has no GPU that can be used)"
    asked, found = (int(re.sub(r"\D", "", name)) for name in (wanted, here))
    exact = wanted[-1] in "af"
    same = asked == found if exact else asked // 10 == found // 10 and asked <= found
    return "" if same else f"{wanted} (its GPU is {here})"


def result(tuner: Tuner, model: Verdict | None = None, interrupted: bool = False) -> TuningResult:
    """The state of a tuner in words."""
    base, best = tuner.latency
    heaviest = sorted(tuner.states, key=lambda s: -s.task.weight * s.analytic_seconds)
    tasks = tuple(_tuned(s, base) for s in heaviest)
    target = tuner.states[0].task.key.target if tuner.states else ""
    return TuningResult(
        tuner.session, tuner.store.path, target, tuner.trials, tuner.resumed, tuner.seconds, (base, best),
        tasks, model, tuner.peer, interrupted, tuple(tuner.curve), warnings=tuple(tuner.store.warnings),
    )  # fmt: skip


def _tuned(state: State, total: float) -> Tuned:
    task, winner = state.task, state.winner
    nodes = tuple("+".join(site) for site in task.nodes)
    share = task.weight * state.analytic_seconds / (total or 1.0)
    knobs = str(winner.candidate) if winner else ""
    return Tuned(task.name, task.key.family, task.shape, task.weight, state.analytic_seconds, state.ratio,
                 knobs, len(state.records), share, nodes, state.broken)  # fmt: skip


def _local(machine: Machine, tasks: Sequence[Task]) -> Any:
    from tvmopt.tuning.measure import LocalRunner

    return LocalRunner(machine, effort=_effort(machine, tasks))


def _effort(machine: Machine, tasks: Sequence[Task]) -> Effort:
    """Measure with weights where the model finds them: in memory, or in L3 if they all fit."""
    touched = sum(t.bytes * max(1, len(t.names)) for t in tasks)
    return Effort(flush="memory" if touched > machine.l3 else "l3")


def _generic(machine: Machine, seed: int, runner: Any) -> Generic | None:
    from tvmopt.tuning.generic_space import MetaScheduleSpace

    return MetaScheduleSpace(runner, seed) if hasattr(runner, "fork") else None
