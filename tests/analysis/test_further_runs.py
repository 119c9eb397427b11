"""Further runs that only round, which are asked where the first ones do not explain a difference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.importer.onnx_check import model, value
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.rounding import Recorder, arithmetic_of, nudges, roundings


def test_an_order_that_16_bits_decide_is_one_of_them() -> None:
    """In bfloat16 there is one number every four near 1000, so most scores are equal, and the first ones win;
    numbers that are moved besides have any order, and not that of an engine that rounds and does nothing else."""
    rng = np.random.default_rng(0)
    x, w = ((1000 + rng.standard_normal(shape)).astype(np.float32) for shape in ((15, 16, 6), (6, 5)))
    scores = helper.make_node("MatMul", ["x", "w"], ["scores"])
    nodes = [scores, helper.make_node("TopK", ["scores", "k"], ["y", "at"], axis=1)]
    outputs = [value("y", None), value("at", None, TensorProto.INT64)]
    proto = model(nodes, [value("x", x.shape)], outputs, {"w": w, "k": np.array([4])})
    recorder = Recorder(proto)
    recorder.run({"x": x}, ["at"])
    narrow = (np.float64(a.astype(ml_dtypes.bfloat16)) for a in (x, w))
    expected = np.argsort(-np.matmul(*narrow), axis=1, kind="stable")[:, :4]
    found = [run.run({"x": x}, ["at"])["at"] for run in nudges(proto, "bf16", recorder.edges, 0.01)]
    assert any(np.array_equal(one, expected) for one in found)


def test_sums_of_a_recurrence_err_as_an_engine_that_adds_in_another_order() -> None:
    """The terms of a gate are large and their sum is small: its error is one of the terms, not of the result."""
    rng = np.random.default_rng(0)
    terms, hidden = 256, 8
    x = (1000 * rng.standard_normal((1, 1, terms))).astype(np.float32)
    w = rng.standard_normal((1, 4 * hidden, terms)).astype(np.float32)
    w -= (w @ x[0, 0])[..., None] * x[0] / (x[0, 0] @ x[0, 0])

    def lstm(w: np.ndarray) -> onnx.ModelProto:
        node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)
        constants = {"w": w, "r": np.zeros((1, 4 * hidden, hidden), np.float32)}
        return model([node], [value("x", x.shape)], [value("y", None)], constants)

    forwards, backwards = lstm(w), lstm(w[..., ::-1].copy())
    exact = Oracle(forwards).run({"x": x}, ["y"])["y"]
    error = max(
        float(np.abs(onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x": given})[0] - exact).max())
        for one, given in ((forwards, x), (backwards, x[..., ::-1].copy()))
    )
    runs = [run.run({"x": x}, ["y"])["y"] for run in nudges(forwards, "fp32", {}, 1e-4)]
    assert 1e-6 < error < 2 * max(float(np.abs(one - exact).max()) for one in runs)


def test_bytes_of_a_tensor_that_is_moved_have_its_own_scale() -> None:
    """All numbers a little larger have another zero point, and are the same bytes: an edge was never crossed."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((32, 64)).astype(np.float32), rng.standard_normal((64, 48)).astype(np.float32)
    names = ["codes", "scale", "zero"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("DynamicQuantizeLinear", ["y"], names)]
    outputs = [value("codes", None, TensorProto.UINT8), value("scale", None), value("zero", None, TensorProto.UINT8)]
    proto = model(nodes, [value("x", x.shape)], outputs, {"w": w})
    recorder = Recorder(proto)
    exact = recorder.run({"x": x}, ["codes"])["codes"].astype(int)
    runs = roundings(proto, arithmetic_of("bf16"), recorder.edges, 0.01)
    explained = np.max([np.abs(run.run({"x": x}, ["codes"])["codes"] - exact) for run in runs], axis=0)
    narrow = {"x": x.astype(ml_dtypes.bfloat16).astype(np.float32)}  # an engine that rounds one operand alone
    engine = Oracle(proto).run(narrow, ["codes"])["codes"].astype(int)
    assert (engine != exact).any()
    assert (np.abs(engine - exact) <= explained).all()
