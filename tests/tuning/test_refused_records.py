"""A record whose kernel cannot be compiled is ignored, and the others are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx
from tvm.s_tir import Schedule

from tests.tuning.records import WON
from tvmopt.compiler import kernels
from tvmopt.compiler.driver import compile_model
from tvmopt.compiler.dump import Dumps
from tvmopt.compiler.request import Request
from tvmopt.errors import ScheduleError
from tvmopt.lowering.intrinsics import call_function
from tvmopt.report import Report
from tvmopt.scheduling.blocks import root_blocks
from tvmopt.scheduling.replay import trace_text
from tvmopt.targets import Machine
from tvmopt.tuning import driver
from tvmopt.tuning.record import Candidate, Record
from tvmopt.tuning.store import Store

HOST = Machine.load("cpu").with_threads(1)


def saved(path: Path, nodes: list[onnx.NodeProto], x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]) -> Path:
    """A file of a model of x, random weights w and y, by their shapes."""
    inputs, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in (("x", x), ("y", y)))
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal(w, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product and a softmax of 31 columns; a store beside it with a record of each."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"], axis=-1)]
    path = saved(tmp_path / "m.onnx", nodes, x=(64, 40), w=(40, 31), y=(64, 31))
    tasks = {t.key.family: t for t in driver.tasks_of(driver.imported_module(path, {}), HOST)}
    product, softmax = tasks["gemm"], tasks["rows"]
    sch = Schedule(tvm.ir.load_json(softmax.kernel.module)["main"])
    last = sch.get_loops(root_blocks(sch)[0])[-1]
    sch.vectorize(sch.split(last, [None, 64])[1])  # applies, and TVM cannot lower it
    knobs = {name: values[-1] for name, values in product.space.choices.items()}
    with Store(tmp_path / "s.db") as store:
        store.add(Record(product.key, Candidate(knobs), "ok", (1e-6,), verdict=WON))
        store.add(Record(softmax.key, Candidate(trace=trace_text(sch.trace)), "ok", (1e-6,), verdict=WON))
    return path


@pytest.fixture
def transposed(tmp_path: Path) -> Path:
    """A transpose before a product of bf16; a store beside it with a record of vectors of 17 lanes."""
    nodes = [helper.make_node("Transpose", ["x"], ["h"], perm=[1, 0]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, x=(64, 17), w=(64, 48), y=(17, 48))
    tasks = {t.key.family: t for t in driver.tasks_of(driver.imported_module(path, {}), HOST, "bf16")}
    sch = Schedule(tvm.ir.load_json(tasks["layout"].kernel.module)["main"])
    (block,) = root_blocks(sch)
    rows, columns = sch.get_loops(block)
    sch.reorder(columns, rows)
    sch.vectorize(rows)
    with Store(tmp_path / "s.db") as store:
        store.add(Record(tasks["layout"].key, Candidate(trace=trace_text(sch.trace)), "ok", (1e-6,), verdict=WON))
    return path


@pytest.mark.skipif(not HOST.has("avx512bf16"), reason="no avx512_bf16 here")
def test_a_width_that_no_function_of_ours_has_is_ignored(transposed: Path) -> None:
    """The library had a symbol that nothing defines, and ended the process that called it."""
    report = compiled(transposed, precision="bf16")
    assert {k.source for k in report.kernels} == {"analytic"}
    assert "there is no tvmopt_round for vectors of 17 lanes" in report.warnings[0]


def test_widths_of_our_functions() -> None:
    assert call_function("tvmopt_round", "uint16", tirx.Var("x", "float32x16")).args[0] == "tvmopt_round_16"
    with pytest.raises(ScheduleError, match="no tvmopt_round for vectors of 17 lanes"):
        call_function("tvmopt_round", "uint16", tirx.Var("x", "float32x17"))


def compiled(model: Path, **options: object) -> Report:
    store = str(model.with_name("s.db"))
    return compile_model(Request(model, HOST, store=store, **options))[1]  # type: ignore[arg-type]


def test_only_that_record_is_ignored(model: Path) -> None:
    report = compiled(model)
    assert {k.family: k.source for k in report.kernels} == {"gemm": "tuned", "rows": "analytic"}
    (note,) = report.warnings
    assert "tuning records ignored: 1: its kernel cannot be compiled: Check failed" in note


def test_all_are_ignored_where_kernels_are_lowered_together(model: Path, tmp_path: Path) -> None:
    """As for a dump: which of them it was is not known."""
    report = compiled(model, dumps=Dumps(everything=str(tmp_path / "dump")))
    assert {k.source for k in report.kernels} == {"analytic"}
    assert "tuning records ignored: 2: Check failed" in report.warnings[0]


def test_what_fails_without_records_too_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("no kernel today")

    monkeypatch.setenv("TVMOPT_CACHE", "off")
    monkeypatch.setattr(kernels, "_vectorized", fail)
    with pytest.raises(RuntimeError, match="no kernel today"):
        compiled(model)
