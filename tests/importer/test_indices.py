"""A value that becomes an address, a length or a divisor: in range it works, out of range it is an error of ours."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.errors import InputError, ModelError, UnsupportedOp

X = np.arange(20, dtype="float32").reshape(5, 4)
SCORES = np.log(np.full((2, 3), 1 / 3, "float32"))


def model_of(op, inputs, constants=(), outputs=1, opset=21, domain="", **attributes):
    """A model of one node; `constants`: names of the inputs that are initialisers."""
    node = helper.make_node(op, list(inputs), [f"o{i}" for i in range(outputs)], name="n", domain=domain, **attributes)
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in inputs.items()}
    values = [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in inputs.items() if n not in constants]
    given = [numpy_helper.from_array(inputs[n], n) for n in constants]
    dtype = types.get("x", TensorProto.FLOAT)
    out = [helper.make_tensor_value_info(f"o{i}", dtype if i == 0 else 1, None) for i in range(outputs)]
    for value in out:
        value.type.tensor_type.ClearField("shape")
    graph = helper.make_graph([node], "g", values, out, given)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def onnxruntime_of(model, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def ints(*values, dtype="int64"):
    return np.array(values, dtype)


TWO = np.full((1, 4), -7, "float32")
RAMP = np.arange(32, dtype="float32").reshape(2, 1, 4, 4)
ROIS = np.array([[0, 0, 3, 3]], "float32")
POOLED = np.ones((1, 1, 2, 2), "float32")
W = np.full((1, 16, 3), 0.1, "float32")
LSTM = {
    "x": np.ones((5, 2, 3), "float32"),
    "w": W,
    "r": np.full((1, 16, 4), 0.1, "float32"),
    "b": np.zeros((1, 32), "f"),
}
CACHE = np.zeros((2, 8, 4), "float32")
COS = np.ones((6, 2), "float32")
CASES = {  # operator -> inputs, the name of what is checked, wrong values of it, attributes
    "Gather": ({"x": X, "i": ints(0, -5, 4)}, "i", [ints(0, 5, 1), ints(0, 0, -6), ints(0, 0, 1 << 40)], {}),
    "GatherElements": ({"x": X, "i": ints([0, -1, 4, 2])}, "i", [ints([0, 1, 2, -6]), ints([5, 0, 0, 0])], {}),
    "GatherND": ({"x": X, "i": ints([-5, 3], [4, -4])}, "i", [ints([-6, 0], [0, 0]), ints([0, 0], [0, 4])], {}),
    "ScatterND": ({"x": X, "i": ints([-1]), "u": TWO}, "i", [ints([100]), ints([-6])], {}),
    "ScatterElements": ({"x": X, "i": ints([0, -1, 4, 2]), "u": TWO}, "i", [ints([0, 1, 2, 100])], {}),
    "RoiAlign": (
        {"x": RAMP, "r": ROIS, "i": ints(1)}, "i", [ints(2), ints(-1)],
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    "MaxRoiPool": (
        {"x": RAMP, "r": np.array([[1, 0, 0, 3, 3]], "f")}, "r",
        [np.array([[value, 0, 0, 3, 3]], "f") for value in (2, -1, 1e30, np.nan)], {"pooled_shape": [2, 2]},
    ),
    "MaxUnpool": (
        {"x": POOLED, "i": ints([[[0, 3], [9, 15]]])[None][0]}, "i", [ints([[[0, 3], [9, 16]]])],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "ReverseSequence": (
        {"x": X, "i": ints(1, 5, 2, 3)}, "i", [ints(1, 6, 1, 1), ints(-1, 1, 1, 1)], {"time_axis": 0, "batch_axis": 1},
    ),
    "NegativeLogLikelihoodLoss": (
        {"x": SCORES, "i": ints(0, -1)}, "i", [ints(3, 0), ints(0, -2)], {"ignore_index": -1, "reduction": "sum"},
    ),
    "SoftmaxCrossEntropyLoss": ({"x": SCORES, "i": ints(2, 1)}, "i", [ints(3, 0), ints(0, -1)], {"reduction": "sum"}),
    "LSTM": (LSTM | {"i": ints(5, 2, dtype="int32")}, "i", [ints(6, 1, dtype="int32")], {"hidden_size": 4}),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled():
    """Each case's model, compiled once, with its inputs."""
    made = {}

    def of(name):
        if name not in made:
            inputs, _, _, attributes = CASES[name]
            made[name] = tvmopt.compile(model_of(name, inputs, **attributes), verify=False, records=False).model
        return made[name]

    return of


@pytest.mark.parametrize("op", CASES)
def test_what_is_in_range_is_as_onnxruntime_has_it(op, compiled):
    inputs, _, _, attributes = CASES[op]
    (expected,) = onnxruntime_of(model_of(op, inputs, **attributes), inputs)
    np.testing.assert_allclose(compiled(op).run(inputs)["o0"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", CASES)
def test_what_is_out_of_range_is_refused_and_the_model_goes_on(op, compiled):
    inputs, name, wrong, _ = CASES[op]
    model = compiled(op)
    before = model.run(inputs)["o0"].copy()
    for value in wrong:
        with pytest.raises(InputError) as error:
            model.run(inputs | {name: value})
        assert op in error.value.what and f"node 'n', input '{name}'" in error.value.where and error.value.fix
    np.testing.assert_array_equal(model.run(inputs)["o0"], before)


@pytest.mark.parametrize("op", [op for op in CASES if op not in ("SoftmaxCrossEntropyLoss", "MaxRoiPool")])
def test_a_constant_out_of_range_is_refused_at_import(op):
    inputs, name, wrong, attributes = CASES[op]
    with pytest.raises(ModelError) as error:
        tvmopt.compile(model_of(op, inputs | {name: wrong[0]}, [name], **attributes), verify=False)
    assert not isinstance(error.value, UnsupportedOp) and "node 'n'" in error.value.where, str(error.value)


def test_threads_are_refused_one_by_one(compiled):
    model, told = compiled("Gather"), []

    def ask(k):
        for n in range(20):
            wrong = (n + k) % 2
            try:
                y = model(X, ints(0, 1, 9 if wrong else 2))
                told.append(not wrong and (y == X[:3]).all())
            except InputError:
                told.append(wrong == 1)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 80 and all(told)


@pytest.mark.parametrize("axis", [-1, -2, -3, 1])
@pytest.mark.parametrize("index", [[1, 3], [[0, 1], [1, 0]], 2, [-1, 0]])
def test_constant_indices_along_a_negative_axis(axis, index):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype("float32")
    model = model_of("Gather", {"x": x, "i": np.array(index)}, ["i"], axis=axis)
    np.testing.assert_array_equal(tvmopt.compile(model, verify=False, records=False).model(x), np.take(x, index, axis))


DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_divide_as_numpy_has_it_and_never_end_the_process(dtype):
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 7, info.min, 0] * 7, dtype)
    y = np.array([-1, 3, -2, 2, 5] * 7, "int64").astype(dtype) if info.min else np.array([1, 3, 2, 2, 5] * 7, dtype)
    with np.errstate(all="ignore"):
        expected = {"trunc": np.fmod(x, y), "floor": np.mod(x, y)}
        expected["div"] = x // y + ((x % y != 0) & ((x < 0) != (y < 0))).astype(dtype)
    nodes = [
        helper.make_node("Div", ["x", "y"], ["div"]),
        helper.make_node("Mod", ["x", "y"], ["trunc"], fmod=1),
        helper.make_node("Mod", ["x", "y"], ["floor"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info(n, kind, [35]) for n in ("x", "y", "div", "trunc", "floor")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    model = tvmopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), verify=False
    ).model
    for name, value in model.run({"x": x, "y": y}).items():
        np.testing.assert_array_equal(value, expected[name], name)
    y[33] = 0
    with pytest.raises(InputError, match="divisor"):
        model(x, y)


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_constant_divisor_of_zero_is_refused(op):
    for constants in (["y"], ["x", "y"]):
        with pytest.raises(ModelError, match="divisor"):
            tvmopt.compile(model_of(op, {"x": ints(1, 2), "y": ints(1, 0)}, constants), verify=False)


def test_a_model_whose_divisors_may_be_zero_is_compiled(tmp_path):
    """Its own random inputs divide by zero; onnxruntime refuses them too."""
    nodes = [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["x", "z"], ["o"])]
    x, o = (helper.make_tensor_value_info(n, TensorProto.INT64, [4]) for n in "xo")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [o]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(model, tmp_path / "m.onnx")
    report = tvmopt.compile(tmp_path / "m.onnx").report
    assert not report.accuracy["verified"]


@pytest.mark.parametrize("rows", [4, "n"])
@pytest.mark.parametrize("behind", [[], ["Neg", "Abs"]])
def test_the_only_element_of_an_axis_has_one_index(rows, behind):
    """TVM takes the Gather for a reshape, which leaves the check of the index without a reader."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["v"], axis=1)]
    nodes += [helper.make_node(op, ["v"], [op]) for op in behind]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in behind or ["v"]]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 1, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version = 9
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    x = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    for index in (0, -1):
        assert compiled.run({"x": x, "i": np.array(index)})[outputs[-1].name].shape == (4, 3)
    for index in (1, -2, 1 << 40):
        with pytest.raises(InputError, match="out of range"):
            compiled.run({"x": x, "i": np.array(index)})


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_a_shape_that_a_run_tells_spreads_nothing_but_what_is_there(dtype):
    """Expand of a tensor without an axis of one element: its result has the same shape, whatever shape is passed."""
    x = (np.arange(40) % 3 == 0).astype(dtype).reshape(2, 5, 4)
    for length in (3, 2):
        made = model_of("Expand", {"x": x, "shape": np.ones(length, "int64")})
        compiled = tvmopt.compile(made, verify=False, records=False).model
        for fine in ([2, 5, 4], [1, 1, 1], [2, 1, 4]):
            np.testing.assert_array_equal(compiled.run({"x": x, "shape": ints(*fine[-length:])})["o0"], x)
        for wrong in ([2, 5, 8], [2, 0, 4], [2, -5, 4], [2, -1, -1], [2, 5, 1 << 62], [2, -(1 << 63), 4]):
            with pytest.raises(InputError, match=r"its shape does not fit"):
                compiled.run({"x": x, "shape": ints(*wrong[-length:])})
    np.testing.assert_array_equal(compiled.run({"x": x, "shape": ints(5, 4)})["o0"], x)  # and goes on
