"""Linear resizing of planes in NCHW against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.pipeline import build, lower
from tvmopt.schedules.cpu.resample.planes import neighbours
from tvmopt.targets import Machine


def run(x, size, transform, after=None, machine=None, batch=None):
    """The result and the families of the kernels; `batch`: a variable in the place of the number of pictures."""
    machine = machine or Machine.load("cpu").with_cores(2)
    bb = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape if batch is None else [batch, *x.shape[1:]], "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            shape = relax.ShapeExpr(size)
            y = relax.op.image.resize2d(
                var, shape, layout="NCHW", method="linear", coordinate_transformation_mode=transform, rounding_method=""
            )
            y = bb.emit(y)
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


def test_large_planes_are_left_to_the_plain_form():
    x = np.zeros((1, 1, 700, 700), "float32")
    _, families = run(x, (1400, 1400), "half_pixel")
    assert families == {"layout"}


def test_neighbours_of_the_corners():
    (low, first), (high, second) = neighbours(5, 9, "align_corners")
    assert (low[0], low[-1], high[-1]) == (0, 4, 4) and (first[0], second[-1]) == (1, 0)
