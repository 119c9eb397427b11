"""MetaSchedule's databases: in, out, and the store behind its interface."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvmopt.errors import TuningError
from tvmopt.scheduling.discover import families
from tvmopt.targets import Machine
from tvmopt.tuning.metaschedule import RECORDS, StoreDatabase, databases, export_database, import_database
from tvmopt.tuning.record import Candidate, Record, key_of
from tvmopt.tuning.store import Store
from tvmopt.tuning.tasks import packed

MACHINE = Machine.load("x86-64-v3").with_cores(2)


def module(n: int = 64) -> Any:
    x = te.placeholder((n, 33), name="x")
    y = te.compute((n, 33), lambda i, j: x[i, j] * tvm.tirx.const(2, "float32") + tvm.tirx.const(1, "float32"))
    return tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})


def stock(folder: Path, machine: Machine = MACHINE) -> None:
    """A database as MetaSchedule writes it: one hand-made schedule."""
    folder.mkdir()
    database = ms.database.JSONDatabase(work_dir=str(folder))
    sch = Schedule(module())
    sch.parallel(sch.get_loops(sch.get_sblock("compute"))[0])
    workload = database.commit_workload(module())
    info = ms.arg_info.ArgInfo.from_entry_func(module(), remove_preproc=True)
    record = ms.database.TuningRecord(sch.trace, workload, [1e-6], machine.tvm_target(), info)
    database.commit_tuning_record(record)


def test_import_a_database_torn_at_its_end(tmp_path: Path) -> None:
    stock(tmp_path / "db")
    path = tmp_path / "db" / RECORDS
    path.write_text(path.read_text() + '[0, [[["x"')
    with Store(tmp_path / "s.db") as store:
        assert import_database(store, tmp_path / "db", MACHINE) == 1
        assert import_database(store, tmp_path / "db", MACHINE) == 0
        (record,) = store.records()
    assert record.candidate.space == "metaschedule" and record.verdict is None and record.seconds == 1e-6


def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    """`export` writes a folder a target; `import` takes the folder of folders, or one of them."""
    stock(tmp_path / "db")
    with Store(tmp_path / "s.db") as store:
        import_database(store, tmp_path / "db", MACHINE)
        (written,) = export_database(store, tmp_path / "out")
    assert databases(tmp_path / "out") == databases(written) == [written]
    assert databases(tmp_path / "none") == [tmp_path / "none"]
    with Store(tmp_path / "t.db") as other, pytest.raises(TuningError, match="No such file") as told:
        import_database(other, tmp_path / "none", MACHINE)
    assert "Errno" not in str(told.value)


def test_another_machines_database_is_refused(tmp_path: Path) -> None:
    stock(tmp_path / "db", MACHINE.with_cores(4))
    with Store(tmp_path / "s.db") as store, pytest.raises(TuningError, match="other machines"):
        import_database(store, tmp_path / "db", MACHINE)
    with Store(tmp_path / "s.db") as store, pytest.raises(TuningError, match="not a MetaSchedule"):
        import_database(store, tmp_path, MACHINE)


def test_knobs_go_out_as_traces_and_come_back(tmp_path: Path) -> None:
    func = module()["main"]
    family = next(f for f in families("llvm") if f.recognise(func, MACHINE))
    knobs = family.knobs(family.recognise(func, MACHINE), MACHINE).analytic
    key = key_of(func, family, MACHINE)
    with Store(tmp_path / "s.db") as store:
        store.put_workload(key.workload, packed(func, (), 1))
        store.add(Record(key, Candidate(knobs), "ok", (2e-6,)))
        ((path, number),) = export_database(store, tmp_path / "out").items()
    assert number == 1
    database = ms.database.JSONDatabase(work_dir=str(path), allow_missing=False)
    (record,) = database.get_all_tuning_records()
    assert float(record.run_secs[0]) == pytest.approx(2e-6)
    with Store(tmp_path / "t.db") as store:
        assert import_database(store, path, MACHINE) == 1
        assert store.records()[0].key == key
        assert json.loads(store.records()[0].candidate.trace)


def test_the_store_is_a_database_of_one_machine(tmp_path: Path) -> None:
    stock(tmp_path / "db")
    found = ms.database.JSONDatabase(work_dir=str(tmp_path / "db")).get_all_tuning_records()[0]
    with Store(tmp_path / "s.db") as store:
        database = StoreDatabase(store, MACHINE)
        workload = database.commit_workload(module())
        assert database.has_workload(module()) and not database.has_workload(module(7))
        database.commit_tuning_record(found)
        assert len(database) == 1
        assert len(database.get_top_k(workload, 5)) == 1
        assert database.query_tuning_record(module(), MACHINE.tvm_target(), "main") is not None
        other = StoreDatabase(store, replace(MACHINE, features=()))
        other.commit_workload(module())
        assert other.query_tuning_record(module(), MACHINE.tvm_target(), "main") is None
