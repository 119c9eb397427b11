"""Concatenations whose parts are written in place: numbers, against onnxruntime; who declines; what the report says."""

from __future__ import annotations

import random
from functools import partial

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
from tvmopt.scheduling import concat_in_place
from tvmopt.scheduling.discover import family_named
from tvmopt.scheduling.parts import Place
from tvmopt.targets import Machine

MACHINE = Machine.load("cpu").with_cores(2).without_tiles()  # tiles read no part of a tensor; tests/amx has some
WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


class Net:
    """An ONNX model in the making: every method adds a node and returns its result's name; `x` is the input."""

    def __init__(self, channels: int = 8, size: int = 6, batch: int = 1) -> None:
        self.nodes, self.weights, self.width = [], [], {"x": channels}
        self.shape = (batch, channels, size, size)
        self.random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, width: int, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        self.width[name] = width
        return name

    def constant(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        array = (self.random.standard_normal(shape) * scale).astype("float32")
        self.weights.append(numpy_helper.from_array(array, name))
        self.width[name] = shape[1] if len(shape) > 1 else shape[0]
        return name

    def conv(self, x: str, width: int, kernel: int = 1, relu: bool = True) -> str:
        w, b = self.constant(width, self.width[x], kernel, kernel), self.constant(width)
        y = self.add("Conv", x, w, b, width=width, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4)
        return self.add("Relu", y, width=width) if relu else y

    def pool(self, x: str) -> str:
        return self.add("MaxPool", x, width=self.width[x], kernel_shape=[3, 3], pads=[1] * 4)

    def concat(self, *parts: str, axis: int = 1) -> str:
        width = sum(self.width[p] for p in parts) if axis == 1 else self.width[parts[0]]
        return self.add("Concat", *parts, width=width, axis=axis)

    def model(self, *outputs: str) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lowered(model: onnx.ModelProto, **options) -> pipeline.Lowered:
    return pipeline.lower(import_model(model.SerializeToString()).module, MACHINE, DecisionLog(), **options)


def outputs(made: pipeline.Lowered, x) -> list:
    vm = relax.VirtualMachine(pipeline.build(made, MACHINE), tvm.cpu())
    return [o.numpy() for o in vm["main"](tvm.runtime.tensor(x))]


def check(net: Net, *results: str) -> tuple[int, list[str]]:
    """Compile, compare with onnxruntime; how many concatenations are in place, and why others are not."""
    model = net.model(*results)
    x = np.random.default_rng(1).standard_normal(net.shape).astype("float32")
    made = lowered(model)
    relax.analysis.well_formed(made.module)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for got, want in zip(outputs(made, x), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    mine = [d for d in made.log if d.stage == concat_in_place.STAGE]
    return sum(d.verdict == "applied" for d in mine), [d.reason for d in mine if d.verdict == "declined"]


@pytest.fixture
def narrow(monkeypatch):
    """Parts as narrow as one number, too."""
    monkeypatch.setattr(concat_in_place, "LEAST_RUN", 0)


@pytest.fixture
def forced(narrow, monkeypatch):
    """Also where loops run over rows."""
    monkeypatch.setattr(concat_in_place, "runs_stay", lambda func, places: True)


@pytest.mark.parametrize("order", [WIDTHS, WIDTHS[::-1]])
def test_widths_around_a_vector(forced, order):
    net = Net()
    parts = [net.conv("x", n, kernel=1 + 2 * (k % 2)) for k, n in enumerate(order)]
    y = net.concat(*parts)
    assert check(net, net.conv(y, 16)) == (1, [])


def test_batch_of_two_and_pools(narrow):
    net = Net(batch=2)
    a = net.conv("x", 17, relu=False)
    y = net.concat(net.pool(a), net.conv(a, 15, 3), net.pool(net.conv("x", 8)))
    assert check(net, net.pool(y)) == (1, [])


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_other_axes(narrow, axis):
    net = Net(batch=2)
    y = net.concat(net.conv("x", 9), net.conv("x", 9, 3), axis=axis)
    assert check(net, net.conv(y, 8)) == (1, [])


def test_growing_like_densenet(narrow):
    """Every step reads all before it and adds 16; one function writes all of them."""
    net = Net(channels=16)
    y = net.conv("x", 31)
    for _ in range(4):
        scale, shift = net.constant(1, net.width[y], 1, 1), net.constant(1, net.width[y], 1, 1)
        h = net.add("Mul", y, scale, width=net.width[y])
        h = net.add("Relu", net.add("Add", h, shift, width=net.width[y]), width=net.width[y])
        y = net.concat(y, net.conv(net.conv(h, 32), 16, 3, relu=False))
    model = net.model(net.pool(y))
    made = lowered(model)
    assert made.log.count(concat_in_place.STAGE) == 4
    assert [k.calls for k in made.kernels if k.family == "winograd" or "conv2d" in k.name] == [4]
    assert check(net, net.pool(y)) == (4, [])


def test_concatenations_of_concatenations(narrow):
    net = Net()
    inner = net.concat(net.conv("x", 16), net.conv("x", 7))
    other = net.concat(net.conv("x", 23), inner, axis=2)
    last = net.concat(net.conv("x", 9), net.conv("x", 9, 3), axis=2)
    y = net.concat(other, last)
    readers = [net.pool(c) for c in (inner, other, last)]  # without them, all are fused to one kernel
    assert check(net, net.conv(y, 16), *readers) == (4, [])


def test_part_read_by_other_kernels(narrow):
    net = Net()
    a = net.conv("x", 16)
    b, c = net.conv(a, 15, 3), net.pool(a)  # both read a part of what they write
    y = net.concat(b, a, c)
    total = net.add("Sigmoid", net.add("Add", a, c, width=16), width=16)
    assert check(net, net.conv(y, 16), net.conv(total, 8)) == (1, [])


def test_part_read_by_a_kernel_of_two_results():
    """It was built with a tuple's type where TVM takes the types of its members: an error of TVM's."""
    model = onnx.parser.parse_model("""
        < ir_version: 9, opset_import: ["" : 20] >
        g (double[1, 1, 9] x, double[2, 1, 4] h) => (a, b)
        < double[2, 4, 9] w, double[2, 4, 4] r > {
            y = RNN <direction = "bidirectional", hidden_size = 4> (x, w, r, "", "", h)
            a, b = Split <axis = -3, num_outputs = 2> (y)
        }""")
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal(s), n) for n, s in (("w", (2, 4, 9)), ("r", (2, 4, 4)))]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    w, r = (numpy_helper.to_array(t) for t in weights)
    x, h = rng.standard_normal((1, 1, 9)), rng.standard_normal((2, 1, 4))
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x, "h": h})["a"]
    wanted = np.tanh(np.einsum("tbi,dhi->tdbh", x, w) + np.einsum("dbk,dhk->dbh", h, r))
    np.testing.assert_allclose(found, wanted[:, :1], rtol=1e-12)


def test_result_of_the_model():
    net = Net()
    assert check(net, net.concat(net.conv("x", 16), net.conv("x", 32, 3)), net.conv("x", 8))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (("a", "b"), ""),
        (("a", "a"), "twice"),
        (("a", "x"), "x is not the result of one kernel"),
        (("w", "b"), "a constant is not the result of one kernel"),
        (("a", "result"), "read other than by kernels"),
        (("narrow", "b"), "60 bytes"),
    ],
)
def test_declines(parts, why):
    """Matrices, which no transpose stands in front of."""
    net = Net()
    net.shape, net.width["x"] = (4, 16), 16
    made = {"x": "x", "w": net.constant(4, 16)}
    for name, width in (("a", 16), ("b", 16), ("result", 32), ("narrow", 15)):
        made[name] = net.add("MatMul", "x", net.constant(16, width), width=width)
    y = net.concat(*(made[p] for p in parts))
    z = net.add("MatMul", y, net.constant(net.width[y], 8), width=8)
    applied, reasons = check(net, z, made["result"], y)
    assert applied == (not why)
    assert any(why in reason for reason in reasons) or not why, reasons


def test_kernels_that_came_with_a_schedule():
    """TVM's own sort reads a part: the concatenation copies."""
    net = Net()
    net.shape, net.width["x"] = (4, 16), 16
    a, b = (net.add("MatMul", "x", net.constant(16, 16), width=16) for _ in range(2))
    net.weights.append(numpy_helper.from_array(np.array([3], "int64"), "k"))
    net.nodes.append(helper.make_node("TopK", [a, "k"], ["top", "where"], name="topk", axis=1))
    assert check(net, net.concat(a, b), "top")[0] == 0


def test_inputs_and_results_that_are_transposed():
    """A kernel stands between: it writes the part, or reads it."""
    net = Net(channels=16)
    a = net.conv("x", 16)
    y = net.conv(net.concat(a, "x", net.conv("x", 16, 3)), 8)
    assert check(net, y, a)[0] == 1


def test_part_of_two_concatenations(narrow):
    """The later one is in place; the other reads its part from there."""
    net = Net()
    a, b, c = net.conv("x", 16), net.conv("x", 8, 3), net.conv("x", 24)
    first = net.conv(net.concat(a, b), 8)
    applied, reasons = check(net, net.conv(net.concat(c, a), 8), first)
    assert applied == 1
    assert ["already a part" in reason for reason in reasons] == [True]


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs(request, seed):
    request.getfixturevalue("forced" if seed % 2 else "narrow")
    draw = random.Random(seed)
    net = Net(batch=draw.choice((1, 2)), size=draw.choice((5, 7, 8)))
    pool = ["x", net.conv("x", draw.choice(WIDTHS))]
    for _ in range(10):
        a = draw.choice(pool[-4:])
        kind = draw.choice(("conv", "conv", "pool", "concat", "concat", "sigmoid"))
        if kind == "conv":
            pool.append(net.conv(a, draw.choice(WIDTHS), draw.choice((1, 3))))
        elif kind == "concat":
            pool.append(net.concat(*(draw.choice(pool) for _ in range(draw.choice((2, 3))))))
        else:
            pool.append(net.pool(a) if kind == "pool" else net.add("Sigmoid", a, width=net.width[a]))
    last = net.concat(*pool[-3:], net.conv(pool[-1], 16))
    check(net, net.conv(last, 8), pool[-2])


def test_bf16(narrow):
    net = Net(channels=16)
    parts = [net.conv("x", n, 3) for n in (7, 16, 33)]
    y = net.concat(*parts)
    z = net.conv(y, 16)
    model = net.model(net.conv(z, 8, 3), net.conv(parts[1], 8))
    x = np.random.default_rng(1).standard_normal(net.shape).astype("float32")
    made = lowered(model, precision="bf16")
    assert made.log.count(concat_in_place.STAGE) == 1
    got = outputs(made, x)
    plain = lowered(model, precision="bf16", without=(concat_in_place.STAGE,))
    assert not plain.log.count(concat_in_place.STAGE)
    for a, b in zip(got, outputs(plain, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tiles_write_parts_and_read_none():
    """A growing tensor that sums and norms read. tests/amx runs such a network, in an emulator if need be."""
    net = Net(channels=64, size=14)
    y = net.conv("x", 64, 3)
    h = net.add("Mul", y, net.constant(1, 64, 1, 1), width=64)
    grown = net.concat(y, net.conv(net.add("Relu", h, width=64), 32, 3))
    model = net.model(net.add("GlobalAveragePool", grown, width=96))
    machine = Machine.load("sapphirerapids").with_cores(2)
    made = pipeline.lower(import_model(model.SerializeToString()).module, machine, DecisionLog(), precision="bf16")
    assert made.log.count(concat_in_place.STAGE) == 1
    assert [k.family for k in made.kernels if "conv2d" in k.name and "_part" in k.name] == ["amx_conv2d"] * 2
    place = Place((1, 14, 14, 96), (0, 0, 0, 0))
    for family in map(partial(family_named, "llvm"), ("amx_conv2d", "amx_gemm")):
        assert concat_in_place._allowed(family, {3: place}, out=3)
        assert not concat_in_place._allowed(family, {0: place, 3: place}, out=3)


def test_report():
    """Kernels, their nodes and bytes: the copy's are gone, its node is the last writer's."""
    net = Net(size=8)
    y = net.conv(net.concat(net.conv("x", 16), net.conv("x", 32)), 8)
    made = lowered(net.model(y))
    assert not any("concat" in k.name for k in made.kernels)
    nodes = [node for k in made.kernels for site in k.nodes for node in site]
    assert nodes.count("t4") == 1
    first, second = (next(k for k in made.kernels if node in k.nodes[0]) for node in ("t1", "t4"))
    assert second.bytes - first.bytes == 4 * (16 * 64 + 16 * 8 + 16)  # results, weights, bias: no more than its part
