"""Our own operators of pictures in a model: taken where their function is exactly ours, expanded where it is not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, run_ort, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.errors import UnsupportedOp
from tvmopt.importer import import_model, prepare
from tvmopt.importer.own import DOMAIN, VERSION, function, is_own
from tvmopt.importer.pixels import BITS, COLUMNS, ROWS
from tvmopt.operators import resample

ONE = np.full((2, 1), 1 << BITS, np.int32)


def made(places: object = ((1,), (0,)), weights: object = ONE, functions: object = None) -> onnx.ModelProto:
    """Two rows, exchanged."""
    node = helper.make_node(ROWS, ["x", "p", "w"], ["y"], domain=DOMAIN, name="rows")
    found = model(
        [node], [value("x", [1, 2, 5, 3], TensorProto.UINT8)], [value("y", [1, 2, 5, 3], TensorProto.UINT8)],
        {"p": np.array(places, np.int64), "w": weights}, domains={DOMAIN: VERSION},
        functions=[function(ROWS, 17)] if functions is None else functions,
    )  # fmt: skip
    found.ir_version = 8
    return found


def test_the_numbers_of_bits_are_one() -> None:
    assert resample.BITS == BITS


@pytest.mark.parametrize("name", [ROWS, COLUMNS])
def test_a_function_is_known_again(name: str) -> None:
    for opset in (8, 13, 21):
        ours = function(name, opset)
        assert is_own(onnx.FunctionProto.FromString(ours.SerializeToString()))
        ours.node[0].attribute[0].i += 1
        assert not is_own(ours)


def test_our_function_is_taken_as_an_operator() -> None:
    prepared = prepare(made())
    assert [n.op_type for n in prepared.graph.node] == [ROWS]
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 5, 3), dtype=np.uint8)
    for found in (run_ort(made(), {"x": x})[0], Oracle(made()).run({"x": x})["y"], Oracle(prepared).run({"x": x})["y"]):
        np.testing.assert_array_equal(found, x[:, ::-1])


def test_another_function_of_that_name_is_what_it_says() -> None:
    other = helper.make_function(
        DOMAIN,
        ROWS,
        ["x", "p", "w"],
        ["y"],
        [helper.make_node("Identity", ["x"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    prepared = prepare(made(functions=[other]))
    assert [n.op_type for n in prepared.graph.node] == ["Identity"]


@pytest.mark.parametrize(
    ("places", "weights", "told"),
    [
        (((2,), (0,)), ONE, "places outside"),
        (((-1,), (0,)), ONE, "places outside"),
        (((0, 0), (0, 1)), np.zeros((2, 2), np.int32), "do not follow each other"),
        (((0, 1), (0, 1)), ONE, "weights of shape"),
        (((0,), (1,)), np.full((2, 1), 2**31 - 1, np.int32), "larger than"),
    ],
)
def test_wrong_tables_are_refused(places: object, weights: np.ndarray, told: str) -> None:
    with pytest.raises(UnsupportedOp, match=told):
        import_model(made(places, weights))
