"""`tvmopt logs verify`: are the winners still right? Each is built again and its output compared with the
unscheduled kernel's; a log without workloads is checked for what can be checked: family, version, knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmopt.errors import TuningError, first_line
from tvmopt.targets import Machine
from tvmopt.tuning.logs import pruned, read_log_file
from tvmopt.tuning.record import Record, fingerprint, tvm_version
from tvmopt.tuning.store import Store


@dataclass(frozen=True)
class Check:
    """One record checked. `verdict`: "right", "wrong", "broken" (it no longer builds), "stale" or "not checked"."""

    workload: str
    family: str
    shape: str
    knobs: str
    verdict: str
    note: str = ""


def verify_store(path: Path | None = None, machine: Machine | None = None) -> list[Check]:
    """Check every winner of a store; those of other machines cannot be run here. Damaged rows are broken ones."""
    machine = machine or Machine.load("cpu")
    with Store(path, must_exist=True) as store:
        records = pruned(store.records())
        checks = _verify(records, {r.key.workload: store.workload(r.key.workload) for r in records}, machine)
        return checks + [Check("", "", "", "", "broken", warning) for warning in store.warnings]


def verify_logs(paths: Sequence[Path], machine: Machine | None = None, store: Path | None = None) -> list[Check]:
    """Check log files: they carry no workloads, so outputs are compared only where the store has them.

    Args:
        store: in place of the user's, which need not be there.
    """
    from tvmopt.tuning.store import default_path

    records = [r for path in paths for r in read_log_file(path).records]
    modules: dict[str, str | None] = {}
    if store is not None or default_path().exists():
        with Store(store, must_exist=True) as opened:
            modules = {r.key.workload: opened.workload(r.key.workload) for r in records}
    return _verify(pruned(records), modules, machine or Machine.load("cpu"))


def _verify(records: Sequence[Record], modules: dict[str, str | None], machine: Machine) -> list[Check]:
    from tvmopt.tuning.measure import LocalRunner

    checks = []
    with LocalRunner(machine, workers=1) as runner:
        for record in sorted(records, key=lambda r: (r.key, r.candidate.id)):
            verdict, note = _one(record, modules.get(record.key.workload), machine, runner)
            key = record.key
            checks.append(Check(key.workload, key.family, record.shape, str(record.candidate), verdict, note))
    return checks


def _one(record: Record, module: str | None, machine: Machine, runner: object) -> tuple[str, str]:
    from tvmopt.scheduling.discover import families
    from tvmopt.tuning.measure import LocalRunner
    from tvmopt.tuning.tasks import task_of

    assert isinstance(runner, LocalRunner)
    if record.key.tvm != tvm_version():
        return "stale", f"made with TVM {record.key.tvm}"
    kind = record.key.target.split()[0]
    family = next((f for f in families(kind) if record.key.family == f.NAME), None)
    if family is None or record.key.version != family.VERSION:
        return "stale", f"family {record.key.family} {record.key.version} is not here"
    if record.key.target != fingerprint(machine):
        return "not checked", f"for {record.key.target}"
    if module is None:
        return "not checked", "the store does not have its workload"
    task = task_of(module, record.key, machine)
    if task is None:
        return "stale", "the family does not recognise the workload"
    if not record.candidate.trace and record.candidate.knobs not in task.space:
        return "stale", "its knobs are not in the family's space"
    try:
        runner.prepare(task)
    except TuningError as error:
        return "not checked", error.what
    outcome = next(iter(runner.measure(task, [record.candidate], 1.0)))
    verdict = {"ok": "right", "wrong": "wrong"}.get(outcome.status, "broken")
    return verdict, first_line(outcome.note)
