"""LRN as a sum of shifted reads, against its definition in float64."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tvmopt.importer.converters.normalization import WIDEST_WINDOW
from tvmopt.runtime.model import Model


def definition(x, size, alpha, beta, bias):
    squares = np.zeros(x.shape)
    for c in range(x.shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + size // 2)
        squares[:, c] = (x[:, first : last + 1].astype("float64") ** 2).sum(1)
    return x / (bias + alpha / size * squares) ** beta


@pytest.mark.parametrize(
    ("shape", "size", "alpha", "beta", "bias"),
    [
        ((1, 96, 9, 8), 5, 1e-4, 0.75, 1.0),
        ((2, 7, 5, 5), 3, 0.01, 0.5, 2.0),
        ((1, 8, 3, 3), 4, 0.1, 0.6, 1.5),  # an even window reaches further up than down
        ((1, 1, 4, 4), 5, 0.1, 0.75, 1.0),
        ((1, 33, 9, 9), 1, 1.0, 0.75, 1.0),
        ((1, 16, 1, 7), 40, 1.0, 0.75, 1.0),  # wider than the channels
        ((2, 17, 6), 3, 0.1, 0.75, 1.0),  # a signal
        ((1, 9, 2, 3, 4), 5, 0.1, 0.75, 1.0),  # a volume
        ((5, 31), 5, 0.1, 0.75, 1.0),
        ((1, 513, 2, 3), 5, 0.1, 0.75, 1.0),
        ((1, 519, 3), 4, 0.1, 0.6, 1.5),
        ((1, 70, 2, 2), WIDEST_WINDOW + 1, 0.1, 0.75, 1.0),  # TVM's pooling
    ],
)
def test_lrn(shape, size, alpha, beta, bias, tmp_path):
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=alpha, beta=beta, bias=bias)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:1], infos[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    compiled = tvmopt.compile(tmp_path / "m.onnx", verify=False)  # onnxruntime refuses even windows
    x = 3 * np.random.default_rng(0).standard_normal(shape).astype("float32")
    (y,) = Model(compiled.artifact).run({"x": x}).values()
    want = definition(x, size, alpha, beta, bias)
    assert np.abs(y - want).max() <= 1e-6 * np.abs(want).max()
    families = {k.family for k in compiled.report.kernels}
    assert size > 8 or (len(compiled.report.kernels) == 1 and families <= {"elementwise", "layout"})


@pytest.mark.parametrize("special", [np.inf, np.nan, 1e30])
def test_a_special_value_stays_in_its_window(special, tmp_path):
    x = np.ones((1, 40, 2, 3), "float32")
    x[0, 20, 1, 1] = special
    node = helper.make_node("LRN", ["x"], ["y"], size=5)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", infos[:1], infos[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    found = Model(tvmopt.compile(model, verify=False).artifact).run({"x": x})["y"]
    near = np.zeros(x.shape, bool)
    near[0, 18:23, 1, 1] = True
    assert np.isfinite(found[~near]).all() and np.abs(found[~near] - 1).max() < 1e-3
    assert (found[near & (x == 1)] == 0).all() or np.isnan(found[near]).all()
