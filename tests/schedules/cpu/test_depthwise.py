"""Depthwise convolution against float64: odd channels, strides, dilation, borders, multipliers, knobs."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, te, topi

from tests.schedules.harness import open_module
from tvmopt import pipeline
from tvmopt.lowering.window import Window, channel_vector
from tvmopt.schedules.cpu import conv2d, depthwise, elementwise
from tvmopt.schedules.cpu.depthwise.compute import depthwise_te, pack
from tvmopt.targets import Machine


def reference(x, w, stride, pad, dilation):
    n, _, _, c = x.shape
    out_c, kh, kw, _ = w.shape
    x = np.pad(x.astype("float64"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    x = np.repeat(x, out_c // c, axis=3)
    oh = (x.shape[1] - dilation * (kh - 1) - 1) // stride + 1
    ow = (x.shape[2] - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, oh, ow, out_c))
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dilation, i * dilation + (oh - 1) * stride + 1, stride)
            cols = slice(j * dilation, j * dilation + (ow - 1) * stride + 1, stride)
            out += x[:, rows, cols] * w[:, i, j, 0]
    return out


def window(shape, w, stride, pad, dilation):
    kh, kw = w.shape[1:3]
    out = [(shape[1 + a] + 2 * pad - dilation * ((kh, kw)[a] - 1) - 1) // stride + 1 for a in (0, 1)]
    return Window((kh, kw), (stride, stride), (pad,) * 4, (dilation, dilation), (out[0], out[1]))


def build(shape, w, stride, pad, dilation, machine, epilogue=True):
    out_c = w.shape[0]
    vector, copied = channel_vector(out_c, out_c // shape[3], machine.lanes())
    packed = pack(w, vector)
    x, wt, b = (
        te.placeholder(shape, name="x"),
        te.placeholder(packed.shape, name="w"),
        te.placeholder((out_c,), name="b"),
    )
    out = depthwise_te(x, wt, out_c, window(shape, w, stride, pad, dilation), copied)
    if epilogue:
        out = topi.nn.relu(topi.add(out, b))
    return te.create_prim_func([x, wt, b, out]), packed, [tuple(int(d) for d in out.shape)]


def check(
    scheduled,
    execute,
    machine,
    shape,
    k,
    stride=1,
    pad=1,
    dilation=1,
    multiplier=1,
    knobs=None,
    epilogue=True,
):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    w = rng.standard_normal((shape[3] * multiplier, k, k, 1)).astype("float32")
    b = rng.standard_normal(shape[3] * multiplier).astype("float32")
    func, packed, outputs = build(shape, w, stride, pad, dilation, machine, epilogue)
    (got,) = execute(scheduled(depthwise, func, knobs), [x, packed, b], outputs)
    want = reference(x, w, stride, pad, dilation)
    want = np.maximum(want + b, 0) if epilogue else want
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_channels(edge, scheduled, execute, machine):
    check(scheduled, execute, machine, (1, 5, 9, edge), 3)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 15, 16, 17, 31])
def test_widths(width, scheduled, execute, machine):
    check(scheduled, execute, machine, (1, 4, width, 16), 3)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 9, 9, 16), {"k": 3, "stride": 2}),
        ((1, 15, 33, 24), {"k": 5, "stride": 2, "pad": 2}),
        ((1, 17, 17, 32), {"k": 3, "pad": 2, "dilation": 2}),
        ((1, 12, 12, 16), {"k": 7, "pad": 3}),
        ((1, 8, 8, 16), {"k": 3, "pad": 0}),
        ((1, 8, 8, 20), {"k": 3, "pad": 0, "epilogue": False}),
        ((1, 9, 9, 8), {"k": 3, "multiplier": 2}),
        ((1, 9, 9, 5), {"k": 3, "multiplier": 3}),
        ((1, 6, 6, 16), {"k": 1, "pad": 0}),
        ((1, 16, 16, 32), {"k": 3, "knobs": {"wt": 4, "cv": 2, "unroll": 1, "rows": 2}}),
        ((1, 16, 16, 20), {"k": 3, "knobs": {"wt": 5, "cv": 2, "unroll": 1, "rows": 4}}),
        ((1, 40, 64, 96), {"k": 3}),  # enough work for threads
    ],
)
def test_forms(shape, options, scheduled, execute, machine):
    check(scheduled, execute, machine, shape, **options)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "sapphirerapids"])
def test_other_machines_schedule(name):
    machine = Machine.load(name)
    func, _, _ = build((1, 14, 14, 24), np.zeros((24, 3, 3, 1), "float32"), 1, 1, 1, machine)
    shape = depthwise.recognise(func, machine)
    import tvm

    sch = tvm.s_tir.Schedule(func)
    depthwise.apply(sch, shape, depthwise.knobs(shape, machine).analytic)
    assert tvm.compile(sch.mod, target=machine.tvm_target()) is not None


def test_no_other_family_takes_it(machine):
    func, _, _ = build((1, 14, 14, 24), np.zeros((24, 3, 3, 1), "float32"), 1, 1, 1, machine)
    assert conv2d.recognise(func, machine) is None and elementwise.recognise(func, machine) is None


def test_knobs_do_not_change_the_number_of_loops(machine):
    import tvm

    func, _, _ = build((1, 16, 16, 32), np.zeros((32, 3, 3, 1), "float32"), 1, 1, 1, machine)
    shape = depthwise.recognise(func, machine)
    counts = set()
    for wt, cv, unroll in ((4, 1, 0), (7, 2, 1), (16, 1, 0)):
        sch = tvm.s_tir.Schedule(func)
        depthwise.apply(sch, shape, {"wt": wt, "cv": cv, "rows": 4, "unroll": unroll})
        counts.add(len(sch.get_loops(sch.get_sblock("depthwise_update"))))
    assert len(counts) == 1


def test_weights_are_packed_by_vectors():
    w = np.arange(2 * 9, dtype="float32").reshape(2, 3, 3, 1)
    packed = pack(w, 4)
    assert packed.shape == (1, 3, 3, 4)
    assert (packed[0, 1, 2] == [5, 14, 0, 0]).all()


@pytest.mark.parametrize(("side", "channels", "k", "stride"), [(97, 96, 5, 1), (112, 96, 3, 2), (90, 100, 3, 1)])
def test_pictures_beyond_l2_are_tasks_of_few_rows(side, channels, k, stride, scheduled, execute, machine):
    """All channels of some rows before the next rows; 97 rows have no divisor, 100 channels no whole vectors."""
    weights = np.zeros((channels, k, k, 1), "float32")
    func, _, _ = build((1, side, side, channels), weights, stride, k // 2, 1, machine)
    problem = depthwise.recognise(func, machine)
    rows = depthwise.knobs(problem, machine).analytic["rows"]
    assert problem.ih * problem.reads == side * side * channels * 4
    assert rows < problem.oh // 2 or problem.ih * problem.reads * 2 <= machine.l2
    check(scheduled, execute, machine, (1, side, side, channels), k, stride, pad=k // 2)


def test_places_are_no_vectors():
    """With an open batch, a place was a vector of 16 places, from each of which a number was read by itself."""
    w = relax.const(np.random.default_rng(0).standard_normal((48, 1, 3, 3)).astype("float32"))

    def build(bb, x):
        y = relax.op.nn.conv2d(x, w, padding=1, groups=48)
        return relax.op.nn.relu(bb.emit(y))

    machine = Machine.load("znver4").with_cores(2)
    lowered = pipeline.lower(open_module(build, [("n", 48, 40, 40)]), machine)
    assert "depthwise" in {k.family for k in lowered.kernels}
    text = "".join(m.inspect_source("ll") for m in pipeline.build(lowered, machine).mod.imports if m.kind == "llvm")
    assert "<16 x float>" in text and "<16 x i64>" not in text and "<16 x i32>" not in text
