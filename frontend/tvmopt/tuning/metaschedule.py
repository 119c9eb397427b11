"""MetaSchedule's databases and ours: import and export of its JSON files, and the store behind its Python interface.

A record of a MetaSchedule database is a trace on a workload, with times that nobody compared with anything: it
comes in as measured, without a verdict, and `compile` uses it once `tvmopt tune` has seen it win a final.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tvmopt.errors import TuningError, reason
from tvmopt.scheduling.discover import families
from tvmopt.scheduling.normalize import normalize
from tvmopt.scheduling.replay import trace_text
from tvmopt.targets import Machine
from tvmopt.tuning.record import Candidate, Key, Record, fingerprint, key_of, log_name, now
from tvmopt.tuning.record import shape_words as words
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import packed

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


# -- import ----------------------------------------------------------------------------------------


def import_database(store: Store, folder: Path, machine: Machine) -> int:
    """Take the records of a MetaSchedule work directory that are for `machine`; how many were new.

    A torn last line, at which TVM refuses the whole database, costs that line only.

    Raises:
        TuningError: the folder has no database, or all of its records are for other machines.
    """
    try:
        loads = [_workload(line) for line in (folder / WORKLOADS).read_text().splitlines()]
        lines = (folder / RECORDS).read_text().splitlines()
    except OSError as error:
        raise TuningError(
            f"not a MetaSchedule database: {reason(error)}",
            where=str(folder),
            fix=f"a folder with {WORKLOADS} and {RECORDS}, or one of such folders",
        ) from error
    found, others = [], 0
    for line in lines:
        try:
            index, (trace, seconds, target, _) = json.loads(line)
        except (ValueError, TypeError):
            continue
        module = loads[index] if index < len(loads) else None
        if module is None or not seconds:
            continue
        if not _same_machine(target, machine):
            others += 1
            continue
        record = _imported(store, module, trace, seconds, machine)
        if record is not None:
            found.append(record)
    if not found and others:
        raise TuningError(
            f"all {others} records are for other machines than {machine.name}",
            where=str(folder),
            fix="give the machine with --target",
        )
    return store.merge(found)


def _workload(line: str) -> Any:
    try:
        return ms.database.Workload.from_json(json.loads(line)).mod
    except Exception:  # torn, or of another TVM: whatever its reader raises
        return None


def _same_machine(target: dict[str, Any], machine: Machine) -> bool:
    cores = target.get("num-cores", machine.cores)
    cpu = target.get("mcpu") or target.get("arch")
    return (target.get("kind"), cpu, cores) == (machine.kind, machine.mcpu, machine.cores)


def _imported(store: Store, module: Any, trace: Any, seconds: Any, machine: Machine) -> Record | None:
    func = normalize(module["main"], machine)
    for family in families(machine.kind):
        shape = family.recognise(func, machine)
        if shape is not None:
            key = key_of(func, family, machine)
            store.put_workload(key.workload, packed(func, (), output_count(func)))
            times = tuple(float(s) for s in seconds)
            candidate = Candidate(trace=json.dumps(trace))
            return Record(key, candidate, "ok", times, note="MetaSchedule", shape=words(shape), date=now())
    return None


def output_count(func: Any) -> int:
    """How many of the last parameters a function writes."""
    from tvmopt.scheduling.blocks import blocks_of

    written = [region.source for block in blocks_of(func) for region in block.writes]
    return max(1, sum(any(param.same_as(w) for w in written) for param in func.params))


# -- export ----------------------------------------------------------------------------------------


def databases(folder: Path) -> list[Path]:
    """The database in a folder, or those in its folders: what :func:`export_database` writes."""
    inner = sorted(path.parent for path in folder.glob(f"*/{WORKLOADS}"))
    return inner if inner and not (folder / WORKLOADS).exists() else [folder]


def export_database(store: Store, folder: Path, *, target: str = "") -> dict[Path, int]:
    """Write one MetaSchedule work directory a target: traces of the knobs, one record a measured candidate."""
    written = {}
    for name in sorted({r.key.target for r in store.records(target=target)}):
        path = folder / Path(log_name(name)).stem
        path.mkdir(parents=True, exist_ok=True)
        for old in (WORKLOADS, RECORDS):
            (path / old).unlink(missing_ok=True)
        database = ms.database.JSONDatabase(work_dir=str(path))
        for record, module in _with_workloads(store, name):
            made = tuning_record(record, module, _tvm_target(name), database)
            if made is not None:
                database.commit_tuning_record(made)
        written[path] = len(database)
    return written


def _with_workloads(store: Store, target: str) -> Iterator[tuple[Record, Any]]:
    modules: dict[str, Any] = {}
    for record in store.records(target=target):
        digest = record.key.workload
        if digest not in modules:
            text = store.workload(digest)
            modules[digest] = tvm.ir.load_json(text) if text else None
        if modules[digest] is not None and record.status == "ok" and record.samples:
            yield record, modules[digest]


def tuning_record(record: Record, module: Any, target: Any, database: Any) -> Any | None:
    """Our record as MetaSchedule's; None if its schedule no longer applies."""
    try:
        sch = scheduled(record, module, target)
    except Exception:  # whatever a schedule raises: the record is stale
        return None
    workload = database.commit_workload(module)
    info = ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
    return ms.database.TuningRecord(sch.trace, workload, [record.seconds], target, info)


def scheduled(record: Record, module: Any, target: Any) -> Schedule:
    """The schedule of a record on its workload."""
    sch = Schedule(module)
    with target:
        if record.candidate.trace:
            Trace.apply_json_to_schedule(json.loads(record.candidate.trace), sch)
        else:
            kind = record.key.target.split()[0]
            machine = machine_of(record.key.target)
            family = next(f for f in families(kind) if record.key.family == f.NAME)
            family.apply(sch, family.recognise(module["main"], machine), record.candidate.knobs)
    return sch


def machine_of(target: str) -> Machine:
    """The machine of a fingerprint: this one, one that ships, or what the words say."""
    from tvmopt.targets import names

    for machine in [Machine.load("cpu"), *map(Machine.load, names())]:
        cores = int(target.split()[2].rstrip("c"))
        if fingerprint(machine.with_cores(cores)) == target:
            return machine.with_cores(cores)
    raise TuningError(f"no machine here is {target!r}", fix="add its TOML file to targets/")


def _tvm_target(target: str) -> Any:
    kind, cpu, cores = target.split()[:3]
    if kind == "cuda":
        return tvm.target.Target({"kind": kind, "arch": cpu})
    return tvm.target.Target({"kind": kind, "mcpu": cpu, "num-cores": int(cores.rstrip("c"))})


# -- the store as a MetaSchedule database ----------------------------------------------------------


@derived_object
class StoreDatabase(ms.database.PyDatabase):  # type: ignore[misc]  # TVM has no types
    """A store as `ms.database.Database`, for one machine: what is committed is kept at once, what is asked for is this
    machine's alone (TVM's own databases ignore the target of a query)."""

    def __init__(self, store: Store, machine: Machine) -> None:
        super().__init__()
        self.store, self.machine = store, machine
        self.workloads: list[Any] = []

    def has_workload(self, mod: Any) -> bool:
        return any(tvm_equal(mod, w.mod) for w in self.workloads)

    def commit_workload(self, mod: Any) -> Any:
        for workload in self.workloads:
            if tvm_equal(mod, workload.mod):
                return workload
        self.workloads.append(ms.database.Workload(mod))
        return self.workloads[-1]

    def commit_tuning_record(self, record: Any) -> None:
        seconds = [float(s) for s in record.run_secs or ()]
        if seconds:
            trace = json.loads(trace_text(record.trace))
            made = _imported(self.store, record.workload.mod, trace, seconds, self.machine)
            if made is not None:
                self.store.merge([made])

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        key = self._key(workload.mod)
        records = [r for r in self.store.records(key) if r.status == "ok"] if key else []
        made = (self._record(r, workload) for r in sorted(records, key=lambda r: r.seconds))
        return [m for m in made if m is not None][:top_k]

    def get_all_tuning_records(self) -> list[Any]:
        return [r for w in self.workloads for r in self.get_top_k(w, 1 << 30)]

    def __len__(self) -> int:
        return len(self.store.records(target=fingerprint(self.machine)))

    def _key(self, module: Any) -> Key | None:
        func = normalize(module["main"], self.machine)
        family = next((f for f in families(self.machine.kind) if f.recognise(func, self.machine)), None)
        return key_of(func, family, self.machine) if family else None

    def _record(self, record: Record, workload: Any) -> Any | None:
        target = self.machine.tvm_target()
        try:
            sch = scheduled(record, workload.mod, target)
        except Exception:  # a stale record is no reason to stop a search
            return None
        info = ms.arg_info.ArgInfo.from_entry_func(workload.mod, remove_preproc=True)
        return ms.database.TuningRecord(sch.trace, workload, [record.seconds], target, info)


def tvm_equal(first: Any, second: Any) -> bool:
    """Structural equality."""
    import tvm_ffi

    return bool(tvm_ffi.structural_equal(first, second, map_free_vars=True))
