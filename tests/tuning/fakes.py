"""Tasks that cost nothing to measure: arithmetic in place of kernels - for tests of the tuner itself.

As a program, `python -m tests.tuning.fakes STORE LOG TRIALS SEED` is a tuner that writes a line to LOG for every
measurement it starts and one for every measurement it finished and stored.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tvmopt.scheduling.family import Space
from tvmopt.targets import Machine
from tvmopt.tuning.effort import Kernel
from tvmopt.tuning.measure import Measurement
from tvmopt.tuning.record import Candidate, Key, Record
from tvmopt.tuning.search import Budget, State, Tuner
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import Task

MACHINE = Machine("m", "llvm", "znver5", cores=2)


def task(name: str, space: Space | None = None, weight: float = 1.0) -> Task:
    """A task whose floor is 1 us."""
    space = space or Space({"a": tuple(range(1, 17)), "b": tuple(range(1, 17)), "c": (1, 2, 4, 8)})
    key = Key(name, "llvm znver5 2c -", "0.27", "fake", 1)
    kernel = Kernel(name, "", "fake", MACHINE, (), 1, space.analytic)
    return Task(name, key, space, kernel, weight, floor=1e-6, features={"n": float(len(name))})


def model_seconds(candidate: Candidate) -> float:
    """A smooth bowl with its best point at a=11, b=6, c=4: 2 us; the analytic point takes about 6 us."""
    k = candidate.knobs
    return 1e-6 * (2 + ((k["a"] - 11) / 6) ** 2 + ((k["b"] - 6) / 4) ** 2 + abs(k["c"] - 4) / 4)


class FakeRunner:
    """Measures by `model_seconds`; `noise` is the relative spread of single samples."""

    def __init__(self, seconds: float = 0.0, noise: float = 0.01, log: Path | None = None, seed: int = 0) -> None:
        self.delay, self.noise, self.log, self.draw = seconds, noise, log, random.Random(seed)
        self.measured: list[str] = []
        self.comparisons = 0

    def seconds(self, task: Task, candidate: Candidate) -> float:
        return model_seconds(candidate)

    def status(self, task: Task, candidate: Candidate) -> str:
        return "ok"

    def prepare(self, task: Task) -> None: ...

    def sample(self, task: Task, candidate: Candidate) -> float:
        return self.seconds(task, candidate) * (1 + abs(self.draw.gauss(0, self.noise)))

    def measure(self, task: Task, candidates: Sequence[Candidate], best: float) -> Iterator[Measurement]:
        for candidate in candidates:
            time.sleep(self.delay)
            self.measured.append(f"{task.name} {candidate.id}")
            status = self.status(task, candidate)
            samples = tuple(self.sample(task, candidate) for _ in range(8)) if status == "ok" else ()
            base = sorted(self.sample(task, task.analytic) for _ in range(8))[2]
            yield Measurement(candidate, status, samples, baseline=base)

    def compare(self, task: Task, first: Candidate, second: Candidate) -> list[tuple[float, float]] | None:
        self.comparisons += 1
        if self.status(task, second) != "ok":
            return None
        return [(self.sample(task, first), self.sample(task, second)) for _ in range(30)]

    def close(self) -> None: ...


class Liar(FakeRunner):
    """Half of the candidates give wrong output; they would be ten times faster. Some crash, some hang."""

    def status(self, task: Task, candidate: Candidate) -> str:
        a = candidate.knobs["a"]
        return "wrong" if a % 2 == 0 else "crash" if a == 7 else "timeout" if a == 9 else "ok"

    def seconds(self, task: Task, candidate: Candidate) -> float:
        return model_seconds(candidate) / (10 if candidate.knobs["a"] % 2 == 0 else 1)


class Logger:
    """Appends a line for each measurement that reached the store."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def started(self, tuner: Tuner) -> None: ...
    def judged(self, *args: object) -> None: ...
    def finished(self, tuner: Tuner) -> None: ...

    def measured(self, tuner: Tuner, state: State, record: Record) -> None:
        self._file.write(f"{state.task.name} {record.candidate.id}\n")


def main(store: str, log: str, trials: str, seed: str) -> None:
    runner = FakeRunner(seconds=0.002)
    with Store(store) as opened:
        tasks = [task("one", weight=3.0), task("two")]
        tuner = Tuner(tasks, runner, opened, Budget(int(trials)), seed=int(seed), observer=Logger(Path(log)))
        tuner.run()
        print(tuner.trials, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
