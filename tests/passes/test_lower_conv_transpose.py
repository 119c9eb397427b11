"""Transposed convolution as convolution + interleave, against onnxruntime."""

import numpy as np
import onnxruntime as ort
import pytest
import tvm
from onnx import helper
from tvm import relax

from tests.schedules.harness import Open, open_module
from tvmopt.passes.lower_conv_transpose import STAGE, LowerConvTranspose, phase_kernel
from tvmopt.report import DecisionLog


def reference(x, w, **attrs):
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", 1, x.shape), helper.make_tensor_value_info("w", 1, w.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "w": w})[0]


def build(xs, w, **attrs):
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(xs, "float32"))
    nn = relax.op.nn
    op = {3: nn.conv1d_transpose, 4: nn.conv2d_transpose, 5: nn.conv3d_transpose}[len(xs)]
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(op(x, w if isinstance(w, relax.Expr) else relax.const(w), **attrs))
        bb.emit_func_output(y)
    return bb.get()


@pytest.mark.parametrize(
    "shape, out, kernel, stride, pad, extra, groups",
    [
        ((1, 8, 7, 9), 6, 4, 2, 1, 0, 1),
        ((2, 8, 5, 5), 6, 3, 2, 1, 1, 2),
        ((1, 4, 5, 6), 4, 2, 3, 0, 0, 1),  # kernel shorter than the stride
        ((1, 4, 5, 6), 4, 5, 1, 2, 0, 4),
        ((1, 3, 1, 1), 2, 1, 2, 0, 1, 1),
        ((1, 4, 9), 6, 4, 2, 1, 0, 2),  # one spatial dimension
        ((1, 4, 3, 5, 4), 6, 4, 2, 1, 0, 2),  # three
        ((2, 3, 2, 3, 5), 2, 2, 3, 0, 1, 1),
    ],
)
def test_equals_the_definition(shape, out, kernel, stride, pad, extra, groups):
    rng = np.random.default_rng(0)
    spatial = len(shape) - 2
    x = rng.standard_normal(shape).astype("float32")
    w = rng.standard_normal((shape[1], out // groups, *[kernel] * spatial)).astype("float32")
    module = build(shape, w, strides=stride, padding=pad, output_padding=extra, groups=groups)
    before = module.script()
    log = DecisionLog()
    lowered = LowerConvTranspose(log)(module)
    assert log.count(STAGE) == 1
    assert module.script() == before
    assert "transpose(" not in lowered.script()
    vm = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    want = reference(
        x, w, strides=[stride] * spatial, pads=[pad] * 2 * spatial, output_padding=[extra] * spatial, group=groups
    )
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kernel, stride, pad, extra, groups",
    [(2, 2, 0, 0, 1), (2, 3, 0, 0, 1), (1, 2, 0, 1, 2), (4, 2, 1, 0, 1), (3, 2, 1, 1, 2), (5, 1, 2, 0, 1)],
)
def test_open_batch_and_sizes(kernel, stride, pad, extra, groups):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6 // groups, kernel, kernel)).astype("float32")

    def lower(bb, x):
        attrs = {"strides": stride, "padding": pad, "output_padding": extra, "groups": groups}
        return relax.op.nn.conv2d_transpose(x, relax.const(w), **attrs)

    model = Open(open_module(lower, [("n", 4, "h", "w")]))
    assert not any("transpose" in name and "conv" in name for name in model.how)
    for n, height, width in [(1, 1, 1), (2, 1, 7), (1, 8, 9), (3, 15, 16), (1, 17, 33)]:
        x = rng.standard_normal((n, 4, height, width)).astype("float32")
        attrs = {"strides": [stride] * 2, "pads": [pad] * 4, "output_padding": [extra] * 2, "group": groups}
        np.testing.assert_allclose(model(x)[0], reference(x, w, **attrs), rtol=1e-5, atol=1e-5)


def test_a_result_of_the_pictures_own_open_size():
    """Rows that are ``h + 4 - 4`` were another size than `h` where a bias follows: TVM ended with an InternalError."""
    rng = np.random.default_rng(0)
    w, bias = rng.standard_normal((5, 2, 5, 5)).astype("float32"), rng.standard_normal((1, 2, 1, 1)).astype("float32")

    def lower(bb, x):
        y = bb.emit(relax.op.nn.conv2d_transpose(x, relax.const(w), padding=2))
        return relax.op.add(y, relax.const(bias))

    model = Open(open_module(lower, [("h", 5, "h", 16)]))
    for size in (1, 2, 9):
        x = rng.standard_normal((size, 5, size, 16)).astype("float32")
        want = reference(x, w, strides=[1, 1], pads=[2] * 4) + bias
        np.testing.assert_allclose(model(x)[0], want, rtol=1e-5, atol=1e-5)


def quantised(xs, w, **attrs):
    """The transposed convolution as integers: what is NaN before is a number behind it."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(xs, "float32"))
    op = {3: relax.op.nn.conv1d_transpose, 4: relax.op.nn.conv2d_transpose, 5: relax.op.nn.conv3d_transpose}[len(xs)]
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.clip(bb.emit(op(x, relax.const(w), **attrs)), -100, 100))
            y = bb.emit(relax.op.where(bb.emit(relax.op.isnan(y)), relax.const(np.float32(0)), y))
            y = bb.emit_output(relax.op.astype(bb.emit(relax.op.round(y)), "int8"))
        bb.emit_func_output(y)
    return bb.get()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "shape, kernel, stride", [((1, 4, 6, 7), 3, 2), ((2, 4, 5, 5), 5, 3), ((1, 4, 5, 5), 2, 3), ((1, 4, 9), 3, 2),
                              ((1, 4, 3, 5, 4), 3, 2), ((1, 4, 6, 7), 1, 2)]
)  # fmt: skip
def test_an_infinity_reaches_what_its_taps_reach_where_integers_follow(shape, kernel, stride, groups):
    """A phase of fewer taps read the pixel beside them with a weight of zero: NaN, quantised as if it were a number."""
    rng = np.random.default_rng(0)
    w = rng.uniform(1, 9, (4, 6 // groups, *[kernel] * (len(shape) - 2))).astype("float32")
    x = rng.standard_normal(shape).astype("float32")
    lowered = LowerConvTranspose(DecisionLog())(quantised(shape, w, strides=stride, groups=groups))
    assert "_transpose(" not in lowered.script()
    vm = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    x[(0, 1, *[2] * (len(shape) - 2))] = np.inf
    want = reference(x, w, strides=[stride] * (len(shape) - 2), group=groups)
    want = np.round(np.clip(np.where(np.isnan(want), 0, want), -100, 100)).astype("int8")
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), want, atol=1)


@pytest.mark.parametrize("groups", [1, 2])
def test_likewise_where_sizes_are_open(groups):
    rng = np.random.default_rng(0)
    w = rng.uniform(1, 9, (4, 6 // groups, 3, 3)).astype("float32")

    def lower(bb, x):
        y = bb.emit(relax.op.nn.conv2d_transpose(x, relax.const(w), strides=2, groups=groups))
        return relax.op.astype(bb.emit(relax.op.greater(y, relax.const(np.float32(5)))), "uint8")

    model = Open(open_module(lower, [("n", 4, "h", "w")]))
    x = rng.standard_normal((2, 4, 7, 5)).astype("float32")
    x[1, 2, 3, 3] = np.inf
    want = reference(x, w, strides=[2, 2], group=groups)
    assert (model(x)[0] != (want > 5)).sum() == 0


def test_many_channels_are_a_convolution_a_phase():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 8, 6, 7)).astype("float32")
    for out, apart, number in [(15, True, 1), (16, True, 4), (16, False, 1)]:
        w = rng.standard_normal((8, out, 3, 3)).astype("float32")
        module = build(x.shape, w, strides=2, padding=1, output_padding=1)
        lowered = LowerConvTranspose(DecisionLog(), apart)(module)
        assert lowered.script().count("R.nn.conv2d(") == number
        vm = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
        want = reference(x, w, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
        np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


def test_nothing_is_cut_off_where_the_kernel_is_the_stride():
    module = build((1, 4, 5, 5), np.ones((4, 4, 2, 2), "float32"), strides=2)
    assert "strided_slice" not in LowerConvTranspose(DecisionLog())(module).script()


def test_what_follows_an_open_transposed_convolution_is_computed_as_its_pixels_are_put_side_by_side():
    """It took a kernel for each of two transposes, one for the additions, and eight times the time."""
    w, b = np.ones((24, 8, 2, 2), "float32"), np.ones((1, 8, 1, 1), "float32")

    def lower(bb, x):
        y = bb.emit(relax.op.nn.conv2d_transpose(x, relax.const(w), strides=2))
        y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, relax.const(b)))))
        return relax.op.nn.conv2d(y, relax.const(np.ones((4, 8, 1, 1), "float32")))

    names = [n for n in Open(open_module(lower, [("n", 24, "h", "w")])).how if "transpose" not in n]
    assert sorted(names) == ["conv1x1", "conv1x11", "fused_interleave_add_relu"]


@pytest.mark.parametrize(
    "depth, kernel, stride, pad, extra, groups",
    [
        (1, (1, 4, 4), (1, 2, 2), (0, 1, 1), (0, 0, 0), 1),
        (1, (3, 3, 5), (2, 2, 1), (1, 1, 2), (0, 1, 0), 2),
        (1, (2, 2, 2), (1, 2, 2), (0, 0, 0, 1, 0, 0), (0, 0, 0), 1),
        ("d", (1, 3, 4), (1, 2, 3), (0, 1, 0), (0, 0, 1), 2),
        (3, (1, 4, 2), (1, 2, 1), (0, 1, 1), (0, 0, 0), 1),
    ],
)
def test_volumes_of_single_frames_are_pictures(depth, kernel, stride, pad, extra, groups):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6 // groups, *kernel)).astype("float32")
    attrs = {"strides": stride, "padding": pad, "output_padding": extra, "groups": groups}
    model = Open(
        open_module(lambda bb, x: relax.op.nn.conv3d_transpose(x, relax.const(w), **attrs), [("n", 4, depth, "h", "w")])
    )
    assert not any("conv3d" in name or "conv2d_transpose" in name for name in model.how)
    for n, height, width in [(1, 3, 7), (2, 8, 9), (3, 15, 16), (1, 17, 33)]:
        x = rng.standard_normal((n, 4, n + 1 if depth == "d" else depth, height, width)).astype("float32")
        ends = list(pad) * 2 if len(pad) == 3 else list(pad)
        want = reference(x, w, strides=stride, pads=ends, output_padding=extra, group=groups)
        np.testing.assert_allclose(model(x)[0], want, rtol=1e-5, atol=1e-5)


def test_declines_open_volumes_where_voxels_overlap():
    weight = relax.const(np.ones((4, 4, 3, 3, 3), "float32"))
    module = open_module(lambda bb, x: relax.op.nn.conv3d_transpose(x, weight, strides=2), [("n", 4, "h", 5, 5)])
    log = DecisionLog()
    tvm.ir.assert_structural_equal(LowerConvTranspose(log)(module), module)
    assert [d.reason for d in log] == ["4: a volume of open size, and voxels overlap"]


def test_declines_dilation():
    log = DecisionLog()
    module = build((1, 4, 5, 5), np.ones((4, 4, 3, 3), "float32"), dilation=2)
    tvm.ir.assert_structural_equal(LowerConvTranspose(log)(module), module)
    assert [d.reason for d in log] == ["2: dilated"]


def test_phase_kernel_keeps_every_tap():
    w = np.arange(1, 1 + 2 * 3 * 5 * 4, dtype="float32").reshape(2, 3, 5, 4)
    kernel, taps, in_g = phase_kernel(w, [2, 3], groups=1)
    assert (taps, in_g, kernel.shape) == ([3, 2], 2, (2 * 3 * 3, 2, 3, 2))
    assert sorted(kernel[kernel > 0]) == sorted(w.ravel())


def test_alone_it_is_left_to_a_family_that_computes_it_faster_as_it_lies():
    """Decline 5: not beside a convolution, which has its data in channels-last, and not where no family is faster."""
    w, v = (np.zeros(s, "float32") for s in ((8, 4, 3, 3), (4, 4, 1, 1)))

    def module(beside):
        bb = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((1, 8, 6, 7), "float32"))
        with bb.function("main", [x]):
            with bb.dataflow():
                y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.nn.conv2d_transpose(x, relax.const(w), strides=2))))
                y = bb.emit(relax.op.nn.conv2d(y, relax.const(v))) if beside else y
                y = bb.emit_output(relax.op.negative(y))
            bb.emit_func_output(y)
        return bb.get()

    for beside, faster, stays in [(False, True, True), (True, True, False), (False, False, False)]:
        log = DecisionLog()
        lowered = LowerConvTranspose(log, stays=lambda call, faster=faster: faster)(module(beside))
        assert ("conv2d_transpose" in lowered.script()) == stays
        assert log.count(STAGE, "declined") == stays
