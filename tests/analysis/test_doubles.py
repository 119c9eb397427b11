"""Models of float64 are wanted with the digits of float64; where float32 comes between, with its own."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.analysis.deviation import limits_of
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.verify import verify
from tvmopt.errors import AccuracyError
from tvmopt.runtime.model import Model

node, DOUBLE, FLOAT = helper.make_node, TensorProto.DOUBLE, TensorProto.FLOAT


def two_products(inside: int = DOUBLE, size: int = 33) -> onnx.ModelProto:
    """Tanh(x a) b of doubles, the first product computed in another type."""
    rng = np.random.default_rng(size)
    cast = inside != DOUBLE
    nodes = [node("Cast", ["x"], ["x1"], to=inside), node("Cast", ["a"], ["a1"], to=inside)] if cast else []
    nodes += [node("MatMul", ["x1", "a1"] if cast else ["x", "a"], ["p1" if cast else "p"])]
    nodes += [node("Cast", ["p1"], ["p"], to=DOUBLE)] if cast else []
    nodes += [node("Tanh", ["p"], ["t"]), node("MatMul", ["t", "b"], ["y"])]
    weights = {"a": rng.standard_normal((size, size)) / 6, "b": rng.standard_normal((size, size))}
    return model(nodes, [value("x", (9, size), DOUBLE)], [value("y", (9, size), DOUBLE)], weights)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 33])
def test_a_right_model_of_doubles_is_accepted_and_one_of_floats_refused(size, tmp_path):
    onnx.save(two_products(size=size), tmp_path / "m.onnx")
    right = tvmopt.compile(tmp_path / "m.onnx", records=False, cache=False)
    assert right.manifest.accuracy["max_relative_error"] < 1e-14
    wrong = tvmopt.compile(two_products(FLOAT, size), records=False, cache=False, verify=False)
    with pytest.raises(AccuracyError, match="differs"):
        verify(wrong.artifact, tmp_path / "m.onnx")


def test_doubles_behind_floats_have_the_digits_of_floats(tmp_path):
    onnx.save(two_products(FLOAT), tmp_path / "m.onnx")
    found = tvmopt.compile(tmp_path / "m.onnx", records=False, cache=False)
    assert 1e-10 < found.manifest.accuracy["max_relative_error"] < 1e-5


def test_places_between_pixels_have_the_digits_of_floats():
    """A scale is a float32, and places are computed in it, of doubles too."""
    nodes = [node("Resize", ["x", "", "scales"], ["y"], mode="linear")]
    scales = {"scales": np.float32([1, 1, 1.7, 2.3])}
    made = model(nodes, [value("x", (1, 3, 9, 7), DOUBLE)], [value("y", (1, 3, 15, 16), DOUBLE)], scales)
    x = {"x": np.random.default_rng(0).standard_normal((1, 3, 9, 7))}
    judge = Judge(made)
    y = judge.truth(x).exact["y"]
    assert judge.judged(x, {"y": y * (1 + 1e-7)}, None).ok
    assert not judge.judged(x, {"y": y * (1 + 1e-3)}, None).ok


@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric"])
def test_a_resize_of_doubles_is_computed_in_them(transform):
    """It was computed in float32, in which 1e300 is infinite."""
    nodes = [node("Resize", ["x", "", "", "size"], ["y"], mode="linear", coordinate_transformation_mode=transform)]
    given, made = [value("x", (2, 3, 8, 4), DOUBLE)], [value("y", (2, 3, 4, 7), DOUBLE)]
    file = model(nodes, given, made, {"size": np.array([2, 3, 4, 7])})
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 4)) * 10.0 ** np.array([0, 300, -300])[:, None, None]}
    found = Model(tvmopt.compile(file, records=False, cache=False, verify=False).artifact).run(x)["y"]
    exact = Judge(file).truth(x).exact["y"]
    assert np.isfinite(found).all()
    assert (np.abs(found - exact).max((0, 2, 3)) < 1e-14 * np.abs(exact).max((0, 2, 3))).all()


def test_one_digit_too_few_in_one_row():
    made = two_products()
    x = np.random.default_rng(0).standard_normal((9, 33))
    judge = Judge(made)
    y = judge.truth({"x": x}).exact["y"]
    assert judge.judged({"x": x}, {"y": y}, None).ok
    assert judge.judged({"x": x}, {"y": y * (1 + 1e-15)}, None).ok
    wrong = y.copy()
    wrong[4] *= 1 + 1e-10
    assert not judge.judged({"x": x}, {"y": wrong}, None).ok
    assert not judge.judged({"x": x}, {"y": y.astype("f").astype("d")}, None).ok


def test_sums_that_cancel_are_as_uncertain_as_their_terms():
    nodes = [node("ReduceSum", ["x", "axis"], ["s"], keepdims=0), node("Sub", ["s", "c"], ["y"])]
    x = np.full((65, 100), 0.1)
    made = model(
        nodes, [value("x", x.shape, DOUBLE)], [value("y", (65,), DOUBLE)],
        {"axis": np.array([1]), "c": np.array(x[0].sum())},
    )  # fmt: skip
    judge = Judge(made)
    in_order = np.array([np.cumsum(row)[-1] for row in x]) - x[0].sum()  # 2e-14, and 0 where NumPy adds in pairs
    assert (in_order != 0).all()
    assert judge.judged({"x": x}, {"y": in_order}, None).ok
    assert not judge.judged({"x": x}, {"y": in_order + 1e-9}, None).ok


def test_what_is_left_of_a_mean_far_from_0_is_as_uncertain_as_the_mean():
    axes, shape = (0, 2, 3), (2, 2, 8, 2)
    nodes = [node("ReduceMean", ["x"], ["m"], axes=axes, keepdims=1), node("Sub", ["x", "m"], ["d"])]
    nodes.append(node("Mul", ["d", "d"], ["y"]))
    x = 1000 + np.random.default_rng(0).standard_normal(shape)
    outputs = [value("d", shape, DOUBLE), value("y", shape, DOUBLE)]
    judge, mean = Judge(model(nodes, [value("x", shape, DOUBLE)], outputs, opset=17)), x.mean(axes, keepdims=True)

    def accepted(difference):
        return judge.judged({"x": x}, {"d": difference, "y": np.square(difference)}, None).ok

    assert accepted(x - (mean - 2 * np.spacing(1000.0))) and accepted(x - (mean + 2 * np.spacing(1000.0)))
    assert not accepted(x - mean * (1 + 1e-12))


def test_limits_of_doubles():
    for precision in ("fp32", "bf16"):
        assert limits_of(precision, np.dtype(np.float64)).rms < 1e-13
