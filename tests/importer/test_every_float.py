"""Every function of one element, NaN among them, in every floating type that ONNX gives it, against the oracle."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer import onnx_check
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.runtime.tensors import numpy_dtype

FUNCTIONS = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Celu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip
TYPES = {"float64": 1e-7, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_one_element(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    number = helper.np_dtype_to_tensor_dtype(kind)
    spelled = f"tensor({ {'float64': 'double', 'float32': 'float'}.get(dtype, dtype) })"
    known = {f: str(onnx.defs.get_schema(f, 22).type_constraints[0].allowed_type_strs) for f in FUNCTIONS}
    nodes = [helper.make_node(f, ["x"], [f]) for f in FUNCTIONS if spelled in known[f]]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", number, [9, 17])], [value(n.output[0], number, [9, 17]) for n in nodes]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    compiled = tvmopt.compile(model, verify=False, records=False).model
    rng = np.random.default_rng(0)
    for scale in (1.0, 0.01, 20.0):
        x = (rng.standard_normal((9, 17)) * scale).astype(kind)
        x[8, 16] = np.nan
        found, expected = compiled.run({"x": x}), Oracle(model).run({"x": x})
        for name, want in expected.items():
            got, fine = found[name].astype("float64"), np.isfinite(want)
            assert (np.isfinite(got) == fine).all(), name
            largest = np.abs(want[fine]).max(initial=1e-30)
            cancels = 100 if name in ("Elu", "Celu", "Selu") and scale < 1 and dtype == "float32" else 1
            assert np.abs(got[fine] - want[fine]).max(initial=0) <= TYPES[dtype] * largest * cancels, (name, scale)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_windows_of_every_float(dtype: str) -> None:
    """Operators whose weights or terms were float32 whatever the model said."""
    kind = numpy_dtype(dtype)
    number = helper.np_dtype_to_tensor_dtype(kind)
    rng = np.random.default_rng(1)
    weight = (rng.standard_normal((6, 4, 3, 3)) * 0.2).astype(kind)
    nodes = [
        helper.make_node("LRN", ["x"], ["lrn"], size=3, alpha=0.1),
        helper.make_node("ConvTranspose", ["x", "w"], ["transposed"], strides=[2, 2]),
        helper.make_node("MatMul", ["x", "m"], ["product"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", number, [2, 6, 5, 8])], [value(n.output[0], number, None) for n in nodes],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(rng.standard_normal((8, 9)).astype(kind), "m")],
    )  # fmt: skip
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = rng.standard_normal((2, 6, 5, 8)).astype(kind)
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})
    for name, want in Oracle(model).run({"x": x}).items():
        assert np.abs(found[name].astype("float64") - want).max() <= TYPES[dtype] * np.abs(want).max(), name


@pytest.mark.parametrize("own", ["float32", "same"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_batch_norm_of_parameters_that_are_inputs(dtype: str, own: str) -> None:
    """Its result is of the input's type, whatever the type of the parameters."""
    kind = numpy_dtype(dtype)
    other = kind if own == "same" else np.dtype(np.float32)
    names, rng = ("scale", "bias", "mean", "variance"), np.random.default_rng(2)
    value = helper.make_tensor_value_info
    number, second = helper.np_dtype_to_tensor_dtype(kind), helper.np_dtype_to_tensor_dtype(other)
    graph = helper.make_graph(
        [helper.make_node("BatchNormalization", ["x", *names], ["y"])], "g",
        [value("x", number, [2, 7, 3, 5]), *(value(n, second, [7]) for n in names)], [value("y", number, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {"x": rng.standard_normal((2, 7, 3, 5)).astype(kind)}
    feeds |= {n: np.abs(rng.standard_normal(7) + 2).astype(other) for n in names}
    found, want = (
        tvmopt.compile(model, verify=False, records=False).model.run(feeds)["y"],
        Oracle(model).run(feeds)["y"],
    )
    assert found.dtype == kind
    assert np.abs(found.astype("float64") - want).max() <= TYPES[dtype] * np.abs(want).max()


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_positions_in_16_bits(op: str, dtype: str) -> None:
    """The first of equals, the first NaN."""
    kind = numpy_dtype(dtype)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], [f"y{axis}"], axis=axis, keepdims=0) for axis in (0, 1)], "g",
        [value("x", helper.np_dtype_to_tensor_dtype(kind), [9, 17])],
        [value("y0", 7, [17]), value("y1", 7, [9])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = np.random.default_rng(3).integers(-4, 4, (9, 17)).astype(kind)
    x[4, 5] = np.nan
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x})
    choose = np.argmax if op == "ArgMax" else np.argmin
    for axis in (0, 1):
        np.testing.assert_array_equal(found[f"y{axis}"], choose(x.astype("float32"), axis))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_many_numbers_of_16_bits(dtype: str) -> None:
    """20000 numbers along any axis: in 16 bits a sum of ones stops at 2048, or at 256."""
    kind = numpy_dtype(dtype)
    number, value = helper.np_dtype_to_tensor_dtype(kind), helper.make_tensor_value_info
    nodes = [
        helper.make_node(op, ["x" if axis == 0 else "z"], [f"{op}{axis}"], axis=axis)
        for op in ("Softmax", "LogSoftmax") for axis in (0, 1)
    ]  # fmt: skip
    shapes = {"x": [20000, 3], "z": [3, 20000]}
    graph = helper.make_graph(
        nodes, "g", [value(n, number, s) for n, s in shapes.items()],
        [value(n.output[0], number, shapes[n.input[0]]) for n in nodes],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
    found = tvmopt.compile(model, verify=False, records=False).model.run(feeds)
    for name, want in Oracle(model).run(feeds).items():
        error = np.abs(found[name].astype("float64") - want).max() / np.abs(want).max()
        assert error < TYPES[dtype] / 2, (name, error)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_losses_of_many_numbers_of_16_bits(dtype: str) -> None:
    """Weighted sums over 4096 pixels: in 16 bits they were wrong by 0.6 %."""
    kind = numpy_dtype(dtype)
    number, value = helper.np_dtype_to_tensor_dtype(kind), helper.make_tensor_value_info
    rng = np.random.default_rng(0)
    target = rng.integers(0, 3, (1, 64, 64))
    nodes = [
        helper.make_node(op, ["x", "t", "w"], [f"{op}{how}"], reduction=how)
        for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss") for how in ("sum", "mean")
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [value("x", number, [1, 3, 64, 64])], [value(n.output[0], number, []) for n in nodes],
        [numpy_helper.from_array(target, "t"), numpy_helper.from_array(rng.random(3).astype(kind), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {"x": (3 * rng.standard_normal((1, 3, 64, 64)) - 1).astype(kind)}
    found = tvmopt.compile(model, verify=False, records=False).model.run(feeds)
    for name, want in Oracle(model).run(feeds).items():
        error = float(np.abs(found[name].astype("float64") - want) / np.abs(want))
        assert error < TYPES[dtype] / 2, (name, error)


@pytest.mark.parametrize("dtype", [*TYPES, "int32", "int64", "uint64", "int8"])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_along_open_axes(op: str, last: int, dtype: str) -> None:
    """TVM's own form gives -1 for a row of infinities, or of the type's least integers, and passes over NaN."""
    kind = numpy_dtype(dtype)
    number, value = helper.np_dtype_to_tensor_dtype(kind), helper.make_tensor_value_info
    nodes = [
        helper.make_node(op, ["x"], [f"y{axis}{keep}"], axis=axis, select_last_index=last, keepdims=keep)
        for axis in (0, 1)
        for keep in (0, 1)
    ]
    results = [value(n.output[0], onnx.TensorProto.INT64, None) for n in nodes]
    graph = helper.make_graph(nodes, "g", [value("x", number, ["n", "m"])], results)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tvmopt.compile(made, verify=False, records=False).model
    rng = np.random.default_rng(2)
    ends = [np.inf, -np.inf, np.nan] if dtype in TYPES else [np.iinfo(kind).min, np.iinfo(kind).max]
    arrays = [rng.integers(0, 9, shape).astype(kind) for shape in ((1, 1), (7, 9), (33, 300))]
    arrays += [np.full((3, 4), end).astype(kind) for end in ends]
    mixed = rng.integers(0, 9, (8, 17)).astype(kind)
    mixed.reshape(-1)[rng.integers(0, mixed.size, 40)] = np.resize(ends, 40).astype(kind)
    for x in (*arrays, mixed):
        found, expected = compiled.run({"x": x}), Oracle(made).run({"x": x})
        for name, want in expected.items():
            np.testing.assert_array_equal(found[name], want, name)


@pytest.mark.parametrize("alpha", [-1.0, -0.3, 0.5, 2.0])
def test_celu_of_a_negative_alpha(alpha: float) -> None:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)): below zero the exponential grows."""
    x = np.float32([-10, -2, -0.5, -1e-3, 0, 1e-3, 0.5, 2, 10])
    node = helper.make_node("Celu", ["x"], ["y"], alpha=alpha)
    made = onnx_check.model([node], [onnx_check.value("x", x.shape)], [onnx_check.value("y", x.shape)])
    wide = x.astype(np.float64)
    expected = np.maximum(wide, 0) + np.minimum(alpha * np.expm1(wide / np.float32(alpha)), 0)
    found = tvmopt.compile(made, threads=1, verify=False).model.run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(("bias", "lambd"), [(1.5, -1.0), (0.0, -1.0), (1.5, 1.5), (0.5, 0.0), (0.0, 0.5), (2.0, 3.0)])
def test_shrink_looks_below_first(dtype: str, bias: float, lambd: float) -> None:
    """Bias and lambd are floats, whatever x is; with a negative lambd numbers are both below and above."""
    x = np.array([-5, -2, -1, 0, 1, 2, 3, 5, 100]).astype(dtype)
    x = x if x.dtype.kind in "iu" else np.append(x * np.array(0.7, dtype), [np.nan, np.inf]).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ends = [helper.make_tensor_value_info(name, kind, x.shape) for name in "xy"]
    made = onnx_check.model([helper.make_node("Shrink", ["x"], ["y"], bias=bias, lambd=lambd)], ends[:1], ends[1:])
    found = tvmopt.compile(made, threads=1, verify=False).model.run({"x": x})["y"]
    wide = x.astype(np.float64)
    expected = np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, 0))
    np.testing.assert_allclose(found, expected.astype(dtype), rtol=1e-6)


def test_shrink_leaves_large_integers_as_they_are() -> None:
    """The largest one is no float64: it came out as the smallest."""
    kind = onnx.TensorProto.INT64
    ends = [helper.make_tensor_value_info(name, kind, [4]) for name in "xy"]
    made = onnx_check.model([helper.make_node("Shrink", ["x"], ["y"])], ends[:1], ends[1:])
    x = np.array([(1 << 63) - 1, -(1 << 63), 0, (1 << 53) + 1])
    compiled = tvmopt.compile(made, threads=1).model  # verified
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], x)


@pytest.mark.parametrize("dtype", TYPES)
def test_places_and_transforms_of_every_float(dtype: str) -> None:
    """Grids of float64 were computed in float32, transforms and sums of blocks of 16 bits in 16 bits: with numbers
    around 1000, of which little is left, nothing was right."""
    kind = numpy_dtype(dtype)
    number = helper.np_dtype_to_tensor_dtype(kind)
    rng = np.random.default_rng(2)
    size, image, block = (np.array(n, np.int64) for n in ([2, 3, 4, 5, 6], [9, 9], [3, 3]))
    weights = {"size": size, "image": image, "block": block, "w": (rng.standard_normal((4, 3, 3, 3)) / 5).astype(kind)}
    nodes = [
        helper.make_node("AffineGrid", ["theta", "size"], ["corners"], align_corners=1),
        helper.make_node("AffineGrid", ["theta", "size"], ["centres"]),
        helper.make_node("DFT", ["signal"], ["spectrum"], inverse=1),
        helper.make_node("Col2Im", ["blocks", "image", "block"], ["pixels"]),
        helper.make_node("DeformConv", ["x", "w", "offset"], ["deformed"], pads=[1, 1, 1, 1]),
    ]
    shapes = {
        "theta": (2, 3, 4), "signal": (3, 17, 2), "blocks": (1, 9, 49), "x": (1, 3, 33, 33), "offset": (1, 18, 33, 33),
    }  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value(n, number, s) for n, s in shapes.items()],
        [value(n.output[0], number, None) for n in nodes], [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {n: rng.standard_normal(s).astype(kind) for n, s in shapes.items()}
    feeds["signal"] = (1000 + feeds["signal"]).astype(kind)
    found = tvmopt.compile(model, records=False).model.run(feeds)
    for name, want in Oracle(model).run(feeds).items():
        largest = np.abs(want).max()  # of the spectrum the mean, which the other terms cancel
        error = np.abs(found[name].astype(np.float64) - want)[:, 1 if name == "spectrum" else 0 :].max()
        tolerance = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        own = np.abs(want[:, 1:]).max() if name == "spectrum" and kind.itemsize == 2 else largest
        assert error <= tolerance * (own + 1e-3 * largest), name


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("slopes", [(1,), (6, 1, 1), (1, 6, 31, 1)])
def test_prelu_of_every_float(dtype: str, slopes: tuple[int, ...]) -> None:
    """One constant slope a channel is an operator of TVM's, which knows no bfloat16."""
    kind = numpy_dtype(dtype)
    number = helper.np_dtype_to_tensor_dtype(kind)
    rng = np.random.default_rng(3)
    slope, x = rng.standard_normal(slopes).astype(kind), rng.standard_normal((1, 6, 31, 1)).astype(kind)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("PRelu", ["x", "s"], ["y"])], "g", [value("x", number, x.shape)],
        [value("y", number, x.shape)], [numpy_helper.from_array(slope, "s")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    found = tvmopt.compile(model, records=False).model.run({"x": x})["y"].astype(np.float64)
    wide = x.astype(np.float64)
    want = np.where(wide < 0, wide * slope.astype(np.float64), wide)
    np.testing.assert_allclose(found, want, rtol=TYPES[dtype])


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "uint32", "int16", "uint8", "bool"]
)
@pytest.mark.parametrize("size", [1, 7, 33])
def test_a_cast_to_bfloat16_rounds_where_nothing_is_stored(dtype: str, size: int) -> None:
    """TVM's kernels keep bfloat16 in float32: of a float64, a float16 or an integer all digits went through."""
    rng = np.random.default_rng(size)
    x = (rng.integers(0, 30000, size) + (rng.random(size) if np.dtype(dtype).kind == "f" else 0)).astype(dtype)
    source = helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    infos = [helper.make_tensor_value_info(n, t, [size]) for n, t in (("x", source), ("y", TensorProto.FLOAT))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    found = tvmopt.compile(made).model.run({"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.bfloat16).astype(np.float32))
