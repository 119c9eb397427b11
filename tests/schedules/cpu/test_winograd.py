"""Winograd F(4x4, 3x3): correct at every edge, its error as stated, chosen only where it pays."""

import numpy as np
import pytest
from tvm import relax
from tvmopt.targets import Machine

import tvmopt.legalize.winograd as winograd
from tests.schedules.cpu.test_conv2d import definition
from tests.schedules.harness import machines, run


def conv(x, w, b, pads):
    def build(bb, x):
        y = relax.op.nn.conv2d(
            x, relax.const(w), padding=pads, data_layout="NHWC", kernel_layout="OHWI", out_dtype="float32"
        )
        return relax.op.nn.relu(bb.emit(relax.op.add(bb.emit(y), relax.const(b))))

    return build


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize(
    "shape, out, pads",
    [
        ((1, 16, 16, 32), 64, (1, 1, 1, 1)),
        ((2, 7, 9, 16), 17, (1, 1, 1, 1)),  # tiles hang over both edges, a padded panel
        ((1, 33, 15, 31), 33, (0, 1, 1, 0)),
        ((1, 3, 3, 16), 16, (0, 0, 0, 0)),  # one output
        ((3, 14, 14, 64), 32, (1, 1, 1, 1)),
        ((1, 6, 66, 16), 32, (0, 0, 0, 0)),  # one row of tiles
    ],
)
def test_equals_the_definition(machine, shape, out, pads, monkeypatch):
    monkeypatch.setattr(winograd, "pays", lambda *_: True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    w = (rng.standard_normal((out, 3, 3, shape[3])) / np.sqrt(9 * shape[3])).astype("float32")
    b = rng.standard_normal(out).astype("float32")
    (y,), how = run(conv(x, w, b, pads), [x], machine)
    want = np.maximum(definition(x, w, (1, 1), pads, (1, 1), 1) + b, 0)
    assert [(s.family, s.note) for s in how.values()] == [("winograd", "")]
    assert y.shape == want.shape
    assert np.abs(y - want).max() < 4e-5
    assert np.sqrt(np.mean((y - want) ** 2)) < 3e-6  # as the module's docstring states it


def test_pays_for_the_layers_where_it_was_measured_to():
    """ResNet-50's four 3x3 layers on one core of Zen 5: alone 2.7, 2.5, 2.4 and 0.64 times as fast as the direct form.

    In whole networks U comes from memory: on two cores the third is even, Inception's 7x7 layers lose 5 % of the net.
    """
    z = Machine.load("znver5").with_cores(1)
    layers = [(56, 64), (28, 128), (14, 256), (7, 512)]
    assert [winograd.pays(s, s, c, c, 1, z) for s, c in layers] == [True, True, True, False]
    assert not winograd.pays(7, 7, 192, 320, 1, z)
    assert not winograd.pays(224, 224, 3, 64, 1, z)  # too few channels for the transform


def test_exact_leaves_it_out():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 3, 3, 64)).astype("float32")
    from tvmopt.legalize import legalize

    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 28, 28, 64), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(
                relax.op.nn.conv2d(x, relax.const(w), padding=1, data_layout="NHWC", kernel_layout="OHWI")
            )
        bb.emit_func_output(out)
    z = Machine.load("znver5")
    assert "winograd" in legalize(bb.get(), z).script()
    assert "winograd" not in legalize(bb.get(), z, exact=True).script()
