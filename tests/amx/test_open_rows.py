"""Open sizes behind known ones on a machine with tiles: rows of a tile do not lie one behind the other there."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.targets import Machine

pytestmark = pytest.mark.skipif(not Machine.load("cpu").has("amx-bf16"), reason="no AMX here")


@pytest.mark.parametrize("shape", [(6, "t", 64), (1, 6, "t", 64), ("t", 6, 64), (1, "t", 64), ("b", 3, "t", 64)])
def test_rows_of_open_sizes(shape: tuple[int | str, ...]) -> None:
    """Bytes against integers, at sizes that do not divide into tiles."""
    rng = np.random.default_rng(0)
    w = rng.integers(-100, 100, (64, 96)).astype(np.int8)
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["y"])]
    inputs, outputs = [value("x", shape, TensorProto.UINT8)], [value("y", None, TensorProto.INT32)]
    compiled = tvmopt.compile(model(nodes, inputs, outputs, {"w": w}), records=False).model
    for size in (1, 5, 7, 8, 17, 33):
        dims = [size if d == "t" else 2 if d == "b" else int(d) for d in shape]
        x = rng.integers(0, 256, dims).astype(np.uint8)
        found = compiled.run({"x": x})["y"]
        np.testing.assert_array_equal(found, x.astype(np.int64) @ w.astype(np.int64))
