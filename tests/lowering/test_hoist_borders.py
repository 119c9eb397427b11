"""Borders are asked for once a row of taps: the sums are the same at every size, stride and dilation."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmopt.lowering.hoist_borders import BORDER, HoistBorders
from tvmopt.pipeline import compile_kernels
from tvmopt.targets import Machine

LANES = 8


def sums(taps: int, height: int, width: int, before: int, stride: int, step: int, fill: float = 0.0) -> Any:
    """y[r, i] = sum over ky, kx of w[ky, kx] * x[r * stride + ky * step - before, i + kx], with a border around x."""
    rows = max(1, (height + 2 * before - (taps - 1) * step - 1) // stride + 1)

    @T.prim_func(s_tir=True)
    def kernel(
        x: T.Buffer((height, width + taps, LANES), "float32"),
        w: T.Buffer((taps, taps, LANES), "float32"),
        y: T.Buffer((rows, width, LANES), "float32"),
    ):
        for r in range(rows):
            with T.sblock("row"):
                a = T.axis.spatial(rows, r)
                acc = T.sblock_alloc_buffer((width, LANES), "float32", scope="local")
                for i in T.unroll(width):
                    for v in T.vectorized(LANES):
                        acc[i, v] = T.float32(0)
                for ky in T.serial(taps, annotations={BORDER: 1}):
                    for kx in T.unroll(taps):
                        for i in T.unroll(width):
                            for v in T.vectorized(LANES):
                                acc[i, v] = acc[i, v] + w[ky, kx, v] * T.if_then_else(
                                    before <= a * stride + ky * step and a * stride + ky * step < height + before,
                                    x[a * stride + ky * step - before, i + kx, v],
                                    T.float32(fill),
                                )
                for i in T.unroll(width):
                    for v in T.vectorized(LANES):
                        y[a, i, v] = acc[i, v]

    return kernel.with_attr("global_symbol", "kernel")


@pytest.mark.parametrize("taps", [1, 3, 4])
@pytest.mark.parametrize(("height", "before"), [(1, 0), (2, 4), (7, 2)])
@pytest.mark.parametrize(("stride", "step"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_the_sums_are_the_same(taps: int, height: int, before: int, stride: int, step: int, fill: float) -> None:
    width = 5
    kernel = sums(taps, height, width, before, stride, step, fill)
    built = compile_kernels(tvm.IRModule({"kernel": kernel}), Machine.load("cpu"))
    rng = np.random.default_rng(taps * height)
    x, w = (rng.standard_normal(s).astype("f") for s in ((height, width + taps, LANES), (taps, taps, LANES)))
    rows = max(1, (height + 2 * before - (taps - 1) * step - 1) // stride + 1)
    y = tvm.runtime.tensor(np.zeros((rows, width, LANES), "f"))
    built["kernel"](*map(tvm.runtime.tensor, (x, w)), y)
    wanted = np.zeros((rows, width, LANES))
    for row, ky, kx in np.ndindex(rows, taps, taps):
        place = row * stride + ky * step - before
        line = x[place, kx : kx + width] if 0 <= place < height else np.full((width, LANES), fill)
        wanted[row] += w[ky, kx] * line
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)


def nest(value: Any, extent: int = 8, marked: bool = True) -> Any:
    """What the pass makes of `for k in range(5): for i in unroll(extent): acc[i] = value(acc[i], row, k, i)`."""
    row, k, i = (tirx.Var(name, "int32") for name in ("row", "k", "i"))
    acc = tirx.decl_buffer((extent,), "float32", "acc")
    store = tirx.BufferStore(acc, value(tirx.BufferLoad(acc, [i]), row, k, i), [i])
    zero = tirx.const(0, "int32")
    inner = tirx.For(i, zero, tirx.const(extent, "int32"), tirx.ForKind.UNROLLED, store)
    loop = tirx.For(k, zero, tirx.const(5, "int32"), tirx.ForKind.SERIAL, inner, None, {BORDER: 1} if marked else {})
    return HoistBorders(tvm.IRModule({"f": tirx.PrimFunc([row], loop)}))["f"].body


DATA = tirx.decl_buffer((64,), "float32", "x")


def within(row: Any, k: Any, i: Any, border: float) -> Any:
    asked = tirx.all(row + k >= 2, row + k < 40, i < 7)
    return tirx.if_then_else(asked, tirx.BufferLoad(DATA, [(row + k) * 8 + i]), tirx.const(border, "float32"))


def test_a_schedule_has_to_say_so() -> None:
    loop = nest(lambda acc, row, k, i: acc + within(row, k, i, 0.0), marked=False)
    assert isinstance(loop.extent, tirx.IntImm)


def test_a_border_bounds_the_loop_over_rows() -> None:
    loop = nest(lambda acc, row, k, i: acc + within(row, k, i, 0.0))
    assert "max" in str(loop.min) and "min" in str(loop.extent)
    asked: list[Any] = []
    structural_walk(loop.body, (((tirx.LT, tirx.LE, tirx.GE), asked.append),))
    assert len(asked) == 1  # that of the columns


@pytest.mark.parametrize(
    ("value", "extent"),
    [
        (lambda acc, row, k, i: acc + within(row, k, i, 1.0), 8),  # a border that adds something
        (lambda acc, row, k, i: within(row, k, i, 0.0), 8),  # a copy
        (lambda acc, row, k, i: acc + within(row, k, i, 0.0), 3),  # few copies
        (lambda acc, row, k, i: acc + within(i, k, i, 0.0), 8),  # another condition in each copy
    ],
)
def test_what_is_left_alone(value: Any, extent: int) -> None:
    loop = nest(value, extent)
    assert isinstance(loop.extent, tirx.IntImm) and isinstance(loop.body, tirx.For)
