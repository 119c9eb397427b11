"""The gate for refactorings: equal code has equal hashes, and a change of one kernel is told by that kernel's name."""

import onnx
import pytest
import same_code

from tests.runtime.small import small_model
from tvmopt import pipeline


@pytest.fixture
def model(tmp_path):
    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    return tmp_path / "small.onnx"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_model_has_the_same_hashes_twice(model, precision):
    first = same_code.hashes(model, precision)
    assert len(first) > 2
    assert same_code.differences(first, same_code.hashes(model, precision)) == []


def test_weights_do_not_count(model):
    first = same_code.hashes(model, "fp32")
    onnx.save(small_model(seed=1), str(model))
    assert same_code.differences(first, same_code.hashes(model, "fp32")) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_changed_kernel_is_named(model, precision, monkeypatch):
    first = same_code.hashes(model, precision)
    lower = pipeline.lower
    kernel = next(name.removesuffix("_kernel") for name in first if "conv" in name)
    monkeypatch.setattr(pipeline, "lower", lambda *a, **k: lower(*a, **k, generic=[kernel]))
    told = same_code.differences(first, same_code.hashes(model, precision))
    assert any(line.startswith(kernel) for line in told)
    assert len(told) < len(first)
