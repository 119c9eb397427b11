"""Short rows in whole vectors: values, places, and what is not written."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import tvm_ffi
from tvm import relax
from tvm.script import tirx as T

from tests.schedules.harness import machines, run
from tvmopt.lowering.overlap import LAST, OVERLAP, overlap_vectors, vector_for

op = relax.op
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 49, 63, 65, 255, 257]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("row", ROWS)
def test_a_value_a_row(machine, row):
    x, s = np.random.default_rng(row).standard_normal((2, 70, row)), np.random.default_rng(1).standard_normal((70, 1))
    x, s = x.astype("float32"), s.astype("float32")
    x.flat[0], x.flat[-1] = np.nan, np.inf
    (y,), _ = run(lambda bb, a, b: op.subtract(op.multiply(a, b), b), [x, s], machine)
    np.testing.assert_allclose(y, x * s - s, rtol=0, atol=1e-6)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("row", [5, 7, 17, 49])
def test_functions_inside_functions(machine, row):
    """Each value of a chain has a buffer of a whole vector."""
    x = np.random.default_rng(row).standard_normal((66, row)).astype("float32")
    s = np.random.default_rng(row + 1).standard_normal((66, 1)).astype("float32")
    (y,), _ = run(lambda bb, a, b: op.tanh(op.exp(op.sin(op.multiply(a, b)))), [x, s], machine)
    np.testing.assert_allclose(y, np.tanh(np.exp(np.sin(x.astype(float) * s))), rtol=2e-6)


@pytest.mark.parametrize("row", [256, 300, 1031])
def test_long_rows_of_functions(row):
    """More vectors than are written out."""
    x = np.random.default_rng(row).standard_normal((3, row)).astype("float32")
    (y,), how = run(lambda bb, a: op.erf(a), [x])
    np.testing.assert_allclose(y, scipy.special.erf(x.astype(float)), rtol=1e-6)
    assert {one.family for one in how.values()} == {"elementwise"}


@pytest.mark.parametrize("kind", ["int8", "int64", "float16", "bool"])
def test_other_types(kind):
    x = np.random.default_rng(0).integers(0, 2 if kind == "bool" else 50, (80, 49)).astype(kind)
    s = np.random.default_rng(1).integers(0, 2, (80, 1)).astype(kind)
    make = op.logical_and if kind == "bool" else op.multiply
    (y,), _ = run(lambda bb, a, b: make(a, b), [x, s])
    np.testing.assert_array_equal(y, np.logical_and(x, s) if kind == "bool" else x * s)


def test_the_vectors():
    @T.prim_func(s_tir=True, private=True)
    def scale(x: T.Buffer((70, 49), "float32"), y: T.Buffer((70, 49), "float32")):
        for r in range(70):
            for i in T.serial(49, annotations={OVERLAP: 16}):
                with T.sblock("y"):
                    m, n = T.axis.remap("SS", [r, i])
                    y[m, n] = x[m, n] * T.float32(2)

    text = overlap_vectors(scale).script()
    assert "T.unroll(4)" in text and "T.vectorized(16)" in text and "T.min" in text and OVERLAP not in text
    assert tvm_ffi.structural_equal(overlap_vectors(overlap_vectors(scale)), overlap_vectors(scale))
    assert vector_for(49, 8) == 8


def test_several_loops_over_a_vector():
    """The last vector ends with the row, also of what is computed in a buffer of one vector on the way."""

    @T.prim_func(s_tir=True, private=True)
    def squares(x: T.Buffer((70, 20), "float32"), y: T.Buffer((70, 20), "float32")):
        half = T.sblock_alloc_buffer((20,))
        for r in range(70):
            for v in T.serial(2, annotations={LAST: 20}):
                for i in range(16):
                    with T.sblock("half"):
                        m, n = T.axis.spatial(70, r), T.axis.spatial(20, v * 16 + i)
                        half[n] = x[m, n] + T.float32(1)
                for j in range(16):
                    with T.sblock("y"):
                        m, n = T.axis.spatial(70, r), T.axis.spatial(20, v * 16 + j)
                        y[m, n] = half[n] * half[n]

    text = overlap_vectors(squares).script()
    assert text.count("T.min(v * 16, 4) + i") == 1 and text.count("T.min(v * 16, 4) + j") == 1 and LAST not in text


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    "shape", [(197, 100), (1, 19709), (2053, 7), (3, 4099), (1, 1367), (197, 7, 30), (65, 9, 31, 8)]
)
def test_pieces_that_do_not_divide_a_length(shape, cores):
    """A condition stood before each number: the cosine of 197 x 100 took 58 us on a Zen 4, and 11 without."""
    x = np.random.default_rng(cores).standard_normal(shape).astype("float32")
    x.flat[0], x.flat[-1], x.flat[x.size // 2] = np.nan, 1e30, np.inf
    (y,), how = run(lambda bb, a: op.exp(op.negative(a)), [x], cores=cores)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y, np.exp(-x.astype(float)), rtol=2e-6)
    assert {one.family for one in how.values()} == {"elementwise"}


def test_the_last_piece_ends_with_the_length():
    @T.prim_func(s_tir=True, private=True)
    def double(x: T.Buffer((197,), "float32"), y: T.Buffer((197,), "float32")):
        for part in range(4):
            for i in T.serial(50, annotations={OVERLAP: 16}):
                with T.sblock("y"):
                    m = T.axis.spatial(197, part * 50 + i)
                    T.where(part * 50 + i < 197)
                    y[m] = x[m] * T.float32(2)

    @T.prim_func(s_tir=True, private=True)
    def every_other(x: T.Buffer((197,), "float32"), y: T.Buffer((197,), "float32")):
        for i in T.serial(99, annotations={OVERLAP: 16}):
            with T.sblock("y"):
                m = T.axis.spatial(197, 2 * i)
                T.where(2 * i < 197)
                y[m] = x[m] * T.float32(2)

    text = overlap_vectors(double).script()
    assert "T.where" not in text and "- T.max(part * 50 - 147, 0)" in text
    assert "T.where" in overlap_vectors(every_other).script()
