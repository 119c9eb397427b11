"""Kernels of bf16 under the tuner: their weights are numbers, their outputs can be compared, a wrong one is seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import lowered_bf16, rand
from tvmopt.targets import Machine
from tvmopt.tuning import kernel, tasks
from tvmopt.tuning.record import Candidate

HOST = Machine.load("cpu").with_cores(1).without_tiles()
pytestmark = pytest.mark.skipif(not HOST.has("avx512bf16"), reason="no avx512_bf16 here")


@pytest.fixture(params=["bfloat16", "float32"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> kernel.Bench:
    """A product of bf16 whose result is of the parameter's type."""
    w, v = rand(64, 48), rand(48, 32, seed=1)

    def body(bb, x):
        first = bb.emit(relax.op.matmul(x, relax.const(w)))
        return relax.op.matmul(bb.emit(relax.op.nn.relu(first)), relax.const(v))

    found = tasks.extract(lowered_bf16(body, [rand(17, 64)], HOST), HOST)
    gemms = [t.kernel for t in found if t.kernel.family == "gemm"]
    made = [kernel.Bench(dataclasses.replace(k, folder=str(tmp_path / k.id))) for k in gemms]
    (one,) = (b for b in made if kernel.tensor_type(b.func.params[-1])[1] == request.param)
    return one


def test_the_analytic_schedule_is_right_and_another_result_is_not(bench: kernel.Bench) -> None:
    bench.make_reference()
    candidate = Candidate(bench.kernel.analytic)
    bench.build(candidate)
    right, _, problem = bench.check(candidate.id)
    assert right, problem
    (reference,) = bench._reference
    assert np.abs(reference.astype("float32")).max() > 1, "all zeros prove nothing"

    correct = bench.built[candidate.id]

    def nearly(*arguments) -> None:
        correct(*arguments)
        values = arguments[-1].numpy().copy()
        values.flat[0] += np.abs(values).max().astype(values.dtype) / values.dtype.type(10)
        arguments[-1].copyfrom(values)

    bench.built[candidate.id] = nearly
    right, _, problem = bench.check(candidate.id)
    assert not right
    assert "differs" in problem
