"""Convolution in NCHW against a float64 sliding window: borders, strides, dilation, groups, pieces of pictures."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.schedules.cpu.reference import definition
from tests.schedules.harness import close, machines, module_of, rand, run
from tvmopt import pipeline
from tvmopt.pipeline import lower
from tvmopt.schedules.cpu._channels_last import between_transposes, in_channels_last
from tvmopt.schedules.cpu.planes import plan as plans
from tvmopt.schedules.cpu.planes.plan import Convolution, best_plan
from tvmopt.targets import Machine

CASES = {  # n, c, h, w, o, kernel, strides, pads, dilation, groups
    "3x3": (1, 16, 14, 14, 32, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "one channel, many outputs": (1, 1, 9, 17, 33, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "1x1": (2, 31, 7, 8, 33, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "1x1 strided": (1, 15, 9, 9, 8, (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    "1x1 with a border": (1, 5, 7, 9, 8, (1, 1), (1, 1), (1, 2, 3, 1), (1, 1), 1),
    "one side": (3, 7, 8, 17, 31, (3, 5), (1, 1), (1, 2, 0, 1), (1, 1), 1),
    "phases": (2, 3, 15, 33, 17, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    "three phases": (1, 4, 16, 32, 9, (2, 5), (3, 3), (0, 4, 1, 1), (1, 1), 1),
    "one phase of two": (1, 4, 17, 16, 9, (3, 3), (2, 2), (2, 2, 2, 2), (2, 2), 1),
    "dilated": (1, 5, 16, 31, 9, (3, 3), (1, 1), (2, 3, 2, 3), (2, 3), 1),
    "depthwise": (2, 17, 15, 16, 17, (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 17),
    "depthwise, strided": (1, 9, 16, 33, 9, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 9),
    "three outputs a channel": (1, 8, 9, 7, 24, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8),
    "groups": (1, 24, 8, 9, 48, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    "17 outputs a group": (2, 10, 9, 8, 34, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "one row": (1, 8, 1, 100, 16, (1, 7), (1, 1), (0, 3, 0, 3), (1, 1), 1),
    "one row, strided": (1, 8, 1, 131, 16, (1, 3), (1, 2), (0, 1, 0, 1), (1, 1), 1),
    "wide border": (1, 3, 4, 5, 6, (2, 2), (1, 1), (5, 7, 6, 4), (1, 1), 1),
    "only border": (1, 3, 1, 1, 6, (3, 3), (2, 2), (4, 4, 4, 4), (1, 1), 1),
    "one pixel": (1, 33, 3, 3, 1, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
}


def arguments(case):
    n, c, h, w, o, kernel, *rest = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, c, h, w)).astype("float32")
    return x, rng.standard_normal((o, c // rest[3], *kernel)).astype("float32"), *rest


def expected(x, w, strides, pads, dilation, groups):
    return definition(x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), strides, pads, dilation, groups)


def convolve(machine, x, w, strides, pads, dilation, groups, cores=2, relu=True):
    """With a bias and Relu, compiled and run; what it should be; how it was scheduled."""
    bias = rand(1, w.shape[0], 1, 1)

    def build(bb, x):
        options = dict(strides=strides, padding=pads, dilation=dilation, groups=groups)
        y = bb.emit(relax.op.nn.conv2d(x, relax.const(w), **options))
        y = bb.emit(relax.op.add(y, relax.const(bias)))
        return relax.op.nn.relu(y) if relu else y

    (y,), how = run(build, [x], machine, cores=cores)
    want = expected(x, w, strides, pads, dilation, groups) + bias.reshape(-1)
    return y, (np.maximum(want, 0) if relu else want).transpose(0, 3, 1, 2), how


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("case", CASES)
def test_convolution_with_bias_and_relu(machine, case):
    x, w, *rest = arguments(case)
    got, want, how = convolve(machine, x, w, *rest)
    close(got, want, w[0].size)
    assert [s.family for s in how.values()] == ["planes"] and not any(s.note for s in how.values())


@pytest.mark.parametrize("case", ["3x3", "phases", "one phase of two", "dilated", "depthwise", "groups", "one row"])
@pytest.mark.parametrize("cores", [1, 3])
def test_pieces_of_pictures(monkeypatch, case, cores):
    monkeypatch.setattr(plans, "FLAT", 2048)  # rows of results that wait for their epilogue
    x, w, *rest = arguments(case)
    got, want, _ = convolve("avx512" if "avx512" in machines() else "sse", x, w, *rest, cores=cores)
    close(got, want, w[0].size)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_numbers_that_are_not_finite_reach_their_neighbours_only(value):
    x, w, *rest = arguments("one side")
    x[1, 3, 4, 16] = value  # the end of a row, behind which the next one begins
    got, want, _ = convolve(machines()[0], x, w, *rest, relu=False)
    finite = np.isfinite(want) & (np.abs(want) < 1e30)
    assert (np.isfinite(got) & (np.abs(got) < 1e30) == finite).all()
    close(got[finite], want[finite], w[0].size)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33])
def test_widths(width):
    x, w = rand(1, 3, 5, width), rand(9, 3, 3, 3)
    got, want, _ = convolve(machines()[0], x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    close(got, want, 27)


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", [(1, 33), (7, 7), (8, 31), (9, 16), (15, 17), (31, 8), (32, 1), (33, 20), (80, 15)])
@pytest.mark.parametrize("kernel, stride, dilation", [(3, 1, 1), (3, 2, 1), (5, 1, 2), (7, 1, 1), (7, 2, 1), (4, 3, 1)])
def test_a_channel_for_each_channel(machine, cores, size, kernel, stride, dilation):
    """In strips of one to three rows, whose last block is beyond the picture, and as whole pictures."""
    x, w, border = rand(2, 5, *size), rand(5, 1, kernel, kernel), (kernel - 1) * dilation // 2
    args = (stride, stride), (border, border, kernel // 2, kernel // 2), (dilation, dilation), 5
    if any(s + border + kernel // 2 <= (kernel - 1) * dilation for s in size):
        args = (stride, stride), (kernel * dilation,) * 4, (dilation, dilation), 5
    got, want, how = convolve(machine, x, w, *args, cores=cores)
    close(got, want, w[0].size)
    assert [s.family for s in how.values()] == ["planes"] and not any(s.note for s in how.values())


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_strips_keep_what_is_not_finite_to_its_neighbours(value):
    x, w = rand(1, 3, 20, 20), rand(3, 1, 7, 7)
    x[0, 1, 9, 19] = value
    got, want, _ = convolve(machines()[0], x, w, (1, 1), (3, 3, 3, 3), (1, 1), 3, relu=False)
    finite = np.isfinite(want) & (np.abs(want) < 1e30)
    assert (np.isfinite(got) & (np.abs(got) < 1e30) == finite).all()
    close(got[finite], want[finite], 49)


def test_large_windows_of_single_channels_are_computed_in_strips():
    """A vector that serves one product is loaded in the time of two: 108 GFLOP/s, and 188 in ten strips."""
    machine = Machine.load("znver5").with_cores(1)
    assert best_plan(problem(96, 80, 80, 96, 7, groups=96), machine).high > 4
    assert best_plan(problem(96, 20, 20, 96, 7, groups=96), machine).strip == 2  # 46 numbers are three vectors
    assert best_plan(problem(96, 20, 20, 96, 1, groups=96), machine).high == 1


def problem(c, h, w, o, k, stride=1, groups=1):
    before = (k - 1) // 2
    out = tuple((size + 2 * before - k) // stride + 1 for size in (h, w))
    return Convolution(1, c, (h, w), o, out, groups, (k, k), (stride, stride), (1, 1), (before, before))


def test_rows_share_their_border():
    plan = replace(best_plan(problem(8, 28, 28, 16, 3), Machine.load("x86-64-v4")), rows=28, columns=28)
    assert (plan.pitch, plan.left, plan.front, plan.inside()) == (29, 0, 1, (0, 28))


def test_a_task_reads_no_further_than_its_copy():
    machine = Machine.load("x86-64-v4")
    alone = [problem(8, size, size + 1, 8, 5, stride, groups=8) for size in (7, 20, 33) for stride in (1, 2)]
    for case in (problem(3, 9, 17, 7, 5), problem(3, 16, 64, 8, 3, 2), problem(2, 1, 96, 4, 1), *alone):
        for plan in plans._plans(case, machine):
            rows = (plan.blocks * plan.high - 1) * plan.together + plan.front + case.reach(0)[1] - case.reach(0)[0]
            last = rows * plan.pitch + case.reach(1)[1] - plan.left
            assert last + plan.pixels - 1 < plan.depth * plan.pitch


@pytest.mark.parametrize("columns", [1, 31, 217, 299])
def test_channels_that_fill_the_cache_have_a_plan(columns):
    # 31 and 23 are the divisors nearest to 64, and no pieces
    plan = best_plan(problem(1 << 16, 2, columns, 8, 3), Machine.load("x86-64-v4"))
    assert (plan.rows, plan.columns) == (1, columns)


def test_copies_may_fill_the_cache():
    """Tasks of two rows, whose copy took less than half of L2, copied 5 rows for 2: 1172 us; of eight rows 978."""
    conv = Convolution(1, 96, (112, 112), 16, (56, 56), 1, (3, 3), (2, 2), (1, 1), (1, 1))
    machine = Machine.load("znver4").with_cores(1)
    plan = best_plan(conv, machine)
    assert plan.rows >= 7 and machine.l2 // 2 < plan.copied <= 2 * machine.l2


@pytest.mark.parametrize("outputs", [72, 120, 126])
def test_tiles_leave_registers_for_weights(outputs):
    """9 by 3 and 5 by 5 kept accumulators on the stack, and 4 by 3 of 16 registers."""
    for name, most in (("znver4", 30), ("x86-64-v3", 15)):
        plan = best_plan(problem(64, 40, 40, outputs, 3), Machine.load(name))
        assert plan.mr * plan.nv + plan.nv + 1 <= most


def test_cores_share_channels_of_small_planes_rather_than_parts_of_them():
    """The two cores' halves of 512 rows of 320 lie next to each other: they took 139 us, halves of the channels 47."""
    conv = Convolution(1, 8, (1, 320), 512, (1, 320), 1, (1, 3), (1, 1), (1, 1), (0, 1))
    machine = Machine.load("znver4").with_cores(2)
    plan = best_plan(conv, machine)
    assert (plan.tasks, plan.columns, plan.parts(machine)) == (1, 320, 2)


@pytest.mark.parametrize("outputs", [511, 512, 514])
def test_each_core_copies_a_picture_once(outputs):
    """37 blocks of 14 channels cannot be halved: each was a task, with a copy of its own, 3.3 times the time."""
    conv = Convolution(1, 512, (25, 19), outputs, (25, 19), 1, (1, 1), (1, 1), (1, 1), (0, 0))
    plan = best_plan(conv, Machine.load("sapphirerapids").with_cores(2))
    assert plan.tasks * plan.parts(Machine.load("sapphirerapids").with_cores(2)) <= 10


@pytest.mark.parametrize("case", ["phases", "depthwise, strided"])
def test_strided_rows_are_read_in_vectors(case):
    """An odd border and a stride make a remainder that TVM may not touch; each lane was loaded alone."""
    machine = Machine.load("x86-64-v4")
    x, w, strides, pads, dilation, groups = arguments(case)

    def build(bb, x):
        options = dict(strides=strides, padding=pads, dilation=dilation, groups=groups)
        return relax.op.nn.conv2d(x, relax.const(w), **options)

    lowered = lower(module_of(build, [x]), machine)
    assert [k.family for k in lowered.kernels] == ["planes"]
    text = "\n".join(m.inspect_source("asm") for m in pipeline.build(lowered, machine).mod.imports if m.kind == "llvm")
    assert "vfmadd" in text
    assert text.count("vpextr") < 4


def test_deep_layers_go_between_transposes_and_shallow_ones_do_not():
    machine = Machine.load("sapphirerapids").with_cores(1)
    deep, shallow = problem(384, 14, 14, 384, 3), problem(8, 52, 52, 8, 3)
    assert between_transposes(deep, machine) < best_plan(deep, machine).time(machine)
    assert between_transposes(shallow, machine) > best_plan(shallow, machine).time(machine)


def test_several_cores_make_transposes_dearer():
    machine, layer = Machine.load("sapphirerapids"), problem(3, 26, 26, 384, 3)  # 1 MB of results, half of L2
    one, two = (between_transposes(layer, machine.with_cores(cores)) for cores in (1, 2))
    assert one / 2 < two


@pytest.mark.parametrize(("channels", "size", "outputs"), [(256, 14, 64), (64, 14, 512), (512, 7, 96), (128, 13, 96)])
def test_cores_that_hand_small_pictures_to_each_other_gain_nothing(channels, size, outputs):
    """On two cores a pointwise layer between two transposes took as long as on one, and in NCHW 0.6 to 0.75 of that."""
    machine, layer = Machine.load("sapphirerapids").with_cores(2), problem(channels, size, size, outputs, 1)
    assert best_plan(layer, machine).time(machine) < between_transposes(layer, machine)


@pytest.mark.parametrize(("channels", "outputs", "side", "taps"), [(1, 192, 20, 11), (6, 48, 8, 9), (3, 48, 13, 11)])
def test_rows_of_taps_outside_small_pictures_cost_nothing_in_channels_last(channels, outputs, side, taps):
    """With few channels, too: planes took 1.22 to 1.57 of the time."""
    machine, layer = Machine.load("znver4").with_cores(2), problem(channels, side, side, outputs, taps)
    within = replace(layer, before=(0, 0), size=(side + taps - 1,) * 2)
    assert between_transposes(layer, machine) < best_plan(layer, machine).time(machine)
    assert between_transposes(layer, machine) < 0.9 * between_transposes(within, machine)


def test_one_channel_and_one_pixel_need_no_transpose():
    machine = Machine.load("znver4").with_cores(2)
    both, one, pixel = problem(2, 20, 20, 192, 1), problem(1, 20, 20, 192, 1), problem(64, 1, 1, 64, 1)
    assert between_transposes(both, machine) - between_transposes(one, machine) > 10_000
    assert between_transposes(pixel, machine) == in_channels_last(pixel, machine)


def kernels(build, shape, **options):
    lowered = lower(module_of(build, [np.zeros(shape, "float32")]), Machine.load("sapphirerapids"), **options)
    return sorted(k.family for k in lowered.kernels)


def lone(bb, x, o=8, k=3):
    w = rand(o, int(x.ty.shape[1]), k, k)
    return bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(x, relax.const(w), padding=k // 2))))


def test_a_lone_layer_is_one_kernel():
    assert kernels(lone, (1, 8, 52, 52)) == ["planes"]


def test_a_lone_layer_along_one_axis_takes_its_epilogue():
    def build(bb, x):
        y = bb.emit(relax.op.nn.conv1d(x, relax.const(rand(8, 8, 3)), padding=1))
        return relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(rand(1, 8, 1)))))

    assert [k for k in kernels(build, (1, 8, 300)) if k != "layout"] == ["planes"]  # that is a view of the result


def test_a_network_stays_in_channels_last():
    assert "planes" not in kernels(lambda bb, x: lone(bb, lone(bb, x)), (1, 8, 52, 52))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_precisions_stay_in_channels_last(precision):
    assert "planes" not in kernels(lone, (1, 8, 52, 52), precision=precision)


@pytest.mark.parametrize(("side", "taps"), [(9, 3), (1, 9), (9, 7)])
def test_what_is_stored_as_64_bit_integers(side, taps):
    """Such a kernel counts in 64 bits, and the loops of its rows counted in 32: TVM refused them."""
    rng = np.random.default_rng(side)
    x, w = rng.standard_normal((1, 9, side, 40)).astype("f"), rng.standard_normal((33, 9, taps, taps)).astype("f")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[taps // 2] * 4),
        helper.make_node("Cast", ["a"], ["y"], to=TensorProto.INT64),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    found = tvmopt.compile(model, records=False)
    assert [k.family for k in found.report.kernels if "conv" in k.name] == ["planes"]
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert (found(x) == expected).mean() > 0.99 and expected.std() > 2
