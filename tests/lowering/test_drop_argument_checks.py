"""Kernels of the memory plan have no checks of their arguments, and keep those of their data."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tvmopt.compiler.kernels import compiled as kernel
from tvmopt.errors import InputError
from tvmopt.lowering.drop_argument_checks import OUTSIDE, DropArgumentChecks
from tvmopt.lowering.half_helpers import NAMES
from tvmopt.targets import Machine


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int]]], **constants: np.ndarray
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def chain() -> onnx.ModelProto:
    """A reduction between two products: three kernels, of which the first one reads the input."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ReduceMax", ["a", "axes"], ["m"]),
        helper.make_node("Sub", ["a", "m"], ["d"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    constants = {"w": rng.random((17, 33), np.float32), "v": rng.random((33, 9), np.float32), "axes": np.array([1])}
    return model(nodes, {"x": (TensorProto.FLOAT, [7, 17])}, **constants)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Text of each kernel behind all stages."""
    from tvmopt import pipeline

    monkeypatch.setenv("TVMOPT_CACHE", "off")
    seen, real = list[str](), pipeline.generate_once

    def generate(module: object, machine: Machine, **options: bool) -> object:
        functions = module.functions_items()  # type: ignore[attr-defined]
        seen.extend(func.script() for gvar, func in functions if gvar.name_hint.encode() not in NAMES)
        return real(module, machine, **options)

    monkeypatch.setattr(pipeline, "generate_once", generate)
    return seen


def test_only_the_first_kernel_checks(kernels: list[str]) -> None:
    compiled = tvmopt.compile(chain(), verify=False, threads=1)
    checked = ["assert" in text for text in kernels]
    assert sum(checked) == 1 and len(checked) > 1
    x = np.random.default_rng(1).random((7, 17), np.float32)
    w, v = (numpy_helper.to_array(one).astype(np.float64) for one in chain().graph.initializer[:2])
    a = x @ w
    np.testing.assert_allclose(compiled(x), (a - a.max(1, keepdims=True)) @ v, rtol=1e-4, atol=1e-5)


def test_the_first_kernel_checks_its_input_alone(kernels: list[str]) -> None:
    tvmopt.compile(chain(), verify=False, threads=1)
    (text,) = (text for text in kernels if "assert" in text)
    checks = [line for line in text.splitlines() if line.strip().startswith("assert")]
    conditions = [line.partition(', ("')[0] for line in checks]
    assert len(conditions) > 5 and not any("arg1" in one or "unpack" in one for one in conditions), conditions


@pytest.mark.parametrize("spoil", ["dtype", "rank", "size", "strides", "kind"])
def test_an_argument_from_outside_is_looked_at(spoil: str) -> None:
    """A kernel whose first argument is an input of the model; the second one is taken as it is."""
    import tvm
    from tvm import te

    x = te.placeholder((4, 8), name="x")
    func = te.create_prim_func([x, te.compute((4, 8), lambda i, j: x[i, j] + 1.0, name="y")])
    func = func.with_attr(OUTSIDE, [0])
    add = kernel(func, "add", tvm.IRModule({"add": func}), Machine.load("x86-64-v3"))["add"]
    good, out = (tvm.runtime.tensor(np.zeros((4, 8), np.float32)) for _ in range(2))
    bad = {
        "dtype": lambda: tvm.runtime.tensor(np.zeros((4, 8), np.int32)),
        "rank": lambda: tvm.runtime.tensor(np.zeros((32,), np.float32)),
        "size": lambda: tvm.runtime.tensor(np.zeros((4, 7), np.float32)),
        "strides": lambda: tvm_ffi.from_dlpack(np.zeros((8, 4), np.float32).T),
        "kind": lambda: 3,
    }[spoil]()
    with pytest.raises(Exception, match=r"Mismatched|Invalid"):
        add(bad, out)
    add(good, out)
    np.testing.assert_array_equal(out.numpy(), np.ones((4, 8)))


def test_left_out_everything_is_checked(kernels: list[str]) -> None:
    tvmopt.compile(chain(), verify=False, threads=1, without=["DropArgumentChecks"])
    assert all("assert" in text for text in kernels)


def test_the_code_is_smaller() -> None:
    size = [
        len(tvmopt.compile(chain(), verify=False, without=w).artifact.library) for w in ([], ["DropArgumentChecks"])
    ]
    assert size[0] < 0.9 * size[1]


def test_checks_of_data_stay(kernels: list[str]) -> None:
    """An index that is computed in front of the kernel that it is used in, and is out of range."""
    nodes = [
        helper.make_node("ReduceSum", ["i", "axes"], ["s"], keepdims=0),
        helper.make_node("Gather", ["table", "s"], ["g"]),
        helper.make_node("ReduceMax", ["g", "axes"], ["y"]),
    ]
    constants = {"table": np.arange(40, dtype=np.float32).reshape(5, 8), "axes": np.array([1])}
    compiled = tvmopt.compile(model(nodes, {"i": (TensorProto.INT64, [3, 2])}, **constants), threads=1)
    good = np.array([[0, 1], [2, 2], [-3, -2]])
    np.testing.assert_array_equal(np.ravel(compiled(good)), [15, 39, 7])
    for wrong in ([[3, 2], [0, 0], [0, 0]], [[0, 0], [0, 0], [-3, -3]], [[0, 0], [2**62, 2**61], [0, 0]]):
        with pytest.raises(InputError, match="range"):
            compiled(np.array(wrong))


def test_sizes_that_a_call_decides_are_checked(kernels: list[str]) -> None:
    """Kernels behind the first one compare the open sizes of their tensors, and nothing else."""
    graph = chain()
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    compiled = tvmopt.compile(graph, verify=False, threads=1)
    checks = [[line for line in text.splitlines() if line.strip().startswith("assert")] for text in kernels]
    behind = sorted(checks, key=len)[:-1]
    assert behind and all(behind)
    for lines in behind:
        assert all(re.search(r"assert n == T.tvm_struct_get\(\w+_shape, \d, 17", line) for line in lines)
        assert not any("Tensor(" in line for line in lines), "the kernel's signature is no part of the message"
    w, v = (numpy_helper.to_array(one).astype(np.float64) for one in graph.graph.initializer[:2])
    for rows in (1, 8, 9):
        x = np.random.default_rng(rows).random((rows, 17), np.float32)
        np.testing.assert_allclose(compiled(x), (x @ w - (x @ w).max(1, keepdims=True)) @ v, rtol=1e-4, atol=1e-5)


def test_a_wrong_size_is_an_error_and_no_foreign_memory() -> None:
    """A marked kernel that a wrong formula gives a result of fewer rows."""
    import tvm
    from tvm import te

    n = te.var("n", "int64")
    x = te.placeholder((n, 8), name="x")
    func = te.create_prim_func([x, te.compute((n, 8), lambda i, j: x[i, j] + 1.0, name="y")])
    func = func.with_attr(OUTSIDE, [])
    add = kernel(func, "add", tvm.IRModule({"add": func}), Machine.load("x86-64-v3"))["add"]
    a, b = (tvm.runtime.tensor(np.zeros((rows, 8), np.float32)) for rows in (5, 4))
    with pytest.raises(Exception, match=r"Mismatched y.shape\[0\]"):
        add(a, b)
    add(a, a)
    np.testing.assert_array_equal(a.numpy(), np.ones((5, 8)))


def test_a_function_that_is_not_marked_stays() -> None:
    import tvm
    from tvm import te

    x = te.placeholder((8,), name="x")
    module = tvm.IRModule({"f": te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0)])})
    tvm.ir.assert_structural_equal(DropArgumentChecks(module), module)
