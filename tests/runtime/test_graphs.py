"""CUDA graphs left out for instruments: the code of a graph runs kernel by kernel, in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from tests.cuda import device
from tests.cuda.emulator import emulated
from tests.schedules.harness import module_of
from tvmopt import pipeline
from tvmopt.report import DecisionLog
from tvmopt.runtime.library import GRAPH, launch, without_graphs
from tvmopt.targets import Machine

H100 = Machine.load("nvidia-h100")
ALLOCATED = "vm.builtin.cuda_graph.get_cached_alloc"


@pytest.fixture
def fakes() -> Iterator[list[str]]:
    """TVM's functions for CUDA graphs where there is no GPU: what they are called with."""
    if device.is_here(H100):
        pytest.skip("TVM's own are there")
    called: list[str] = []

    def capture(*arguments: Any) -> Any:
        called.append(GRAPH)
        return launch(*arguments)

    def allocate(machine: Any, storage: Any, *_: Any) -> Any:
        called.append(ALLOCATED)
        return launch(machine, storage, ())

    tvm_ffi.register_global_func(GRAPH, capture, override=True)
    tvm_ffi.register_global_func(ALLOCATED, allocate, override=True)
    yield called
    for name in (GRAPH, ALLOCATED):
        tvm_ffi.registry.remove_global_func(name)


def test_kernels_of_a_graph_are_seen_one_by_one(fakes: list[str]) -> None:
    w = np.random.default_rng(0).standard_normal((16, 16), dtype="float32")

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        for _ in range(5):
            x = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.matmul(x, relax.const(w)))))
        return x

    x = np.random.default_rng(1).standard_normal((9, 16), dtype="float32")
    lowered = pipeline.lower(module_of(build, [x]), H100, DecisionLog())
    with emulated():
        executable = pipeline.build(lowered, H100, cuda_graph=True)

    def run() -> tuple[np.ndarray, list[str]]:
        vm, names = relax.VirtualMachine(executable, tvm.cpu()), []

        def instrument(function: Any, symbol: str, before: bool, result: Any, *arguments: Any) -> int:
            names.append(symbol)
            return 0

        vm.set_instrument(instrument)
        return vm["main"](tvm.runtime.tensor(x)).numpy(), names

    graph, _ = run()
    assert fakes.count(GRAPH) == 1
    fakes.clear()
    with without_graphs():
        plain, names = run()
    assert GRAPH not in fakes
    assert graph.tobytes() == plain.tobytes()
    assert sum("softmax" in name or "matmul" in name for name in names) >= 5
    run()
    assert fakes.count(GRAPH) == 1, "TVM's own function is back"
