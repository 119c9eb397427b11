"""Convolution in NHWC against a float64 sliding window: strides, dilation, groups, odd widths, epilogues."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cpu.reference import definition
from tests.schedules.harness import close, machines, module_of, rand, run
from tvmopt.pipeline import lower, rewrite_kernels
from tvmopt.schedules.cpu._inside import column_marks, row_marks
from tvmopt.schedules.cpu.conv2d.compute import _collide
from tvmopt.schedules.cpu.conv2d.schedule import Conv2dProblem, choose_task, panel_chunks
from tvmopt.targets import Machine

CASES = {  # n, h, w, c, o, kernel, strides, pads, dilation, groups
    "3x3": (1, 14, 14, 16, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "first layer": (1, 33, 31, 3, 17, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    "1x1": (2, 7, 7, 9, 33, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "1x1 strided": (1, 9, 9, 15, 8, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    "odd": (3, 8, 17, 7, 31, (3, 5), (1, 1), (1, 2, 0, 1), (1, 1), 1),
    "dilated": (1, 16, 16, 5, 9, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    "groups": (1, 8, 9, 24, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    "narrow groups": (1, 8, 8, 12, 9, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    "wide groups": (1, 7, 7, 20, 68 * 2, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2),
    "groups of 12": (1, 9, 5, 9, 36, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 3),
    "34 columns a group": (1, 7, 9, 12, 136, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 4),
    "17 columns a group": (2, 9, 8, 10, 34, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "three panels a group": (1, 13, 13, 32, 192, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "one pixel": (1, 3, 3, 33, 1, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "one row": (1, 1, 40, 8, 16, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1), 1),
}


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("case", CASES)
def test_convolution_with_bias_and_relu(machine, case):
    n, h, w_, c, o, kernel, strides, pads, dilation, groups = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, h, w_, c)).astype("float32")
    w = rng.standard_normal((o, *kernel, c // groups)).astype("float32")
    b = rng.standard_normal(o).astype("float32")

    def build(bb, x):
        y = bb.emit(
            relax.op.nn.conv2d(
                x, relax.const(w), strides=strides, padding=pads, dilation=dilation, groups=groups,
                data_layout="NHWC", kernel_layout="OHWI",
            )
        )  # fmt: skip
        return relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(b))))

    (y,), how = run(build, [x], machine, exact=True)
    close(
        y,
        np.maximum(definition(x, w, strides, pads, dilation, groups) + b, 0),
        kernel[0] * kernel[1] * c // groups,
    )
    assert {s.family for s in how.values()} == {"gemm" if case == "1x1" else "conv2d"}
    assert not any(s.note for s in how.values())


def test_no_task_crosses_the_border_of_two_groups():
    # the third convolution of AlexNet in bf16: two panels of the six, across the border, could not be scheduled
    shape = Conv2dProblem(1, 13, 13, 6, 64, 384, 2, (3, 3, 192), True, 11_520, 32, 2, 1 << 20, 16, 2, True)
    assert panel_chunks(shape) == [1, 3, 6]
    assert choose_task(shape)[1] in (1, 3, 6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("channels", [7, 8, 15, 17, 24, 31, 33, 40])
def test_a_panel_is_computed_whole(channels, precision):
    # 24 channels in a panel of 32: with a guard on each column, ShuffleNet's first layer took 20 times as long in bf16
    w = rand(channels, 3, 3, 3)

    def build(bb, x):
        return relax.op.nn.conv2d(x, relax.const(w), strides=2, padding=1, data_layout="NHWC", kernel_layout="OHWI")

    low = lower(module_of(build, [rand(1, 16, 16, 3)]), Machine.load("znver5"), exact=True, precision=precision)
    (kernel,) = (k for k in low.kernels if k.family == "conv2d")
    blocks = low.module[kernel.name].script().split("with T.sblock(")
    products = [b for b in blocks if b.startswith(('"conv2d_init"', '"conv2d_update"'))]
    assert len(products) == 2
    assert not any("T.where" in b for b in products)


OUTSIDE = {  # n, h, w, c, o, kernel, strides, pads, dilation, groups: many rows of taps meet the border alone
    "dilated beyond the picture": (1, 7, 7, 24, 32, (3, 3), (1, 1), (6, 6, 6, 6), (6, 6), 1),
    "9x9": (2, 9, 13, 16, 24, (9, 9), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    "three rows": (1, 3, 20, 9, 17, (3, 5), (1, 1), (1, 2, 1, 2), (1, 1), 1),
    "groups": (1, 5, 9, 8, 34, (5, 3), (2, 2), (3, 1, 4, 1), (1, 1), 2),
    "rows that meet nothing": (1, 2, 9, 8, 16, (3, 3), (1, 1), (3, 1, 3, 1), (1, 1), 1),
}


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("case", OUTSIDE)
def test_rows_of_taps_outside_are_left_out(machine, case):
    n, h, w_, c, o, kernel, strides, pads, dilation, groups = OUTSIDE[case]
    x, w = rand(n, h, w_, c), rand(o, *kernel, c // groups)

    def build(bb, x):
        options = dict(strides=strides, padding=pads, dilation=dilation, groups=groups)
        return relax.op.nn.conv2d(x, relax.const(w), **options, data_layout="NHWC", kernel_layout="OHWI")

    (y,), how = run(build, [x], machine, exact=True)
    close(y, definition(x, w, strides, pads, dilation, groups), w[0].size)
    assert {s.family for s in how.values()} == {"conv2d"}
    low = lower(module_of(build, [x]), Machine.load("znver5").with_cores(1), exact=True)
    (name,) = (k.name for k in low.kernels if k.family == "conv2d")
    assert rewrite_kernels(low.module)[name].script() != low.module[name].script()
    (loop,) = (line for line in low.module[name].script().splitlines() if "tvmopt.inside" in line)
    assert "range" in loop or "serial" in loop


BESIDE = {  # w, c, o, kernel, stride, before and after, dilation: columns of taps meet the border alone
    "one tile": (13, 8, 32, 11, 1, (5, 5), 1),
    "one pixel": (1, 8, 17, 3, 1, (1, 1), 1),
    "a lower last tile": (17, 9, 48, 5, 1, (2, 2), 1),
    "a last tile of one": (15, 16, 40, 7, 1, (3, 3), 1),
    "dilated": (40, 8, 16, 3, 1, (6, 6), 6),
    "beyond the first tile": (33, 8, 31, 3, 1, (20, 20), 20),
    "strided": (31, 9, 33, 5, 2, (4, 4), 2),
    "left alone": (16, 8, 32, 5, 1, (4, 0), 1),
    "right alone": (16, 8, 32, 5, 1, (0, 4), 1),
    "more border than picture": (5, 8, 24, 3, 2, (9, 8), 4),
}


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("high", [1, 3])
@pytest.mark.parametrize("case", BESIDE)
def test_columns_of_taps_outside_are_left_out(machine, high, case):
    wide, c, o, taps, stride, (left, right), dilation = BESIDE[case]
    x, w = rand(2, 8, wide, c), rand(o, high, taps, c)
    pads, strides, dilations = (high // 2, left, high // 2, right), (1, stride), (1, dilation)

    def build(bb, x):
        options = dict(strides=strides, padding=pads, dilation=dilations)
        y = relax.op.nn.conv2d(x, relax.const(w), **options, data_layout="NHWC", kernel_layout="OHWI")
        return relax.op.nn.relu(bb.emit(y))

    (y,), how = run(build, [x], machine, exact=True)
    close(y, np.maximum(definition(x, w, strides, pads, dilations, 1), 0), w[0].size)
    assert {s.family for s in how.values()} == {"conv2d"}
    low = lower(module_of(build, [x]), Machine.load("znver5").with_cores(1), exact=True)
    (name,) = (k.name for k in low.kernels if k.family == "conv2d")
    assert "tvmopt.beside" in low.module[name].script()
    assert "tvmopt.beside" not in rewrite_kernels(low.module)[name].script()


def test_few_taps_outside_change_no_code():
    for marks in (row_marks, column_marks):
        assert marks(3, 1, 1, 1, 28, 28, 64) == {} and marks(3, 1, 1, 1, 14, 14, 64) != {}
    # of one channel the loop that is cut is of one step: 1 -> 64 channels of 26x26, 9x9, 42 us instead of 34
    assert row_marks(9, 1, 1, 4, 26, 26, 1) == {} and column_marks(9, 1, 1, 4, 26, 26, 1) == {}
    assert row_marks(9, 1, 1, 4, 13, 13, 1) != {}


def test_weights_that_do_not_stay_in_l2_are_read_once():
    """5.3 MB of weights for 4 x 4 pixels: in two tasks of two rows each panel came from L3 twice."""
    problem = Conv2dProblem(1, 4, 4, 12, 32, 384, 1, (3, 3, 384), True, 4 * 19 * 384, 16, 1, 1 << 20, 30, 2, False, 2.0)
    assert choose_task(problem)[0] == 4


def test_tasks_of_far_taps_have_many_rows():
    """Taps 6 rows apart: a task of one row copied 13 rows of 512 channels, 5.8 ms on two cores; of 13 rows 5.2."""
    near = Conv2dProblem(
        1, 52, 52, 1, 48, 48, 1, (3, 3, 512), True, 4 * 64 * 512, 16, 2, 1 << 20, 18, 1, True, 1.0, dilation=1
    )
    far = replace(near, dilation=6)
    assert (near.reach, far.reach) == (3, 13)
    assert choose_task(near)[0] < 13 <= choose_task(far)[0]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_border_times_weights_that_are_not_finite_is_computed(value):
    x, w = rand(1, 3, 20, 9), rand(17, 3, 5, 9)
    w[4, 0, 2, 3] = value

    def build(bb, x):
        options = dict(padding=(1, 2), data_layout="NHWC", kernel_layout="OHWI")
        return relax.op.nn.conv2d(x, relax.const(w), **options)

    (y,), _ = run(build, [x], machines()[0], exact=True)
    want = definition(x, w, (1, 1), (1, 2, 1, 2), (1, 1), 1)
    assert (np.isnan(y) == np.isnan(want)).all() and (np.isinf(y) == np.isinf(want)).all()


@pytest.mark.parametrize("machine", machines())
def test_pixels_that_share_a_set_of_l1_lie_apart(machine):
    """26 pixels of 512 channels at a stride of 2 had one set of 12 lines: 56 GFLOP/s, and 190 since they lie apart."""
    x, w = rand(1, 9, 52, 512), rand(72, 3, 3, 512)

    def build(bb, x):
        return relax.op.nn.conv2d(
            x, relax.const(w), strides=(2, 2), padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="OHWI"
        )

    (y,), how = run(build, [x], machine, cores=1)
    close(y, definition(x, w, (2, 2), (1, 1, 1, 1), (1, 1), 1), 9 * 512)
    assert [s.family for s in how.values()] == ["conv2d"]


def test_which_pixels_share_a_set_of_l1():
    machine = Machine.load("znver5")  # 12 ways of 4 KB, tiles of up to 28 pixels
    assert _collide(1024, (26, 26), machine) and _collide(512, (26, 26), machine)
    assert not _collide(512, (24, 24), machine) and not _collide(256, (28, 28), machine)
    assert not _collide(1040, (56, 56), machine) and not _collide(1024, (7, 7), machine)
