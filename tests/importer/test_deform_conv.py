"""DeformConv between the pixels: what is outside counts nothing, wherever that is."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.oracle.evaluate import Oracle


def deformed(rng, size=(5, 6), kernel=2):
    x = rng.standard_normal((1, 2, *size)).astype("f")
    w = rng.standard_normal((3, 2, kernel, kernel)).astype("f")
    shape = [s - kernel + 1 for s in size]
    offset = (2 * rng.standard_normal((1, 2 * kernel * kernel, *shape))).astype("f")
    node = helper.make_node("DeformConv", ["x", "w", "o"], ["y"], kernel_shape=[kernel, kernel])
    inputs = [value("x", x.shape), value("o", offset.shape)]
    return model([node], inputs, [value("y", None)], {"w": w}, opset=22), {"x": x, "o": offset}


@pytest.mark.parametrize("size", [(5, 6), (9, 17)])
def test_what_lies_outside_counts_nothing(size):
    made, feeds = deformed(np.random.default_rng(0), size)
    found = tvmopt.compile(made).model.run(feeds)["y"]
    np.testing.assert_allclose(found, ReferenceEvaluator(made).run(None, feeds)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("far", [np.inf, -np.inf, 1e9])
def test_an_infinite_place_is_outside(far):
    """As one of 1000 is; one that is no number makes a result that is none, in ours and in the oracle."""
    made, feeds = deformed(np.random.default_rng(1))
    compiled = tvmopt.compile(made)
    results = {}
    for name, place in (("far", far), ("outside", 1000.0), ("nan", np.nan)):
        offset = feeds["o"].copy()
        offset[0, 3, 2, 2] = place
        results[name] = [
            compiled.model.run(feeds | {"o": offset})["y"],
            Oracle(made).run(feeds | {"o": offset})["y"],
        ]
    for near, outside, lost in zip(*results.values(), strict=True):
        np.testing.assert_array_equal(near, outside)
        assert np.isnan(lost).sum() == 3 and np.isnan(lost[0, :, 2, 2]).all()


def test_no_number_that_lies_outside_is_read():
    made, feeds = deformed(np.random.default_rng(2))
    feeds["x"][0, 0, 0, 0] = np.nan
    found = tvmopt.compile(made).model.run(feeds)["y"]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(Oracle(made).run(feeds)["y"]))
    assert np.isfinite(found).any()
