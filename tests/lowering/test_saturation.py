"""Bytes that are quantized into another layout: no more of them are written than there are."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.runtime.model import Model

node = helper.make_node


@pytest.mark.parametrize("kind", [np.uint8, np.int8], ids=["uint8", "int8"])
@pytest.mark.parametrize("channels", [1, 7, 8, 9, 16, 17])
def test_channels_that_come_last(channels, kind):
    """Nine channels are a vector and a masked one of one byte, which LLVM stored as four where it saturates."""
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("Transpose", ["q"], ["y"], perm=[0, 2, 3, 1])]
    weights = {"s": np.float32(0.066), "z": np.array(3, kind)}
    code = TensorProto.UINT8 if kind is np.uint8 else TensorProto.INT8
    made = model(nodes, [value("x", (1, channels, 5, 6))], [value("y", (1, 5, 6, channels), code)], weights)
    x = (np.random.default_rng(channels).standard_normal((1, channels, 5, 6)) * 5).astype("f")
    x.reshape(-1)[:4] = 1e18, -1e18, np.inf, -np.inf
    found = Model(tvmopt.compile(made, records=False, cache=False, verify=False).artifact).run({"x": x})["y"]
    whole = np.rint((x / np.float32(0.066)).astype(np.float64)) + 3
    bounds = np.iinfo(kind)
    np.testing.assert_array_equal(found, np.clip(whole, bounds.min, bounds.max).astype(kind).transpose(0, 2, 3, 1))
