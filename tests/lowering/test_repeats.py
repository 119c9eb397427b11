"""Kernels that are made once for layers that are repeated: the same module as without, and never another layer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tvmopt import pipeline
from tvmopt.importer import import_model
from tvmopt.lowering import repeats
from tvmopt.targets import Machine

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def layers(sizes: tuple[int, ...]) -> onnx.ModelProto:
    """Convolutions of repeated and of new sizes, sums of a tensor with itself and with another, activations."""
    rng = np.random.default_rng(0)
    nodes, weights, at = [], [], "x"
    for i, (c, n) in enumerate(pairwise(sizes)):
        weights.append(numpy_helper.from_array(rng.standard_normal((n, c, 3, 3), np.float32) / (3 * c**0.5), f"w{i}"))
        nodes.append(helper.make_node("Conv", [at, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        nodes.append(helper.make_node("Add", [f"r{i}", f"r{i}" if i % 2 else f"c{i}"], [f"s{i}"]))
        at = f"s{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [1, sizes[0], 9, 9])],
        [value(at, TensorProto.FLOAT, [1, sizes[-1], 9, 9])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (8, 17, 17, 17, 33), SIZES, (3, 3, 3)], ids=str)
def test_the_module_is_the_same(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def lowered() -> object:
        return pipeline.lower(import_model(layers(sizes)).module, Machine.load("cpu")).module

    once = lowered()
    monkeypatch.setattr(repeats, "remembered", nothing)
    each = lowered()
    assert tvm_ffi.structural_equal(once, each, map_free_vars=True)


def test_it_is_right() -> None:
    assert tvmopt.compile(layers((8, 17, 17, 17, 33)), cache=False).report.accuracy["verified"]


def test_nothing_is_remembered_behind_a_module() -> None:
    with repeats.remembered():
        builder = relax.BlockBuilder()
        made = repeats.repeats(builder)
        made["key"] = repeats.Made(None, None)
        assert repeats.repeats(builder) is made
        assert not repeats.repeats(relax.BlockBuilder())
    assert not repeats.repeats(builder)


def test_a_function_is_known_by_all_that_it_has_from_around() -> None:
    def scaled(by: object) -> object:
        return lambda x, more=1: (x, by, more)

    assert repeats.captured(scaled(2)) == repeats.captured(scaled(2)) != repeats.captured(scaled(3))
    assert repeats.captured(scaled(1)) != repeats.captured(scaled(1.0))
    assert repeats.captured(scaled((1, (2, "a")))) == repeats.captured(scaled((1, (2, "a"))))
    for unknown in ([1], {"a": 1}, np.float32(1), Machine.load("cpu"), (1, [2])):
        assert repeats.captured(scaled(unknown)) is None
    assert repeats.captured(print) is None


def test_layers_share_kernels_whose_loops_are_rewritten() -> None:
    """TVM's forms of Equal, Where and PRelu are changed after they are made: each layer had kernels of its own."""
    rng = np.random.default_rng(0)
    x, nodes, weights, at = rng.standard_normal((5, 16), np.float32), [], {"zero": np.float32(0)}, "x"
    expected = x
    for i in range(3):
        weight, slope = rng.standard_normal((16, 16), np.float32), rng.random(16, np.float32)
        weight[:, :3] = 0
        weights |= {f"w{i}": weight, f"s{i}": slope}
        nodes += [
            helper.make_node("MatMul", [at, f"w{i}"], [f"p{i}"]),
            helper.make_node("Equal", [f"p{i}", "zero"], [f"e{i}"]),
            helper.make_node("Where", [f"e{i}", at, f"p{i}"], [f"c{i}"]),
            helper.make_node("PRelu", [f"c{i}", f"s{i}"], [f"y{i}"]),
        ]
        product = expected @ weight
        chosen = np.where(product == 0, expected, product)
        expected, at = np.where(chosen < 0, chosen * slope, chosen), f"y{i}"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 16])],
        [helper.make_tensor_value_info(at, TensorProto.FLOAT, [5, 16])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = tvmopt.compile(made, threads=1, verify=False, cache=False)
    assert {kernel.calls for kernel in compiled.report.kernels} == {3}
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-4, atol=1e-4)
