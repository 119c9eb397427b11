"""Gather never reads outside its table; powers by square roots; Concat of very many."""

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import machines, run


def test_an_index_out_of_range_is_clipped():
    table = np.arange(12, dtype="float32").reshape(4, 3)
    index = np.array([0, 3, 2**40, -7], "int64")
    (y,), _ = run(lambda bb, i: relax.op.take(relax.const(table), i, 0), [index])
    np.testing.assert_array_equal(y, table[[0, 3, 3, 0]])


@pytest.mark.parametrize("axis", [-3, -2, -1])
def test_constant_indices_along_a_negative_axis(axis):
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    (y,), _ = run(lambda bb, x: relax.op.take(x, relax.const(np.array([1, 0, 1]), "int64"), axis), [x])
    np.testing.assert_array_equal(y, np.take(x, [1, 0, 1], axis))


@pytest.mark.parametrize("index", [np.array([3, 1]), np.array([[0, 2, 1]]), np.array(2)])
def test_constant_indices_in_range_stay_unchecked(index, capfd):
    x = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")
    (y,), _ = run(lambda bb, x: relax.op.take(x, relax.const(index, "int64"), 1), [x])
    np.testing.assert_array_equal(y, x[:, index])
    assert "Warning" not in capfd.readouterr().err  # TVM warns that its own form may crash


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", "int64"])
@pytest.mark.parametrize(
    "width, count", [(2, 9), (7, 31), (8, 4), (9, 15), (16, 33), (17, 16), (31, 100), (33, 17), (80, 240), (100, 8)]
)
def test_columns_picked_by_constants(machine, dtype, width, count):
    """Far apart, near each other, and one after the other with gaps; in vectors that are permutations."""
    rng = np.random.default_rng(count)
    x = rng.integers(-100, 100, (3, 5, width)).astype(dtype)
    for index in (rng.integers(0, width, count), np.arange(count) * width // count, np.arange(count)[::-1] % width):
        (y,), how = run(lambda bb, x, i=index: relax.op.take(x, relax.const(i, "int64"), 2), [x], machine)
        np.testing.assert_array_equal(y, x[:, :, index])
    near = np.arange(width).repeat(2)
    (y,), how = run(
        lambda bb, x: relax.op.nn.relu(bb.emit(relax.op.take(x, relax.const(near, "int64"), 2))), [x], machine
    )
    np.testing.assert_array_equal(y, np.maximum(x[:, :, near], 0))
    assert ("rows" in {s.family for s in how.values()}) == (dtype in ("float32", "int32") and width > 2)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("shape", [(2, 7, 9), (1, 33, 17), (3, 80, 31)])
def test_pictures_padded_by_themselves_are_copied_in_runs(shape, mode):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    rows, columns = (np.pad(np.arange(n), (2, 3), mode=mode) for n in shape[1:])

    def build(bb, x):
        x = bb.emit(relax.op.take(x, relax.const(rows, "int64"), 1))
        return relax.op.nn.relu(bb.emit(relax.op.take(x, relax.const(columns, "int64"), 2)))

    (y,), how = run(build, [x])
    np.testing.assert_array_equal(y, np.maximum(np.pad(x, ((0, 0), (2, 3), (2, 3)), mode=mode), 0))
    assert len(how) == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_runs_along_any_axis(axis):
    x = np.random.default_rng(0).standard_normal((9, 10, 11)).astype("float32")
    index = np.array([4, 5, 6, 7, 7, 7, 7, 3, 2, 1, 0, 8])
    (y,), _ = run(lambda bb, x: relax.op.take(x, relax.const(index, "int64"), axis), [x])
    np.testing.assert_array_equal(y, np.take(x, index, axis))


@pytest.mark.parametrize("exponent", [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 3.75, 0.7, -0.5])
def test_power(exponent):
    x = np.abs(np.random.default_rng(1).standard_normal(33)).astype("float32") + 1e-3
    (y,), _ = run(lambda bb, x: relax.op.power(x, relax.const(exponent, "float32")), [x])
    np.testing.assert_allclose(y, x.astype("float64") ** exponent, rtol=2e-6)


def test_power_of_negative_numbers():
    x = np.array([-2.0, -1.5, 0.0, 3.0], "float32")
    (y,), _ = run(lambda bb, x: relax.op.power(x, relax.const(0.75, "float32")), [x])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, x ** np.float32(0.75), rtol=1e-6)
    (y,), _ = run(lambda bb, x: relax.op.power(x, relax.const(3.0, "float32")), [x])
    np.testing.assert_allclose(y, x**3)


@pytest.mark.parametrize("count", [65, 400])
def test_very_many_tensors_are_joined_in_groups(count):
    """One element's choice of 400 operands nests deeper than Python's recursion goes."""
    x = np.arange(3 * 5, dtype="float32").reshape(3, 5)
    (y,), _ = run(lambda bb, x: relax.op.concat([relax.op.add(x, relax.const(float(i))) for i in range(count)], 1), [x])
    np.testing.assert_array_equal(y, np.concatenate([x + i for i in range(count)], 1))
