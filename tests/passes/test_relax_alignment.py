"""Kernels that read an input of the model take it at any address of an element."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx
from tvm_ffi import structural_walk

import tvmopt
from tests.passes.helpers import build
from tvmopt.passes.relax_alignment import relax_alignment
from tvmopt.runtime.tensors import aligned_empty

LANES = 16


def legalized(inputs: dict[str, object], body: object) -> tvm.IRModule:
    return relax.transform.LegalizeOps()(build(inputs, body))


def alignments(module: tvm.IRModule) -> dict[str, list[int]]:
    return {
        gvar.name_hint: [int(p.ty.data_alignment) for p in func.params]
        for gvar, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_only_inputs_may_lie_anywhere() -> None:
    module = legalized(
        {"x": (4, 8), "h": ((4, 8), "float16")},
        lambda b, x, h: (b.emit(relax.op.exp(relax.op.sqrt(x))), relax.op.abs(h)),
    )
    found = alignments(relax_alignment(module))
    assert found["tir_sqrt"] == [4, 64]
    assert found["tir_exp"] == [64, 64]
    assert found["tir_abs"] == [2, 64]
    assert set(map(tuple, alignments(module).values())) == {(64, 64)}, "the module given is left alone"


def test_weights_stay_aligned() -> None:
    module = legalized({"x": (4, 8), "w": (4, 8)}, lambda b, x, w: relax.op.add(x, w))
    module.update_func(module.get_global_var("main"), module["main"].with_attr("num_input", 1))
    assert alignments(relax_alignment(module))["add"] == [4, 64, 64]


def test_views_of_inputs_are_followed() -> None:
    module = legalized({"x": (4, 8)}, lambda b, x: relax.op.sqrt(relax.op.reshape(x, (32,))))
    module = relax.transform.RewriteDataflowReshape()(module)
    assert alignments(relax_alignment(module))["tir_sqrt"] == [4, 64]


def test_the_body_reads_the_parameter() -> None:
    func = relax_alignment(legalized({"x": (4, 8)}, lambda b, x: relax.op.sqrt(x)))["tir_sqrt"]
    loads: list[object] = []
    structural_walk(func.body, (tvm.ir.Var, lambda v: loads.append(v) if v.same_as(func.params[0]) else None))
    assert loads


NODES = {
    "Sqrt": [helper.make_node("Sqrt", ["x"], ["y"])],
    "Conv": [helper.make_node("Conv", ["x", "filters"], ["y"], pads=[1, 1, 1, 1])],
    "MaxPool": [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])],
    "AveragePool": [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
    "Softmax": [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
    "LayerNormalization": [helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["y"])],
    "Transpose": [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])],
    "MatMul": [helper.make_node("Reshape", ["x", "rows"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])],
    "ReduceSum": [helper.make_node("ReduceSum", ["x", "axes"], ["y"])],
    "Concat": [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)],
    "Resize": [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
}
"""Nodes that make y of x, float32[1, 8, 17, 33]."""


def model(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "filters": rng.standard_normal((32, 8, 3, 3), np.float32),
        "scale": rng.standard_normal(33, np.float32),
        "shift": rng.standard_normal(33, np.float32),
        "rows": np.array([-1, 33], np.int64),
        "w": rng.standard_normal((33, 40), np.float32),
        "axes": np.array([2], np.int64),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 17, 33])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, n) for n, a in constants.items() if n in used],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("name", NODES)
def test_every_address_gives_the_same_numbers(name: str) -> None:
    compiled = tvmopt.compile(model(NODES[name]), threads=1, verify=False)
    x = np.random.default_rng(1).random((1, 8, 17, 33), np.float32)
    memory = aligned_empty((x.size + LANES,), np.dtype(np.float32))
    expected = compiled(x)
    for start in range(LANES):
        memory[start : start + x.size] = x.ravel()
        np.testing.assert_array_equal(compiled(memory[start : start + x.size].reshape(x.shape)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.float16, np.float64, np.bool_])
def test_every_element_type(dtype: type) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    op = helper.make_node("Not" if dtype is np.bool_ else "Neg", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, kind, [9, 33]) for name in "xy")
    graph = helper.make_graph([op], "g", [x], [y])
    compiled = tvmopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), threads=1, verify=False
    )
    values = np.random.default_rng(0).integers(0, 2, (9, 33)).astype(dtype)
    memory = aligned_empty((values.size + 8,), values.dtype)
    for start in range(8):
        memory[start : start + values.size] = values.ravel()
        found = compiled(memory[start : start + values.size].reshape(values.shape))
        np.testing.assert_array_equal(found, ~values if dtype is np.bool_ else -values)
