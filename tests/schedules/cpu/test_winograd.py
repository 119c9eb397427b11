"""Winograd's forms, of 3x3 and of other windows: correct at every edge, errors as stated, chosen where they pay."""

import numpy as np
import pytest
from tvm import relax

import tvmopt.schedules.cpu.winograd.compute as winograd
from tests.schedules.cpu.reference import definition
from tests.schedules.harness import machines, module_of, run
from tvmopt.lowering import lower_operators
from tvmopt.schedules.cpu import winograd as family
from tvmopt.schedules.cpu._winograd import Axis, Form, Window, forms, winograd_cycles
from tvmopt.targets import Machine


def conv(w, b, pads, residual=False, dilation=(1, 1)):
    def build(bb, x, *more):
        y = relax.op.nn.conv2d(
            x, relax.const(w), padding=pads, dilation=dilation, data_layout="NHWC", kernel_layout="OHWI",
            out_dtype="float32",
        )  # fmt: skip
        y = bb.emit(relax.op.add(bb.emit(y), relax.const(b)))
        return relax.op.nn.relu(bb.emit(relax.op.add(y, more[0])) if residual else y)

    return build


def layer(shape, out, seed=0, window=(3, 3)):
    """Input, weight and bias whose convolution has variance 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype("float32")
    w = (rng.standard_normal((out, *window, shape[3])) / np.sqrt(np.prod(window) * shape[3])).astype("float32")
    return x, w, rng.standard_normal(out).astype("float32")


def largest_and_rms(y, want):
    return np.abs(y - want).max(), np.sqrt(np.mean((y - want) ** 2))


ERRORS = {4: (4e-5, 3e-6), 2: (1e-5, 8e-7)}
"""Largest and rms, by the output tile: what the module's docstring states, twice to three times."""


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    "shape, out, pads",
    [
        ((1, 16, 16, 32), 64, (1, 1, 1, 1)),
        ((2, 7, 9, 16), 17, (1, 1, 1, 1)),  # tiles hang over both edges, a padded panel
        ((1, 33, 15, 31), 33, (0, 1, 1, 0)),
        ((1, 3, 3, 16), 16, (0, 0, 0, 0)),  # one output
        ((3, 14, 14, 64), 32, (1, 1, 1, 1)),
        ((1, 6, 66, 16), 32, (0, 0, 0, 0)),  # one row of tiles, or two
    ],
)
def test_equals_the_definition(machine, tile, shape, out, pads, monkeypatch):
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(tile), 0.0))
    x, w, b = layer(shape, out)
    (y,), how = run(conv(w, b, pads), [x], machine)
    want = np.maximum(definition(x, w, (1, 1), pads, (1, 1), 1) + b, 0)
    assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
    assert y.shape == want.shape
    worst, rms = largest_and_rms(y, want)
    assert worst < ERRORS[tile][0] and rms < ERRORS[tile][1]


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    "size, c, o", [(7, 33, 48), (8, 16, 31), (13, 48, 17), (17, 20, 32), (28, 32, 40), (32, 17, 16)]
)
def test_equals_the_definition_at_square_edges_with_a_residual(tile, size, c, o, monkeypatch):
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(tile), 0.0))
    x, w, b = layer((1, size, size, c), o)
    r = np.random.default_rng(1).standard_normal((1, size, size, o)).astype("float32")
    (y,), how = run(conv(w, b, (1, 1, 1, 1), residual=True), [x, r], machines()[0])
    want = np.maximum(definition(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1) + b + r, 0)
    assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
    worst, rms = largest_and_rms(y, want)
    assert worst < ERRORS[tile][0] and rms < ERRORS[tile][1]


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("channels", [1, 7, 9, 15, 17, 20, 31, 33, 40])
def test_channels_that_fill_no_vectors(machine, channels, monkeypatch):
    """The last vector of a pixel's channels overlaps the one before."""
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(4), 0.0))
    x, w, b = layer((1, 9, 8, channels), 16)
    (y,), how = run(conv(w, b, (1, 1, 1, 1)), [x], machine)
    want = np.maximum(definition(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1) + b, 0)
    assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
    worst, rms = largest_and_rms(y, want)
    assert worst < ERRORS[4][0] and rms < ERRORS[4][1]


@pytest.mark.parametrize("out, taps", [(1, 1), (4, 2), (2, 3), (4, 3), (2, 5), (4, 4), (4, 5)])
def test_a_tile_is_its_sums(out, taps):
    at, g, bt = winograd.matrices(out, taps)
    d, k = np.random.default_rng(0).standard_normal(out + taps - 1), np.arange(1.0, taps + 1)
    np.testing.assert_allclose(at @ ((g @ k) * (bt @ d)), [d[i : i + taps] @ k for i in range(out)], atol=1e-12)


WINDOWS = [
    ((1, 16, 16, 32), 64, (3, 3), (2, 2, 2, 2), (2, 2)),
    ((2, 15, 17, 16), 17, (3, 3), (3, 3, 3, 3), (3, 2)),  # phases of other sizes, a padded panel
    ((1, 7, 9, 20), 33, (3, 3), (0, 4, 8, 4), (4, 8)),  # phases of one row
    ((1, 3, 31, 16), 16, (3, 3), (1, 1, 1, 1), (1, 5)),
    ((1, 28, 28, 32), 32, (5, 5), (2, 2, 2, 2), (1, 1)),
    ((1, 9, 13, 17), 33, (5, 5), (0, 1, 2, 0), (1, 1)),
    ((1, 17, 16, 31), 16, (5, 5), (4, 4, 4, 4), (2, 2)),
    ((1, 16, 15, 32), 64, (2, 2), (1, 1, 1, 1), (1, 1)),
    ((2, 5, 9, 17), 16, (2, 2), (0, 0, 0, 0), (1, 1)),
    ((1, 1, 37, 16), 16, (1, 2), (0, 1, 0, 0), (1, 1)),
    ((1, 5, 12, 16), 32, (3, 5), (1, 2, 1, 2), (1, 1)),
    ((2, 8, 7, 33), 15, (5, 3), (0, 1, 2, 0), (1, 1)),
    ((1, 17, 17, 32), 32, (1, 7), (0, 3, 0, 3), (1, 1)),
    ((1, 17, 17, 32), 32, (7, 1), (3, 0, 3, 0), (1, 1)),
    ((1, 33, 31, 20), 24, (3, 1), (2, 0, 2, 0), (2, 1)),
    ((1, 64, 1, 32), 32, (3, 1), (1, 0, 1, 0), (1, 1)),
    ((1, 1, 100, 32), 48, (1, 3), (0, 1, 0, 1), (1, 1)),  # signals
    ((1, 1, 101, 32), 33, (1, 7), (0, 9, 0, 9), (1, 3)),
    ((2, 1, 333, 24), 16, (1, 11), (0, 25, 0, 25), (1, 5)),
    ((1, 1, 50, 16), 32, (1, 5), (0, 0, 0, 0), (1, 1)),
    ((1, 1, 40, 16), 32, (1, 5), (0, 4, 0, 0), (1, 2)),
    ((1, 1, 7, 16), 16, (1, 4), (0, 3, 0, 3), (1, 1)),
    ((1, 1, 4, 16), 16, (1, 4), (0, 0, 0, 0), (1, 1)),  # one output
    ((1, 1, 20, 16), 16, (1, 25), (0, 12, 0, 12), (1, 1)),
    ((1, 1, 40, 33), 31, (1, 9), (0, 8, 0, 8), (1, 2)),
]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape, out, window, pads, dilation", WINDOWS)
def test_other_windows_and_dilations_equal_the_definition(shape, out, window, pads, dilation, residual, monkeypatch):
    x, w, b = layer(shape, out, window=window)
    want = definition(x, w, (1, 1), pads, dilation, 1) + b
    r = np.random.default_rng(1).standard_normal(want.shape).astype("float32")
    inputs = [x, r] if residual else [x]
    want = np.maximum(want + r if residual else want, 0)
    for machine, form in zip(machines() * 2, forms(window), strict=False):
        monkeypatch.setattr(winograd, "choose_form", lambda *_, form=form: (form, 0.0))
        (y,), how = run(conv(w, b, pads, residual, dilation), inputs, machine)
        assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
        assert y.shape == want.shape
        worst, rms = largest_and_rms(y, want)
        assert worst < ERRORS[4][0] and rms < ERRORS[4][1]


def test_what_is_no_number_stays_in_its_phase(monkeypatch):
    """All outputs that see it are none; in its own phase the tiles around it may be none, too."""
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(4), 0.0))
    x, w, _ = layer((1, 16, 16, 16), 16)
    x[0, 5, 9] = np.nan
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}

    def alone(bb, data):
        return relax.op.nn.conv2d(data, relax.const(w), padding=2, dilation=2, **layouts)

    (y,), how = run(alone, [x], machines()[0])
    assert [s.family for s in how.values()] == ["winograd"]
    want = definition(x, w, (1, 1), (2, 2, 2, 2), (2, 2), 1)
    lost = ~np.isfinite(y)[0].all(-1)
    assert lost[~np.isfinite(want)[0].all(-1)].all()
    assert not lost[::2].any() and not lost[:, ::2].any()


@pytest.mark.parametrize(
    "window, dilation, size, c, o, form",
    [
        ((3, 3), (2, 2), (56, 56), 128, 128, (4, 4)),
        ((3, 3), (24, 24), (28, 28), 128, 128, None),  # phases of a pixel or two
        ((5, 5), (1, 1), (28, 28), 64, 64, (2, 2)),
        ((1, 3), (1, 1), (1, 1000), 256, 256, (1, 4)),
        ((1, 11), (1, 5), (1, 3000), 128, 128, (1, 4)),
        ((1, 11), (1, 1), (1, 3000), 8, 128, None),  # too few channels
        ((7, 7), (1, 1), (56, 56), 64, 64, None),  # it has no form
        ((1, 1), (1, 1), (56, 56), 64, 64, None),
    ],
)
def test_where_other_windows_have_a_form(window, dilation, size, c, o, form):
    z = Machine.load("znver4").with_cores(2)
    found, cycles = winograd.choose_form(Window(window, dilation, size, c, o, 1), z)
    assert (found and (found.rows.out, found.cols.out)) == form and cycles > 0


@pytest.mark.parametrize("tile", [2, 4])
def test_the_family_reads_the_tile_off_the_block(tile, monkeypatch):
    """Also where the number of tiles tells nothing: an image of one output has one tile by either form."""
    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(tile), 0.0))
    x, w, b = layer((1, 3, 3, 16), 16)
    machine = Machine.load("x86-64-v4")
    module = lower_operators(module_of(conv(w, b, (0, 0, 0, 0)), [x]), machine)
    shape = next(s for f in module.functions.values() if (s := family.recognise(f, machine)) is not None)
    assert (shape.high, shape.rows, shape.cols, shape.places) == (tile, 1, 1, (tile + 2) ** 2)


@pytest.mark.parametrize("cores, tiles", [(1, (4, 4, 4, 2)), (2, (4, 4, 2, 2))])
def test_the_form_that_whole_models_were_measured_with(cores, tiles):
    """ResNet-50's four 3x3 layers. At 14x14 two cores wait for the 9.4 MB of 4x4 weights, one does not."""
    z = Machine.load("znver5").with_cores(cores)
    layers = [(56, 64), (28, 128), (14, 256), (7, 512)]
    assert tuple(winograd.output_tile(s, s, c, c, 1, z) for s, c in layers) == tiles
    assert winograd.output_tile(224, 224, 3, 64, 1, z) == 1  # too few channels for the transform


def test_few_tiles_of_one_vector_of_channels_wait_for_each_other():
    """Four tiles by one vector are four accumulators, each busy for the latency of a product; two vectors are eight."""
    z = Machine.load("znver5").with_cores(1)
    form = Form(Axis(4, 2), Axis(4, 2))
    one, two = (winograd_cycles(form, 2, 2, 64, o, 1, z) for o in (16, 32))
    assert 0.75 < one / two < 1
    assert winograd.choose_form(Window((2, 2), (1, 1), (8, 8), 256, 16, 1), z)[0] is None


def test_bf16_stays_where_only_the_small_tile_would_gain():
    """2.25 times fewer multiplications do not make up for vdpbf16ps and the transforms; 4 times fewer do."""
    z = Machine.load("znver5").with_cores(2)
    forms = [
        winograd.output_tile(s, s, c, c, 1, z, z.bf16_rate, winograd.BF16_MARGIN)
        for s, c in [(56, 64), (28, 128), (14, 256), (7, 512)]
    ]
    assert forms == [4, 4, 1, 1]


def test_exact_leaves_it_out():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 3, 3, 64)).astype("float32")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 28, 28, 64), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(
                relax.op.nn.conv2d(x, relax.const(w), padding=1, data_layout="NHWC", kernel_layout="OHWI")
            )
        bb.emit_func_output(out)
    z = Machine.load("znver5")
    assert "winograd" in lower_operators(bb.get(), z).script()
    assert "winograd" not in lower_operators(bb.get(), z, exact=True).script()


def test_rows_of_tiles_that_l2_does_not_hold_are_dear():
    """384 to 24 channels of 2x320 by 3x3 took 1030 us by Winograd's form and 834 directly (Xeon, one core)."""
    x = Machine.load("sapphirerapids").with_cores(1)
    assert winograd.choose_form(Window((3, 3), (1, 1), (2, 320), 384, 24, 1), x)[0] is None
    assert winograd.choose_form(Window((3, 3), (1, 1), (2, 64), 384, 24, 1), x)[0] is not None


def test_a_task_of_a_signal_fills_the_registers():
    """Of 752 tiles a task had 94, 2 of which were multiplied at once: 192 to 32 channels of 3000 by 9 took 2885 us on a
    Xeon, 1658 with 8."""
    machine = Machine.load("sapphirerapids").with_cores(1)
    x, w, b = layer((1, 1, 3000, 192), 32, window=(1, 9))
    module = lower_operators(module_of(conv(w, b, (0, 4, 0, 4)), [x]), machine)
    shape = next(s for f in module.functions.values() if (s := family.recognise(f, machine)) is not None)
    chosen = family.knobs(shape, machine).analytic
    assert shape.rows == 752 and chosen["rr"] * chosen["mr"] == 8
