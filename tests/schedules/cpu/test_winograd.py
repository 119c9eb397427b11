"""Winograd F(2x2, 3x3) and F(4x4, 3x3): correct at every edge, errors as stated, each chosen where it pays."""

import numpy as np
import pytest
from tvm import relax

import tvmopt.schedules.cpu.winograd.compute as winograd
from tests.schedules.cpu.reference import definition
from tests.schedules.harness import machines, module_of, run
from tvmopt.lowering import lower_operators
from tvmopt.schedules.cpu import winograd as family
from tvmopt.targets import Machine


def conv(w, b, pads, residual=False):
    def build(bb, x, *more):
        y = relax.op.nn.conv2d(
            x, relax.const(w), padding=pads, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32"
        )
        y = bb.emit(relax.op.add(bb.emit(y), relax.const(b)))
        return relax.op.nn.relu(bb.emit(relax.op.add(y, more[0])) if residual else y)

    return build


def layer(shape, out, seed=0):
    """Input, weight and bias whose convolution has variance 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype("float32")
    w = (rng.standard_normal((out, 3, 3, shape[3])) / np.sqrt(9 * shape[3])).astype("float32")
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
    monkeypatch.setattr(winograd, "output_tile", lambda *_: tile)
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
    monkeypatch.setattr(winograd, "output_tile", lambda *_: tile)
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
    monkeypatch.setattr(winograd, "output_tile", lambda *_: 4)
    x, w, b = layer((1, 9, 8, channels), 16)
    (y,), how = run(conv(w, b, (1, 1, 1, 1)), [x], machine)
    want = np.maximum(definition(x, w, (1, 1), (1, 1, 1, 1), (1, 1), 1) + b, 0)
    assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
    worst, rms = largest_and_rms(y, want)
    assert worst < ERRORS[4][0] and rms < ERRORS[4][1]


@pytest.mark.parametrize("tile", [2, 4])
def test_the_family_reads_the_tile_off_the_block(tile, monkeypatch):
    """Also where the number of tiles tells nothing: an image of one output has one tile by either form."""
    monkeypatch.setattr(winograd, "output_tile", lambda *_: tile)
    x, w, b = layer((1, 3, 3, 16), 16)
    machine = Machine.load("x86-64-v4")
    module = lower_operators(module_of(conv(w, b, (0, 0, 0, 0)), [x]), machine)
    shape = next(s for f in module.functions.values() if (s := family.recognise(f, machine)) is not None)
    assert (shape.out, shape.rows, shape.cols, shape.places) == (tile, 1, 1, (tile + 2) ** 2)


@pytest.mark.parametrize("cores, tiles", [(1, (4, 4, 4, 2)), (2, (4, 4, 2, 2))])
def test_the_form_that_whole_models_were_measured_with(cores, tiles):
    """ResNet-50's four 3x3 layers. At 14x14 two cores wait for the 9.4 MB of 4x4 weights, one does not."""
    z = Machine.load("znver5").with_cores(cores)
    layers = [(56, 64), (28, 128), (14, 256), (7, 512)]
    assert tuple(winograd.output_tile(s, s, c, c, 1, z) for s, c in layers) == tiles
    assert winograd.output_tile(224, 224, 3, 64, 1, z) == 1  # too few channels for the transform


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
