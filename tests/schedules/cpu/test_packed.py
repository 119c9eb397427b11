"""Products of weights of 2, 4 and 8 bits against float64: edge sizes, zero points, extremes, both decoders, threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt import pipeline
from tvmopt.operators.packed_product import OP, ROUNDED, Packing, matrix, packed_product
from tvmopt.report import DecisionLog
from tvmopt.schedules.cpu.packed.compute import MOST_ROWS
from tvmopt.schedules.cpu.packed.schedule import recognise
from tvmopt.targets import Machine

HOST = Machine.load("cpu").with_cores(2)
MACHINES = [HOST.with_cores(1), HOST, Machine.load("x86-64-v3").with_cores(1), HOST.with_cores(40)]


def operands(packing: Packing, zeros: bool, seed: int = 0) -> list[Any]:
    """Random codes, the least and the largest among them, scales and zero points (whole ones and others)."""
    rng = np.random.default_rng(seed)
    shape = (packing.n, packing.groups)
    codes = rng.integers(0, 256, (*shape, packing.group * packing.bits // 8)).astype(np.uint8)
    codes[0], codes[-1] = 0, 255
    scales = rng.uniform(0.001, 0.02, shape).astype(np.float32)
    found = [codes, scales]
    if zeros:
        whole = rng.integers(0, 2**packing.bits, shape) + 0.37 * (np.arange(packing.n)[:, None] % 2)
        found.append(whole.astype(np.float32))
    return found


def lowered(
    packing: Packing, rows: tuple[int, ...], weights: list[Any], machine: Machine, op: str = OP
) -> pipeline.Lowered:
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((*rows, packing.k), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            constants = [relax.const(w, str(w.dtype)) for w in weights]
            out = bb.emit_output(bb.emit(packed_product(x, packing, *constants, op=op), "product"))
        bb.emit_func_output(out)
    return pipeline.lower(bb.get(), machine, DecisionLog())


def run(found: pipeline.Lowered, machine: Machine, x: Any) -> Any:
    vm = relax.VirtualMachine(pipeline.build(found, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def check(packing: Packing, rows: tuple[int, ...], zeros: bool, machine: Machine, family: str = "packed") -> None:
    weights = operands(packing, zeros)
    found = lowered(packing, rows, weights, machine)
    kernels = [k.family for k in found.kernels]
    assert family in kernels and ("packed" in kernels) == (family == "packed")
    x = np.random.default_rng(3).standard_normal((*rows, packing.k)).astype(np.float32)
    wide = matrix(packing, weights[0], *(w.astype(np.float64) for w in weights[1:]), *([] if zeros else [None]))
    expected = x.astype(np.float64) @ wide
    got = run(found, machine, x)
    assert got.shape == expected.shape
    size = np.abs(x).astype(np.float64) @ np.abs(wide)  # what rounding is relative to
    assert (np.abs(got - expected) <= 4e-7 * (1 + np.log2(packing.k)) * size + 1e-12).all()


@pytest.mark.parametrize("machine", range(3))
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_every_width(machine: int, bits: int, zeros: bool) -> None:
    check(Packing(96, 130, bits, 32), (3,), zeros, MACHINES[machine])


@pytest.mark.parametrize(("k", "group"), [(1, 16), (15, 16), (17, 16), (33, 32), (128, 128), (300, 256)])
@pytest.mark.parametrize("n", [16, 17, 31, 33, 63, 64, 65, 129])
def test_sizes(k: int, group: int, n: int) -> None:
    check(Packing(k, n, 4, group), (1,), bool(n % 2), MACHINES[0])


@pytest.mark.parametrize("rows", [(1,), (1, 1), (2,), (4,), (5,), (7,), (2, 4), (MOST_ROWS,)])
def test_rows(rows: tuple[int, ...]) -> None:
    check(Packing(64, 80, 4, 32), rows, True, HOST)


@pytest.mark.parametrize("rows", [(MOST_ROWS + 1,), (2, 6), (31,), (192,), (2, 193)])
@pytest.mark.parametrize("machine", [1, 2, 3])
def test_many_rows(rows: tuple[int, ...], machine: int) -> None:
    """A piece of a panel is decoded once for all of them; the weights are not unpacked when the model is compiled."""
    check(Packing(300, 70, 4, 16), rows, True, MACHINES[machine])


@pytest.mark.parametrize("op", [OP, ROUNDED])
def test_many_cores_have_work(op: str) -> None:
    """1024 columns on 64 cores: narrower panels for one row; parts of the rows where panels are few."""
    many = HOST.with_cores(64)
    for rows, columns, least in ((1, 1024, 64), (512, 64, 58), (512, 1024, 58)):
        sized = Packing(64, columns, 4, 32)
        found = lowered(sized, (rows,), operands(sized, False), many, op)
        tasks = [_tasks(f) for g, f in found.unscheduled.functions_items() if "product" in str(g.name_hint)]
        assert tasks and tasks[0] >= least


def _tasks(func: Any) -> int:
    problem = recognise(func, HOST)
    return problem.tasks if problem else 0


def test_few_columns_are_float32_products() -> None:
    check(Packing(48, 7, 4, 16), (1,), True, HOST, "gemm")


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("machine", [0, 2])
def test_extreme_inputs(bits: int, machine: int) -> None:
    """Large inputs overflow only where the result does; infinity and NaN end where a float32 matrix takes them."""
    packing, one = Packing(64, 48, bits, 32), MACHINES[machine]
    weights = operands(packing, True)
    found, wide = lowered(packing, (4,), weights, one), matrix(packing, *weights)
    x = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    x[0], x[1, 5], x[2, 7], x[3] = 1e37 * np.sign(x[0]), np.inf, np.nan, x[3] * np.float32(1e-30)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float64) @ wide.astype(np.float64)
    got = run(found, one, x)
    fine = np.abs(expected) < 3e38
    assert fine[0].any() and fine[3].all()
    np.testing.assert_allclose(got[0][fine[0]], expected[0][fine[0]], rtol=1e-4, atol=1e32)
    np.testing.assert_array_equal(np.isnan(got[1:3]), np.isnan(expected[1:3]))
    np.testing.assert_array_equal(got[1][np.isinf(expected[1])], expected[1][np.isinf(expected[1])])
    np.testing.assert_allclose(got[3], expected[3], rtol=1e-4, atol=1e-37)


def test_the_weights_stay_packed() -> None:
    """The constants of the compiled product are the codes and the scales: 4.5 bits a weight where 32 share a scale."""
    packing = Packing(256, 128, 4, 32)
    found = lowered(packing, (1,), operands(packing, False), HOST)
    sizes = [c.nbytes for c in _constants(found.module["main"])]
    assert sum(sizes) == 256 * 128 // 2 + 128 * 8 * 4 + 64  # and the table


def _constants(func: Any) -> list[Any]:
    found: list[Any] = []

    def look(expr: Any) -> None:
        if hasattr(expr, "value") and hasattr(expr.value, "numpy"):
            found.append(expr.value.numpy())

    relax.analysis.post_order_visit(func, look)
    return found
