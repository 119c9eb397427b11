"""Measuring on the machines of a Ray cluster, all at once: `tvmopt tune MODEL --ray ADDRESS`.

    driver: the search, the store   --candidates-->   on each machine an actor with a `LocalRunner`, which builds and
                                    <-measurements-   measures

The machines must be equal: a record says how fast a kernel is on one kind of machine. Each is asked what it is, and one
that differs is refused by name. An actor takes all processors of its machine, so Ray runs nothing else there. The store
stays with the driver; a machine that goes away takes nothing with it: what it had not finished is measured on
another. Machines that join are used from the next batch on.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvmopt
from tvmopt.errors import InputError, MissingDependency, TuningError, last_line
from tvmopt.targets import Machine
from tvmopt.tuning.effort import Effort, Kernel
from tvmopt.tuning.measure import ForkServer, LocalRunner, Measurement, Worker
from tvmopt.tuning.record import Candidate, Key, fingerprint, host_name, tvm_version

if TYPE_CHECKING:
    from tvmopt.tuning.tasks import Task

LOCAL = "local"
"""In place of a cluster's address: a cluster of this machine alone, which ends with the process."""

TRIES = 3
"""Machines with which a candidate may be lost before it is believed to be its own fault."""

PATIENCE = 60.0
"""Seconds to wait for a machine when all have gone."""


@dataclass(frozen=True)
class Facts:
    """What a machine says of itself; a difference in any of them is another kind of machine.

    Attributes:
        processor: its name of itself. target: see `record.fingerprint`.
    """

    processor: str
    target: str
    tvm: str
    tvmopt: str

    def differences(self, other: Facts) -> str:
        """In words, this one's first; "" where they are equal."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return ", ".join(f"{name} {mine!r}, not {its!r}" for name, mine, its in pairs if mine != its)


@dataclass(frozen=True)
class Work:
    """What a machine needs to know of a task: `Task` without the search."""

    name: str
    key: Key
    kernel: Kernel


class Measurer:
    """The actor on a machine.

    Args:
        target: as `tvmopt tune` has it; "cpu" is the machine itself. cores: of Ray's processors there.
        options: of `LocalRunner`.
    """

    def __init__(self, target: Any, threads: int | None, cores: int, options: Mapping[str, Any]) -> None:
        from tvmopt.tuning.driver import refuse_foreign

        machine = Machine.load(target)
        self.machine = (machine.with_cores(min(cores, machine.cores)) if target == "cpu" else machine).with_threads(
            threads
        )
        refuse_foreign(self.machine)
        self._runner = LocalRunner(self.machine, **options)

    def facts(self) -> tuple[Facts, Machine]:
        return Facts(host_name(), fingerprint(self.machine), tvm_version(), tvmopt.__version__), self.machine

    def prepare(self, work: Any) -> None:
        self._runner.prepare(work)

    def measure(self, work: Any, candidates: Sequence[Candidate], best: float, effort: Effort) -> Iterator[Measurement]:
        """One after the other, each as soon as it is finished."""
        self._runner.prepare(work)
        self._runner.effort = effort
        yield from self._runner.measure(work, candidates, best)

    def compare(self, work: Any, first: Candidate, second: Candidate, effort: Effort) -> Any:
        self._runner.prepare(work)
        self._runner.effort = effort
        return self._runner.compare(work, first, second)

    def close(self) -> None:
        self._runner.close()


@dataclass
class RayRunner:
    """A `Runner` on the machines of a cluster.

    Args:
        target, threads: as for `tvmopt.tune`. tell: takes a line about machines that come, go or are refused.
        effort: of one measurement; None: the driver's choice. options: of the `LocalRunner` on each machine.

    Attributes:
        machine: what all of them are. host: their processor.
        machines: the actors in use, by the name of their node. refused: why others are not.
    """

    target: str | Path | Machine = "cpu"
    threads: int | None = None
    tell: Callable[[str], None] = lambda text: None
    options: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort | None = None
    host: str = field(default="", init=False)
    machine: Machine = field(init=False)
    facts: Facts | None = field(default=None, init=False)
    machines: dict[str, Any] = field(default_factory=dict, init=False)
    refused: dict[str, str] = field(default_factory=dict, init=False)
    _own: bool = field(default=False, init=False)
    _fork_server: ForkServer | None = field(default=None, init=False)

    @classmethod
    def connect(
        cls, target: str | Path | Machine, address: str, threads: int | None = None, **options: Any
    ) -> RayRunner:
        """A runner on all machines of a cluster.

        Args:
            address: of the cluster, "auto" for the one that this machine belongs to, or :data:`LOCAL`.

        Raises:
            InputError: there is no such cluster. MissingDependency: Ray is not installed.
            TuningError: the machines are not equal, or lack what the target needs.
        """
        if find_spec("ray") is None:
            raise MissingDependency("Ray is not installed.", fix="pip install 'tvmopt[ray]'")
        if target != "cpu" and Machine.load(target).kind != "llvm":
            raise InputError(
                "a Ray cluster measures on processors only.",
                where="--ray", fix="GPUs are reached by --rpc-tracker (docs/how-to/device-farm.md)",
            )  # fmt: skip
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # Ray sends statistics unless told; nothing of ours is sent
        import ray

        made = cls(target, threads, **options)
        if not ray.is_initialized():
            given: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
            try:
                ray.init(None if address == LOCAL else address, log_to_driver=False, **given)
            except (ConnectionError, ValueError) as error:
                raise InputError(
                    f"there is no Ray cluster at {address!r}: {error}", fix="`ray status` shows one"
                ) from None
            made._own = True
        try:
            made.join()
            if made.refused:
                others = "; ".join(f"{node}: {why}" for node, why in made.refused.items())
                raise TuningError(
                    f"the machines of the cluster are not equal to {', '.join(made.machines)}: {others}",
                    where="--ray", fix="tune each kind of machine on a cluster of its own: records are for one kind",
                )  # fmt: skip
            if not made.machines:
                raise TuningError(
                    "no machine of the cluster has a processor to measure on", where="--ray", fix="`ray status`"
                )
        except BaseException:
            made.close()
            raise
        return made

    # -- machines ------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Take machines that are new; leave those that are not equal to the first."""
        import ray

        nodes = {n["NodeName"] + ":" + n["NodeID"][:6]: n for n in ray.nodes() if n["Alive"]}
        self.refused = {name: why for name, why in self.refused.items() if name in nodes}
        fresh = {name: node for name, node in nodes.items() if name not in self.machines and name not in self.refused}
        begun = {
            name: self._start(node["NodeID"], int(node["Resources"].get("CPU", 0)))
            for name, node in sorted(fresh.items())
            if int(node["Resources"].get("CPU", 0)) > 0
        }
        for name, actor in begun.items():
            try:
                facts, machine = ray.get(actor.facts.remote(), timeout=PATIENCE)
                different = facts.differences(self.facts) if self.facts is not None else ""
            except ray.exceptions.RayTaskError as error:  # what its `__init__` says of the target
                different = str(error.cause if error.cause is not None else error)
            except ray.exceptions.GetTimeoutError:
                different = (
                    f"it has not started to measure within {PATIENCE:.0f} s; something else may use its processors"
                )
            except ray.exceptions.RayError as error:
                different = last_line(error)[:300]
            if different:
                self.refused[name] = different
                self.tell(f"{name} is not used: {different}")
                self._end(actor)
                continue
            if self.facts is None:
                self.facts, self.machine, self.host = facts, machine, facts.processor
            self.machines[name] = actor
            self.tell(f"{name} measures: {facts.processor}, {machine.cores} cores")

    def _start(self, node: str, cores: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        made = ray.remote(num_cpus=cores, scheduling_strategy=where)(Measurer)
        return made.remote(self.target, self.threads, cores, self.options)

    def _lose(self, name: str) -> None:
        if self.machines.pop(name, None) is not None:
            self.tell(f"{name} is gone: its candidates are measured on others")

    def _some(self) -> dict[str, Any]:
        """The machines that there are now.

        Raises:
            TuningError: for a long time there was none.
        """
        end = time.monotonic() + PATIENCE
        while True:
            self.join()
            if self.machines:
                return dict(self.machines)
            if time.monotonic() > end:
                raise TuningError(
                    "all machines of the cluster are gone", where="--ray", fix="start some, and go on: nothing is lost"
                )
            time.sleep(1.0)

    @staticmethod
    def _end(actor: Any) -> None:
        import ray

        with suppress(Exception):  # its machine may be gone
            ray.get(actor.close.remote(), timeout=5)
        with suppress(Exception):
            ray.kill(actor)

    def close(self) -> None:
        import ray

        for actor in self.machines.values():
            self._end(actor)
        self.machines.clear()
        if self._fork_server is not None:
            self._fork_server.close()
        if self._own:
            ray.shutdown()

    def fork(self) -> Worker:
        """A warm process on the driver, for the search of MetaSchedule's space."""
        if self._fork_server is None:
            self._fork_server = ForkServer(1)
        return self._fork_server.fork()

    @property
    def batch(self) -> int:
        """Candidates that keep all machines busy."""
        return 2 * sum(min(8, self.machine.cores) for _ in self.machines)

    # -- the Runner protocol -------------------------------------------------------------------------------------------

    def prepare(self, task: Task) -> None:
        self._asked(lambda actor: actor.prepare.remote(_work(task)))

    def compare(self, task: Task, first: Candidate, second: Candidate) -> list[tuple[float, float]] | None:
        found: list[tuple[float, float]] | None = self._asked(
            lambda actor: actor.compare.remote(_work(task), first, second, self.effort or Effort())
        )
        return found

    def _asked(self, call: Callable[[Any], Any]) -> Any:
        """The answer of one machine; of another where the first is lost."""
        import ray

        for attempt in range(TRIES):
            name, actor = next(iter(self._some().items()))
            try:
                return ray.get(call(actor))
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, TuningError) else error) from None
            except ray.exceptions.RayError:
                self._lose(name)
                if attempt + 1 == TRIES:
                    raise
        return None

    def measure(self, task: Task, candidates: Sequence[Candidate], best: float) -> Iterator[Measurement]:
        """On all machines at once; the order is that in which they finish."""
        batch = _Batch(task, candidates, best, self.effort or Effort(), max(1, min(8, self.machine.cores)))
        try:
            while batch.left:
                for name, actor in self._some().items():
                    batch.work_on(name, actor)
                kind, value = batch.found.get()
                if kind == "measured":
                    batch.left -= 1
                    yield value
                elif kind == "lost":
                    self._lose(value)
                elif kind == "failed":
                    raise value
        finally:
            batch.stop()


@dataclass
class _Batch:
    """Candidates on their way: a thread for each machine takes some, and gives back what its machine lost."""

    task: Task
    candidates: Sequence[Candidate]
    best: float
    effort: Effort
    size: int
    found: queue.SimpleQueue[tuple[str, Any]] = field(default_factory=queue.SimpleQueue)
    _lost: dict[str, int] = field(default_factory=dict)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _stops: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.candidates)
        self._todo = deque(self.candidates)
        self._changed = threading.Condition()

    def work_on(self, name: str, actor: Any) -> None:
        """Have a machine work on this batch, if it does not yet."""
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=self._run, args=(name, actor), daemon=True)
            self._threads[name].start()

    def stop(self) -> None:
        """Have the threads end after what their machines measure now."""
        with self._changed:
            self._stops = True
            self._changed.notify_all()

    def _run(self, name: str, actor: Any) -> None:
        while group := self._take():
            if not self._measured(name, actor, group):
                return

    def _take(self) -> list[Candidate]:
        """The next candidates; none at the end. While others measure, theirs may come back."""
        with self._changed:
            while not self._todo and self.left and not self._stops:
                self._changed.wait(0.5)
            if self._stops:
                return []
            count = min(self.size, -(-len(self._todo) // max(1, len(self._threads))))
            return [self._todo.popleft() for _ in range(count)]

    def _measured(self, name: str, actor: Any, group: list[Candidate]) -> bool:
        """Whether the machine is still there when it has measured them, or not."""
        import ray

        open_ = {c.id: c for c in group}
        try:
            call = actor.measure.options(num_returns="streaming")
            for reference in call.remote(_work(self.task), group, self.best, self.effort):
                measurement = ray.get(reference)
                del open_[measurement.candidate.id]
                self.found.put(("measured", measurement))
                if self._stops:
                    return False
        except ray.exceptions.RayTaskError as error:
            self.found.put(("failed", error.cause if isinstance(error.cause, TuningError) else error))
            return False
        except ray.exceptions.RayError:
            self._give_back(open_)
            self.found.put(("lost", name))
            return False
        return True

    def _give_back(self, open_: Mapping[str, Candidate]) -> None:
        with self._changed:
            for ident, candidate in open_.items():
                self._lost[ident] = self._lost.get(ident, 0) + 1
                if self._lost[ident] < TRIES:
                    self._todo.appendleft(candidate)
                else:
                    note = f"{TRIES} machines were lost while it was measured"
                    self.found.put(("measured", Measurement(candidate, "crash", note=note)))
            self._changed.notify_all()


def _work(task: Task) -> Work:
    return Work(task.name, task.key, replace(task.kernel, folder=""))
