"""The fuzzer: its models are valid and the seed's, its guards bite, its reductions are small, its corpus is clean."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from fuzz import guard, typed
from fuzz.inputs import OUTSIDE, bound, feeds_of, inputs_of, kinds_for, noted, numbers_of
from fuzz.once import Finding, Options, Outcome, run_once
from fuzz.reference import Reference, Unable
from fuzz.shrink import shrink
from fuzz.sizes import selects, wrongly_answered
from fuzz.sources import KINDS, found_graph, graph, model_bytes, opened_graph
from fuzz.worker import ROOT, Child, Worker
from tvmopt.errors import InputError

CORPUS = sorted((ROOT / "fuzz/corpus").glob("*.onnx"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(forks=True)
    yield made
    made.close()


def test_a_fork_that_hangs_is_seen_and_ended(tmp_path: Path) -> None:
    """The importer tries some steps in a fork; the processor time of one that never ends is its own."""
    told = tmp_path / "fork"

    def work(task: dict, say: object) -> dict:
        pid = os.fork()
        if not pid:
            while True:
                pass
        told.write_text(str(pid))
        os.waitpid(pid, 0)
        return {}

    child = Child(work)
    answer = child.ask("{}\n", 1.0)
    child.end()
    assert answer["hang"]
    stat = Path(f"/proc/{told.read_text()}/stat")
    assert not stat.exists() or ") Z " in stat.read_text()  # nobody may have waited for it


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_and_a_number_are_a_model(kind: str) -> None:
    made = [model_bytes(kind, 5, i) for i in range(20)]
    assert made == [model_bytes(kind, 5, i) for i in range(20)]
    assert len(set(made)) > 15


def test_graphs_are_valid() -> None:
    operators = set()
    for index in range(150):
        model = graph(11, index)
        onnx.checker.check_model(model, full_check=True)
        operators |= {n.op_type for n in model.graph.node}
        assert 1 <= len(model.graph.node) <= 30
    assert len(operators) > 80


def test_graphs_with_open_sizes_fit_several() -> None:
    """onnxruntime runs them at sizes that they were not built with, and results follow the sizes."""
    operators, more = set(), 0
    for index in range(60):
        model = opened_graph(4, index)
        onnx.checker.check_model(model, full_check=True)
        operators |= {n.op_type for n in model.graph.node}
        numbers = numbers_of(model)
        assert numbers
        try:
            reference = Reference(model)
            small, large = (
                reference.run(feeds_of(bound(model, sizes), "normal", 0))
                for sizes in (numbers, {name: number + 13 for name, number in numbers.items()})
            )
        except (Unable, ValueError):
            continue
        more += any(small[name].size < large[name].size for name in small)
    assert len(operators) > 60 and more > 30


def test_graphs_with_selections_find_nothing_one_and_many() -> None:
    operators, counts = set(), set()
    for index in range(60):
        model = found_graph(4, index)
        onnx.checker.check_model(model, full_check=True)
        assert selects(model)
        operators |= {n.op_type for n in model.graph.node}
        try:
            reference = Reference(model)
            for kind in ("normal", "zeros"):
                results = reference.run(feeds_of(bound(model, numbers_of(model)), kind, 0))
                counts |= {size for array in results.values() for size in array.shape}
        except (Unable, ValueError):
            continue
    assert {"NonZero", "Compress", "NonMaxSuppression", "ScatterND", "MatMul", "Conv", "Scan"} <= operators
    assert {0, 1} <= counts and max(counts) > 40


def test_a_number_where_onnxruntime_says_that_an_index_is_out_of_range_is_found() -> None:
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Gather", ["x", "i"], ["y"])]
    inputs = [value("x", 1, [5]), value("i", 7, [3])]
    inputs[1].doc_string = "range 0 5"
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", inputs, [value("y", 1, [3])]),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip

    class Nearest:
        model: object = "of a CPU, whose kernels can raise"

        def run(self, feeds: dict) -> dict:
            return {"y": feeds["x"].take(feeds["i"], mode="clip")}

    class OfGpu(Nearest):
        model = None

    class Refuses(Nearest):
        def run(self, feeds: dict) -> dict:
            raise InputError("An index is out of range.")

    def found(engine: Nearest) -> Finding | None:
        reference, verdicts = Reference(model), SimpleNamespace(problem=lambda *_: "")
        return run_once(model, engine, reference, verdicts, OUTSIDE, 0, True, lambda _: None, Outcome())

    assert found(Refuses()) is None and found(OfGpu()) is None
    wrong = found(Nearest())
    assert wrong is not None and (wrong.kind, wrong.inputs) == ("wrong", OUTSIDE)
    model.graph.node.append(onnx.helper.make_node("Shape", ["y"], ["s"]))
    model.graph.output[0].CopyFrom(value("s", 7, [1]))
    assert found(Nearest()) is None  # of what is gathered, the shape alone is asked for


def test_damaged_models_with_open_sizes_are_compiled_though_no_reference_runs_them(worker: Worker) -> None:
    model = opened_graph(4, 0)
    model.graph.node[0].attribute.add(name="unheard_of", type=onnx.AttributeProto.INT, i=1)
    outcomes = [worker.check(model.SerializeToString(), asdict(Options(valid=valid))) for valid in (True, False)]
    assert [o["status"] for o in outcomes] in (["skipped", "checked"], ["skipped", "refused"])


def test_notes_of_open_sizes_follow_them() -> None:
    info = onnx.helper.make_tensor_value_info("i", 7, ["n", 2, "n + 2"])
    info.doc_string = "range -<n> <n>"
    graph_ = onnx.helper.make_graph([], "g", [info], [])
    fixed = bound(onnx.helper.make_model(graph_), {"n": 5})
    assert [d.dim_value for d in fixed.graph.input[0].type.tensor_type.shape.dim] == [5, 2, 7]
    assert fixed.graph.input[0].doc_string == "range -5 5"


def test_every_integer_type_of_an_operator_is_a_valid_model() -> None:
    for index, (name, _) in enumerate(typed.cases()):
        model = typed.model(3, index)
        onnx.checker.check_model(model, full_check=True)
        assert model.graph.node[-1].op_type == name.split()[0]
    assert len(typed.cases()) > 700


def test_inputs_keep_their_notes() -> None:
    rng = np.random.default_rng(0)
    assert set(np.unique(noted("range -3 2", (200,), rng))) == {-3, -2, -1, 0, 1}
    lines = noted("unique 1 0 9", (4, 7), rng)
    assert all(len(set(line)) == 7 and set(line) <= set(range(9)) for line in lines)
    outside = noted("range 0 5", (8,), rng, outside=True)
    assert ((outside < 0) | (outside >= 5)).any()


def test_kinds_of_inputs_are_what_they_say() -> None:
    value = onnx.helper.make_tensor_value_info
    graph_ = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", 1, [50])], [value("y", 1, [50])]
    )
    model = onnx.helper.make_model(graph_, opset_imports=[onnx.helper.make_opsetid("", 17)])
    assert kinds_for(model) == ("normal", "nan", "inf", "zeros", "huge", "offset")
    made = {kind: feeds_of(model, kind, 0)["x"] for kind in kinds_for(model)}
    assert np.isnan(made["nan"]).sum() == 1 and np.isinf(made["inf"]).sum() == 1
    assert not made["zeros"].any() and made["huge"].max() > 1e17 and abs(made["offset"].mean() - 1000) < 1


def test_agreement_sees_small_faults_and_excuses_rounding() -> None:
    """A wrong element is found; a floor that hangs on the last digit is not."""
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Floor", ["x"], ["y"])]
    graph_ = onnx.helper.make_graph(nodes, "g", [value("x", 1, [4])], [value("y", 1, [4])])
    reference = Reference(
        onnx.helper.make_model(graph_, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    )
    feeds = {"x": np.array([1.0, 2.5, -0.5, 3.25], np.float32)}
    expected = reference.run(feeds)
    assert reference.agrees(expected, {"y": np.array([0, 2, -1, 3], np.float32)}, feeds) == ""
    assert "1 of 4 differ" in reference.agrees(expected, {"y": np.array([1, 1, -1, 3], np.float32)}, feeds)
    assert "NaN" in str(reference.agrees(expected, {"y": np.array([1, np.nan, -1, 3], np.float32)}, feeds)).replace(
        "nan", "NaN"
    )
    assert "expected" in reference.agrees(expected, {"y": np.array([1, 2, -1], np.float32)}, feeds)


GUARD = """
import ctypes, numpy as np
from fuzz import guard, typed
x = guard.guarded(np.zeros(7, np.float32), guard.{side})
address = x.__array_interface__["data"][0]
print("start", flush=True)
ctypes.memset(address + {offset}, 1, 4)
del x
print("written beside:", guard.violations())
"""


@pytest.mark.parametrize(
    ("side", "offset", "dies"),
    [("BEHIND", 64, True), ("BEHIND", 28, False), ("BEFORE", -4, True), ("BEFORE", 28, False), ("BEHIND", -4, False)],
)
def test_guards_bite(side: str, offset: int, dies: bool) -> None:
    """Beyond the page the process dies; on the page, beside the buffer, the write is counted."""
    code = GUARD.format(side=side, offset=offset)
    environment = {**os.environ, "LD_PRELOAD": str(guard.library()), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout.startswith("start")
    if dies:
        assert done.returncode < 0
    else:
        assert "written beside: 1" in done.stdout


def test_memory_of_other_processes_is_left_alone() -> None:
    assert not guard.available() and guard.guarded(np.ones(3), guard.BEHIND).sum() == 3
    assert ctypes.CDLL(None).free


def test_reductions_are_small() -> None:
    """What is left of a graph with a Softmax, where a Softmax is what fails."""
    model = next(m for i in range(500) if len((m := graph(2, i)).graph.node) > 5 and _has(m, "Softmax"))
    small = shrink(model, lambda m: _has(m, "Softmax") and _accepted(m))
    assert [n.op_type for n in small.graph.node] == ["Softmax"] and len(inputs_of(small)) <= 1
    assert all(d.dim_value <= 2 for v in inputs_of(small) for d in v.type.tensor_type.shape.dim)


def _has(model: onnx.ModelProto, operator: str) -> bool:
    return any(n.op_type == operator for n in model.graph.node)


def _accepted(model: onnx.ModelProto) -> bool:
    try:
        Reference(model)
    except Exception:
        return False
    return True


def test_a_few_graphs_and_mutants(worker: Worker) -> None:
    """A short run: nothing dies, nothing is wrong."""
    found = []
    for kind, count in (("graphs", 12), ("mutants", 8), ("open", 5)):
        for index in range(count):
            options = asdict(Options(kinds=("normal", "zeros"), valid=kind != "mutants", seed=index))
            outcome = worker.check(model_bytes(kind, 3, index), options)
            found += [(kind, index, f) for f in outcome["findings"]]
    assert not found


class Answer:
    """Stands for a compiled model: how it answers wrong sizes."""

    def __init__(self, error: Exception | None, calls: int) -> None:
        self.error, self.calls, self.more = error, 0, calls

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls += self.more
        if self.error is not None:
            raise self.error
        return feeds


def test_wrong_sizes_have_to_be_refused_before_kernels_run() -> None:
    refused = InputError("'n' is 41")
    assert wrongly_answered(Answer(refused, 0), {}) == ""
    assert "after kernels" in wrongly_answered(Answer(refused, 1), {})
    assert "accepted" in wrongly_answered(Answer(None, 1), {})
    assert "ValueError" in wrongly_answered(Answer(ValueError("allocation"), 0), {})


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus(worker: Worker, path: Path) -> None:
    """What was found and mended; the name begins with the kind of run: graph, mutant, index or open. The seed of the
    inputs that show it may stand at its end."""
    kind = path.stem.partition("-")[0]
    kinds = {"graph": (), "open": (), "mutant": ("normal", "edge", "zeros"), "index": (OUTSIDE, "normal")}[kind]
    seed = int(path.stem.partition("@")[2] or 0)
    outcome = worker.check(path.read_bytes(), asdict(Options(kinds=kinds, valid=kind != "mutant", seed=seed)))
    assert not outcome["findings"]
