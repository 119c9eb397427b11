"""Sensitivity to rounding: a model that amplifies errors passes in bf16, a wrong result of the same model does not."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvmopt
from tvmopt.analysis.comparator import compare
from tvmopt.analysis.samples import longest_reduction, sample_inputs
from tvmopt.analysis.sensitivity import rounded, sensitivity
from tvmopt.analysis.variants import write_rounded
from tvmopt.analysis.verify import run_reference, verify
from tvmopt.errors import AccuracyError
from tvmopt.runtime.model import Model
from tvmopt.targets import Machine

TERMS = 64


def sharp(path, factor, transposed=False):
    """sin(factor * tanh(x W) V): the factor decides how much a rounded weight moves the result."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((TERMS, TERMS)).astype("float32") / 8 for _ in range(2))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Tanh", ["a"], ["t"]),
            helper.make_node("MatMul", ["t", "v"], ["b"]),
            helper.make_node("Mul", ["b", "factor"], ["c"]),
            helper.make_node("Sin", ["c"], ["y"]),
        ],
        "sharp",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, TERMS])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, TERMS])],
        [
            numpy_helper.from_array(w, "w"),
            numpy_helper.from_array(v.T.copy() if transposed else v, "v"),
            numpy_helper.from_array(np.float32(factor).reshape(1), "factor"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return model


def outputs(path, seed=0, precision=None, folder=None):
    feed = {"x": np.random.default_rng(seed).standard_normal((4, TERMS)).astype("float32")}
    if precision:
        write_rounded(path, folder / "rounded.onnx", precision)
        path, feed = folder / "rounded.onnx", rounded(feed, precision)
    return run_reference(path, [feed])[1][0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_grows_with_the_model_and_shrinks_with_the_type(tmp_path, precision):
    found = []
    for factor in (1, 30):
        sharp(tmp_path / "m.onnx", factor)
        reference = outputs(tmp_path / "m.onnx")
        found.append(sensitivity(reference, outputs(tmp_path / "m.onnx", 0, precision, tmp_path))["y"])
    assert 0 < found[0] < found[1] / 1.5
    assert found[1] < {"bf16": 2.0, "fp16": 0.25}[precision]


def test_weights_are_rounded_and_the_rest_is_not(tmp_path):
    sharp(tmp_path / "m.onnx", 1.001)
    write_rounded(tmp_path / "m.onnx", tmp_path / "r.onnx", "bf16")
    a, b = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f).graph.initializer}
        for f in ("m.onnx", "r.onnx")
    )
    assert a["factor"] == b["factor"]
    assert (a["w"] != b["w"]).any()
    np.testing.assert_allclose(a["w"], b["w"], rtol=2**-8)


def test_what_cannot_be_compared_gives_no_slack():
    integers, floats = np.arange(3), np.ones(3, "float32")
    assert sensitivity({"a": integers, "b": floats, "c": floats}, {"a": integers + 1, "b": floats[:2]}) == {}
    assert sensitivity({"a": np.array([np.nan, 2.0])}, {"a": np.array([1.0, 3.0])}) == {"a": 1.0}


@pytest.mark.skipif(not Machine.load("cpu").has("avx512bf16"), reason="no avx512_bf16 here")
def test_a_sharp_model_compiles_in_bf16_and_a_wrong_one_does_not(tmp_path):
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    model = sharp(path, 20)
    artifact = tvmopt.compile(path, precision="bf16").artifact  # verified against onnxruntime
    feed = sample_inputs(artifact.manifest.inputs, seed=0)
    (expected,) = run_reference(path, [feed])[1]
    found = Model(artifact).run(feed)
    reduction, depth = longest_reduction(model)
    assert not compare(expected, found, reduction=reduction, depth=depth, precision="bf16").ok  # why it is needed

    sharp(other, 20, transposed=True)
    with pytest.raises(AccuracyError):
        verify(artifact, other)
