"""The whole bench on tiny models with real processes: rows, verdicts, failures that stay rows."""

import json
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.quantization.models import write
from tvmopt.bench import report
from tvmopt.bench.engine import Engine, EngineError
from tvmopt.bench.html import html
from tvmopt.bench.measure import Plan, Series, measure, rotate, warm_up
from tvmopt.bench.records import Job, Turn
from tvmopt.bench.run import Settings, bench, labels, with_batch
from tvmopt.errors import InputError, MissingDependency
from tvmopt.files import save_arrays
from tvmopt.quantization.quantize import quantize

FAST = Plan(rounds=6, launches=2, turn=0.01, calls=2, pause=0.001, warmup=0.05, patience=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 33])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 17])],
        [numpy_helper.from_array(rng.standard_normal((33, 17), dtype=np.float32), "w")],
    )
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def result(model):
    specs = ("onnxruntime", "onnxruntime", "onnxruntime:spinning=off", "onnxruntime-cuda")
    settings = Settings(engines=specs, shapes={"x": (7, 33)}, floor=False)
    return bench([model], settings, plan=FAST)


def test_inputs_that_are_given_bind_shapes_and_reach_the_engines(model, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "tvmopt.bench.run.save_arrays", lambda path, arrays: seen.update(arrays) or save_arrays(path, arrays)
    )
    x = np.full((5, 33), 0.25, np.float32)
    result = bench([model], Settings(engines=("onnxruntime",), inputs={"x": x}, floor=False), plan=FAST)
    [case] = result.cases
    assert case.inputs == {"x": "float32[5, 33]"} and result.settings["inputs"] == {"x": [5, 33]}
    assert np.array_equal(seen["x"], x)
    for wrong, text in (
        ({"z": x}, "no input 'z'"),
        ({"x": x.astype("float64")}, "the dtype is float64"),
        ({"x": x[:, 1:]}, "32"),
    ):
        with pytest.raises(InputError, match=text):
            bench([model], Settings(engines=("onnxruntime",), inputs=wrong, floor=False), plan=FAST)


def test_rows_have_times_and_a_missing_device_is_a_row(result):
    [case] = result.cases
    first, twin, quiet, cuda = case.engines
    assert [row.label for row in case.engines[:2]] == ["onnxruntime", "onnxruntime#2"]
    assert first.latency.median_ms > 0 and twin.latency.p99_ms >= twin.latency.median_ms
    assert quiet.facts["spinning"] == "off"
    assert (cuda.status, "pip install onnxruntime-gpu" in cuda.message) == ("missing", True)
    assert set(case.ratios) == {"onnxruntime#2", "onnxruntime:spinning=off"}
    assert (case.batch, case.inputs) == (7, {"x": "float32[7, 33]"})
    assert first.peak_mib > first.base_mib > 5


def test_int8_is_in_the_model(model, tmp_path):
    """The file is run as it is, and a float model is no int8 model."""
    source, data = write(tmp_path)
    quantize(source, tmp_path / "int8.onnx", data=data, method="onnxruntime")
    asked = Settings(engines=("tvmopt:records=off", "onnxruntime"), precision="int8", floor=False, tolerance=0.1)
    [case] = bench([tmp_path / "int8.onnx"], asked, plan=FAST).cases
    assert [row.status for row in case.engines] == ["ok", "ok"] and case.precision == "int8"
    with pytest.raises(InputError, match="not quantised"):
        bench([model], replace(asked, shapes={"x": (7, 33)}), plan=FAST)


def test_every_rendering_tells_the_same(result):
    [case] = result.cases
    data = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert data["cases"][0]["engines"][0]["latency"]["median_ms"] == case.engines[0].latency.median_ms
    words = report.markdown(result, [99.9])
    for text in (
        "onnxruntime#2",
        "p99.9",
        "missing",
        "pip install onnxruntime-gpu",
        case.ratios["onnxruntime#2"].verdict,
    ):
        assert text in words
    page = html(result)
    assert page.count("<svg") >= 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # nothing to load
    lines = report.text(case)
    assert len({len(line) for line in lines}) == 1


def test_an_engine_with_other_outputs_is_wrong_and_has_no_times(model, tmp_path):
    other = onnx.load(model)
    weight = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(1.01)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    from tvmopt.bench import run as module

    subject = module.Subject.of(model, None, 1, Settings())
    path = tmp_path / "other.onnx"
    onnx.save(other, path)
    inputs = tmp_path / "i.npz"
    np.savez(inputs, **subject.feeds)
    reference = module.reference_outputs(
        Job("onnxruntime", str(model), shapes=subject.shapes), inputs, tmp_path / "r.npz"
    )
    row = module.EngineResult("x", Job("onnxruntime", str(path), shapes=subject.shapes))
    row = module._check(row, subject, inputs, reference, subject.judge(Settings()), tmp_path, Settings())
    assert row.status == "wrong"
    assert "tolerance" in row.message


def test_batches_bind_the_leading_dimension(model):
    loaded = onnx.load(model)
    assert with_batch(loaded, 4, {}) == {"x": (4, 33)}
    loaded.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(InputError, match="fixed to 2"):
        with_batch(loaded, 4, {})


@pytest.mark.parametrize("spec", ["onnxrutime", "tvmopt:fast", "openvino:=3x"])
def test_a_bad_spec_is_refused_before_anything_runs(model, spec):
    with pytest.raises(InputError):
        bench([model], Settings(engines=(spec,), floor=False))


def test_a_missing_file_is_an_error_of_ours():
    with pytest.raises(InputError):
        bench(["no.onnx"], Settings(floor=False))


def test_tuning_records_can_be_left_out(model):
    specs = ("tvmopt:records=off", "tvmopt:records=no")
    [case] = bench([model], Settings(engines=specs, shapes={"x": (7, 33)}, floor=False), plan=FAST).cases
    left_out, wrong = case.engines
    assert (left_out.status, left_out.facts["tuning records"]) == ("ok", "0")
    assert (wrong.status, "on or off" in wrong.message) == ("failed", True)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ("ok ok failed", 0),
        ("ok missing ok", 0),
        ("failed ok", 2),
        ("missing ok", 5),
        ("ok wrong", 3),
        ("failed wrong", 3),
        ("ok failed", 2),
        ("ok missing", 5),
        ("ok missing missing", 5),
        ("ok failed missing", 2),
    ],
)
def test_exit_codes(rows, code):
    """One opponent that cannot run is a row; all, or the subject, are an error; wrong numbers always are."""
    from tvmopt.cli.bench import _exit_code

    case = SimpleNamespace(engines=[SimpleNamespace(status=status) for status in rows.split()])
    assert _exit_code(SimpleNamespace(cases=[case])) == code


def test_labels_number_what_comes_twice():
    assert labels(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]


def test_an_engine_that_dies_or_hangs_is_an_error(model):
    job = Job("onnxruntime", str(model), shapes={"x": (1, 33)})
    with Engine(job) as engine:
        engine.ask("load", job)
        os.kill(engine.process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="signal 9"):
            engine.ask("memory")
    with Engine(job, patience=0.01) as engine, pytest.raises(EngineError, match="did not answer"):
        os.kill(engine.process.pid, signal.SIGSTOP)
        engine.ask("load", job)


def test_an_error_inside_an_engine_keeps_its_words(tmp_path):
    job = Job("onnxruntime", str(tmp_path / "none.onnx"))
    with Engine(job) as engine:
        with pytest.raises(EngineError, match=r"none\.onnx"):
            engine.ask("load", job)
        assert engine.ask("memory") > 0  # and the process lives on
    cuda = Job("onnxruntime-cuda", str(tmp_path / "none.onnx"))
    with Engine(cuda) as engine, pytest.raises(MissingDependency):
        engine.ask("load", cuda)


class Stand:
    """An engine of made-up turns."""

    def __init__(self, times, log, name):
        self.times, self.log, self.name = iter(times), log, name

    def turn(self, seconds, least=3):
        value = next(self.times)
        self.log.append(self.name)
        return value if isinstance(value, Turn) else Turn((value,) * 3, 0.1)

    def settle(self, least):
        return 0.0


BAD = Turn((9.0,), 0.1, disturbed=True)


def test_rotation_turns_round_and_drops_disturbed_rounds_whole():
    log = []
    engines = [
        Stand([1.0, 1.0, 1.0, BAD, 1.1, 1.1, 1.3, 1.1], log, "a"),
        Stand([2.0, 2.0, 2.1, 2.1, 2.2, 2.2, 2.3, 2.3], log, "b"),
    ]
    series = [Series(), Series()]
    assert rotate(engines, series, Plan(rounds=3, launches=1), 99) == 4
    assert log == list("aabbbbaaaabbbbaa")
    assert series[0].launches == [[1.0, 1.1, pytest.approx(1.2)]]
    assert series[1].launches == [[2.0, 2.2, 2.3]]
    assert [(s.disturbed, s.clean) for s in series] == [(1, 3)] * 2
    assert (series[0].after_others, series[0].after_itself) == ([1.0, 1.1, 1.3], [1.0, 1.1, 1.1])


def test_a_launch_gives_up_when_nothing_is_quiet():
    series = [Series()]
    assert rotate([Stand([BAD] * 20, [], "a")], series, Plan(rounds=4, launches=1), 99) == 8
    assert (series[0].launches, len(series[0].noisy)) == ([[]], 16)


def test_rotation_is_the_time_after_others_over_the_time_after_itself():
    assert Series().rotation == 1.0
    assert Series(after_others=[1.2, 2.2, 9.0], after_itself=[1.0, 2.0, 3.0]).rotation == pytest.approx(1.2)


def launched(times, plan, decided=lambda _: True):
    """(rounds played, launches) of `measure` with one made-up engine that gives the same turn for ever."""
    starts = []

    def start():
        starts.append(1)
        engine = Stand([times] * 999, [], "a")
        engine.close = lambda: None
        return [engine]

    series, played = measure(start, 1, plan, decided=decided)
    assert series[0].clean + series[0].disturbed == played
    return played, len(starts)


def test_launches_go_on_until_there_is_an_answer_or_patience_ends():
    plan = Plan(rounds=6, launches=3, patience=4)
    assert launched(1.0, plan) == (6, 3)
    assert launched(1.0, plan, lambda series: series[0].clean >= 10) == (10, 5)
    assert launched(1.0, plan, lambda series: False) == (24, 12)
    assert launched(BAD, plan) == (24, 6)  # nothing was quiet: four rounds a launch, then the next


def test_warm_up_ends_when_three_turns_bring_nothing_new():
    log = []
    warm_up(Stand([3.0, 2.0, 1.0, 1.5, 1.01] + [1.0] * 100, log, "a"), Plan(warmup=9))
    assert len(log) == 6


def test_the_package_is_the_function():
    import tvmopt

    assert tvmopt.bench.__name__ == "tvmopt.bench"
    with pytest.raises(InputError, match="no engine"):
        tvmopt.bench(["m.onnx"], Settings(engines=("nothing",), floor=False))
    assert tvmopt.profile.__name__ == "profile"


def test_a_batch_that_cannot_be_is_refused_before_anything_is_timed(tmp_path):
    from tests.runtime.small import small_model

    onnx.save(small_model(), str(tmp_path / "fixed.onnx"))
    told = []
    with pytest.raises(InputError, match="batch 2: input 'x' has its batch fixed to 1"):
        bench([tmp_path / "fixed.onnx"], Settings(batches=(1, 2)), plan=FAST, progress=told.append)
    assert not told


def test_disturbed_rounds_give_an_interval_and_no_verdict():
    """On a machine that is never quiet the figures that there are are shown."""
    from tvmopt.bench.measure import Series
    from tvmopt.bench.run import _ratio
    from tvmopt.bench.stats import Rules

    first = Series(launches=[[], []], every=[[1.0, 1.1, 1.0]] * 2, disturbed=6)
    one = Series(launches=[[], []], every=[[2.0, 2.1, 1.9]] * 2, disturbed=6)
    found = _ratio(first, one, Rules())
    assert found.verdict == "unstable" and 0.4 < found.low <= found.value <= found.high < 0.6
    assert "in 6 of 6 rounds" in found.reason and "over all rounds" in found.reason and found.rounds == 0


def test_a_heading_starts_a_line_of_its_own(monkeypatch):
    """The spinner on stderr and the table on stdout share a terminal."""
    import io

    from rich.console import Console

    from tvmopt.cli import common

    screen = io.StringIO()
    monkeypatch.setattr(common, "Console", lambda **_: Console(file=screen, force_terminal=True, width=80))
    with common.progress() as show:
        show("launch 1 of 6")
        common.without_spinner()
        screen.write("HEADING")
        show("launch 2 of 6")
    line = next(line for line in screen.getvalue().splitlines() if "HEADING" in line)
    assert "launch" not in line.rpartition("\x1b[2K")[2].rpartition("HEADING")[0]


def test_one_model_is_no_list_of_letters(tmp_path):
    with pytest.raises(InputError, match=r"missing\.onnx"):
        bench(str(tmp_path / "missing.onnx"), Settings(floor=False))
