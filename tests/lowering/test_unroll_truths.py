"""Truths in memory: a byte each, in kernels whose threads take several elements."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tests.schedules.cuda.harness import array, pipelined
from tvmopt.toolchain.ptxas import compile_source

MANY = (1 << 16, 8)
"""Enough for vectors of 16 bytes in every thread."""


def check(source: str) -> None:
    kernels = source.split('extern "C"', 1)[1]
    assert "ushort4*" not in kernels and "ushort2*" not in kernels
    if shutil.which("nvcc"):
        compile_source(source, "sm_90a")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8"])
def test_comparisons(dtype: str) -> None:
    x, y = array(MANY, dtype, 3), array(MANY, dtype, 3, 1)
    out, source, _ = pipelined(lambda bb, x, y: relax.op.less(x, y), [x, y], "fp32")
    check(source)
    np.testing.assert_array_equal(out, x < y)


def test_truths_of_truths() -> None:
    x, y = array(MANY, "float32") > 0, array(MANY, "float32", 1, 1) > 0

    def build(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return relax.op.logical_or(bb.emit(relax.op.logical_and(x, y)), bb.emit(relax.op.logical_not(x)))

    out, source, _ = pipelined(build, [x, y], "fp32")
    check(source)
    np.testing.assert_array_equal(out, (x & y) | ~x)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_choices(dtype: str) -> None:
    x, seen = array(MANY, dtype), array(MANY, "float32", 1, 1) > 0
    out, source, _ = pipelined(lambda bb, x, t: relax.op.where(t, x, relax.const(-1, dtype)), [x, seen], "fp32")
    check(source)
    np.testing.assert_array_equal(out, np.where(seen, x, -1).astype(dtype))


def test_rows_of_truths() -> None:
    """A softmax of what a mask leaves, whose row is held in registers."""
    x, seen = array((64, 1024), "float32"), array((64, 1024), "float32", 1, 1) > 0

    def build(bb: relax.BlockBuilder, x: relax.Expr, seen: relax.Expr) -> relax.Expr:
        return relax.op.nn.softmax(bb.emit(relax.op.where(seen, x, relax.const(-1e30, "float32"))), -1)

    out, source, _ = pipelined(build, [x, seen], "fp32")
    check(source)
    wide = np.where(seen, np.exp(x.astype("float64")), 0)
    np.testing.assert_allclose(out, wide / wide.sum(-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_truth_with_a_name(dtype: str) -> None:
    """As Softplus has it: TVM's analyzer failed at the vector."""
    x = abs(array(MANY, dtype)) + np.ones((), dtype)

    def named(value: Any) -> Any:
        less, none = tirx.Var("less", dtype), tirx.Var("none", "bool")
        zero, two = tirx.const(0, dtype), tirx.const(2, dtype)
        is_zero = tirx.And(tirx.LE(less, zero), tirx.LE(zero, less))
        chosen = tirx.Select(none, two, less * tirx.log(tirx.Select(none, two, value)))
        return tirx.Let(less, value - tirx.const(1, dtype), tirx.Let(none, is_zero, chosen))

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        def chosen(a: te.Tensor) -> te.Tensor:
            return te.compute(a.shape, lambda *i: named(a(*i)), name="chosen")

        return bb.call_te(chosen, x)

    out, source, _ = pipelined(build, [x], "fp32")
    check(source)
    wide = x.astype("float64")
    np.testing.assert_allclose(out, np.where(x == 1, 2, (wide - 1) * np.log(wide)), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_product_behind_which_a_mask_chooses(dtype: str) -> None:
    """A kernel of tensor cores writes its loads out as vectors itself."""
    x, w = array((32, 64), dtype, 0.2), array((64, 64), dtype, 0.2, 1)
    seen = array((32, 64), "float32", 1, 2) > 0

    def build(bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, seen: relax.Expr) -> relax.Expr:
        return relax.op.where(seen, bb.emit(relax.op.matmul(x, w)), relax.const(-1, dtype))

    out, source, used = pipelined(build, [x, w, seen], "fp32")
    assert used[-1] == "gemm"
    check(source)
    exact = np.where(seen, x.astype("float64") @ w.astype("float64"), -1)
    np.testing.assert_allclose(out.astype("float64"), exact, atol=2e-2 if dtype == "float16" else 1e-5)
