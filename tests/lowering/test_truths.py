"""Comparisons of what is computed in the same kernel, of numbers that are none, too: as NumPy has them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt

NUMPY = {
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Or": np.logical_or, "And": np.logical_and, "Xor": np.logical_xor,
    "Not": np.logical_not,
}  # fmt: skip
CASES = {
    "itself": ["y = Equal t t"],
    "not itself": ["a = Equal t t", "y = Not a"],
    "not at most itself": ["a = LessOrEqual t t", "y = Not a"],
    "less or not": ["a = Less t z", "b = GreaterOrEqual t z", "y = Or a b"],
    "less or more": ["a = Less t z", "b = Greater t z", "y = Or a b"],
    "neither": ["a = Less t z", "b = GreaterOrEqual t z", "c = Or a b", "y = Not c"],
    "not both": ["a = LessOrEqual t z", "b = GreaterOrEqual t z", "c = And a b", "y = Not c"],
    "not less": ["a = Less t z", "y = Not a"],
    "one of both": ["a = Less t z", "b = GreaterOrEqual t z", "y = Xor a b"],
    "both or none": ["a = Equal t t", "b = Equal z z", "y = Equal a b"],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("size", [1, 7, 33])
def test_numbers_that_are_none_are_compared(name: str, kind: str, size: int) -> None:
    lines = [line.replace("=", "").split() for line in CASES[name]]
    nodes = [helper.make_node("Sqrt", ["x"], ["t"])]
    nodes += [helper.make_node(op, read, [made]) for made, op, *read in lines]
    element, value = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value(n, element, [size]) for n in "xz"], [value("y", TensorProto.BOOL, [size])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvmopt.compile(model, verify=False).model
    rng = np.random.default_rng(size)
    for first in (np.nan, np.inf, -1, 4):
        feeds = {n: np.square(rng.integers(0, 3, size)).astype(kind) for n in "xz"}
        feeds["x"][0], feeds["z"][-1] = first, (np.nan if size > 1 else 2)
        with np.errstate(invalid="ignore"):
            known = {"t": np.sqrt(feeds["x"]), "z": feeds["z"]}
            for made, op, *read in lines:
                known[made] = NUMPY[op](*(known[n] for n in read))
        np.testing.assert_array_equal(compiled.run(feeds)["y"], known["y"])


def test_a_model_that_asks_whether_its_numbers_are_any_is_told() -> None:
    """Where(x == x, x, 0), behind a logarithm of a negative number."""
    nodes = [
        helper.make_node("Log", ["x"], ["t"]),
        helper.make_node("Equal", ["t", "t"], ["known"]),
        helper.make_node("Where", ["known", "t", "zero"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, [4])], [value("y", 1, [4])], [numpy_helper.from_array(np.float32(0), "zero")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = tvmopt.compile(model).model.run({"x": np.float32([1, -1, np.e, np.nan])})["y"]
    np.testing.assert_allclose(found, [0, 0, 1, 0], atol=1e-6)
