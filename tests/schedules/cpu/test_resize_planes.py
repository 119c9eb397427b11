"""Planes in NCHW resized, by linear interpolation and by any other taps, against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.operators.interpolate import Taps, interpolate
from tvmopt.pipeline import build, lower
from tvmopt.schedules.cpu.resample.planes import Across, Down, neighbours
from tvmopt.targets import Machine


def run(x, size, transform, **how):
    """The result and the families of the kernels."""
    words = {"layout": "NCHW", "method": "linear", "coordinate_transformation_mode": transform, "rounding_method": ""}
    return compiled(x, lambda var: relax.op.image.resize2d(var, relax.ShapeExpr(size), **words), **how)


def compiled(x, resized, after=None, machine=None, batch=None):
    """As :func:`run`, of any call; `batch`: a variable in the place of the number of pictures."""
    machine = machine or Machine.load("cpu").with_cores(2)
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape if batch is None else [batch, *x.shape[1:]], "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            y = bb.emit(resized(var))
            out = bb.emit_output(relax.Tuple([y if after is None else bb.emit(after(y))]))
        bb.emit_func_output(out)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy(), {k.family for k in lowered.kernels}


def definition(x, size, transform):
    y = x.astype("float64")
    for axis, out in ((2, size[0]), (3, size[1])):
        n, at = x.shape[axis], np.arange(out, dtype="float64")
        if transform == "align_corners":
            at = at * (n - 1) / max(out - 1, 1)
        elif transform == "half_pixel":
            at = (at + 0.5) * n / out - 0.5
        else:
            at = at * n / out
        at = np.clip(at, 0, n - 1)
        low = np.minimum(np.floor(at).astype(int), n - 1)
        high, share = np.minimum(low + 1, n - 1), at - low
        share = share.reshape([-1 if i == axis else 1 for i in range(4)])
        y = np.take(y, low, axis) * (1 - share) + np.take(y, high, axis) * share
    return y


def check(shape, size, transform, **how):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    got, families = run(x, size, transform, **how)
    np.testing.assert_allclose(got, definition(x, size, transform), rtol=1e-5, atol=1e-5)
    assert families == {"rows"}


@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("scale", [(1, 2), (2, 1), (3, 1), (9, 4)])
@pytest.mark.parametrize("width", [7, 8, 9, 15, 16, 17, 31, 32, 33, 100])
def test_widths(width, scale, transform):
    up, down = scale
    check((1, 9, 12, width), (12 * up // down, max(2, width * up // down)), transform)


@pytest.mark.parametrize("shape", [(1, 1, 40, 200), (1, 3, 7, 30), (2, 1, 5, 5)])
def test_few_planes_are_cut_into_pieces(shape):
    check(shape, (shape[2] * 2, shape[3] * 2), "half_pixel")


def test_one_row_and_one_column():
    check((1, 9, 1, 5), (4, 10), "half_pixel")
    check((1, 9, 5, 2), (10, 4), "asymmetric")


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_other_vectors(target):
    check((1, 9, 6, 21), (12, 42), "half_pixel", machine=Machine.load(target))


def test_what_follows_is_in_the_same_kernel():
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 20)).astype("float32")
    got, families = run(x, (12, 40), "half_pixel", after=relax.op.nn.relu)
    np.testing.assert_allclose(got, np.maximum(definition(x, (12, 40), "half_pixel"), 0), rtol=1e-5, atol=1e-5)
    assert families == {"rows"}


def test_an_open_number_of_pictures():
    x = np.random.default_rng(0).standard_normal((3, 8, 6, 20)).astype("float32")
    got, _ = run(x, (12, 40), "half_pixel", batch=tvm.tirx.Var("n", "int64"))
    np.testing.assert_allclose(got, definition(x, (12, 40), "half_pixel"), rtol=1e-5, atol=1e-5)


def test_what_is_no_number_stays_with_its_neighbours():
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 20)).astype("float32")
    x[0, 3, 2, 7] = np.nan
    got, _ = run(x, (12, 40), "half_pixel")
    assert np.isnan(got).sum() == 16


def test_lines_of_many_vectors_whose_taps_lie_apart_are_left_to_the_plain_form():
    """Columns in no order have no vectors that repeat themselves, and no windows."""
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 40)).astype("float32")
    rows, columns = drawn_taps(3, 6, 2), Taps(*np.random.default_rng(1).integers(0, 40, (2, 2200, 2)))
    got, families = compiled(x, lambda var: interpolate(var, rows, columns))
    np.testing.assert_allclose(got, matrix(rows, 3) @ x @ matrix(columns, 40).T, rtol=1e-4, atol=1e-3)
    assert "rows" not in families


@pytest.mark.parametrize("size, out", [(1100, 2200), (1100, 3300), (1031, 515), (1000, 1500), (999, 1110), (640, 1700)])
@pytest.mark.parametrize("count", [2, 4])
def test_vectors_that_repeat_themselves(size, out, count):
    """They are written out once, between the others of the edges."""
    columns = drawn_taps(size, out, count)
    check_taps((1, 2, 5, size), drawn_taps(5, 7, count), columns)
    across = Across(columns, size, 16)
    numbers = [first for first, _, _, _ in across.runs] + [len(across.starts)]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0
    assert all(
        first + period * times == after
        for (first, period, times, _), after in zip(across.runs, numbers[1:], strict=True)
    )
    assert max(times for _, _, times, _ in across.runs) > 1
    for first, period, times, further in across.runs:
        for v in range(first, first + period * times):
            like, time = first + (v - first) % period, (v - first) // period
            there, here = across.columns(across.starts[v]), across.columns(across.starts[like])
            np.testing.assert_array_equal(there, [places + time * further for places in here])


def test_neighbours_of_the_corners():
    found = neighbours(5, 9, "align_corners")
    (low, high), (first, second) = found.places.T, found.weights.T
    assert (low[0], low[-1], high[-1]) == (0, 4, 4) and (first[0], second[-1]) == (1, 0)


def drawn_taps(size, out, count, seed=0):
    """Places around those of a resize, cut at the edges, and any weights."""
    rng = np.random.default_rng(seed)
    at = np.floor((np.arange(out) + 0.5) * size / out - 0.5)[:, None] + np.arange(count) - (count - 1) // 2
    return Taps(np.clip(at, 0, size - 1).astype("int64"), rng.standard_normal((out, count)))


def matrix(taps, size):
    """The taps as a matrix [out, size]."""
    found = np.zeros((len(taps.places), size))
    for k in range(taps.count):
        np.add.at(found, (np.arange(len(found)), taps.places[:, k]), taps.weights[:, k].astype("float32"))
    return found


def check_taps(shape, rows, columns, **how):
    x = np.random.default_rng(1).standard_normal(shape).astype("float32")
    got, found = compiled(x, lambda var: interpolate(var, rows, columns), **how)
    want = matrix(rows, shape[2]) @ x.astype("float64") @ matrix(columns, shape[3]).T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
    assert found == {"rows"}


@pytest.mark.parametrize("count", [1, 3, 4, 8])
@pytest.mark.parametrize("scale", [(1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100])
def test_taps(width, scale, count):
    up, down = scale
    rows, columns = drawn_taps(12, 12 * up // down, count), drawn_taps(width, max(1, width * up // down), count)
    check_taps((1, 9, 12, width), rows, columns)


@pytest.mark.parametrize("height", [1, 7, 8, 9, 31, 33])
@pytest.mark.parametrize("factor", [0.3, 0.5, 1.5, 3])
def test_heights(height, factor):
    """Rows that no row of the result reads are left out; those of a smaller picture read up to four."""
    rows = drawn_taps(height, max(1, int(height * factor)), 4)
    check_taps((1, 3, height, 20), rows, drawn_taps(20, 30, 4))


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_taps_in_other_vectors(target):
    machine = Machine.load(target)
    check_taps((1, 3, 9, 21), drawn_taps(9, 18, 4), drawn_taps(21, 42, 4), machine=machine)


def test_a_ring_of_lines_that_is_shorter_than_the_picture():
    """Lines of 256 x 512 numbers are more than L1 has."""
    check_taps((1, 2, 256, 256), drawn_taps(256, 300, 4), drawn_taps(256, 512, 4))


def test_an_open_number_of_pictures_and_what_follows():
    x = np.random.default_rng(0).standard_normal((3, 8, 6, 20)).astype("float32")
    rows, columns = drawn_taps(6, 12, 4), drawn_taps(20, 40, 4)
    batch, after = tvm.tirx.Var("n", "int64"), relax.op.nn.relu
    got, _ = compiled(x, lambda var: interpolate(var, rows, columns), after=after, batch=batch)
    want = np.maximum(matrix(rows, 6) @ x.astype("float64") @ matrix(columns, 20).T, 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_what_is_no_number_stays_with_those_that_read_it():
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 20)).astype("float32")
    x[0, 3, 2, 7], x[0, 5, 0, 0] = np.nan, np.inf
    rows, columns = drawn_taps(6, 12, 4), drawn_taps(20, 40, 4)
    got, _ = compiled(x, lambda var: interpolate(var, rows, columns))
    reads = (matrix(rows, 6) != 0).astype(int) @ ~np.isfinite(x) @ (matrix(columns, 20) != 0).T.astype(int) > 0
    np.testing.assert_array_equal(~np.isfinite(got), reads)


@pytest.mark.parametrize("turned", ["rows", "columns"])
def test_a_picture_that_is_turned_round(turned):
    """Columns are permuted in any order, and so are the rows of a block."""
    found = {"rows": drawn_taps(9, 18, 4), "columns": drawn_taps(21, 42, 4)}
    found[turned] = Taps(found[turned].places[::-1].copy(), found[turned].weights)
    check_taps((1, 3, 9, 21), found["rows"], found["columns"])


def test_long_lines_from_bottom_to_top():
    """Of many blocks there is no ring: each row of the result has a line of its own."""
    rows = drawn_taps(256, 300, 4)
    rows = Taps(rows.places[::-1].copy(), rows.weights)
    check_taps((1, 8, 256, 256), rows, drawn_taps(256, 512, 4))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_rows_in_no_order(count):
    """A block reads from the least of its rows' places to the greatest."""
    places = np.random.default_rng(count).integers(0, 34, (57, count))
    rows = Taps(places, np.random.default_rng(0).standard_normal((57, count)))
    check_taps((1, 8, 34, 17), rows, drawn_taps(17, 12, 2))


@pytest.mark.parametrize("per, block", [(12, 1), (12, 4), (4, 2), (6, 6)])
def test_each_line_is_made_before_it_is_read(per, block):
    taps = drawn_taps(5, 12, 4)
    down = Down(taps, per, block)
    ring = {}
    for i, (first, count) in enumerate(down.news.T):
        ring = {} if i * block % per == 0 else ring
        ring.update({row % down.depth: row for row in range(first, first + count)})
        for y in range(i * block, (i + 1) * block):
            assert [ring[slot] for slot in down.slots[:, y]] == taps.places[y].tolist()
