"""Whole quantised models through the pipeline: what lies in memory is bytes, and the numbers are the model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tvmopt import pipeline
from tvmopt.importer import import_model
from tvmopt.report import DecisionLog
from tvmopt.targets import Machine

HOST = Machine.load("cpu").with_cores(2)
Array = np.ndarray[Any, Any]


class Net:
    """Writes a QDQ graph as quantizers do: a pair around every tensor, weights as dequantized constants."""

    def __init__(self, kind: str, per_channel: bool, seed: int = 0) -> None:
        self.kind, self.per_channel, self.rng = kind, per_channel, np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, order="C"), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*inputs], [name], name=name, **attributes))
        return name

    def pair(self, x: str, scale: float, zero: int) -> str:
        zero = zero if self.kind == "uint8" else zero - 128
        own = [self.constant(np.float32(scale)), self.constant(np.array(zero, self.kind))]
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *own), *own)

    def pair_of_channels(self, x: str, count: int, scale: float, zero: int) -> str:
        """A scale for each channel, as NNCF has it before depthwise convolutions."""
        scales = (scale * (0.5 + self.rng.random(count))).astype("float32")
        zeros = np.full(count, zero if self.kind == "uint8" else zero - 128, self.kind)
        own = [self.constant(scales), self.constant(zeros)]
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *own, axis=1), *own, axis=1)

    def weight(self, *dims: int, axis: int = 0) -> str:
        count = dims[axis] if self.per_channel else 1
        w = self.rng.integers(-127, 128, dims).astype("int8")
        fan = np.prod(dims) / dims[axis]
        scale = ((0.5 + self.rng.random(count)) / (60 * fan**0.5)).astype("float32")
        own = [scale, np.zeros(count, "int8")] if self.per_channel else [scale[0], np.int8(0)]
        return self.node("DequantizeLinear", self.constant(w), *map(self.constant, own), axis=axis)

    def conv(self, x: str, o: int, i: int, k: int, stride: int = 1, group: int = 1) -> str:
        bias = self.constant((self.rng.standard_normal(o) / 4).astype("float32"))
        pads = [k // 2] * 4
        return self.node(
            "Conv", x, self.weight(o, i // group, k, k), bias, pads=pads, strides=[stride] * 2, group=group
        )

    def conv1d(self, x: str, o: int, i: int, k: int, stride: int = 1, group: int = 1) -> str:
        bias = self.constant((self.rng.standard_normal(o) / 4).astype("float32"))
        w = self.weight(o, i // group, k)
        return self.node("Conv", x, w, bias, pads=[k // 2] * 2, strides=[stride], group=group)

    def model(self, out: str, x: list[int], y: list[int]) -> Any:
        real = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", x), (out, y))]
        graph = helper.make_graph(self.nodes, "net", real[:1], real[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual(net: Net) -> Any:
    """A stem, a maximum, a bottleneck with a shortcut of another scale, a concatenation, an average and a product."""
    x = net.pair("x", 0.02, 120)
    x = net.pair(net.node("Relu", net.conv(x, 16, 3, 7, 2)), 0.02, 0)
    x = net.pair(net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 0.02, 0)
    a = net.pair(net.node("Relu", net.conv(x, 16, 16, 1)), 0.018, 0)
    a = net.pair(net.conv(a, 32, 16, 3), 0.021, 131)
    b = net.pair(net.conv(x, 32, 16, 1), 0.023, 127)
    x = net.pair(net.node("Relu", net.node("Add", a, b)), 0.02, 0)
    d = net.pair(net.conv(x, 32, 32, 3, group=32), 0.015, 121)
    x = net.pair(net.node("Concat", x, d, axis=1), 0.02, 60)
    x = net.pair(net.node("GlobalAveragePool", x), 0.01, 60)
    x = net.pair(net.node("Flatten", x), 0.01, 60)
    x = net.node("Gemm", x, net.weight(10, 64), net.constant(net.rng.standard_normal(10).astype("float32")), transB=1)
    return net.model(x, [1, 3, 33, 31], [1, 10])


def transformer(net: Net) -> Any:
    """Rows through two products with GELU between, a residual and a norm, per tensor activations."""
    x = net.pair("x", 0.03, 127)
    h = net.node("MatMul", x, net.weight(32, 64, axis=1))
    h = net.node("Add", h, net.constant((net.rng.standard_normal(64) / 4).astype("float32")))
    erf = net.node("Erf", net.node("Div", h, net.constant(np.float32(2**0.5))))
    half = net.node("Mul", h, net.node("Add", erf, net.constant(np.float32(1))))
    h = net.pair(net.node("Mul", half, net.constant(np.float32(0.5))), 0.02, 17)
    h = net.pair(net.node("MatMul", h, net.weight(64, 32, axis=1)), 0.03, 127)
    out = net.node("Add", h, x)
    return net.model(out, [1, 9, 32], [1, 9, 32])


def gated(net: Net) -> Any:
    """Convolutions with SiLU and HardSwish between, pairs around every tensor, as quantizers write EfficientNet."""
    x = net.pair("x", 0.02, 120)
    x = net.pair(net.conv(x, 20, 3, 3, 2), 0.03, 121)
    x = net.pair(net.node("Mul", x, net.pair(net.node("Sigmoid", x), 1 / 256, 0)), 0.02, 16)
    x = net.pair(net.conv(x, 20, 20, 3, group=20), 0.02, 131)
    x = net.pair(net.node("Mul", x, net.pair(net.node("HardSigmoid", x, alpha=1 / 6), 1 / 255, 0)), 0.015, 12)
    return net.model(net.conv(x, 24, 20, 1), [1, 3, 33, 31], [1, 24, 17, 16])


def separable(net: Net) -> Any:
    """Inverted residuals as NNCF quantizes them: bounds, and depthwise convolutions of channels with scales each."""
    zero, six = net.constant(np.float32(0)), net.constant(np.float32(6))
    x = net.pair("x", 0.02, 120)
    x = net.pair_of_channels(net.node("Clip", net.conv(x, 20, 3, 3, 2), zero, six), 20, 0.02, 0)
    a = net.pair(net.node("Clip", net.conv(x, 20, 20, 3, group=20), zero, six), 6 / 255, 0)
    a = net.pair(net.conv(a, 24, 20, 1), 0.02, 128)
    h = net.node("Mul", h := net.conv(a, 32, 24, 1), net.node("Sigmoid", h))
    h = net.pair_of_channels(h, 32, 0.02, 128)
    h = net.pair(net.node("Relu", net.conv(h, 32, 32, 5, group=32)), 0.02, 0)
    b = net.pair(net.conv(h, 24, 32, 1), 0.02, 128)
    return net.model(net.node("Add", a, b), [1, 3, 33, 31], [1, 24, 17, 16])


def speech(net: Net) -> Any:
    """Convolutions along one axis, a maximum and a residual between them."""
    x = net.pair("x", 0.02, 120)
    x = net.pair(net.node("Relu", net.conv1d(x, 20, 7, 5, 2)), 0.02, 0)
    x = net.pair(net.node("MaxPool", x, kernel_shape=[3], strides=[1], pads=[1] * 2), 0.02, 0)
    d = net.pair(net.node("Relu", net.conv1d(x, 20, 20, 3, group=20)), 0.015, 3)
    x = net.pair(net.node("Add", net.pair(net.conv1d(d, 20, 20, 1), 0.021, 131), x), 0.025, 60)
    return net.model(net.conv1d(x, 9, 20, 3), [2, 7, 61], [2, 9, 31])


NETS = {"speech": speech, "residual": residual, "transformer": transformer, "gated": gated, "separable": separable}


def compiled(model: Any, int8: str = "auto") -> tuple[Any, Any]:
    low = pipeline.lower(import_model(model).module, HOST, int8=int8)
    return low, relax.VirtualMachine(pipeline.build(low, HOST), tvm.cpu())


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("name", NETS)
def test_numbers(name: str, kind: str, per_channel: bool) -> None:
    """As far from float64 as onnxruntime without optimizations, which rounds after every operator, and a step."""
    model = NETS[name](Net(kind, per_channel))
    onnx.checker.check_model(model, full_check=True)
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    peer = session(model)
    low, vm = compiled(model)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(dims).astype("float32")
        (expected,) = peer.run(None, {"x": x})
        found = vm["main"](tvm.runtime.tensor(x))[0].numpy()
        assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()
        assert np.abs(found - expected).mean() <= 0.002 * np.abs(expected).max()
    assert "generic" not in {k.family for k in low.kernels}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_no_float_lies_in_memory_between_the_first_quantization_and_the_last(kind: str) -> None:
    low, _ = compiled(residual(Net(kind, True)), int8="all")
    main, floats = low.module["main"], set()
    for block in main.body.blocks:
        for binding in block.bindings:
            kind_of = binding.var.ty
            if isinstance(kind_of, relax.TensorType) and str(kind_of.dtype) == "float32":
                floats.add(tuple(int(d) for d in kind_of.shape.values))
    assert floats == {(1, 10)}  # the output


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_convolutions_along_one_axis_are_products_of_bytes_with_their_epilogue(kind: str) -> None:
    low, _ = compiled(speech(Net(kind, True)), int8="all")
    assert low.log.count("tvmopt.ConvertIntegerProducts") == 4
    products = [k for k in low.kernels if k.family.removeprefix("amx_") in ("conv2d", "gemm", "depthwise")]
    assert len(products) == 4 and not [k.name for k in products[:-1] if "quantize" not in k.name]
    others = [k for k in low.kernels if k not in products]  # the input's and the output's layout, and the maximum
    assert sorted(k.family for k in others) == ["layout", "layout", "pool"]


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_scales_of_channels_leave_bytes(kind: str) -> None:
    """Depthwise convolutions of data with a scale for each channel read and write bytes; no bound is left of ReLU6."""
    low, _ = compiled(separable(Net(kind, True)), int8="all")
    depthwise = [k for k in low.kernels if k.family == "depthwise"]
    assert len(depthwise) == 2 and low.log.count("tvmopt.FoldChannelScales") == 2
    for kernel in depthwise:
        func = low.module[kernel.name]
        kinds = [str(p.dtype) for p in func.params]
        assert (kinds[0], kinds[-1]) == ("uint8", "uint8")


def test_functions_of_bytes_are_tables_in_the_kernel_of_their_convolution() -> None:
    machine = Machine.load("znver5")
    low = pipeline.lower(import_model(gated(Net("uint8", True))).module, machine, int8="all")
    tables = [k for k in low.kernels if "lookup" in k.name]
    assert sorted(k.family for k in tables) == ["conv2d", "depthwise"]
    assert low.log.count("tvmopt.ConvertByteFunctions") >= 2


def session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def qlinear(kind: str, per_channel: bool) -> Any:
    """QOperator: a convolution with an int32 bias, a sum with a second scale, a concatenation, a product."""
    net, one = Net(kind, per_channel), ("com.microsoft", 1)
    zero = 0 if kind == "uint8" else -128

    def scale(value: float, at: int) -> list[str]:
        return [net.constant(np.float32(value)), net.constant(np.array(at + zero, kind))]

    def weight(*dims: int, axis: int) -> list[str]:
        count = dims[axis] if per_channel else 1
        w = net.constant(net.rng.integers(-127, 128, dims).astype("int8"))
        s = ((0.5 + net.rng.random(count)) / 900).astype("float32")
        return [
            w,
            net.constant(s if per_channel else s[0]),
            net.constant(np.zeros(count, "int8") if per_channel else np.int8(0)),
        ]

    x = net.node("QuantizeLinear", "x", *scale(0.02, 120))
    bias = net.constant(net.rng.integers(-3000, 3000, 16).astype("int32"))
    a = net.node(
        "QLinearConv", x, *scale(0.02, 120), *weight(16, 8, 3, 3, axis=0), *scale(0.02, 111), bias, pads=[1] * 4
    )
    s = net.node("QLinearAdd", a, *scale(0.02, 111), a, *scale(0.03, 111), *scale(0.05, 121), domain=one[0])
    c = net.node("QLinearConcat", *scale(0.05, 121), a, *scale(0.02, 111), s, *scale(0.05, 121), axis=1, domain=one[0])
    t = net.node("Transpose", c, perm=[0, 2, 3, 1])
    y = net.node("QLinearMatMul", t, *scale(0.05, 121), *weight(32, 24, axis=1), *scale(0.04, 128))
    out = net.node("DequantizeLinear", y, *scale(0.04, 128))
    model = net.model(out, [1, 8, 9, 7], [1, 9, 7, 24])
    model.opset_import.append(helper.make_opsetid(*one))
    return model


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_qlinear_operators_are_integer_products(kind: str, per_channel: bool) -> None:
    model = qlinear(kind, per_channel)
    low, vm = compiled(model)
    assert low.log.count("tvmopt.ConvertIntegerProducts") == 2
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 8, 9, 7)).astype("float32")
        (expected,) = session(model).run(None, {"x": x})
        steps = np.abs(vm["main"](tvm.runtime.tensor(x))[0].numpy() - expected) / 0.04
        assert steps.max() < 2.5 and (steps > 0.5).mean() < 0.02  # of 4 requantizations, where a number is on a line


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_dynamic_quantization_is_an_integer_product(kind: str) -> None:
    """DynamicQuantizeLinear, MatMulInteger, Cast, Mul - as onnxruntime writes a Linear."""
    net = Net(kind, False)
    w = net.rng.integers(0, 256, (33, 17)) if kind == "uint8" else net.rng.integers(-128, 128, (33, 17))
    zero = net.constant(np.array(128 if kind == "uint8" else 0, kind))
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"))
    total = net.node("MatMulInteger", "q", net.constant(w.astype(kind)), "z", zero)
    scale = net.node("Mul", "s", net.constant(np.float32(0.01)))
    model = net.model(net.node("Mul", net.node("Cast", total, to=TensorProto.FLOAT), scale), [2, 5, 33], [2, 5, 17])
    low, vm = compiled(model)
    assert any(k.family == "gemm" for k in low.kernels)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 5, 33)).astype("float32") * 10.0**seed
        (expected,) = session(model).run(None, {"x": x})
        found = vm["main"](tvm.runtime.tensor(x))[0].numpy()
        assert np.abs(found - expected).max() <= 2e-2 * np.abs(expected).max()
        assert np.median(np.abs(found - expected)) <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("choice", ["auto", "all", "off"])
@pytest.mark.parametrize("name", ["separable", "speech"])
def test_numbers_are_those_of_the_model_whatever_is_chosen(name: str, choice: str) -> None:
    model = NETS[name](Net("uint8", True))
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    _, vm = compiled(model, int8=choice)
    x = np.random.default_rng(5).standard_normal(dims).astype("float32")
    (expected,) = session(model).run(None, {"x": x})
    found = vm["main"](tvm.runtime.tensor(x))[0].numpy()
    assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()
    assert np.abs(found - expected).mean() <= 0.002 * np.abs(expected).max()


@pytest.mark.parametrize(("int8", "target", "expected"), [
    ("auto", "znver5", 5), ("all", "znver5", 6), ("auto", "x86-64-v3", 5), ("all", "x86-64-v3", 6),
    ("auto", "aarch64", 0), ("all", "aarch64", 6), ("off", "znver5", 0), ("all", "cuda", 0),
])  # fmt: skip
def test_which_products_are_integer_products(int8: str, target: str, expected: int) -> None:
    machine, log = Machine.load(target), DecisionLog()
    module = import_model(residual(Net("uint8", True))).module
    with machine.tvm_target():
        for one in pipeline.graph_passes(machine, log, int8=int8):
            module = one(module)
    assert log.count("tvmopt.ConvertIntegerProducts") == expected


OPENED = {
    "residual, samples": ("residual", ("n", 3, 33, 31), {"n": 1}, {"n": 3}),
    "transformer, rows": ("transformer", ("n", "t", 32), {"n": 1, "t": 9}, {"n": 2, "t": 33}),
    "gated, samples": ("gated", ("n", 3, 33, 31), {"n": 1}, {"n": 3}),
    "gated, pictures": ("gated", ("n", 3, "h", "w"), {"n": 1, "h": 33, "w": 31}, {"n": 2, "h": 17, "w": 64}),
}


@pytest.mark.parametrize("name", OPENED)
def test_open_sizes_are_computed_in_bytes(name: str) -> None:
    network, dims, *sizes = OPENED[name]
    model = NETS[network](Net("uint8", True))
    for value in (*model.graph.input, *model.graph.output):
        for dim, size in zip(value.type.tensor_type.shape.dim, dims, strict=False):
            if isinstance(size, str):
                dim.dim_param = size
        if value.name != "x" and "h" in dims:
            value.type.ClearField("tensor_type")
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    made = tvmopt.compile(model, shape={s: "1..64" for s in dims if isinstance(s, str)}, verify=False)
    products = [k for k in made.report.kernels if "conv" in k.name or "matmul" in k.name or "depthwise" in k.name]
    assert len(products) >= 2 and not [k.name for k in products if "quantize" not in k.name and k is not products[-1]]
    others = [k.name for k in made.report.kernels if k not in products]
    assert not [name for name in others if "dequantize" in name or "pack_weight" in name]
    assert not [k.name for k in products if k.family == "generic"]
    peer = session(model)
    for size in sizes:
        x = np.random.default_rng(len(size)).standard_normal([size.get(d, d) for d in dims]).astype("float32")
        (expected,) = peer.run(None, {"x": x})
        (found,) = made.model.run({"x": x}).values()
        assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()
        assert np.abs(found - expected).mean() <= 0.002 * np.abs(expected).max()
