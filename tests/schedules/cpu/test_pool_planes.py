"""Pooling of planes in NCHW, along columns and then along rows, against every window by itself in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.cpu.test_pool_direct import definition, run
from tvmopt.schedules.cpu.pool.planes import Axis

KINDS = [("max", False), ("avg", False), ("avg", True)]


def check(x, kind, kernel, include=False, after=None, **attrs):
    got, families = run(x, kind, kernel, after, count_include_pad=include, **attrs)
    steps = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), **attrs}
    steps.pop("ceil_mode", None)
    want = definition(x, got.shape[2:], kind, kernel, include=include, **steps)
    np.testing.assert_allclose(got, want if after is None else np.maximum(want, 0), rtol=1e-5, atol=1e-5)
    assert families == {"rows"}


def numbers(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype("float32") - 3  # a zero of the border would win


@pytest.mark.parametrize(("kind", "include"), KINDS)
@pytest.mark.parametrize("width", [3, 7, 8, 9, 14, 15, 16, 17, 31, 32, 33, 100])
def test_widths(width, kind, include):
    stride = 1 + width // 2 % 2
    check(numbers(1, 5, 6, width), kind, (3, 3), include, strides=(stride, stride), padding=(1, 1, 1, 1))


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kind", "include"), KINDS)
@pytest.mark.parametrize(
    ("kernel", "strides", "padding", "dilation"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1)),
        ((3, 2), (1, 3), (2, 0, 1, 1), (1, 1)),
        ((5, 4), (3, 4), (0, 3, 4, 0), (1, 1)),
        ((3, 3), (2, 2), (2, 2, 2, 2), (3, 2)),
        ((1, 7), (1, 2), (0, 3, 0, 3), (1, 1)),
        ((7, 1), (2, 1), (3, 0, 3, 0), (1, 1)),
        ((13, 13), (1, 1), (6, 6, 6, 6), (1, 1)),
        ((33, 2), (1, 1), (32, 0, 16, 0), (1, 1)),
    ],
)
def test_windows(kernel, strides, padding, dilation, kind, include, ceil):
    x = numbers(2, 3, 17, 19)
    check(x, kind, kernel, include, strides=strides, padding=padding, dilation=dilation, ceil_mode=ceil)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("shape", [(1, 1, 64, 200), (1, 3, 12, 500), (1, 40, 20, 300), (2, 1, 7, 16)])
def test_pieces_and_single_lines(shape, kind):
    """Few planes are cut into pieces for threads; lines that do not fit L1 are made one by one."""
    check(numbers(*shape), kind, (5, 5), strides=(2, 2), padding=(2, 2, 2, 2))


def test_what_follows_is_in_the_same_kernel():
    check(numbers(1, 4, 9, 30), "max", (3, 3), after=relax.op.nn.relu)


def test_what_is_no_number_stays_in_its_windows():
    x = numbers(1, 2, 12, 20)
    x[0, 0, 4, 9], x[0, 1, 7, 3], x[0, 1, 2, 2] = np.nan, np.inf, -np.inf
    for kind in ("max", "avg"):
        got, _ = run(x, kind, (3, 3), strides=(1, 1), padding=(1, 1, 1, 1))
        with np.errstate(invalid="ignore"):
            want = definition(x, got.shape[2:], kind, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), False)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert np.isnan(got[0, 0]).sum() == 9


def test_minus_infinity_and_the_largest_numbers():
    x = np.full((1, 1, 4, 8), -np.inf, "float32")
    x[..., 4:] = np.finfo("float32").max
    got, _ = run(x, "max", (2, 2), strides=(2, 2))
    np.testing.assert_array_equal(got, x[:, :, ::2, ::2])


def test_other_types_and_wide_strides_are_left_to_the_plain_form():
    _, families = run(numbers(1, 2, 10, 40), "max", (5, 5), strides=(5, 5))
    assert families == {"layout"}


def test_an_open_number_of_pictures():
    from tvmopt.pipeline import build, lower
    from tvmopt.targets import Machine

    n = tvm.tirx.Var("n", "int64")
    bb, var = relax.BlockBuilder(), relax.Var("x", relax.TensorType([n, 3, 9, 17], "float32"))
    with bb.function("main", [var]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.avg_pool2d(var, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))
            out = bb.emit_output(relax.Tuple([bb.emit(relax.op.nn.relu(y))]))
        bb.emit_func_output(out)
    machine = Machine.load("cpu").with_cores(2)
    vm = relax.VirtualMachine(build(lower(bb.get(), machine), machine), tvm.cpu())
    for count in (1, 2, 7):
        x = np.abs(numbers(count, 3, 9, 17))
        got = vm["main"](tvm.runtime.tensor(x))[0].numpy()
        want = definition(x, got.shape[2:], "avg", (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_whole_windows():
    assert Axis(10, 10, 3, 1, 1, 1, 1).whole == (1, 9)
    assert Axis(10, 5, 3, 2, 1, 0, 1).whole == (0, 4)
    assert Axis(4, 4, 9, 1, 1, 4, 4).whole == (0, 0)
