"""What may become of an input that is no number: it must not get lost, but an infinity may count as its limit."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.analysis.test_overflow import made
from tvmopt.analysis.examine import Examiner

FACTORS = {"a": np.float32([2, 3, 1]), "b": np.float32([-3, -2, -1])}


def branches(kind: int = TensorProto.FLOAT, act: str = "Relu") -> onnx.ModelProto:
    """Two products of one input that are added: of an infinity they are infinities of opposite signs."""
    nodes = [helper.make_node("Mul", ["x", "a"], ["p"]), helper.make_node("Mul", ["x", "b"], ["q"]),
             helper.make_node("Add", ["p", "q"], ["s"]), helper.make_node(act, ["s"], ["y"])]  # fmt: skip
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return made(nodes, {"x": (kind, [2, 3])}, {"y": (kind, [2, 3])}, {n: a.astype(dtype) for n, a in FACTORS.items()})


class Given:
    """A compiled model that gives what it is told."""

    def __init__(self, model, y) -> None:
        self.y, self.manifest, self.symbols, self.outputs = y, model.manifest, model.symbols, model.outputs

    def run(self, feeds):
        return {"y": self.y}


def accepted(found, number: float, kind: int = TensorProto.FLOAT, act: str = "Relu") -> bool:
    """Whether `found` may be the first row's results where all of its inputs are `number`, and -1 in the second row."""
    model, dtype = branches(kind, act), helper.tensor_dtype_to_np_dtype(kind)
    x = np.array([[number] * 3, [-1] * 3], dtype)
    ends = {"Relu": [1, 0, 0], "Sigmoid": [0.7310586, 0.26894142, 0.5]}[act]
    examiner = Examiner(tvmopt.compile(model, verify=False, records=False).model, model, model)
    examiner.model = Given(examiner.model, np.array([found, ends], dtype))
    return examiner.hostile({"x": x}, None).ok


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_an_infinity_may_be_a_number_larger_than_all_others(kind: int) -> None:
    """2 and -3 times infinity have no sum; -1 times infinity has a Relu, and so has 0 times any large number."""
    assert accepted([0, np.inf, 0], np.inf, kind)
    assert accepted([np.inf, 0, 0], -np.inf, kind)
    assert accepted([np.nan, np.nan, np.nan], np.inf, kind)


def test_its_limit_may_be_any_number() -> None:
    assert accepted([0, 1, 0.5], np.inf, act="Sigmoid")
    assert not accepted([0, 0.5, 0.5], np.inf, act="Sigmoid")
    assert not accepted([0, 1, 1], np.inf, act="Sigmoid")


@pytest.mark.parametrize("found", [[0, 0, 0], [0, 1e30, 0], [1, np.inf, 0], [0, np.inf, 7]])
def test_what_is_no_limit_of_large_numbers_is_lost(found: list[float]) -> None:
    assert not accepted(found, np.inf)


def test_a_nan_has_no_limit() -> None:
    assert not accepted([0, np.nan, np.nan], np.nan)
    assert accepted([np.nan] * 3, np.nan)
