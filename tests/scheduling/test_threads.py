"""What threads share: an epilogue that costs more than its product, and all rows of a picture behind a small one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.schedules.harness import lowered_bf16, module_of, rand
from tvmopt import pipeline
from tvmopt.scheduling.apply import tasks_of
from tvmopt.targets import Machine

op = relax.op
XEON = Machine.load("sapphirerapids").with_cores(2)
HOST = Machine.load("cpu").with_cores(2)


def most_tasks(module: tvm.IRModule) -> int:
    """Iterations of the longest parallel loop of all kernels; 1 without one."""
    return max(tasks_of(func) for func in module.functions.values() if isinstance(func, tirx.PrimFunc))


@pytest.mark.parametrize(("then", "shared"), [("", False), ("gelu", True)])
def test_tiles_of_a_small_product_are_shared_for_its_epilogue(then: str, shared: bool) -> None:
    """192 rows by 32 to 256 columns are some 9,000 cycles of tiles, their GELUs several times as many."""

    def body(bb: Any, x: Any) -> Any:
        product = bb.emit(op.matmul(x, relax.const(rand(32, 256, seed=1))))
        return op.nn.gelu(product) if then else product

    low = lowered_bf16(body, [rand(192, 32)], XEON)
    assert "amx_gemm" in [k.family for k in low.kernels]
    assert (most_tasks(low.module) > 1) is shared


@pytest.mark.parametrize(("side", "rows"), [(40, True), (9, False)])
def test_rows_of_a_picture_behind_a_small_product(side: int, rows: bool) -> None:
    """A picture times its gates, which a product computes: rows of a large picture are shared, not its one sample."""
    x, w, picture = rand(1, 1, 1, 24), rand(32, 1, 1, 24, seed=1), rand(1, side, side, 32, seed=2)

    def body(bb: Any, x: Any, picture: Any) -> Any:
        gate = op.nn.conv2d(x, relax.const(w), data_layout="NHWC", kernel_layout="OHWI")
        return op.multiply(picture, bb.emit(op.sigmoid(bb.emit(gate))))

    low = pipeline.lower(module_of(body, [x, picture]), HOST)
    assert (most_tasks(low.module) >= side) is rows
    vm = relax.VirtualMachine(pipeline.build(low, HOST), tvm.cpu())
    found = vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(picture)).numpy()
    expected = picture / (1 + np.exp(-(x.astype("f8") @ w[:, 0, 0].T)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
