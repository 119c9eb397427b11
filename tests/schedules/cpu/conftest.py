"""Runs a scheduled PrimFunc and checks it against NumPy - for every test of a CPU family."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import numpy as np
import pytest
import tvm

from tvmopt.pipeline import BUILD_CONFIG
from tvmopt.runtime.tiles import request
from tvmopt.targets import Machine

request()  # a host with AMX: kernels run here without `tvmopt.load`, which asks the system for tiles

EDGES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def pytest_generate_tests(metafunc):
    if "edge" in metafunc.fixturenames:
        metafunc.parametrize("edge", EDGES)


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine.load("cpu").with_cores(2)


@pytest.fixture(scope="session")
def execute(machine):
    """execute(func, arrays, shapes of outputs, dtype) -> the outputs, poisoned beforehand."""

    def run(func, arrays, outputs, dtype="float32"):
        with tvm.transform.PassContext(opt_level=3, config=BUILD_CONFIG):
            kernel = tvm.compile(func, target=machine.tvm_target())["main"]
        given = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in arrays]
        dtypes = dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(outputs)
        results = [tvm.runtime.tensor(np.full(s, 77, d)) for s, d in zip(outputs, dtypes, strict=True)]
        kernel(*given, *results)
        return [r.numpy() for r in results]

    return run


@pytest.fixture(scope="session")
def scheduled(machine):
    """scheduled(family, func, knobs=None) -> the PrimFunc after the family's analytic point (or the knobs
    given).
    """

    def apply(family, func, knobs=None):
        shape = family.recognise(func, machine)
        assert shape is not None, f"{family.NAME} does not recognise this function"
        space = family.knobs(shape, machine)
        chosen = {**space.analytic, **(knobs or {})}
        sch = tvm.s_tir.Schedule(func)
        family.apply(sch, shape, chosen)
        return sch.mod["main"]

    return apply
