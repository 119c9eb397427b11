"""Classic models of ai.onnx.ml beside onnxruntime: nodes, and whole models as scikit-learn's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
import tvmopt.onnxruntime as ours
from tests.importer.classic_check import ML, RNG, TREES, agree, one, rows, the_same_numbers
from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.errors import InputError, TvmoptError, UnsupportedOp
from tvmopt.importer import import_model
from tvmopt.importer.maps import has_maps, maps

__all__ = ["the_same_numbers"]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear(transform: str) -> None:
    x, weights = rows(9, 5, edges=False), RNG.standard_normal(15).tolist()
    attrs = {"coefficients": weights, "intercepts": [0.1, 0.0, -2.0], "post_transform": transform}
    agree(one("LinearClassifier", x, TREES, version=1, classlabels_ints=[4, 0, 2], **attrs), x)
    if transform == "NONE":
        agree(one("LinearRegressor", x, {"y": 1}, version=1, targets=3, **attrs), x)


def test_intercepts_say_how_many_rows_there_are() -> None:
    x, weights = rows(9, 4, edges=False), RNG.standard_normal(24).tolist()
    agree(
        one("LinearRegressor", x, {"y": 1}, version=1, targets=3, coefficients=weights, intercepts=[1.0, 0.0, 2.0]), x
    )
    made = one("LinearRegressor", x, {"y": 1}, version=1, targets=2, coefficients=weights[:8], intercepts=[1.0] * 3)
    with pytest.raises(UnsupportedOp, match="2 rows of coefficients and 3 intercepts"):
        import_model(made)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_norms(norm: str) -> None:
    x = np.abs(rows(17, 5)) if norm == "MAX" else rows(17, 5)  # onnxruntime's MAX takes the largest, not its magnitude
    agree(one("Normalizer", x[4:], {"y": 1}, version=1, norm=norm), x[4:])
    agree(one("Normalizer", x[:1], {"y": 1}, version=1, norm=norm), x[:1])


def test_codes_and_missing_values() -> None:
    numbers = RNG.integers(-2, 6, (8, 3))
    agree(one("OneHotEncoder", numbers, {"y": 1}, version=1, cats_int64s=[3, -1, 0], zeros=1), numbers)
    known = {"keys_int64s": [5, 0], "values_int64s": [50, 7], "default_int64": -9}
    agree(one("LabelEncoder", numbers, {"y": 7}, version=2, **known), numbers)
    agree(one("LabelEncoder", numbers, {"y": 1}, version=2, keys_int64s=[1, 2], values_floats=[0.5, 2.5]), numbers)
    x = rows(8, 3)
    x[5, 1] = np.nan
    agree(one("LabelEncoder", x, {"y": 7}, version=2, keys_floats=[0.0, float("inf")], values_int64s=[3, 4]), x)
    missing: dict[str, Any] = {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}
    gone = one("Imputer", x, {"y": 1}, version=1, **missing)
    agree(gone, x)
    zeros = one("Imputer", numbers, {"y": 7}, version=1, imputed_value_int64s=[9], replaced_value_int64=0)
    agree(zeros, numbers)


def test_columns_side_by_side() -> None:
    node = helper.make_node("FeatureVectorizer", ["x", "z"], ["y"], domain=ML, inputdimensions=[2, 3])
    made = model([node], [value("x", [4, 3]), value("z", [4, 2])], [value("y", None)], domains={ML: 1})
    feeds = {"x": rows(4, 3), "z": rows(4, 2)}
    (found,) = run_relax(import_model(made), feeds)
    np.testing.assert_array_equal(found, np.column_stack([feeds["x"][:, :2], feeds["z"], np.zeros(4)]))


def test_columns_side_by_side_have_the_same_rows() -> None:
    """Two open numbers of rows are one; a node that says less or more columns than it has inputs is refused."""
    node = helper.make_node("FeatureVectorizer", ["x", "z"], ["y"], domain=ML, inputdimensions=[3, 2])
    made = model([node], [value("x", ["n", 3]), value("z", ["m", 2])], [value("y", None)], domains={ML: 1})
    compiled = tvmopt.compile(made, shape={"n": "1..9", "m": "1..9"}, verify=False, records=False).model
    x, z = rows(7, 3), rows(7, 2)
    np.testing.assert_array_equal(compiled.run({"x": x, "z": z})["y"], np.column_stack([x, z]))
    with pytest.raises(TvmoptError):
        compiled.run({"x": x, "z": z[:6]})
    for columns in ([3], [3, -1]):
        made.graph.node[0].attribute[0].ints[:] = columns
        with pytest.raises(UnsupportedOp, match="its inputdimensions are"):
            import_model(made)


def test_a_default_keeps_the_type_of_the_values() -> None:
    x = np.array([0.0, 0.5, 3.0])
    tables = {key: numpy_helper.from_array(np.array(v)) for key, v in
              {"keys_tensor": [0.0, 0.5], "values_tensor": [1.5, 2.5], "default_tensor": [9.25]}.items()}  # fmt: skip
    (found,) = agree(one("LabelEncoder", x, {"y": TensorProto.DOUBLE}, version=4, **tables), x)
    assert found.tolist() == [1.5, 2.5, 9.25]


def test_a_category_twice_is_its_last_column() -> None:
    x = np.array([0, 1, 2, 5])
    agree(one("OneHotEncoder", x, {"y": 1}, version=1, cats_int64s=[0, 1, 0, 2], zeros=1), x)


def test_a_linear_model_has_as_many_results_as_it_says() -> None:
    x = rows(7, 3)
    agree(one("LinearRegressor", x, {"y": 1}, version=1, coefficients=[0.5, -1.0, 2.0, 1.0, 0.0, 3.0]), x)
    with pytest.raises(UnsupportedOp, match="2 rows of coefficients and 3 targets"):
        import_model(one("LinearRegressor", x, {"y": 1}, version=1, coefficients=[1.0] * 6, targets=3))


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    x, vectors = rows(9, 4, edges=False), RNG.standard_normal((7, 4))
    shared = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 3.0], "support_vectors": vectors.ravel().tolist()}
    agree(one("SVMRegressor", x, {"y": 1}, version=1, n_supports=7, coefficients=RNG.standard_normal(7).tolist(),
        rho=[0.25], **shared), x, 1e-4)  # fmt: skip
    agree(one("SVMClassifier", x, TREES, version=1, vectors_per_class=[2, 4, 1], classlabels_ints=[1, 2, 5],
        coefficients=RNG.standard_normal(14).tolist(), rho=[0.1, -0.2, 0.3], **shared), x, 1e-4)  # fmt: skip


SUPPORTS = {"support_vectors": [1.0, 2.0, 0.0, -1.0, 0.5, 1.0, 2.0, 2.0, 2.0], "kernel_params": [0.5, 0.0, 3.0]}


def test_a_vector_is_one_row() -> None:
    x = rows(1, 3)[0]
    regression = SUPPORTS | {"n_supports": 3, "coefficients": [0.5, -1.0, 2.0], "rho": [0.25]}
    for kernel in ("LINEAR", "RBF"):
        made = one("SVMRegressor", x, {"y": 1}, version=1, kernel_type=kernel, **regression)
        (found,) = agree(made, x)
        assert found.shape == (1, 1)


def test_support_vectors_that_do_not_hold_together_are_refused() -> None:
    """They were those of another model: a rho for all pairs, and classes without a label."""
    good = SUPPORTS | {
        "vectors_per_class": [1, 1, 1], "coefficients": [0.5, -1.0, 2.0, 1.0, 0.3, -0.7], "rho": [0.25, 0.1, -0.2],
        "classlabels_ints": [3, 1, 2],
    }  # fmt: skip
    x = rows(7, 3, edges=False)
    agree(one("SVMClassifier", x, TREES, version=1, **good), x)
    for wrong in ({"rho": [0.25]}, {"classlabels_ints": [3, 1]}, {"vectors_per_class": [2, -1, 2]}):
        with pytest.raises(UnsupportedOp, match="a label and a number of vectors a class"):
            import_model(one("SVMClassifier", x, TREES, version=1, **(good | wrong)))


def test_strings_are_refused_by_name() -> None:
    x = rows(2, 3)
    made = one("LinearClassifier", x, {"label": TensorProto.STRING, "scores": 1}, version=1, coefficients=[1.0] * 6,
        intercepts=[0.0, 0.0], classlabels_strings=["cat", "dog"])  # fmt: skip
    with pytest.raises(TvmoptError) as error:
        import_model(made)
    assert "LinearClassifier" in str(error.value) and "strings" in str(error.value)


def zipped(labels: list[int]) -> onnx.ModelProto:
    """As scikit-learn's converter ends a classifier."""
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_ints=labels,
            coefficients=np.arange(6.0).tolist(), intercepts=[0.5, 0.1], post_transform="SOFTMAX"),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain=ML, classlabels_int64s=labels, name="zip"),
    ]  # fmt: skip
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [
        value("label", [None], TensorProto.INT64),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind)),
    ]
    return model(nodes, [value("x", [None, 3])], outputs, domains={ML: 1})


def test_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled model gives the tensor, and the drop-in session what onnxruntime gives."""
    import onnxruntime

    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "cache"))
    made, path = zipped([7, -2]), tmp_path / "m.onnx"
    onnx.save(made, path)
    assert maps(made) == {"probabilities": (7, -2)}
    assert all(map(has_maps, (made, path, made.SerializeToString()))) and not has_maps(tmp_path / "none")
    compiled = tvmopt.compile(path, threads=1)
    assert compiled.report.accuracy["verified"]
    x = rows(5, 3, edges=False)
    session, other = ours.InferenceSession(str(path)), onnxruntime.InferenceSession(str(path))
    for mine, theirs in zip(session.get_outputs(), other.get_outputs(), strict=True):
        assert (mine.name, mine.type, mine.shape) == (theirs.name, theirs.type, theirs.shape)
    label, dictionaries = session.run(None, {"x": x})
    wanted = other.run(None, {"x": x})
    np.testing.assert_array_equal(label, wanted[0])
    assert [list(d) for d in dictionaries] == [list(d) for d in wanted[1]]
    assert all(type(key) is int and type(d[key]) is float for d in dictionaries for key in d)
    shares = [[d[label] for label in (7, -2)] for d in wanted[1]]
    np.testing.assert_allclose([[d[label] for label in (7, -2)] for d in dictionaries], shares, rtol=1e-5)
    np.testing.assert_allclose(compiled.model.run({"x": x})["probabilities"], shares, rtol=1e-5)
    assert made == zipped([7, -2])


SKLEARN = [
    "linear_model.LogisticRegression(max_iter=300)", "ensemble.RandomForestClassifier(8)", "svm.SVC()",
    "ensemble.GradientBoostingClassifier(n_estimators=5)", "neural_network.MLPClassifier((5,), max_iter=30)",
    "naive_bayes.GaussianNB()", "linear_model.RidgeClassifier()", "ensemble.AdaBoostClassifier(n_estimators=3)",
    "pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler(), preprocessing.Normalizer(), "
    "linear_model.SGDClassifier(loss='log_loss'))",
    "pipeline.make_pipeline(preprocessing.OneHotEncoder(handle_unknown='ignore'), linear_model.LogisticRegression())",
    "svm.SVR()", "ensemble.RandomForestRegressor(8)",
    "pipeline.make_pipeline(decomposition.PCA(2), linear_model.Ridge())",
]  # fmt: skip


@pytest.mark.parametrize("text", SKLEARN)
def test_scikit_learn(text: str) -> None:
    """The iris flowers, by models that skl2onnx writes with open rows; imported, and run on the flowers."""
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: pip install skl2onnx")
    import importlib

    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris

    names = ("linear_model", "ensemble", "svm", "neural_network", "naive_bayes", "pipeline", "impute", "preprocessing",
             "decomposition")  # fmt: skip
    estimator = eval(text, {name: importlib.import_module(f"sklearn.{name}") for name in names})
    x, y = load_iris(return_X_y=True)
    x = (x * 2).round().astype(np.float32) if "OneHot" in text else x.astype(np.float32)
    made = to_onnx(estimator.fit(x, y), x[:1], target_opset={"": 18, ML: 3})
    x = x[::4]
    imported = import_model(made, {made.graph.input[0].name: x.shape})
    wanted = run_ort(made, {made.graph.input[0].name: x})
    for mine, theirs in zip(run_relax(imported, {imported.inputs[0].name: x}), wanted, strict=True):
        if isinstance(theirs, list):
            theirs = np.array([list(d.values()) for d in theirs])
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [5, "n"])
def test_columns_that_are_not_there_are_refused(columns: int | str) -> None:
    """Of a place that a call names: it would be read from beside the table."""
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML)
    inputs = [value("x", (3, columns)), value("i", (2,), TensorProto.INT64)]
    compiled = tvmopt.compile(model([node], inputs, [value("y", None)], domains={ML: 1}), threads=1).model
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(compiled.run({"x": x, "i": np.array([4, 0])})["y"], x[:, [4, 0]])
    for wrong in (5, 1 << 40, -1):
        with pytest.raises(TvmoptError, match="out of range"):
            compiled.run({"x": x, "i": np.array([0, wrong])})


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.FLOAT])
def test_unknown_categories_that_are_errors(kind: int) -> None:
    """scikit-learn's default: an error of the run. Verification draws integers that are known."""
    node = helper.make_node("OneHotEncoder", ["x"], ["y"], domain=ML, cats_int64s=[4, 3, 5, 9], zeros=0)
    made = model([node], [value("x", ["n", 2], kind)], [value("y", None)], domains={ML: 1})
    compiled = tvmopt.compile(made, records=False, threads=1)
    assert compiled.report.accuracy["verified"] is (kind == TensorProto.INT64)
    x = np.array([[3, 9], [4, 4], [5, 3]], helper.tensor_dtype_to_np_dtype(kind))
    (want,) = run_ort(made, {"x": x})
    np.testing.assert_array_equal(compiled.model.run({"x": x})["y"], want)
    with pytest.raises(InputError, match="a category is none of those that it was fitted with"):
        compiled.model.run({"x": x + 1})
    np.testing.assert_array_equal(compiled.model.run({"x": x})["y"], want)
