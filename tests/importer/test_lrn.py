"""LRN as a product with a band of ones, or as a sum of shifted reads, against its definition in float64."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tvmopt.importer.converters.normalization import WIDEST_BAND, WIDEST_WINDOW
from tvmopt.runtime.model import Model


def definition(x, size, alpha, beta, bias):
    squares = np.zeros(x.shape)
    for c in range(x.shape[1]):
        first, last = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + size // 2)
        squares[:, c] = (x[:, first : last + 1].astype("float64") ** 2).sum(1)
    return x / (bias + alpha / size * squares) ** beta


@pytest.mark.parametrize(
    ("shape", "size", "alpha", "beta", "bias", "family"),
    [
        ((1, 96, 9, 8), 5, 1e-4, 0.75, 1.0, "gemm"),
        ((2, 7, 5, 5), 3, 0.01, 0.5, 2.0, "gemm"),
        ((1, 8, 3, 3), 4, 0.1, 0.6, 1.5, "gemm"),  # an even window reaches further up than down
        ((1, 1, 4, 4), 5, 0.1, 0.75, 1.0, "gemm"),
        ((1, 33, 9, 9), 1, 1.0, 0.75, 1.0, "gemm"),
        ((1, 16, 1, 7), 40, 1.0, 0.75, 1.0, "gemm"),  # wider than the channels
        ((2, 17, 6), 3, 0.1, 0.75, 1.0, "gemm"),  # a signal
        ((1, 9, 2, 3, 4), 5, 0.1, 0.75, 1.0, "gemm"),  # a volume
        ((5, 31), 5, 0.1, 0.75, 1.0, "gemm"),
        ((1, WIDEST_BAND + 1, 2, 3), 5, 0.1, 0.75, 1.0, "no pool"),  # too wide for a product
        ((1, WIDEST_BAND + 7, 3), 4, 0.1, 0.6, 1.5, "no pool"),
        ((1, WIDEST_BAND + 1, 2, 2), WIDEST_WINDOW + 1, 0.1, 0.75, 1.0, ""),  # and its window too
    ],
)
def test_lrn(shape, size, alpha, beta, bias, family, tmp_path):
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
    assert family != "gemm" or "gemm" in families
    assert family != "no pool" or families <= {"elementwise", "layout"}


@pytest.mark.parametrize("channels", [7, 33])
def test_squares_beyond_float32(channels):
    """What is infinite in one channel is nothing to those whose windows end before it."""
    node = helper.make_node("LRN", ["x"], ["y"], size=3, alpha=0.5)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, channels, 2, 4]) for n in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((1, channels, 2, 4)).astype("float32")
    x[0, 3, 0], x[0, 4, 0, 1], x[0, 5, 1, 0] = 1e30, -np.inf, np.nan
    (y,) = tvmopt.compile(model, verify=False, records=False).model.run({"x": x}).values()
    with np.errstate(all="ignore"):
        squares = definition(x, 3, 0.5, 0.75, 1.0)
        squares[0, 2:5, 0] = x[0, 2:5, 0] / np.float32(np.inf)  # beyond float32
    clean = np.arange(8) != 4  # one pixel has a NaN, and spoils its other channels
    found, want = (a.reshape(channels, 8)[:, clean] for a in (y[0], squares[0]))
    np.testing.assert_allclose(found, want, rtol=1e-5)
