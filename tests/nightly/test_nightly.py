"""Nights: a regression is found and named, noise is not, a killed night goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from tvmopt.errors import InputError, TuningError, TvmoptError
from tvmopt.nightly import run as nights
from tvmopt.nightly.history import MODEL, Entry, History, KernelFigures, changes
from tvmopt.nightly.plan import Job, read_plan
from tvmopt.nightly.run import Regression, locked, nightly, timed
from tvmopt.scheduling.family import Space
from tvmopt.targets import Machine
from tvmopt.tuning import instance, search
from tvmopt.tuning.disturbance import timed as clean_time
from tvmopt.tuning.record import Candidate, Record, Verdict
from tvmopt.tuning.statistics import verdict
from tvmopt.tuning.store import Store

DRAW = random.Random(0)


def samples(middle: float, spread: float = 0.02, n: int = 25) -> tuple[float, ...]:
    return tuple(middle * (1 + abs(DRAW.gauss(0, spread))) for _ in range(n))


def entry(night: str, conv: float = 1e-3, gemm: float = 2e-3, machine: float = 1.0, **fields: object) -> Entry:
    kernels = {
        "conv": KernelFigures(samples(machine * conv), "conv2d", "analytic", "mr=14"),
        "gemm": KernelFigures(samples(machine * gemm), "gemm", "tuned", "mr=12"),
    }
    made = Entry(night, "job", "ok", "here", samples(machine * (conv + gemm)), samples(machine * 5e-4),
                 kernels,                 {"apache-tvm": "0.27"})  # fmt: skip
    return replace(made, **fields) if fields else made


def test_equal_nights_do_not_differ() -> None:
    for _ in range(20):
        assert changes(entry("1"), entry("2")) == []


def test_a_slower_kernel_is_named_with_what_changed() -> None:
    after = entry("2", gemm=2.6e-3)
    after.kernels["gemm"] = replace(after.kernels["gemm"], knobs="mr=4")
    found = changes(entry("1"), after)
    assert [c.what for c in found] == [MODEL, "gemm"] and all(c.slower for c in found)
    assert "record tuned (mr=12) -> tuned (mr=4)" in str(found[1])
    versions = changes(entry("1"), entry("2", gemm=2.6e-3, versions={"apache-tvm": "0.28"}))
    assert "apache-tvm 0.27 -> 0.28" in str(versions[1])


def test_faster_is_told_and_is_no_failure() -> None:
    (model, conv) = changes(entry("1"), entry("2", conv=0.5e-3))
    assert not model.slower and conv.what == "conv" and "faster" in str(conv)


def test_a_slower_machine_is_not_a_slower_kernel() -> None:
    assert changes(entry("1"), entry("2", machine=1.3)) == []
    assert [c.what for c in changes(entry("1"), entry("2", machine=1.3, gemm=3e-3))][-1] == "gemm"


def test_the_ledger_survives_a_torn_line(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    first, second = entry("1"), entry("2", changes=tuple(changes(entry("1"), entry("2", gemm=3e-3))))
    history.append(first)
    history.path.write_text(history.path.read_text() + '{"night": "2", "jo')
    history.append(second)
    assert history.entries() == [first, second]
    assert history.done("2", "job") == second and history.done("3", "job") is None
    assert history.reference("job", "2", "here") == first
    assert history.reference("job", "2", "elsewhere") is None


def test_one_night_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(TuningError, match="another"), locked(tmp_path / "lock"):
        pass
    with locked(tmp_path / "lock"):
        pass


def test_every_problem_of_a_jobs_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('[nightly]\nfoldr = "x"\n[[job]]\nname = "a"\nmodel = "no.onnx"\n[[job]]\nname = "b"\nspeed = 9\n')
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert all(word in str(caught.value) for word in ("foldr", "no.onnx", "speed", "no 'model'"))
    path.write_text("")
    with pytest.raises(InputError, match=r"no \[\[job\]\]"):
        read_plan(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[job]\nname = 'a'", "[[job]]"),
        ("nightly = 3", "[nightly]"),
        ("[nightly]\ntolerance = 'x'\n[[job]]\nname = 'a'\nmodel = 'jobs.toml'", "'tolerance' is 'x'"),
        ("[[job]]\nname = 'a'\nmodel = 'jobs.toml'\ntrials = 'many'\nbudget = 30", "'trials' is 'many'"),
        ("[[job]]\nname = 'a'\nmodel = 'jobs.toml'\nshape = { x = 3 }", "write shape ="),
        ("[[job]]\nname = 'a'\nmodel = 'jobs.toml'\nprecision = 'fp64'", "one of fp32"),
        ("[[job]]\nname = 'a'\nmodel = 'jobs.toml'\ntarget = 'znver55'", "did you mean 'znver5'"),
    ],
)
def test_a_wrong_jobs_file_is_told_before_the_night(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(TvmoptError) as caught:
        read_plan(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[nigthly]\nfolder = 'x'", "unknown key 'nigthly', did you mean 'nightly'?"),
        ("[[jobs]]\nname = 'a'", "unknown key 'jobs', did you mean 'job'?"),
        ("[nightly]\ntolerence = 0.1", "unknown key 'tolerence', did you mean 'tolerance'?"),
        ("[[job]]\nname = 'a'\nmodle = 'm.onnx'", "unknown key 'modle', did you mean 'model'?"),
        ("color = 3", "unknown key 'color'"),
    ],
)
def test_unknown_keys_are_errors(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(TvmoptError) as caught:
        read_plan(path)
    assert words in str(caught.value)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs here, the rounds of these nights count."""
    monkeypatch.setattr(nights, "clean_time", lambda call, delay: (clean_time(call, delay)[0], True))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A jobs file for a model of one matrix product that takes about a millisecond."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [196, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [196, 512])],
        [numpy_helper.from_array(rng.standard_normal((512, 512), dtype=np.float32) / 22, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    path = tmp_path / "jobs.toml"
    path.write_text('[nightly]\nexport = "logs"\n[[job]]\nname = "m"\nmodel = "m.onnx"\nthreads = 1\ngeneric = false\n')
    return path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the machine's clock: a kernel takes the longer the fewer rows its schedule computes at a time, and
    no trial is measured as faster than the analytic schedule, or its record would apply in the night after."""

    def timed(job: Job, machine: Machine, store: Path, kernels: dict[str, KernelFigures]) -> dict[str, object]:
        rows = {name: int(dict(k.split("=") for k in f.knobs.split()).get("mr", 1)) for name, f in kernels.items()}
        figures = {name: replace(f, seconds=samples(1e-2 / rows[name])) for name, f in kernels.items()}
        return {"seconds": samples(sum(1e-2 / r for r in rows.values())), "probe": samples(5e-4), "kernels": figures}

    def tie(pairs: Sequence[tuple[float, float]]) -> Verdict:
        return replace(verdict(pairs), won=False)

    monkeypatch.setattr(nights, "timed", timed)
    monkeypatch.setattr(search, "verdict", tie)


def test_samples_are_of_the_model_of_each_kernel_and_of_the_probe(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "disturbed", lambda seconds, delay: False)  # or a busy machine leaves some out
    plan, machine = read_plan(jobs), Machine.load("cpu").with_threads(1)
    (job,) = plan.jobs
    plan.store.parent.mkdir(parents=True)
    Store(plan.store).close()
    kernels = nights._verified(plan, job, machine)["kernels"]
    found = timed(job, machine, plan.store, kernels, rounds=3)
    assert [len(found["seconds"]), len(found["probe"])] == [3, 3]
    assert kernels and all(len(k.seconds) == 3 and min(k.seconds) > 0 for k in found["kernels"].values())


@pytest.mark.usefixtures("clock")
def test_a_planted_slowdown_fails_and_is_named(jobs: Path) -> None:
    from tvmopt.cli.nightly import app

    plan = read_plan(jobs)
    first = nightly(plan, night="2026-01-01")
    assert not first.problems and first.entries[0].kernels and "2026-01-01" in first.report.read_text()
    (name,) = (n for n, k in first.entries[0].kernels.items() if k.family == "gemm")
    assert nightly(plan, night="2026-01-01").resumed == ("m",)
    plant(plan.store, jobs.parent / "m.onnx")
    result = CliRunner().invoke(app, [str(jobs), "--night", "2026-01-02"])
    assert isinstance(result.exception, Regression) and result.exception.exit_code == 4
    assert name in str(result.exception) and "record analytic" in str(result.exception)
    report = plan.folder / "report-2026-01-02.html"
    assert name in report.read_text() and "<svg" in report.read_text()
    assert (jobs.parent / "logs").exists()


def test_a_night_under_load_is_unstable_and_no_regression(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(jobs)
    assert nightly(plan, night="2026-01-01").entries[0].status == "ok"
    plant(plan.store, jobs.parent / "m.onnx")  # slower, if anything could be measured
    monkeypatch.setattr(nights, "clean_time", lambda call, delay: (clean_time(call, delay)[0], False))
    night = nightly(plan, night="2026-01-02")
    (entry,) = night.entries
    assert entry.status == "unstable" and not entry.changes and not night.problems
    assert entry.note == "something else used the processor in 100 of 100 rounds" and len(entry.seconds) == 100
    assert plan.history.reference("m", "2026-01-03", entry.target).night == "2026-01-01"  # type: ignore[union-attr]
    assert "unstable" in night.report.read_text()


EXAMPLE = Path(__file__).parents[2] / "docs/how-to/nightly-files/jobs.toml"


@pytest.mark.usefixtures("clock")
def test_the_example_run_twice_by_the_command(jobs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example of the documentation with one small model and a budget of one trial; then a gemm that computes one
    row at a time, as a change of the schedule might."""
    from tvmopt.cli.nightly import app
    from tvmopt.scheduling.discover import family_named

    head, first, *_ = EXAMPLE.read_text().split("[[job]]")
    path = jobs.with_name("example.toml")
    small = first.replace("models/resnet50.onnx", "m.onnx").replace('budget = "30m"', "trials = 1\nthreads = 1")
    assert small.count("m.onnx") == small.count("trials") == 1
    path.write_text(f"{head}[[job]]{small}")
    done = CliRunner().invoke(app, [str(path), "--night", "2026-01-01"], catch_exceptions=False)
    assert done.exit_code == 0 and "ok" in done.output, done.output

    gemm = family_named("llvm", "gemm")
    assert gemm is not None
    analytic = gemm.knobs

    def slow(shape: object, machine: object) -> Space:
        choices = analytic(shape, machine).choices
        return Space({**choices, "mr": tuple(sorted(choices["mr"]))})

    monkeypatch.setitem(gemm.__dict__, "knobs", slow)  # a family's fields are frozen
    failed = CliRunner().invoke(app, [str(path), "--night", "2026-01-02", "--json"])
    assert isinstance(failed.exception, Regression) and failed.exception.exit_code == 4
    (entry,) = json.loads(failed.stdout)
    (name,) = (n for n, k in entry["kernels"].items() if k["family"] == "gemm")
    assert entry["status"] == "slower" and entry["trials"] == 1
    assert name in str(failed.exception)
    assert "mr=" in str(failed.exception), "what changed is named"


def plant(store: Path, model: Path) -> None:
    """A record that claims to be fast, and is not: one row at a time."""
    from tvmopt.tuning.driver import imported_module, tasks_of

    machine = Machine.load("cpu").with_cores(1)
    (task,) = (t for t in tasks_of(imported_module(model, {}), machine) if t.key.family == "gemm")
    knobs = {**task.space.analytic, "mr": min(task.space.choices["mr"])}
    with Store(store) as opened:
        opened.merge([Record(task.key, Candidate(knobs), "ok", (1e-6,), verdict=Verdict(0.5, 0.4, 0.6, 0.0, 30, True))])


def test_tuning_is_part_of_the_night(jobs: Path) -> None:
    jobs.write_text(jobs.read_text() + "trials = 4\n")
    done = nightly(read_plan(jobs), night="2026-02-01")
    assert done.entries[0].trials == 4 and done.entries[0].status == "ok"


def test_a_job_that_fails_does_not_stop_the_night(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TuningError("no luck")

    monkeypatch.setattr(nights, "_verified", broken)
    done = nightly(read_plan(jobs), night="2026-03-01")
    assert done.entries[0].status == "failed" and "no luck" in str(done.problems[0])
