"""Products with few columns as sums of rows: right at the edges, with epilogues, and left to tiles where these pay."""

import numpy as np
import pytest
from tvm import relax

from tests.schedules.harness import MACHINES, close, machines, run
from tvmopt.schedules.cpu.rows.columns import pays
from tvmopt.targets import Machine


def numbers(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def families(how):
    return [s.family for s in how.values()]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize(
    "a, b",
    [((9, 17), (17, 1)), ((2, 33, 16), (2, 16, 1)), ((1, 1, 900), (1, 900, 1)), ((3, 1, 8, 31), (1, 2, 31, 1)),
     ((31, 31), (31, 1)), ((15, 32), (7, 32, 1)), ((7, 15, 32), (32, 1)), ((16, 16, 16), (16, 16, 1))],
)  # fmt: skip
def test_one_column_of_two_activations(machine, a, b):
    x, w = numbers(a, b)

    def build(bb, x, w):
        return relax.op.nn.relu(bb.emit(relax.op.matmul(x, w)))

    (y,), how = run(build, [x, w], machine, 2)
    close(y, np.maximum(x.astype("float64") @ w, 0), a[-1])
    assert set(families(how)) == {"rows"}


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("rows", [(1,), (7,), (2, 9), (577,)])
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [257, 4097])
def test_few_columns_of_a_constant(machine, rows, columns, k):
    x, w, b = numbers((*rows, k), (k, columns), (columns,))
    w /= np.float32(k**0.5)

    def build(bb, x):
        sums = bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, relax.const(w))), relax.const(b)))
        return relax.op.sigmoid(sums)

    (y,), how = run(build, [x], machine, 2)
    close(y, 1 / (1 + np.exp(-(x.astype("float64") @ w + b))), k)
    assert families(how) == ["rows" if pays(k, columns, Machine.load(MACHINES[machine])) else "gemm"]


@pytest.mark.parametrize("channels, outputs", [(33, 1), (256, 2), (513, 4)])
def test_a_convolution_of_single_pixels(channels, outputs):
    x, w, b = numbers((2, 7, 9, channels), (outputs, 1, 1, channels), (outputs,))

    def build(bb, x):
        y = bb.emit(relax.op.nn.conv2d(x, relax.const(w), data_layout="NHWC", kernel_layout="OHWI"))
        return relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(b))))

    (y,), how = run(build, [x], machines()[0], 2)
    close(y, np.maximum(x.astype("float64") @ w[:, 0, 0].T + b, 0), channels)
    assert families(how) == ["rows"]


def test_not_a_number_stays_where_it_is():
    x, w = numbers((3, 65), (65, 1))
    x[1, 64] = np.nan
    (y,), _ = run(lambda bb, x, w: relax.op.matmul(x, w), [x, w], machines()[0])
    assert np.isnan(y).ravel().tolist() == [False, True, False]


@pytest.mark.parametrize("k, columns", [(8, 1), (64, 4), (100, 5)])
def test_what_tiles_do_faster_is_left_to_them(k, columns):
    x, w = numbers((50, k), (k, columns))
    _, how = run(lambda bb, x: relax.op.matmul(x, relax.const(w)), [x], machines()[0])
    assert families(how) == ["gemm"]
    assert not pays(k, columns, Machine.load("x86-64-v4"))
