"""Planes that become much smaller: rows summed into lines, lines multiplied by windows of weights; against the
definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.operators.interpolate import Taps, interpolate, unchanged
from tvmopt.pipeline import build, lower
from tvmopt.schedules.cpu.resample.shrunk import Shrunk, Windows
from tvmopt.targets import Machine


def antialiased(size, out, reach=1, seed=None):
    """What the elements of a smaller axis read: a triangle as wide as they are apart, or any weights of that place."""
    scale = size / out
    at = (np.arange(out) + 0.5) * scale - 0.5
    index = np.floor(at)[:, None] + np.arange(-int(reach * scale), int(reach * scale) + 2)
    weights = np.clip(1 - np.abs(index - at[:, None]) / (reach * scale), 0, None)
    if seed is not None:
        weights = np.where(weights > 0, np.random.default_rng(seed).standard_normal(weights.shape), 0)
    used = (weights != 0).any(0)
    weights = weights / np.maximum(np.abs(weights).sum(1, keepdims=True), 1e-9)
    return Taps(np.clip(index, 0, size - 1).astype("int64")[:, used], weights[:, used])


def matrix(taps, size, dtype):
    found = np.zeros((len(taps.places), size))
    np.add.at(found, (np.arange(len(found))[:, None], taps.places), taps.weights.astype(dtype))
    return found


def definition(x, rows, columns):
    dtype = x.dtype
    return matrix(rows, x.shape[2], dtype) @ x.astype("float64") @ matrix(columns, x.shape[3], dtype).T


def compiled(x, rows, columns, after=None, machine=None, batch=None):
    """The result, and the kernels."""
    machine = machine or Machine.load("cpu").with_cores(2)
    bb = relax.BlockBuilder()
    shape = x.shape if batch is None else [batch, *x.shape[1:]]
    var = relax.Var("x", relax.TensorType(shape, str(x.dtype)))
    with bb.function("main", [var]):
        with bb.dataflow():
            y = bb.emit(interpolate(var, rows, columns))
            out = bb.emit_output(relax.Tuple([y if after is None else bb.emit(after(y))]))
        bb.emit_func_output(out)
    lowered = lower(bb.get(), machine)
    vm = relax.VirtualMachine(build(lowered, machine), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x))[0].numpy(), lowered.kernels


def drawn(shape, dtype="float32"):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def check(shape, rows, columns, dtype="float32", **how):
    x = drawn(shape, dtype)
    got, kernels = compiled(x, rows, columns, **how)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got, definition(x, rows, columns), rtol=tolerance, atol=tolerance)
    assert [kernel.family for kernel in kernels] == ["rows"]


@pytest.mark.parametrize("out", [1, 2, 3, 7, 8, 9, 15, 16, 17, 33])
@pytest.mark.parametrize("width", [100, 301])
def test_columns(width, out):
    check((1, 3, 40, width), antialiased(40, 4), antialiased(width, out, seed=0))


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("height", [17, 18, 25, 33, 200])
def test_widths_and_heights(height, width):
    """One row of all: more taps than planes.py writes out, in one turn and in several."""
    check((2, 3, height, width), antialiased(height, 1, 2, seed=1), antialiased(width, 1, seed=0))
    check((2, 3, height, width), antialiased(height, 1, 2, seed=1), unchanged(width))


@pytest.mark.parametrize("span", range(1, 20))
def test_windows_of_any_length(span):
    columns = Taps((np.arange(9) * 21)[:, None] + np.arange(span), drawn((9, span)))
    check((1, 2, 40, 190), antialiased(40, 1), columns)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("width", [160, 333])
def test_neighbours_with_gaps_between(width, count):
    """As without antialiasing."""
    at = np.floor((np.arange(17) + 0.5) * width / 17 - 0.5)[:, None] + np.arange(count)
    columns = Taps(np.clip(at, 0, width - 1).astype("int64"), drawn((17, count)))
    check((1, 3, 90, width), antialiased(90, 9), columns)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape, out", [((1, 3, 60, 83), (6, 9)), ((1, 3, 47, 64), (47, 7)), ((2, 1, 50, 9), (2, 9))])
def test_other_vectors_and_doubles(shape, out, dtype, target):
    rows, columns = (antialiased(size, one, 2, seed=0) for size, one in zip(shape[2:], out, strict=True))
    check(shape, rows, columns, dtype, machine=Machine.load(target))


@pytest.mark.parametrize("channels, out", [(1, 7), (1, 24), (3, 5), (40, 6)])
def test_few_planes_are_cut_into_pieces(channels, out):
    check((1, channels, 120, 90), antialiased(120, out, seed=1), antialiased(90, 11, seed=0))


def test_an_open_number_of_pictures_and_what_follows():
    x, rows, columns = drawn((3, 8, 60, 80)), antialiased(60, 5, seed=0), antialiased(80, 9, seed=1)
    got, _ = compiled(x, rows, columns, after=relax.op.nn.relu, batch=tvm.tirx.Var("n", "int64"))
    np.testing.assert_allclose(got, np.maximum(definition(x, rows, columns), 0), rtol=1e-5, atol=1e-5)


def test_what_follows_is_in_the_same_kernel():
    x, rows, columns = drawn((1, 8, 60, 80)), antialiased(60, 5, seed=0), antialiased(80, 9, seed=1)
    x[0, 2, 31, 40] = np.nan
    got, kernels = compiled(x, rows, columns, after=relax.op.abs)
    np.testing.assert_allclose(got, np.abs(tap_by_tap(x, rows, columns)), rtol=1e-5, atol=1e-5)
    assert [kernel.family for kernel in kernels] == ["rows"] and np.isnan(got).any()


def tap_by_tap(x, rows, columns):
    """The definition, of what is read and nothing else."""
    with np.errstate(invalid="ignore"):
        lines = np.einsum("nchkw,hk->nchw", x.astype("float64")[:, :, rows.places], rows.weights)
        return np.einsum("nchwk,wk->nchw", lines[..., columns.places], columns.weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("column", [0, 1, 4, 5, 6, 7, 8, 9, 40, 76, 79])
def test_what_is_no_number_stays_with_those_that_read_it(column, value, dtype):
    """Windows are as long as the longest one; at the edges they hold columns that are not read."""
    rows, columns = antialiased(60, 5), antialiased(80, 9)
    columns = Taps(columns.places, np.where(columns.weights == 0, 1e-3, columns.weights))
    x = np.abs(drawn((1, 2, 60, 80), dtype))
    x[0, 1, 31, column] = value
    got, kernels = compiled(x, rows, columns)
    np.testing.assert_allclose(got, tap_by_tap(x, rows, columns), rtol=1e-5)
    assert [kernel.family for kernel in kernels] == ["rows"] and not np.isfinite(got).all()
    assert np.isfinite(got).any()


@pytest.mark.parametrize("size, out", [((40, 60), (3, 5)), ((1080, 1920), (224, 224)), ((4000, 4000), (7, 7))])
def test_taps_are_loops(size, out):
    """Kernels of as many statements, whatever the scale: with all taps written out they compiled for minutes."""
    rows, columns = (antialiased(*sizes, 2) for sizes in zip(size, out, strict=True))
    func = Shrunk(rows, columns, (1, 3, *size), "float32", 1, Machine.load("x86-64-v3")).func()
    assert len(func.script().splitlines()) < 200


def test_taps_that_lie_apart_are_left_to_the_plain_form():
    x, columns = drawn((1, 1, 3, 900)), Taps(np.array([[0, 899], [7, 300]]), drawn((2, 2)))
    rows = antialiased(3, 1)
    got, kernels = compiled(x, rows, columns)
    np.testing.assert_allclose(got, definition(x, rows, columns), rtol=1e-5, atol=1e-5)
    assert "rows" not in {kernel.family for kernel in kernels}


@pytest.mark.parametrize("down, across", [(2, 16), (2, 17), (64, 2), (65, 2)])
def test_plain_loops_of_many_taps(down, across):
    """Of taps that lie apart, along either axis: from some number on they are a loop."""
    rng = np.random.default_rng(down)
    rows, columns = (
        Taps(rng.integers(0, size, (20, taps)), rng.standard_normal((20, taps)))
        for size, taps in ((90, down), (400, across))
    )
    x = drawn((1, 2, 90, 400))
    got, kernels = compiled(x, rows, columns)
    np.testing.assert_allclose(got, definition(x, rows, columns), rtol=1e-4, atol=1e-4)
    assert "rows" not in {kernel.family for kernel in kernels}


@pytest.mark.parametrize("width, out, lanes", [(100, 9, 8), (100, 1, 8), (9, 3, 8), (33, 2, 4), (64, 5, 4)])
def test_windows_lie_inside_and_have_each_weight_once(width, out, lanes):
    columns = antialiased(width, out, 2, seed=0)
    windows = Windows(columns, width, lanes)
    assert windows.starts.min() >= 0 and windows.starts.max() + windows.span <= width
    found = np.zeros((out, width))
    for group, first in enumerate(windows.groups):
        for j in range(windows.w):
            found[first + j] = 0
            for chunk in range(windows.chunks):
                begin = windows.starts[group, j] + min(chunk * windows.t, windows.span - windows.t)
                found[first + j, begin : begin + windows.t] += windows.weights[group, chunk, j]
    np.testing.assert_allclose(found, matrix(columns, width, "float64"), atol=1e-12)
