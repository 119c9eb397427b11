"""One night: tune, compile, verify and time each job of a plan; what became slower is in its entry.

A lock keeps two nights apart; a night that was killed goes on where it stood when it is started again on the same date.
"""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from tvmopt.children import Progress
from tvmopt.errors import TuningError, TvmoptError, first_line
from tvmopt.files import make_folder
from tvmopt.nightly.history import Change, Entry, KernelFigures, changes
from tvmopt.nightly.plan import Job, Plan
from tvmopt.nightly.report import write_report
from tvmopt.targets import Machine
from tvmopt.tuning.disturbance import RunDelay
from tvmopt.tuning.disturbance import timed as clean_time
from tvmopt.tuning.logs import export_logs, import_logs
from tvmopt.tuning.record import fingerprint
from tvmopt.tuning.store import Store

CLEAN = 6
"""The least number of undisturbed rounds, as in `bench`."""

PATIENCE = 4
"""Rounds are played until this many times those wanted were."""


class Regression(TvmoptError):
    """Something became slower beyond noise, or a job failed."""

    exit_code = 4


@dataclass(frozen=True)
class Night:
    """What one night did: an entry a job, and where the report is."""

    night: str
    entries: tuple[Entry, ...]
    report: Path
    resumed: tuple[str, ...] = ()

    @property
    def problems(self) -> list[Regression]:
        """Every regression and failure, as errors."""
        found = []
        for e in self.entries:
            if e.status == "failed":
                found.append(Regression(f"{e.job} failed: {e.note}", where=str(self.report)))
            slow = [c for c in e.changes if c.slower]
            found += [Regression(f"{e.job}: {c}", where=str(self.report)) for c in slow if e.status == "slower"]
        return found


def nightly(plan: Plan, *, night: str = "", progress: Progress | None = None) -> Night:
    """Run tonight's jobs, write history and reports.

    Args:
        night: the date; default: today's. Jobs that have a line of this date are not run again.

    Raises:
        TuningError: another nightly run holds the lock.
    """
    tell = progress or (lambda stage: None)
    night = night or datetime.now().astimezone().date().isoformat()
    make_folder(plan.folder)
    with locked(plan.folder / "lock"):
        with Store(plan.store) as store:
            files = [f for pattern in plan.merge for f in sorted(plan.path.parent.glob(pattern))]
            import_logs(store, files)
        entries, resumed = [], []
        for job in plan.jobs:
            entry = plan.history.done(night, job.name)
            if entry is not None:
                resumed.append(job.name)
            else:
                entry = run_job(plan, job, night, partial(_told, tell, job.name))
                plan.history.append(entry)
            entries.append(entry)
        if plan.export:
            with Store(plan.store) as store:
                export_logs(store, Path(plan.export))
        report = write_report(plan, night, entries)
    return Night(night, tuple(entries), report, tuple(resumed))


def _told(tell: Progress, name: str, stage: str) -> None:
    tell(f"{name}: {stage}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel drops it with the process, however that ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TuningError("another nightly run is at work", where=str(path), fix="wait for it to end") from error
        yield


def run_job(plan: Plan, job: Job, night: str, tell: Progress) -> Entry:
    """Tune, compile and verify, time, compare with the last good night. A job that fails is an entry, not an end."""
    machine = Machine.load(job.target).with_threads(job.threads)
    entry = Entry(night, job.name, "ok", fingerprint(machine), versions=versions())
    try:
        trials = _tune(plan, job, machine, night, tell)
        tell("compiling and verifying")
        entry = replace(entry, trials=trials, **_verified(plan, job, machine))
        tell("timing")
        entry = replace(entry, **timed(job, machine, plan.store, entry.kernels))
        before = plan.history.reference(job.name, night, entry.target)
        if before is None or entry.status == "unstable":
            return entry
        found = changes(before, entry, plan.tolerance)
        if any(c.slower for c in found):  # once more: what was noise does not come twice
            tell("timing again")
            again = replace(entry, **timed(job, machine, plan.store, entry.kernels))
            if again.status == "unstable":
                return again
            found = _confirmed(found, changes(before, again, plan.tolerance))
        status = "slower" if any(c.slower for c in found) else "ok"
        return replace(entry, changes=tuple(found), status=status)
    except TvmoptError as error:
        return replace(entry, status="failed", note=first_line(error))


def _confirmed(first: list[Change], second: list[Change]) -> list[Change]:
    names = {c.what for c in second if c.slower}
    return [c for c in first if not c.slower or c.what in names]


def _tune(plan: Plan, job: Job, machine: Machine, night: str, tell: Progress) -> int:
    from tvmopt.tuning.driver import parse_duration, tune

    if not job.trials and not parse_duration(job.budget):
        return 0
    found = tune(
        job.model, target=machine, precision=job.precision, trials=job.trials or None,
        budget=job.budget if parse_duration(job.budget) else None, shape=job.shape,
        seed=_seed(job.seed, night), store=plan.store, generic=job.generic,
        session=f"{night} {job.name}", progress=tell,
    )  # fmt: skip
    return found.trials


def _seed(seed: int, night: str) -> int:
    """Another every night."""
    return int(hashlib.sha256(f"{seed} {night}".encode()).hexdigest()[:8], 16)


def _verified(plan: Plan, job: Job, machine: Machine) -> dict[str, Any]:
    from tvmopt.api import compile

    compiled = compile(
        job.model, target=machine, precision=job.precision, shape=job.shape, store=plan.store, verify=True
    )
    report = compiled.report
    kernels = {}
    for k in report.kernels:
        knobs = " ".join(f"{name}={value}" for name, value in k.knobs.items())
        nodes = tuple("+".join(site) for site in k.nodes)
        kernels[k.name] = KernelFigures((), k.family, k.source, knobs, nodes)
    error = float(report.accuracy.get("max_relative_error", 0.0))
    return {"kernels": kernels, "tuned": sum(k.source == "tuned" for k in report.kernels), "accuracy": error}


def timed(
    job: Job, machine: Machine, store: Path, kernels: dict[str, KernelFigures], rounds: int = 25
) -> dict[str, Any]:
    """Samples of the model, of each kernel inside it, and of the probe, taken in turn.

    As in `bench`, a round counts if nothing else used the processor during it. Where too few do after four times
    `rounds`, the figures are those of all, and the status is "unstable".
    """
    from tvmopt.tuning.driver import imported_module
    from tvmopt.tuning.instance import Instance
    from tvmopt.tuning.logs import RecordLookup

    module = imported_module(job.model, job.shape)
    instance = Instance(module, machine, RecordLookup.default(machine, store), job.precision)
    for _ in range(3):
        instance.run()
    delay, samples, clean = RunDelay(), list[_Sample](), list[_Sample]()
    while len(clean) < rounds and len(samples) < PATIENCE * rounds:
        took, fine = clean_time(instance.run, delay)
        samples.append((took, instance.profile(), probed()))
        clean += samples[-1:] if fine else []
    told: dict[str, Any] = {}
    if len(clean) < min(CLEAN, rounds):
        others = len(samples) - len(clean)
        told = {"status": "unstable", "note": f"something else used the processor in {others} of {len(samples)} rounds"}
    seconds, profiles, probe = zip(*(samples if told else clean), strict=True)
    figures = {name: replace(k, seconds=tuple(p[name] for p in profiles if name in p)) for name, k in kernels.items()}
    return {"seconds": seconds, "probe": probe, "kernels": figures, **told}


_Sample = tuple[float, dict[str, float], float]  # of the model, its kernels, the probe


_BLOCK = bytes(1 << 20)


def probed() -> float:
    """Seconds of a fixed piece of work that no change of ours can touch."""
    start = time.perf_counter()
    hashlib.sha256(_BLOCK).digest()
    return time.perf_counter() - start


def versions() -> dict[str, str]:
    """Of what can change a figure."""
    from importlib.metadata import version

    return {name: version(name) for name in ("tvmopt", "apache-tvm", "apache-tvm-ffi")}
