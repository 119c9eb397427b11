"""One bfloat16 that fills a vector is stored as bits, like any other."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value


@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_a_comparison_with_itself_becomes_bfloat16(size: int) -> None:
    """TVM knows that integers equal themselves, and fills a vector with the number that this is in bfloat16."""
    nodes = [helper.make_node("LessOrEqual", ["x", "x"], ["b"]), helper.make_node("Cast", ["b"], ["y"], to=16)]
    made = model(nodes, [value("x", [size], TensorProto.INT32)], [value("y", [size], TensorProto.BFLOAT16)])
    found = tvmopt.compile(made).model.run({"x": np.arange(size, dtype=np.int32)})["y"]
    np.testing.assert_array_equal(found.astype(np.float32), np.ones(size, np.float32))
