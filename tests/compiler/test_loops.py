"""Artifacts of models with a loop that a run goes through: compiled, checked, run, profiled."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import tvmopt
from tests.importer.test_loops import floats, recurrence
from tvmopt.analysis.recorder import Recorder
from tvmopt.errors import InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    file = tmp_path_factory.mktemp("loop") / "steps.onnx"
    onnx.save(recurrence(), file)
    compiled = tvmopt.compile(file, output=file.with_suffix(".tvmopt"), records=False)
    return file, compiled, tvmopt.load(file.with_suffix(".tvmopt"))


def test_it_is_verified_and_agrees_at_every_length(made):
    file, compiled, model = made
    assert compiled.report.accuracy["reference"]
    session = onnxruntime.InferenceSession(file)
    for batch, length in [(1, 1), (2, 9), (16, 31), (1, 300), (3, 2), (1, 1)]:
        x = floats(length, batch, length, 48)
        expected = session.run(None, {"x": x})
        for array, other in zip(model.run({"x": x}).values(), expected, strict=True):
            np.testing.assert_allclose(array, other, 1e-5, 1e-5)


def test_weights_of_a_body_are_the_artifacts(made):
    _, compiled, model = made
    assert (
        sorted(w.shape for w in model.manifest.weights) == [(48,), (48, 48), (48, 48)]
        or len(model.manifest.weights) == 3
    )
    names = {k.name: k for k in compiled.report.kernels}
    products = [k for k in names.values() if k.family == "gemm"]
    assert len(products) == 2 and all(k.name.startswith("loop0_") for k in products)
    assert any("MatMul" in site for k in products for nodes in k.nodes for site in nodes)


def test_results_of_a_call_stay_when_the_next_one_runs(made):
    _, _, model = made
    first = model.run({"x": floats(1, 2, 5, 48)})
    kept = {name: np.array(array) for name, array in first.items()}
    model.run({"x": floats(2, 2, 5, 48)})
    assert all(np.array_equal(first[name], kept[name]) for name in kept)


def test_a_profile_counts_what_a_trip_takes_once(made):
    _, _, model = made
    recorder = Recorder(model, {"x": floats(1, 1, 64, 48)})
    for record in (recorder._native_run, recorder._python):
        total, seconds = record()
        assert sum(seconds) <= total
    names = [symbol for symbol, _, _ in recorder.events]
    assert names.count("loop0") == 1 and names.count("loop0_body") == 64


def test_a_c_archive_refuses_it_by_name(made, tmp_path):
    with pytest.raises(InputError, match="a Loop that a run goes through"):
        tvmopt.compile(made[0], output=tmp_path / "archive", emit="c-archive", shape={"x": (1, 300, 48)})
