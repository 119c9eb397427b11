"""A NaN that a kernel of whole tiles spreads, or that a weight of 0 meets, may stand in the result; none gets lost."""

import numpy as np
import pytest
from onnx import helper

from tests.analysis.test_judge import made
from tvmopt.analysis.judge import Judge


def test_nan_of_a_weight_may_spread_and_must_not_get_lost() -> None:
    x, w = np.ones((1, 3), np.float32), np.float32([[1, 2], [np.nan, 3], [4, 5]])
    model = made([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 3]}, {"y": (1, [1, 2])}, {"w": w})
    judge = Judge(model)
    truth = judge.truth({"x": x})
    assert judge(truth, {"y": np.float32([[np.nan, 10]])}).ok
    assert judge(truth, {"y": np.float32([[np.nan, np.nan]])}).ok
    assert not judge(truth, {"y": np.float32([[5, 10]])}).ok
    assert not judge(truth, {"y": np.float32([[np.nan, 11]])}).ok


def test_what_a_product_reads_may_be_no_number_inside() -> None:
    """The square root of a negative number, which a kernel of whole tiles spreads: no error of the compiled model."""
    nodes = [helper.make_node("Sqrt", ["x"], ["r"]), helper.make_node("Conv", ["r", "w"], ["y"], pads=[1] * 4)]
    nodes.append(helper.make_node("Abs", ["r"], ["z"]))
    w = np.random.default_rng(0).standard_normal((1, 1, 3, 3)).astype("f")
    model = made(nodes, {"x": [1, 1, 9, 9]}, {"y": (1, [1, 1, 9, 9]), "z": (1, [1, 1, 9, 9])}, {"w": w})
    x = np.ones((1, 1, 9, 9), "f")
    x[0, 0, 1, 1] = -1
    judge = Judge(model)
    truth = judge.truth({"x": x})
    right = {n: truth.exact[n].astype("f") for n in "yz"}
    wide, lost = right["y"].copy(), right["y"].copy()
    wide[0, 0, :6, :6], lost[0, 0, 1, 1] = np.nan, 1.0
    assert judge(truth, {**right, "y": wide}).ok and not judge(truth, {**right, "y": lost}).ok
    assert not judge(truth, {**right, "z": np.where(np.isnan(wide), np.nan, right["z"])}).ok


def test_a_nan_spreads_behind_products_only() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"]),
        helper.make_node("Abs", ["x"], ["z"]), helper.make_node("Add", ["x", "w"], ["s"]),
    ]  # fmt: skip
    w = np.float32([[1, 2], [np.nan, 3]])
    model = made(nodes, {"x": [2, 2]}, {"y": (1, [2, 2]), "z": (1, [2, 2]), "s": (1, [2, 2])}, {"w": w})
    judge, x = Judge(model), np.ones((2, 2), np.float32)
    truth = judge.truth({"x": x})
    right = {"y": np.float32([[np.nan, 5]] * 2), "z": x, "s": x + w}
    assert judge(truth, right).ok
    assert judge(truth, {**right, "y": np.full_like(x, np.nan)}).ok
    assert not judge(truth, {**right, "z": np.float32([[1, np.nan], [1, 1]])}).ok
    assert not judge(truth, {**right, "s": np.full_like(x, np.nan)}).ok


def test_what_follows_from_weights_is_a_weight() -> None:
    nodes = [helper.make_node("Acosh", ["w"], ["a"]), helper.make_node("MatMul", ["x", "a"], ["y"])]
    x, w = np.ones((1, 2), np.float32), np.float32([[1, 1], [0.5, 1]])  # there is no acosh of 0.5
    judge = Judge(made(nodes, {"x": [1, 2]}, {"y": (1, [1, 2])}, {"w": w}))
    truth = judge.truth({"x": x})
    assert judge(truth, {"y": np.float32([[np.nan, 0]])}).ok and judge(truth, {"y": np.float32([[np.nan] * 2])}).ok
    assert not judge(truth, {"y": np.float32([[0, 0]])}).ok and not judge(truth, {"y": np.float32([[np.nan, 1]])}).ok


def test_an_infinite_weight_spreads_as_nan_does_and_that_of_a_mask_does_not() -> None:
    x, w = np.ones((1, 3), np.float32), np.float32([[1, 2], [np.inf, 3], [4, 5]])
    outputs = {"y": (1, [1, 2])}
    product = Judge(made([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [1, 3]}, outputs, {"w": w}))
    assert product(product.truth({"x": x}), {"y": np.float32([[np.inf, np.nan]])}).ok
    values = {"w": np.ones((3, 2), "f"), "m": np.float32([[-np.inf, 0]])}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "m"], ["y"])]
    masked_ = Judge(made(nodes, {"x": [1, 3]}, outputs, values))
    assert masked_(masked_.truth({"x": x}), {"y": np.float32([[-np.inf, 3]])}).ok
    assert not masked_(masked_.truth({"x": x}), {"y": np.float32([[-np.inf, np.nan]])}).ok


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_a_nan_beside_what_is_interpolated(mode: str, bad: float) -> None:
    """At 3 times the size every third place is one of the input, and what is beside it has a weight of 0."""
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)]
    values = {"scales": np.float32([1, 1, 3, 1])}
    judge = Judge(made(nodes, {"x": [1, 1, 6, 1]}, {"y": (1, [1, 1, 18, 1])}, values))
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)
    x[0, 0, 2, 0] = bad
    truth = judge.truth({"x": x})
    right = truth.exact["y"].astype("f")
    reached = {"nearest": (6, 9), "linear": (4, 10), "cubic": (1, 13)}[mode]
    wide, lost = right.copy(), right.copy()
    wide[0, 0, slice(*reached)] = np.nan
    lost[0, 0, 7] = 2
    assert judge(truth, {"y": right}).ok and not judge(truth, {"y": lost}).ok
    assert judge(truth, {"y": wide}).ok == (mode != "nearest" or np.isnan(bad))
