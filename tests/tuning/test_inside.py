"""Candidates inside the model: who wins there is the winner, whatever a kernel alone had shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.small import silu
from tests.tuning.fakes import MACHINE, FakeRunner, task
from tvmopt import pipeline
from tvmopt.targets import Machine
from tvmopt.tuning import driver, inside
from tvmopt.tuning.instance import inside_verdict
from tvmopt.tuning.record import Candidate, Record
from tvmopt.tuning.search import Budget, Tuner
from tvmopt.tuning.store import Store

HOST = Machine.load("cpu").with_threads(1)
UNUSED: set[str] = set()
"""Candidates that no kernel of the model takes."""


class StandInLookup:
    def __init__(self, machine: Any) -> None:
        self.records: list[Any] = []

    def put(self, record: Any, origin: str) -> None:
        self.records.append(record)

    @property
    def used(self) -> list[Any]:
        return [(record, "store") for record in self.records if record.candidate.id not in UNUSED]


class StandInModel:
    def __init__(self, module: Any, machine: Any, lookup: StandInLookup | None, precision: str = "fp32") -> None:
        self.records = lookup.records if lookup else []


@pytest.fixture
def tuner(tmp_path: Path) -> Any:
    with Store(tmp_path / "t.db") as store:
        tasks = [replace(t, names=(t.name,)) for t in (task("one", weight=3.0), task("two"))]
        found = Tuner(tasks, FakeRunner(), store, Budget(200), seed=1)
        found.run()
        assert all(state.winner for state in found.states)
        yield found


def play(monkeypatch: pytest.MonkeyPatch, tuner: Tuner, times: Any) -> int:
    """`compete` in a model where a candidate takes `times(task name, candidate id)`, the analytic schedule 1."""

    def profiles(instances: list[Any], rounds: int) -> list[list[dict[str, float]]]:
        other = instances[1]
        names = [s.task.name for s in tuner.states]
        seen = {r.key.workload: times(r.key.workload, r.candidate.id) for r in other.records}
        wobble = [1 + n % 3 / 1000 for n in range(rounds)]
        return [[dict.fromkeys(names, w) for w in wobble],
                [{name: seen.get(name, 1.0) * w for name in names} for w in wobble]]  # fmt: skip

    monkeypatch.setattr(inside, "RecordLookup", StandInLookup)
    monkeypatch.setattr(inside, "Instance", StandInModel)
    monkeypatch.setattr(inside, "profiles", profiles)
    return inside.compete(None, MACHINE, StandInModel(None, None, None), tuner)  # type: ignore[arg-type]


def test_the_winner_inside_is_the_winner(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    one, two = tuner.states
    first, second = (r.candidate.id for r in inside.contenders(one)[:2])
    alone = {s.task.name: s.winner.candidate.id for s in tuner.states if s.winner}
    assert first == alone["one"]

    def times(name: str, candidate: str) -> float:
        return {first: 1.1, second: 0.8}.get(candidate, 0.9) if name == "one" else 1.02

    assert play(monkeypatch, tuner, times) == inside.MODELS
    assert one.winner is not None and one.winner.candidate.id == second
    assert one.ratio == pytest.approx(0.8)
    assert one.records[first].verdict.inside == pytest.approx(1.1)  # type: ignore[union-attr]
    assert two.winner is None  # nothing was faster inside
    assert two.records[alone["two"]].verdict.inside == pytest.approx(1.02)  # type: ignore[union-attr]
    assert first not in [r.candidate.id for r in inside.contenders(one)]  # judged once


def test_small_kernels_and_wrong_candidates_do_not_compete(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    one, two = tuner.states
    before = two.winner
    object.__setattr__(two.task, "weight", 1e-6)
    best = inside.contenders(one)[0]
    object.__setattr__(best, "status", "wrong")
    assert best not in inside.contenders(one)
    play(monkeypatch, tuner, lambda name, candidate: 0.9)
    assert two.winner is before or two.winner == before


def test_a_candidate_that_did_not_run_is_not_judged(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    one, _ = tuner.states
    best = one.winner
    assert best is not None
    monkeypatch.setitem(globals(), "UNUSED", {r.candidate.id for r in inside.contenders(one)})
    play(monkeypatch, tuner, lambda name, candidate: 0.5 if name == "one" else 0.9)
    assert one.winner == best


def test_a_wrong_candidate_from_elsewhere_is_stored_as_wrong(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    """It says "ok", and that it had won; nothing here has compared its outputs."""
    one, _ = tuner.states
    wrong = replace(inside.contenders(one)[0], candidate=Candidate({"a": 99, "b": 1, "c": 1}))
    tuner.store.merge([wrong])
    tuner.refresh()
    assert wrong.candidate.id in {r.candidate.id for r in inside.contenders(one)}
    monkeypatch.setattr(tuner.runner, "status", lambda task, c: "wrong" if c == wrong.candidate else "ok")
    seen = []
    play(monkeypatch, tuner, lambda name, candidate: seen.append(candidate) or 0.9)  # type: ignore[func-returns-value]
    assert seen and wrong.candidate.id not in seen
    (found,) = (r for r in tuner.store.records(one.task.key) if r.candidate == wrong.candidate)
    assert found.status == "wrong" and found.verdict is None and one.winner != found


def test_what_a_final_refused_does_not_compete(tuner: Tuner) -> None:
    """And its record says what it was: the next run must not try it again."""
    one, _ = tuner.states
    best = inside.contenders(one)[0]
    one.refused.add(best.candidate.id)
    assert best not in inside.contenders(one)
    other = inside.contenders(one)[0]
    tuner.runner.status = lambda task, candidate: "wrong"  # type: ignore[attr-defined]
    assert tuner._final(one, other, None) is None
    assert one.records[other.candidate.id].status == "wrong" and other not in inside.contenders(one)


def test_the_model_is_built_with_a_candidate_that_has_not_won(tmp_path: Path) -> None:
    """The lookup that `compile` uses takes winners only: the candidates ran with the analytic schedule."""
    module = driver.imported_module(silu(tmp_path / "m.onnx", depth=40), {})
    product = next(t for t in driver.tasks_of(module, HOST) if t.key.family == "gemm")
    knobs = {name: values[-1] for name, values in product.space.choices.items()}
    record = Record(product.key, Candidate(knobs), "ok", (1e-6,))
    lookup = inside.lookup_of(HOST, [record])
    lowered = pipeline.lower(module, HOST, lookup=lookup)
    assert [found for found, _ in lookup.used] == [record]
    assert [k.source for k in lowered.kernels if k.family == "gemm"] == ["tuned"]


def test_a_kernel_disturbed_too_often_is_not_judged() -> None:
    assert inside_verdict(("k",), [{"k": 1.0}] * 7 + [{}] * 9, [{"k": 0.5}] * 16) is None
    found = inside_verdict(("k", "l"), [{"k": 1.0, "l": 1.0}] * 16, [{"k": 0.5, "l": 1.0}] * 16)
    assert found is not None and found.ratio == 0.75
