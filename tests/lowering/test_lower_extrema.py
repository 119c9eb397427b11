"""Maxima and minima keep NaN: the rewrite, its machine code, and operators against NumPy in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper as h
from onnx import numpy_helper as nh
from scipy import special
from tvm import te, tirx

import tvmopt
from tvmopt.importer import import_model
from tvmopt.lowering.lower_extrema import LowerExtrema, larger
from tvmopt.pipeline import build, lower
from tvmopt.targets import Machine

EDGES = [
    np.nan,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-41,
    -1e-41,
    3.4e38,
    -3.4e38,
    0.5,
    -0.5,
    7.0,
    -7.0,
    90.0,
    -90.0,
]
SIZES = (1, 7, 8, 15, 17, 31, 32, 33)


def elu(x: Any, alpha: float) -> Any:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


UNARY: dict[str, tuple[str, dict[str, Any], dict[str, float], Any]] = {
    "relu": ("Relu", {}, {}, lambda x: np.maximum(x, 0)),
    "relu6": ("Clip", {}, {"low": 0, "high": 6}, lambda x: np.clip(x, 0, 6)),
    "clip": ("Clip", {}, {"low": -1}, lambda x: np.maximum(x, -1)),
    "max": ("Max", {}, {"low": 0.25}, lambda x: np.maximum(x, 0.25)),
    "min": ("Min", {}, {"low": 0.25}, lambda x: np.minimum(x, 0.25)),
    "hard_sigmoid": ("HardSigmoid", {}, {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "hard_swish": ("HardSwish", {}, {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "selu": ("Selu", {}, {}, lambda x: 1.05070102214813 * elu(x, 1.67326319217681)),
    "elu": ("Elu", {"alpha": 0.5}, {}, lambda x: elu(x, 0.5)),
    "celu": ("Celu", {"alpha": 1.0}, {}, lambda x: elu(x, 1.0)),
    "leaky": ("LeakyRelu", {"alpha": 0.1}, {}, lambda x: np.where(x < 0, 0.1 * x, x)),
    "thresholded": ("ThresholdedRelu", {"alpha": 0.75}, {}, lambda x: np.where(x > 0.75, x, 0)),
    "sign": ("Sign", {}, {}, np.sign),
    "softplus": ("Softplus", {}, {}, lambda x: np.logaddexp(x, 0)),
    "sigmoid": ("Sigmoid", {}, {}, special.expit),
    "tanh": ("Tanh", {}, {}, np.tanh),
    "erf": ("Erf", {}, {}, special.erf),
    "exp": ("Exp", {}, {}, np.exp),
    "abs": ("Abs", {}, {}, np.abs),
    "round": ("Round", {}, {}, np.rint),
}


def edges(size: int) -> np.ndarray:
    """All of EDGES in turn, one place further in each row: so that each stands in each lane of a vector."""
    return np.array([np.roll(np.resize(EDGES, max(size, len(EDGES))), k)[:size] for k in range(len(EDGES))], "float32")


def every_operator(before: list[Any], value: str, shape: list[int], constants: dict[str, Any]) -> onnx.ModelProto:
    """A model with one output an operator, each behind `value`; `before` makes it."""
    nodes, tensors = list(before), {k: np.asarray(v, "float32") for k, v in constants.items()}
    for name, (op, attributes, bounds, _) in UNARY.items():
        tensors |= {f"{name}_{k}": np.asarray(v, "float32") for k, v in bounds.items()}
        nodes.append(h.make_node(op, [value, *(f"{name}_{k}" for k in bounds)], [name], **attributes))
    outs = [h.make_tensor_value_info(name, 1, None) for name in UNARY]
    initializers = [nh.from_array(v, k) for k, v in tensors.items()]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", 1, shape)], outs, initializers)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)


def check(model: onnx.ModelProto, x: np.ndarray, values: np.ndarray, **options: Any) -> None:
    outputs = tvmopt.compile(model, verify=False, records=False, **options).model.run({"x": x})
    tolerance = 1e-2 if options.get("precision") == "bf16" else 2e-6
    for name, (_, _, _, reference) in UNARY.items():
        with np.errstate(all="ignore"):
            want = reference(values.astype("float64")).astype("float32")
        got = outputs[name].reshape(values.shape)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=name)
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want), err_msg=name)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-37, err_msg=name)


@pytest.mark.parametrize("size", SIZES)
def test_operators_alone(size: int) -> None:
    x = edges(size)
    check(every_operator([], "x", list(x.shape), {}), x, x)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v2"])
def test_operators_alone_elsewhere(target: str) -> None:
    x = edges(17)
    check(every_operator([], "x", list(x.shape), {}), x, x, target=target)


@pytest.mark.parametrize("rows", [1, 8, 17])
def test_behind_a_product(rows: int) -> None:
    first = edges(rows)[0][:, None]
    x = np.concatenate([first, np.zeros((rows, 7), "float32")], 1)
    before = [h.make_node("MatMul", ["x", "w"], ["m"])]
    model = every_operator(before, "m", [rows, 8], {"w": np.ones((8, 33))})
    check(model, x, np.broadcast_to(first, (rows, 33)))


@pytest.mark.parametrize("group", [1, 4])
def test_behind_a_convolution(group: int) -> None:
    x = np.zeros((1, 4, 17, 9), "float32")
    x[0, :group] = np.resize(EDGES, (17, 9)) if group == 1 else np.resize(EDGES, (4, 17, 9))
    channels = 33 if group == 1 else 4
    before = [h.make_node("Conv", ["x", "w"], ["c"], group=group)]
    model = every_operator(before, "c", list(x.shape), {"w": np.ones((channels, 4 // group, 1, 1))})
    check(model, x, np.broadcast_to(x[:, :1], (1, 33, 17, 9)) if group == 1 else x)


COMPARISONS = {
    "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal,
    "Equal": np.equal,
}  # fmt: skip


def test_comparisons_and_positions() -> None:
    """A comparison with NaN is false and its negation true, and the extreme of a row with NaN is its first NaN."""
    x = edges(33)
    y = np.roll(x, 1, 1)
    nodes, wants = [h.make_node("Cast", ["x"], ["bool"], to=9)], {"bool": x.astype(bool)}
    for op, reference in COMPARISONS.items():
        nodes += [
            h.make_node(op, ["x", "y"], [op]), h.make_node("Not", [op], [f"not{op}"]),
            h.make_node("Where", [f"not{op}", "x", "y"], [f"where{op}"]),
        ]  # fmt: skip
        found = reference(x, y)
        wants |= {op: found, f"not{op}": ~found, f"where{op}": np.where(found, y, x)}
    for axis in (0, 1):
        for op, find in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
            nodes.append(h.make_node(op, ["x"], [f"{op}{axis}"], axis=axis, keepdims=0))
            wants[f"{op}{axis}"] = find(x, axis)
        for op, fold in (("ReduceMax", np.max), ("ReduceMin", np.min)):
            nodes.append(h.make_node(op, ["x", f"axis{axis}"], [f"{op}{axis}"], keepdims=0))
            wants[f"{op}{axis}"] = fold(x, axis)
    ends = [h.make_tensor_value_info(n, 1, x.shape) for n in "xy"]
    outs = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(w.dtype), None) for n, w in wants.items()]
    graph = h.make_graph(nodes, "g", ends, outs, [nh.from_array(np.array([a]), f"axis{a}") for a in (0, 1)])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    outputs = tvmopt.compile(model, verify=False, records=False).model.run({"x": x, "y": y})
    for name, want in wants.items():
        np.testing.assert_array_equal(outputs[name], want, err_msg=name)


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Erf", "Exp", "Sin", "Max"])
@pytest.mark.parametrize("size", [8, 15, 16, 17, 33])
def test_a_function_of_truths(op: str, size: int) -> None:
    """A vector of truths as numbers that a function uses twice: TVM's analyzer failed at its name."""
    x = np.random.default_rng(size).standard_normal((9, 31, size)).astype("float32")
    nodes = [h.make_node("Hardmax", ["x"], ["m"]), h.make_node(op, ["m", "x"] if op == "Max" else ["m"], ["y"])]
    ends = [[h.make_tensor_value_info(n, 1, x.shape)] for n in "xy"]
    model = h.make_model(h.make_graph(nodes, "g", *ends), opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})["y"]
    m = np.eye(size)[x.argmax(-1)]
    functions = {"Sigmoid": special.expit, "Tanh": np.tanh, "Erf": special.erf, "Exp": np.exp, "Sin": np.sin}
    want = np.maximum(m, x) if op == "Max" else functions[op](m)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("to", [1, 10, 16, 6, 3, 2, 7])
@pytest.mark.parametrize("size", [15, 17, 64])
def test_truths_as_numbers(to: int, size: int) -> None:
    """A comparison as numbers of each type."""
    x = np.resize(EDGES, (2, 5, size)).astype("float32")
    nodes = [h.make_node("Greater", ["x", "z"], ["b"]), h.make_node("Cast", ["b"], ["c"], to=to)]
    ends = [h.make_tensor_value_info(n, 1, x.shape) for n in "xz"], [h.make_tensor_value_info("c", to, x.shape)]
    model = h.make_model(h.make_graph(nodes, "g", *ends), opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x, "z": x[::-1].copy()})["c"]
    np.testing.assert_array_equal(found.astype(float), (x > x[::-1]).astype(float))


def test_scalars() -> None:
    """A scalar 0 hides no NaN in a product, and divides; infinity is an exponent."""
    x = edges(17)
    nodes = [h.make_node("Mul", ["x", "zero"], ["mul"]), h.make_node("Div", ["x", "zero"], ["div"])]
    nodes += [h.make_node("Div", ["zero", "x"], ["over"]), h.make_node("Pow", ["x", "inf"], ["pow"])]
    outs = [h.make_tensor_value_info(n, 1, None) for n in ("mul", "div", "over", "pow")]
    scalars = [nh.from_array(np.array(v, "float32"), n) for n, v in (("zero", 0), ("inf", np.inf))]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", 1, x.shape)], outs, scalars)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    outputs = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})
    with np.errstate(all="ignore"):
        zero = np.float32(0)
        wants = {"mul": x * zero, "div": x / zero, "over": zero / x, "pow": x ** np.float32(np.inf)}
    for name, want in wants.items():
        np.testing.assert_array_equal(outputs[name], want, err_msg=name)


@pytest.mark.parametrize("before", [False, True])
def test_pooling(before: bool) -> None:
    """A window with NaN is NaN, one of padding and -inf is -inf; channels first and, behind a convolution, last."""
    x = np.resize(EDGES, (1, 4, 9, 11)).astype("float32")
    nodes = [h.make_node("Conv", ["x", "w"], ["c"], group=4)] if before else []
    nodes.append(h.make_node("MaxPool", ["c" if before else "x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 1, 1]))
    ends = [h.make_tensor_value_info("x", 1, x.shape)], [h.make_tensor_value_info("y", 1, None)]
    graph = h.make_graph(nodes, "g", *ends, [nh.from_array(np.ones((4, 1, 1, 1), "float32"), "w")] if before else [])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)), constant_values=-np.inf)
    want = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3)).max((-1, -2))
    got = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})["y"]
    np.testing.assert_array_equal(got, want)


def function(op: Any, dtype: str = "float32", constant: bool = True) -> tvm.IRModule:
    a, b = te.placeholder((16,), dtype, name="a"), te.placeholder((16,), dtype, name="b")
    y = te.compute((16,), lambda i: op(a[i], tirx.const(0, dtype) if constant else b[i]), name="y")
    return tvm.IRModule({"main": te.create_prim_func([a, y] if constant else [a, b, y])})


@pytest.mark.parametrize("op", [tirx.max, tirx.min])
def test_a_constant_comes_first(op: Any) -> None:
    text = LowerExtrema(function(op))["main"].script()
    assert re.search(r"T\.(max|min)\(T\.float32\(0\.0\), a\[", text)
    assert LowerExtrema(LowerExtrema(function(op)))["main"].script() == text


@pytest.mark.parametrize("op", [tirx.max, tirx.min])
def test_of_two_values_the_first_is_asked(op: Any) -> None:
    assert "T.isnan" in LowerExtrema(function(op, constant=False))["main"].script()


@pytest.mark.parametrize("constant", [True, False])
def test_a_gpu_compares(constant: bool) -> None:
    module = function(tirx.max, constant=constant)
    module = tirx.transform.BindTarget(tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))(module)
    text = LowerExtrema(module)["main"].script()
    assert "T.max(" not in text
    assert "T.Select" in text


@pytest.mark.parametrize("of", [function(tirx.max, "int32"), function(larger)])
def test_left_alone(of: tvm.IRModule) -> None:
    """Integers, and a maximum that may lose a NaN."""
    tvm.ir.assert_structural_equal(LowerExtrema(of), of)


def assembly(model: onnx.ModelProto, target: str) -> str:
    machine = Machine.load(target)
    made = build(lower(import_model(model).module, machine), machine)
    return "\n".join(m.inspect_source("asm") for m in made.mod.imports if m.kind == "llvm")


@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize("before", ["", "MatMul", "Conv"])
def test_relu_is_one_instruction(target: str, before: str) -> None:
    shape = [1, 16, 14, 14] if before == "Conv" else [64, 16]
    weight = np.ones((32, 16, 3, 3) if before == "Conv" else (16, 32), "float32")
    nodes = [h.make_node(before, ["x", "w"], ["c"])] if before else []
    nodes.append(h.make_node("Relu", ["c" if before else "x"], ["y"]))
    ends = [h.make_tensor_value_info("x", 1, shape)], [h.make_tensor_value_info("y", 1, None)]
    graph = h.make_graph(nodes, "g", *ends, [nh.from_array(weight, "w")] if before else [])
    text = assembly(h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9), target)
    assert re.search(r"\tv?maxps", text)
    assert not re.search(r"\tv?(cmp\w+ps|blend\w*ps|andn?ps)\b", text)
