"""Errors planted in one weight are found, right results pass: in fp32 and bf16, behind masks, in masks of bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.debug.nets import residual, saved
from tvmopt.analysis.deviation import LIMITS, deviation
from tvmopt.analysis.examine import Examiner
from tvmopt.analysis.judge import Judge
from tvmopt.analysis.kernels import check_kernels
from tvmopt.analysis.observe import Seen
from tvmopt.analysis.verify import broken, verify
from tvmopt.errors import AccuracyError
from tvmopt.runtime.model import Model
from tvmopt.targets import Machine

bf16 = pytest.mark.skipif(not Machine.load("cpu").has("avx512bf16"), reason="no avx512_bf16 here")
FILLS = [-3.4e38, float(np.finfo(np.float32).min), -np.inf, -1e4]


def changed(model: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    """The model with another value of an initializer."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(t for t in copy.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    return copy


def refused(folder: Path, good: onnx.ModelProto, bad: onnx.ModelProto, precision: str = "fp32") -> str:
    """The right model is accepted; what the error says of a compile of the wrong one."""
    saved(good, folder / "good.onnx")
    tvmopt.compile(folder / "good.onnx", precision=precision)
    wrong = tvmopt.compile(bad, precision=precision, verify=False)
    with pytest.raises(AccuracyError) as error:
        verify(wrong.artifact, folder / "good.onnx")
    return str(error.value)


@pytest.mark.parametrize(("precision", "factor"), [("fp32", 1.03), pytest.param("bf16", 1.05, marks=bf16)])
def test_a_few_per_cent_in_one_convolution(tmp_path, precision, factor):
    good = residual()
    told = refused(tmp_path, good, changed(good, "w2", lambda w: (w * factor).astype("f")), precision)
    assert "wrong kernel" in told and "--seed 0" in told and "onnxruntime's max error" in told


def masked(fill: float) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["a", "x"], ["p"]), helper.make_node("Where", ["c", "p", "n"], ["y"])]
    values = {
        "a": rng.standard_normal((40, 24)).astype("f"),
        "c": rng.random((1, 50)) < 0.9,
        "n": np.float32(fill),
    }
    return made(nodes, {"x": [24, 50]}, {"y": (TensorProto.FLOAT, [40, 50])}, values)


def made(nodes, inputs, outputs, values) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("fill", FILLS)
def test_one_wrong_row_beside_a_mask(tmp_path, fill):
    def row(a):
        a[7] *= 1.05
        return a

    refused(tmp_path, masked(fill), changed(masked(fill), "a", row))


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.BOOL])
def test_one_wrong_bit_of_a_mask(tmp_path, kind):
    threshold = np.full((12, 50), -1e9, "f")
    nodes = [helper.make_node("Greater", ["x", "t"], ["b"]), helper.make_node("Cast", ["b"], ["y"], to=kind)]
    good = made(nodes, {"x": [12, 50]}, {"y": (kind, [12, 50])}, {"t": threshold})

    def bit(t):
        t[5, 6] = 1e9
        return t

    assert "1 of 600 elements" in refused(tmp_path, good, changed(good, "t", bit))


def test_bound_values_are_verified_too(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "k"], ["y"])]
    saved(made(nodes, {"x": [33], "k": []}, {"y": (TensorProto.FLOAT, [33])}, {}), tmp_path / "m.onnx")
    done = tvmopt.compile(tmp_path / "m.onnx", values={"k": 3.0})
    assert done.report.accuracy["verified"]
    manifest = done.artifact.manifest
    wrong = replace(manifest, options=manifest.options | {"values": {"k": 3.5}})
    with pytest.raises(AccuracyError, match=r"--value k=3\.5"):
        verify(replace(done.artifact, manifest=wrong), tmp_path / "m.onnx")


def attention_block(length: int = 64, width: int = 8) -> onnx.ModelProto:
    """Causal self-attention of one head over an input."""
    rng = np.random.default_rng(0)
    values = {f"w{n}": (rng.standard_normal((width, width)) / 3).astype("f") for n in "qkv"}
    values |= {"mask": np.triu(np.full((length, length), -3.4e38, np.float32), 1), "scale": np.float32(0.3)}
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["m"]),
        helper.make_node("Add", ["m", "mask"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return made(nodes, {"x": [1, 1, length, width]}, {"y": (TensorProto.FLOAT, None)}, values)


def test_what_a_causal_mask_hides_need_not_be_nan():
    """Row 32 of 64 is NaN: the kernel of rows 0 to 31 never reads it. The other outputs must not lose it."""
    model = attention_block()
    compiled = tvmopt.compile(model)  # refuses what it calls wrong; one of its inputs has a NaN
    x = np.random.default_rng(1).standard_normal((1, 1, 64, 8)).astype("f")
    x[0, 0, 40, 3] = np.nan
    peer = {"y": np.full((1, 1, 64, 8), np.nan, np.float32)}
    examiner = Examiner(compiled.model, "", model)
    assert examiner.hostile({"x": x}, peer).ok
    examiner.model = Altered(compiled.model, lambda y: np.nan_to_num(y))
    assert "are numbers where" in str(examiner.hostile({"x": x}, peer).comparison.outputs[0])
    examiner.model = Altered(compiled.model, lambda y: np.where(np.isnan(y), y, y * 1.03).astype("f"))
    assert "are numbers where" in str(examiner.hostile({"x": x}, peer).comparison.outputs[0])


class Altered:
    """A model whose output is changed behind it."""

    def __init__(self, model, change) -> None:
        self.model, self.change, self.manifest = model, change, model.manifest

    def run(self, feeds):
        return {n: self.change(a) for n, a in self.model.run(feeds).items()}


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT),
        (TensorProto.FLOAT, TensorProto.FLOAT8E5M2),
        (TensorProto.FLOAT8E8M0, TensorProto.FLOAT),  # a call ended in a BufferError of NumPy's
        (TensorProto.FLOAT, TensorProto.FLOAT8E8M0),
    ],
)
def test_float8_comes_in_and_goes_out_by_its_codes(kind, to):
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    x, y = (helper.make_tensor_value_info(n, t, [3, 33]) for n, t in (("x", kind), ("y", to)))
    graph = helper.make_graph([node], "g", [x], [y])
    new = TensorProto.FLOAT8E8M0 in (kind, to)
    opset = helper.make_opsetid("", 24 if new else 19)
    done = tvmopt.compile(helper.make_model(graph, opset_imports=[opset], ir_version=12 if new else 9))
    assert done.report.accuracy["verified"]
    types = [np.dtype(helper.tensor_dtype_to_np_dtype(t)) for t in (kind, to)]
    numbers = 2.0 ** np.arange(-49, 50) if new else np.linspace(-9, 9, 99)  # ONNX rounds to powers of two upwards
    array = numbers.reshape(3, 33).astype(types[0])
    found = Model(done.artifact).run({"x": array})["y"]
    assert found.dtype == types[1] and np.array_equal(found, array.astype(types[1]))


def test_integers_that_float64_does_not_tell_apart():
    exact = np.array([2**60, 5], np.int64)
    assert deviation("i", exact, exact, LIMITS["fp32"]).ok
    assert not deviation("i", exact, exact + np.array([1, 0]), LIMITS["fp32"]).ok


def test_a_tolerance_is_the_users_for_an_output_or_for_all(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    shapes = {n: (TensorProto.FLOAT, [4, 33]) for n in ("y", "z")}
    model = made(nodes, {"x": [4, 33]}, shapes, {})
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 33)).astype("f")}
    right = {"y": np.maximum(feeds["x"], 0), "z": -feeds["x"]}
    off = {n: a + np.float32(0.01) for n, a in right.items()}
    assert Judge(model).judged(feeds, right, right).ok and not Judge(model).judged(feeds, off, right).ok
    assert Judge(model, rtol=0.1).judged(feeds, off, right).ok and Judge(model, atol=0.02).judged(feeds, off, right).ok
    one = Judge(model, rtol={"y": 0.1}).judged(feeds, off, right)
    assert [o.ok for o in one.outputs] == [True, False]
    assert not Judge(model, rtol={"": 1e-9}).judged(feeds, off, right).ok


@pytest.mark.parametrize("factor", [1.05, np.inf])
def test_a_constant_that_was_folded_wrongly_shows(factor):
    """The prepared model has it, too: the file tells."""
    good = made(
        [helper.make_node("Mul", ["x", "c"], ["y"])], {"x": [33]}, {"y": (TensorProto.FLOAT, [33])},
        {"c": np.linspace(1, 2, 33, dtype=np.float32)},
    )  # fmt: skip
    bad = changed(
        good, "c", lambda c: (c * np.where((np.arange(33) == 5) | np.isfinite(factor), factor, 1)).astype("f")
    )
    wrong = tvmopt.compile(bad, verify=False).model
    feeds = {"x": np.random.default_rng(0).standard_normal(33).astype("f")}
    peer = {"y": feeds["x"] * np.linspace(1, 2, 33, dtype=np.float32)}
    assert Examiner(wrong, bad, bad).fully(feeds, None).ok
    assert not Examiner(wrong, good, bad).fully(feeds, peer).ok
    assert not Examiner(wrong, good, bad).fully(feeds, None).ok  # also where onnxruntime does not run the file


def test_batch_norm_of_constants_is_right(tmp_path):
    """onnx.reference, which folds constants, took the batch's own statistics before opset 14."""
    rng = np.random.default_rng(0)
    values = {n: (rng.random(15) + 0.5).astype("f") for n in ("s", "b", "m", "v")}
    values |= {"c": rng.standard_normal((2, 15, 5)).astype("f")}
    nodes = [helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"])]
    nodes.append(helper.make_node("Add", ["x", "n"], ["y"]))
    model = made(nodes, {"x": [1]}, {"y": (TensorProto.FLOAT, [2, 15, 5])}, values)
    model.opset_import[0].version = 13
    found = tvmopt.compile(model).model.run({"x": np.zeros(1, "f")})["y"]
    s, b, m, v = (values[n].reshape(1, 15, 1).astype(float) for n in "sbmv")
    np.testing.assert_allclose(found, (values["c"] - m) / np.sqrt(v + 1e-5) * s + b, rtol=1e-5, atol=1e-5)


def test_no_numbers_of_bfloat16_are_seen():
    import ml_dtypes

    assert broken({"x": np.array([1, np.inf]).astype(ml_dtypes.bfloat16)})
    assert not broken({"x": np.array([1, 2]).astype(ml_dtypes.bfloat16)})


def test_a_tie_of_a_quantised_product_may_go_either_way():
    node = helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "t", "z"], ["y"])
    values = {"s": np.float32(0.1), "t": np.float32(0.02), "z": np.int8(0), "b": np.array([[1], [0]], np.int8)}
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [info("a", TensorProto.INT8, [9, 2])], [info("y", TensorProto.INT8, [9, 1])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    a = np.stack([np.arange(9), np.zeros(9)], 1).astype(np.int8)
    judge, halves = Judge(model), np.arange(9) * 0.5
    truth = judge.truth({"a": a})
    for rounded in (np.floor(halves), np.ceil(halves)):
        assert judge(truth, {"y": rounded.astype(np.int8)[:, None]}).ok
    assert not judge(truth, {"y": (np.rint(halves) + (halves == 1)).astype(np.int8)[:, None]}).ok


@pytest.mark.parametrize("moved", [False, True])
def test_runs_that_round_have_the_sizes_of_the_exact_one(moved: bool) -> None:
    """A scale of 2 that rounding makes a little less would leave 39 of 40 columns, which the sum with 40 does not take;
    a size that values decide is another one in some runs, and those say nothing."""
    nodes = [
        helper.make_node("Constant", [], ["two"], value_floats=[1.0, 1.0, 2.0, 2.0]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Mul", ["two", "most"] if moved else ["two", "one"], ["scales"]),
        helper.make_node("Resize", ["x", "", "scales"], ["r"], mode="nearest"),
        helper.make_node("Relu", ["z"], ["p"]),
        helper.make_node("Add", ["r", "p"], ["y"]),
    ]
    inputs = {"x": [1, 1, 20, 20], "z": [1, 1, 40, 40]}
    model = made(nodes, inputs, {"y": (TensorProto.FLOAT, [1, 1, 40, 40])}, {"one": np.float32(1)})
    rng = np.random.default_rng(0)
    feeds = {"x": rng.uniform(-1, 1, inputs["x"]).astype("f"), "z": rng.uniform(-1, 1, inputs["z"]).astype("f")}
    feeds["x"][0, 0, 3, 3] = 1
    truth = Judge(model, "bf16").truth(feeds)
    runs = truth.more("bf16")
    assert all(run["y"].shape == truth.exact["y"].shape for run in runs) and (moved or len(runs) > 2)


def test_one_run_that_rounds_may_round_nothing_and_several_do() -> None:
    """A sum of products that are exact in float32 and cancel: another order, or a fused product, has an error."""
    a = np.array([[16777215.0, 1.0, -16777215.0, 1.0]], np.float32)
    b = np.array([[1.0], [1.0], [1.0], [1.0]], np.float32)
    model = made([helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": [1, 4], "b": [4, 1]}, {"y": (1, [1, 1])}, {})
    judge = Judge(model)
    truth = judge.truth({"a": a, "b": b})
    errors = [float(np.abs(run["y"] - truth.exact["y"]).max()) for run in truth.more("fp32")]
    assert errors[0] <= 1 and max(errors[1:]) > 0.5 and max(errors) < 16
    assert judge(truth, {"y": np.float32([[2 + max(errors)]])}).ok
    assert not judge(truth, {"y": np.float32([[2e3]])}).ok


@pytest.mark.parametrize(("error", "fine"), [(-3.5e-14, True), (1e-2, False)])
def test_the_mean_of_equal_numbers_may_be_another_one(error: float, fine: bool) -> None:
    """A norm divides what is left of them by the root of its epsilon; behind a kernel they are equal for certain."""
    nodes = [helper.make_node("Add", ["x", "c"], ["a"], "a")]
    nodes += [helper.make_node("LayerNormalization", ["a", "one"], ["y"], "n")]
    values = {"c": np.full((1, 1), -0.98, np.float32), "one": np.ones(8, np.float32)}
    model = made(nodes, {"x": [1, 8]}, {"y": (1, [1, 8])}, values)
    a, y = np.full((1, 8), -0.98, np.float32), np.full((1, 8), error, np.float32)
    run = [Seen("a", ("a",), (), a), Seen("n", ("n",), (), y)]
    found = check_kernels(model, {"x": np.zeros((1, 8), np.float32)}, {"y": y}, run, "fp32")
    assert (found.wrong == ()) == fine


def test_numbers_that_are_chosen_are_not_rounded() -> None:
    """Clip(x) > x where x is below the range, and nowhere else; the fill of a mask stays the largest number."""
    nodes = [
        helper.make_node("Clip", ["x", "", "high"], ["c"]), helper.make_node("Less", ["c", "x"], ["y"]),
        helper.make_node("Where", ["m", "x", "fill"], ["z"]),
    ]  # fmt: skip
    lowest = np.finfo(np.float32).min
    weights = {"high": np.float32(0.5), "fill": lowest, "m": np.arange(64) % 2 == 0}
    model = made(nodes, {"x": [64]}, {"y": (TensorProto.BOOL, [64]), "z": (1, [64])}, weights)
    x = np.random.default_rng(0).standard_normal(64).astype("f")
    judge = Judge(model)
    right = {"y": x > 0.5, "z": np.where(weights["m"], x, lowest)}
    assert judge.judged({"x": x}, right, None).ok
    flipped = right["y"].copy()
    flipped[np.argmin(x)] = True
    assert not judge.judged({"x": x}, {**right, "y": flipped}, None).ok
    assert not judge.judged({"x": x}, {**right, "z": np.where(weights["m"], x, -np.inf).astype("f")}, None).ok


@pytest.mark.parametrize("op", ["Cast", "CastLike", "Attention"])
def test_a_cast_to_a_real_type_hides_nothing(op: str) -> None:
    """It is no edge: a run that rounds moved what it reads by thousands of its rounding errors, and Attention of
    ai.onnx, whose body has such casts, was right with 6 % too much."""
    attributes = {"to": TensorProto.DOUBLE} if op == "Cast" else {"q_num_heads": 2, "kv_num_heads": 2}
    if op == "Attention":
        nodes = [helper.make_node(op, ["x", "x", "x"], ["y"], **attributes)]
    else:
        like = {"CastLike": ["p", "like"], "Cast": ["p"]}[op]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]),
                 helper.make_node(op, like, ["c"], **(attributes if op == "Cast" else {})),
                 helper.make_node("Cast", ["c"], ["y"], to=1)]  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16)).astype("f"), "like": np.zeros(1)} if op != "Attention" else {}
    model = made(nodes, {"x": [1, 9, 16]}, {"y": (1, [1, 9, 16])}, weights)
    model.opset_import[0].version = 23
    feeds = {"x": rng.standard_normal((1, 9, 16)).astype("f")}
    judge = Judge(model)
    truth = judge.truth(feeds)
    assert judge(truth, {"y": truth.exact["y"].astype("f")}).ok
    assert not judge(truth, {"y": (1.003 * truth.exact["y"]).astype("f")}).ok


def test_a_sum_beyond_its_type_may_become_any_of_three() -> None:
    exact, found, number = np.float64([-np.inf, 1.0]), np.float32([np.inf, 1.0]), np.float32([3e38, 1.0])
    limits = LIMITS["fp32"]
    settled = deviation("y", exact, found, limits, [np.float32([-np.inf, 1.0])])
    assert "differ in" in settled.problem
    assert deviation("y", exact, found, limits, [np.float32([np.nan, 1.0])]).ok
    assert not deviation("y", exact, number, limits, [np.float32([np.nan, 1.0])]).ok


def test_what_a_16_bit_product_reads_is_narrow_for_every_reader_but_an_input_is_not() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["p"]),
        helper.make_node("MatMul", ["x", "w"], ["q"]), helper.make_node("Softmax", ["r"], ["y"]),
        helper.make_node("Softmax", ["x"], ["z"]),
    ]  # fmt: skip
    outputs = {"p": (1, [4, 3]), "q": (1, [4, 3]), "y": (1, [4, 8]), "z": (1, [4, 8])}
    model = made(nodes, {"x": [4, 8]}, outputs, {"w": np.ones((8, 3), "f")})
    feeds = {"x": (1000 + np.random.default_rng(0).standard_normal((4, 8))).astype("f")}
    truth = Judge(model, "bf16").truth(feeds)
    assert all(np.abs(n["y"] - truth.exact["y"]).max() > 0.05 for n in truth.naturals("bf16"))
    assert all(np.abs(n["z"] - truth.exact["z"]).max() < 1e-4 for n in truth.naturals("bf16"))
    assert all(np.abs(n["y"] - truth.exact["y"]).max() < 1e-4 for n in truth.naturals("fp32"))


@bf16
def test_an_input_of_a_16_bit_product_has_all_its_digits_for_others(tmp_path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Softmax", ["x"], ["y"])]
    model = made(nodes, {"x": [4, 64]}, {"p": (1, [4, 32]), "y": (1, [4, 64])}, {"w": np.ones((64, 32), "f")})
    x = (1000 + np.random.default_rng(0).standard_normal((4, 64))).astype("f")
    found = tvmopt.compile(model, precision="bf16", verify=False, records=False).model.run({"x": x})["y"]
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=1e-3)


def test_a_sum_of_integers_that_is_whole_may_be_cut_to_the_next() -> None:
    nodes = [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")]
    values = {"s": np.float32([1, 1, 1, 1.5])}
    model = made(nodes, {"x": [1, 1, 1, 4]}, {"y": (TensorProto.INT8, [1, 1, 1, 6])}, values)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    feeds = {"x": np.int8([[[[10, 16, 22, 28]]]])}  # at every sixth place between: whole numbers
    judge, exact = Judge(model), Judge(model).truth(feeds).exact["y"]
    assert judge(judge.truth(feeds), {"y": exact}).ok
    assert judge(judge.truth(feeds), {"y": exact - (np.arange(6) == 1).astype("i1")}).ok
    assert not judge(judge.truth(feeds), {"y": exact - 2 * (np.arange(6) == 1).astype("i1")}).ok


def test_a_transform_of_an_offset_is_a_sum_that_rounds() -> None:
    """What is behind the first number of a spectrum is small, and its error is relative to the first."""
    nodes = [helper.make_node("DFT", ["x", "", "axis"], ["y"], onesided=1)]
    model = made(nodes, {"x": [3, 9, 1, 1]}, {"y": (1, [2, 9, 1, 2])}, {"axis": np.int64(0)})
    model.opset_import[0].version = 20
    feeds = {"x": (1000 + np.random.default_rng(0).standard_normal((3, 9, 1, 1))).astype("f")}
    truth = Judge(model).truth(feeds)
    errors = [np.abs(n["y"] - truth.exact["y"])[1].max() for n in truth.more("fp32")]
    assert 1e-5 < max(errors) < 1e-2


def test_a_determinant_is_a_sum_of_products_that_rounds() -> None:
    """Of numbers around 1000 it is what two products of a million leave, of float64 as well."""
    model = made([helper.make_node("Det", ["x"], ["y"])], {}, {"y": (TensorProto.DOUBLE, [3])}, {})
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3, 2, 2]))
    truth = Judge(model).truth({"x": 1000 + np.random.default_rng(0).standard_normal((3, 2, 2))})
    errors = [np.abs(n["y"] - truth.exact["y"]).max() for n in truth.more("fp32")]
    assert 1e-11 < max(errors) < 1e-8


@pytest.mark.parametrize(("precision", "least", "most"), [("bf16", 1e-3, 2e-2), ("fp32", 1e-9, 1e-5)])
def test_further_runs_round_operands_to_other_numbers(precision, least, most):
    """A factor folded into weights has them rounded elsewhere: behind a Sigmoid that is all or nothing."""
    w = np.random.default_rng(0).standard_normal((64, 32)).astype("f")
    model = made([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [16, 64]}, {"y": (1, [16, 32])}, {"w": w})
    truth = Judge(model, precision).truth({"x": np.random.default_rng(1).standard_normal((16, 64)).astype("f") + 9})
    runs = [one["y"] for one in truth.more(precision)]
    scale = float(np.abs(truth.exact["y"]).max())
    apart = [float(np.abs(a - b).max()) / scale for i, a in enumerate(runs) for b in runs[:i]]
    assert least < min(apart) and max(apart) < most


def test_a_norm_may_know_its_mean_better_than_the_kernel_that_writes_it(tmp_path):
    """The outputs have digits of float32 at 1000; the norm behind them has its own statistics, and was refused."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        helper.make_node("Add", ["variance", "small"], ["positive"]),
        helper.make_node("Sqrt", ["positive"], ["deviation"]),
        helper.make_node("Div", ["centred", "deviation"], ["normal"]),
        helper.make_node("Mul", ["normal", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    values = {"two": np.float32(2), "small": np.float32(1e-5)}
    values |= {n: rng.standard_normal(3).astype("f") for n in ("scale", "shift")}
    outputs = {"mean": (1, [9, 1]), "variance": (1, [9, 1]), "y": (1, [9, 3])}
    model = made(nodes, {"x": [9, 3]}, outputs, values)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    examiner = Examiner(compiled, model, model)
    for seed in range(8):
        x = np.random.default_rng(seed).standard_normal((9, 3)).astype("f") + 1000
        assert examiner.thoroughly({"x": x}, None).ok


def test_a_wrong_step_before_a_quantised_product_shows():
    """The integers behind it fit exactly with what it wrote: a distance of 0 was taken for no evidence."""
    rng = np.random.default_rng(0)
    quantised = {"q": ("p", "s", "z"), "q2": ("m", "t", "z")}
    nodes = [
        helper.make_node("Softmax", ["x"], ["f"]),
        helper.make_node("Mul", ["f", "a"], ["p"]),
        *(helper.make_node("QuantizeLinear", list(i), [o]) for o, i in quantised.items()),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "zero"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["m"]),
        helper.make_node("DequantizeLinear", ["q2", "t", "z"], ["e"]),
        helper.make_node("DequantizeLinear", ["u", "s", "zero"], ["r"]),
        helper.make_node("MatMul", ["e", "r"], ["n"]),
        helper.make_node("ReduceMax", ["n"], ["y"], axes=[0, 1], keepdims=0),
    ]
    nodes = [nodes[i] for i in (0, 1, 2, 4, 5, 6, 3, 7, 8, 9, 10)]
    values = {
        "a": np.ones((16, 64), "f"), "s": np.float32(1 / 255), "t": np.float32(1 / 4000), "z": np.uint8(0),
        "zero": np.int8(0), "w": rng.integers(-127, 128, (64, 32)).astype(np.int8),
        "u": rng.integers(-127, 128, (32, 32)).astype(np.int8),
    }  # fmt: skip
    good = made(nodes, {"x": [16, 64]}, {"y": (TensorProto.FLOAT, [])}, values)

    def element(a):
        a[3, 5] = 1.6
        return a

    feeds = {"x": rng.standard_normal((16, 64)).astype("f")}
    for model, right in ((good, True), (changed(good, "a", element), False)):
        compiled = tvmopt.compile(model, verify=False, records=False).model
        examined = Examiner(compiled, good, good).thoroughly(feeds, None)
        assert examined.ok == right and ("softmax" in examined.kernel) != right


def test_many_quantisations_do_not_hide_an_error():
    """Behind forty of them runs that round had nothing in common with the result: any number was accepted."""
    rng = np.random.default_rng(3)
    values, nodes, read = {"s": np.float32(0.03), "z": np.uint8(128)}, [], "x"
    for i in range(40):
        values[f"w{i}"] = np.linalg.qr(rng.standard_normal((32, 32)))[0].astype("f")
        nodes.append(helper.make_node("QuantizeLinear", [read, "s", "z"], [f"q{i}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]))
        read = f"y{i}"
        nodes.append(helper.make_node("MatMul", [f"d{i}", f"w{i}"], [read]))
    model = made(nodes, {"x": [8, 32]}, {read: (1, [8, 32])}, values)
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 32)).astype("f")}
    judge = Judge(model)
    truth = judge.truth(feeds)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert judge(truth, {read: session.run(None, feeds)[0]}).ok
    assert not judge(truth, {read: -truth.exact[read].astype("f")}).ok


def spikes(gain: float) -> onnx.ModelProto:
    """A convolution of noise, with spikes in one channel that keep its outputs around them from being positive."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((32, 32, 3, 3)) / 17).astype("f")
    weight[:, 0] = -np.abs(weight[:, 0])
    gains = np.zeros((1, 32, 1, 1), "f")
    gains[0, 0] = gain
    nodes = [
        helper.make_node("Sub", ["x", "least"], ["over"]),
        helper.make_node("Relu", ["over"], ["spike"]),
        helper.make_node("Mul", ["spike", "gains"], ["high"]),
        helper.make_node("Add", ["x", "high"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    values = {"least": np.float32(2.5), "gains": gains, "w": weight}
    return made(nodes, {"x": [1, 32, 32, 32]}, {"y": (TensorProto.FLOAT, [1, 32, 16, 16])}, values)


@pytest.mark.parametrize("gain", [100.0, 1000.0])
def test_what_a_tile_of_winograd_rounds_beside_a_spike(tmp_path, gain):
    """Small outputs in the tile of a spike carry its rounding: a right kernel. One channel 3 % too large is none."""
    good = spikes(gain)
    assert "winograd" in {k.family for k in tvmopt.compile(good).report.kernels}

    def channel(w):
        w[5] *= 1.03
        return w

    assert "wrong kernel" in refused(tmp_path, good, changed(good, "w", channel))


def test_copies_of_inputs_around_1000_are_not_what_they_resemble():
    """Attention brings its operands into other layouts first: all are alike within a thousandth there."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["y"], perm=[0, 2, 1, 3]),
    ]
    sizes = {"q": [1, 3, 7, 4], "k": [1, 3, 16, 4], "v": [1, 3, 16, 4]}
    model = made(nodes, sizes, {"y": (TensorProto.FLOAT, [1, 7, 3, 4])}, {"half": np.float32(0.5)})
    examiner = Examiner(tvmopt.compile(model, verify=False, records=False).model, model, model)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        feeds = {name: (rng.standard_normal(size) + 1000).astype("f") for name, size in sizes.items()}
        examined = examiner.thoroughly(feeds, None)
        assert examined.ok, (seed, examined.kernel)


@pytest.mark.parametrize(
    ("found", "fine"),
    [([-np.inf, 2], True), ([np.nan, 2], True), ([0, 2], True), ([0.5, 2], False), ([0, np.inf], False)],
)
def test_a_product_in_a_wider_register_need_not_be_infinite(found: list[float], fine: bool) -> None:
    """1000 * 1000 is no float16; a fused multiply-add of it and -inf is -inf, of wider numbers 0, of float16 NaN."""
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Mul", ["x", "z"], ["a"]), helper.make_node("Mul", ["x", "v"], ["b"]),
             helper.make_node("Add", ["a", "b"], ["y"])]  # fmt: skip
    infos = {n: helper.make_tensor_value_info(n, half, [2]) for n in "xzvy"}
    graph = helper.make_graph(nodes, "g", [infos[n] for n in "xzv"], [infos["y"]])
    feeds = {"x": np.float16([1000, 1]), "z": np.float16([1000, 1]), "v": np.float16([-1000, 1])}
    judge = Judge(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    assert judge(judge.truth(feeds), {"y": np.float16(found)}).ok is fine


def halves(nodes, inputs, outputs, values) -> onnx.ModelProto:
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT16, s) for n, s in d.items()] for d in (inputs, outputs)
    ]
    constants = [numpy_helper.from_array(np.asarray(v).astype(np.float16), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", *infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("extra", "fine"), [(0.0, True), (500.0, False)])
def test_what_is_stored_in_16_bits_rounds_what_overflows_them_behind_it(extra: float, fine: bool) -> None:
    """The product is no float16 and stays in a register; its factor was stored, and its error is large by its size."""
    nodes = [
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Mul", ["a", "k"], ["b"]),
        helper.make_node("Sub", ["b", "z"], ["d"]),
        helper.make_node("Sub", ["d", "z"], ["y"]),
    ]
    model = halves(nodes, {"x": [8, 64]}, {"y": [8, 64]}, {"c": 99.0, "k": 1000.0, "z": 5e4})
    x = np.random.default_rng(0).uniform(1, 3, (8, 64)).astype(np.float16)
    stored = (x + np.float16(99)).astype(np.float64)
    found = (1000 * stored - 1e5 + extra).astype(np.float16)
    judge = Judge(model)
    assert judge(judge.truth({"x": x}), {"y": found}).ok is fine


def test_what_a_kernel_stores_as_infinite_another_reads_as_a_number() -> None:
    """Sums of infinities of both signs would be no numbers."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["y"]),
        helper.make_node("MatMul", ["p", "v"], ["q"]),
        helper.make_node("Add", ["q", "d"], ["z"]),
    ]
    rng = np.random.default_rng(0)
    values = {"w": rng.uniform(8, 10, (15, 15)), "c": rng.standard_normal(15),
              "v": rng.standard_normal((15, 48)), "d": rng.standard_normal(48)}  # fmt: skip
    model = halves(nodes, {"x": [9, 3, 15]}, {"y": [9, 3, 15], "z": [9, 3, 48]}, values)
    examiner = Examiner(tvmopt.compile(model, verify=False, records=False).model, model, model)
    feeds = {"x": (1000 + rng.standard_normal((9, 3, 15))).astype(np.float16)}
    assert examiner.thoroughly(feeds, None).ok


@pytest.mark.parametrize(("chosen", "fine"), [(2, True), (0, True), (1, False)])
@pytest.mark.parametrize("op", ["ArgMax", "Hardmax"])
def test_scores_that_overflow_may_be_told_apart_in_a_wider_register(op: str, chosen: int, fine: bool) -> None:
    """1000 * 1000 and 2000 * 1000 are both infinite in float16, so that the first is chosen; in float32 the second."""
    nodes = [helper.make_node("Mul", ["x", "k"], ["s"])]
    nodes.append(helper.make_node(op, ["s"], ["y"], axis=1, **({"keepdims": 1} if op == "ArgMax" else {})))
    model = halves(nodes, {"x": [1, 3]}, {"y": [1, 1]}, {"k": 1000.0})
    if op == "ArgMax":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    else:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 3]))
    found = np.array([[chosen]]) if op == "ArgMax" else np.float16([[n == chosen for n in range(3)]])
    judge = Judge(model)
    assert judge(judge.truth({"x": np.float16([[1000, 1, 2000]])}), {"y": found}).ok is fine
