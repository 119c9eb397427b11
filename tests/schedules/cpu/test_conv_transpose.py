"""Transposed convolution in NCHW against its definition in float64: phases, borders, strides, dilation, groups, pieces
of pictures."""

from itertools import product
from math import gcd, inf

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.analysis import undefined_vars

from tests.schedules.cpu.test_planes_ahead import collected, line
from tests.schedules.harness import close, machines, module_of, rand, run
from tvmopt.pipeline import lower
from tvmopt.schedules.cpu.conv_transpose import choice
from tvmopt.schedules.cpu.conv_transpose import plan as plans
from tvmopt.schedules.cpu.conv_transpose.choice import as_convolutions
from tvmopt.schedules.cpu.conv_transpose.compute import kernel as kernel_of
from tvmopt.schedules.cpu.conv_transpose.plan import Axis, Transposed, best_plan
from tvmopt.targets import Machine

CASES = {  # n, c, h, w, o, kernel, strides, pads, output padding, dilation, groups
    "2x2": (1, 16, 14, 14, 32, (2, 2), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 1),
    "3x3": (1, 15, 16, 17, 8, (3, 3), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 1),
    "3x3 doubled": (2, 7, 9, 8, 33, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1),
    "4x4 doubled": (1, 33, 7, 31, 17, (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 1),
    "5x5": (1, 8, 15, 9, 31, (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), (1, 1), 1),
    "three phases": (1, 4, 16, 32, 9, (2, 5), (3, 3), (0, 4, 1, 1), (0, 2), (1, 1), 1),
    "four phases": (1, 3, 8, 9, 7, (4, 3), (4, 4), (0, 1, 0, 1), (0, 0), (1, 1), 1),
    "of rows alone": (1, 5, 8, 33, 16, (3, 3), (2, 1), (1, 1, 1, 1), (1, 0), (1, 1), 1),
    "of columns alone": (3, 5, 8, 17, 15, (3, 2), (1, 2), (0, 0, 1, 0), (0, 1), (1, 1), 1),
    "phases without a tap": (1, 4, 7, 8, 9, (1, 2), (3, 3), (0, 0, 0, 0), (1, 0), (1, 1), 1),
    "dilated": (1, 5, 16, 15, 9, (3, 3), (2, 2), (1, 2, 2, 1), (0, 1), (2, 3), 1),
    "dilated, one stride": (1, 5, 9, 8, 9, (3, 3), (1, 2), (2, 0, 2, 0), (0, 0), (2, 2), 1),
    "dilated, no stride": (1, 5, 9, 8, 9, (3, 3), (1, 1), (2, 0, 2, 0), (0, 0), (2, 2), 1),
    "groups": (1, 24, 8, 9, 48, (3, 3), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 4),
    "17 outputs a group": (2, 10, 9, 8, 34, (3, 3), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 2),
    "depthwise": (2, 17, 15, 16, 17, (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 17),
    "one channel, one output": (1, 1, 33, 32, 1, (3, 3), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 1),
    "one pixel": (1, 31, 1, 1, 8, (4, 4), (2, 2), (0, 0, 0, 0), (0, 0), (1, 1), 1),
    "one number": (1, 3, 1, 1, 2, (3, 3), (2, 2), (1, 1, 1, 1), (0, 0), (1, 1), 1),
    "one row": (1, 8, 1, 100, 16, (1, 4), (1, 2), (0, 1, 0, 1), (0, 0), (1, 1), 1),
    "wide border": (1, 3, 9, 9, 6, (5, 5), (2, 2), (6, 3, 4, 7), (0, 0), (1, 1), 1),
}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """However fast the convolutions in channels-last are."""
    monkeypatch.setattr(choice, "as_convolutions", lambda *a: inf)


def arguments(case):
    n, c, h, w, o, kernel, *rest = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, c, h, w)).astype("float32")
    return x, rng.standard_normal((c, o // rest[-1], *kernel)).astype("float32"), *rest


def expected(x, w, strides, pads, extra, dilation, groups):
    """Every pixel times the kernel, added where it lies; then the border is cut off."""
    n, channels, *size = x.shape
    out_g, kernel, in_g = w.shape[1], w.shape[2:], channels // groups
    whole = [
        (i - 1) * s + (k - 1) * d + 1 + e for i, s, k, d, e in zip(size, strides, kernel, dilation, extra, strict=True)
    ]
    y = np.zeros((n, groups * out_g, *whole))
    x, w = x.astype(np.float64), w.astype(np.float64)
    for g, ky, kx in product(range(groups), *map(range, kernel)):
        part = np.einsum("nchw,co->nohw", x[:, g * in_g :][:, :in_g], w[g * in_g :][:in_g, :, ky, kx])
        rows, columns = (
            slice(k * d, k * d + (i - 1) * s + 1, s)
            for k, d, i, s in zip((ky, kx), dilation, size, strides, strict=True)
        )
        y[:, g * out_g : (g + 1) * out_g, rows, columns] += part
    return y[:, :, pads[0] : whole[0] - pads[2], pads[1] : whole[1] - pads[3]]


def transpose(machine, x, w, strides, pads, extra, dilation, groups, cores=2, relu=True):
    """With a bias and Relu, compiled and run; what it should be; how it was scheduled."""
    bias = rand(1, w.shape[1] * groups, 1, 1)

    def build(bb, x):
        options = dict(strides=strides, padding=pads, output_padding=extra, dilation=dilation, groups=groups)
        y = bb.emit(relax.op.nn.conv2d_transpose(x, relax.const(w), **options))
        y = bb.emit(relax.op.add(y, relax.const(bias)))
        return relax.op.nn.relu(y) if relu else y

    (y,), how = run(build, [x], machine, cores=cores)
    want = expected(x, w, strides, pads, extra, dilation, groups) + bias
    return y, np.maximum(want, 0) if relu else want, how


def ours(how):
    return [s.family for s in how.values()] == ["conv_transpose"] and not any(s.note for s in how.values())


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("case", CASES)
def test_with_bias_and_relu(machine, case):
    x, w, *rest = arguments(case)
    got, want, how = transpose(machine, x, w, *rest)
    close(got, want, w[:, 0].size)
    assert ours(how)


@pytest.mark.parametrize("case", ["3x3", "4x4 doubled", "three phases", "dilated", "groups", "depthwise"])
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("flat", [64, 2048])
def test_pieces_of_pictures(monkeypatch, case, cores, flat):
    """The last of which are beyond the picture."""
    monkeypatch.setattr(plans, "FLAT", flat)
    x, w, *rest = arguments(case)
    got, want, how = transpose(machines()[0], x, w, *rest, cores=cores)
    close(got, want, w[:, 0].size)
    assert ours(how)


@pytest.mark.parametrize("channels", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_channels_and_kernels(channels, kernel):
    x, w = rand(1, channels, 5, 6), rand(channels, 34 - channels, kernel, kernel)
    got, want, how = transpose(machines()[0], x, w, (2, 2), (0, 0, 0, 0), (1, 0), (1, 1), 1)
    close(got, want, w[:, 0].size)
    assert ours(how)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("stride", [2, 3])
def test_sizes(size, stride):
    x, w = rand(1, 3, 34 - size, size), rand(3, 9, 3, 3)
    got, want, how = transpose(machines()[0], x, w, (stride,) * 2, (1, 1, 0, 0), (0, 1), (1, 1), 1)
    close(got, want, 27)
    assert ours(how)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("case", ["3x3", "4x4 doubled", "17 outputs a group"])
def test_numbers_that_are_not_finite_reach_what_their_taps_reach(value, case):
    x, w, *rest = arguments(case)
    w = np.abs(w) + 1  # an overflow is one in any order
    x[0, 3, 3, -1] = value  # the end of a row, behind which the next one begins
    x[-1, 4, -1, 0] = value
    got, want, _ = transpose(machines()[0], x, w, *rest, relu=False)
    finite = np.isfinite(want) & (np.abs(want) < 1e30)
    assert (np.isfinite(got) & (np.abs(got) < 1e30) == finite).all() and not finite.all()
    close(got[finite], want[finite], w[:, 0].size)


def families(x, w, machine="znver4", **options):
    """By whom a module of the transposed convolution alone is computed."""

    def build(bb, x):
        return relax.op.nn.conv2d_transpose(x, relax.const(w), **options)

    return {kernel.family for kernel in lower(module_of(build, [x]), Machine.load(machine)).kernels}


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_weight_that_is_not_finite_is_left_to_convolutions(bad):
    """Its products with the zeros between rows are no zeros."""
    w = rand(4, 8, 3, 3)
    assert families(rand(1, 4, 9, 9), w, strides=2) == {"conv_transpose"}
    w[1, 2, 0, 1] = bad
    assert "conv_transpose" not in families(rand(1, 4, 9, 9), w, strides=2)


@pytest.mark.parametrize("options", [dict(strides=1), dict(strides=5)])
def test_other_strides_are_left_to_convolutions(options):
    assert "conv_transpose" not in families(rand(1, 4, 9, 9), rand(4, 8, 3, 3), **options)


def problem(c, size, o, k, stride=2, pad=0, groups=1):
    axis = Axis(size, (size - 1) * stride + k - 2 * pad, k, stride, 1, pad)
    return Transposed(1, c, o, groups, axis, axis)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v4", "znver4"])
@pytest.mark.parametrize(
    "case", [(8, 7, 9, 3), (33, 16, 31, 4, 2, 1), (4, 9, 6, 5, 3, 1), (12, 8, 34, 3, 2, 0, 2), (2, 5, 3, 1, 4)]
)
def test_no_plan_reads_or_writes_beyond_its_copy(name, case):
    conv, machine = problem(*case), Machine.load(name)
    for plan in plans._plans(conv, machine):
        (first, last), columns = conv.rows.reach, conv.columns
        assert plan.lead + columns.reach[0] >= 0
        read = plan.lead + (last - first) * plan.pitch + columns.reach[1] + plan.pixels - 1
        assert read < plan.length
        assert (plan.high - 1) * plan.pitch + columns.grid <= plan.pixels  # of which results are taken
        assert plan.mr * plan.nv * columns.stride + plan.nv + 1 <= machine.vector_registers
        # a tap right of a row reads its zeros, not the next row
        assert columns.grid - 1 + columns.reach[1] < plan.pitch and plan.pitch - plan.lead >= columns.size


def test_phases_have_the_taps_of_the_definition():
    for size, k, stride, dilation, pad in product((1, 4), (1, 2, 3, 5), (2, 3), (1, 2), (0, 1, 4)):
        out = (size - 1) * stride + (k - 1) * dilation + 3
        axis = Axis(size, out, k, stride, dilation, pad)
        pairs = {(x * stride + t * dilation - pad, x, t) for x in range(-20, 20) for t in range(k)}
        found = {
            (q * stride + phase, q + at, tap)
            for phase, taps in enumerate(axis.phases) for tap, at in taps for q in range(axis.grid)
        }  # fmt: skip
        assert found == {(y, x, t) for y, x, t in pairs if 0 <= y < axis.grid * stride}
        assert gcd(stride, dilation) > 1 or k < stride or all(axis.phases)


def test_the_faster_form_is_chosen():
    """Measured on a Zen 4: few channels and large pictures as they lie, pictures of few pixels in channels-last."""
    machine = Machine.load("znver4").with_cores(1)
    lie = [(150, 80, 8, 3), (24, 160, 64, 3)]
    for args in [*lie, (512, 4, 256, 4, 2, 1), (100, 1, 512, 4), (64, 40, 32, 5, 2, 2)]:
        conv = problem(*args)
        assert (best_plan(conv, machine).time(machine) < as_convolutions(conv, machine)) == (args in lie), args


def test_taps_that_no_tile_holds_have_no_plan():
    assert best_plan(problem(8, 20, 8, 63), Machine.load("znver4")) is None


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("case", [name for name, (_, channels, *_, groups) in CASES.items() if channels > groups])
def test_rows_that_are_fetched_ahead(monkeypatch, machine, case):
    """Also beyond the last channel, where there is nothing."""
    monkeypatch.setattr(plans, "channels_ahead", lambda *asked: 2)
    x, w, *rest = arguments(case)
    got, want, how = transpose(machine, x, w, *rest)
    close(got, want, w[:, 0].size)
    assert ours(how)


@pytest.mark.parametrize("stride, kernel", [(2, 3), (2, 4), (3, 5), (2, 2)])
def test_every_line_that_the_channel_reads(monkeypatch, stride, kernel):
    monkeypatch.setattr(plans, "channels_ahead", lambda *asked: 1)
    machine = Machine.load("x86-64-v4").with_cores(1)
    axis = Axis(20, 20 * stride, kernel, stride, 1, (kernel - stride + 1) // 2)
    plan = best_plan(Transposed(1, 9, 16, 1, axis, axis), machine)
    fetching = collected(kernel_of(plan, machine).body, tirx.For, lambda loop: any(map(_fetches, _steps(loop))))
    assert len(fetching) == sum(bool(plan.taps(phase)) for phase in range(stride))
    for loop in fetching:
        at = {var: 7 for var in undefined_vars(loop.body, [])}
        places = [step.value.args[1].args[0] for step in _steps(loop) if _fetches(step)]
        got = {line(one.source, one.indices, at | {loop.loop_var: 3}) for one in places}
        stores = [one.value for one in _steps(loop) if not _fetches(one)]
        loads = [one for value in stores for one in collected(value, TensorLoad) if one.source.name == "rows"]
        ends = [[*one.indices[:-1], _lane(one.indices[-1], n)] for one in loads for n in (0, plan.lanes - 1)]
        assert {line(loads[0].source, end, at | {loop.loop_var: 4}) for end in ends} <= got


def _lane(index, lane):
    """A number of a vector of places."""
    if isinstance(index, tirx.Ramp):
        return index.base + lane * index.stride
    if isinstance(index, tirx.Add):
        return _lane(index.a, lane) + _lane(index.b, lane)
    return index.value if isinstance(index, tirx.Broadcast) else index


def _steps(loop):
    return getattr(loop.body, "seq", [])


def _fetches(step):
    return isinstance(step, tirx.Evaluate) and str(getattr(step.value.op, "name", "")).endswith("call_extern")
