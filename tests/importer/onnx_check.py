"""Helpers of the importer's tests: small models, run through TVM's plain pipeline and onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvmopt.importer import load, prepare
from tvmopt.importer.relax import to_relax
from tvmopt.importer.types import Imported


def value(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> Any:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    domains: dict[str, int] | None = None,
    functions: Sequence[Any] = (),
) -> onnx.ModelProto:
    """A model of these nodes; `weights` are initialisers."""
    initial = [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initial)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    made = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    made.ir_version = min(made.ir_version, 10)
    return made


def run_relax(imported: Imported, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of the imported module, compiled with TVM's default pipeline."""
    return runner(imported)(inputs)


def runner(imported: Imported) -> Callable[[dict[str, Any]], list[Any]]:
    """The imported module, compiled once with TVM's default pipeline: its outputs for each inputs."""
    importlib.import_module("tvmopt.lowering.clamp").install()  # what TVM's pipeline makes of checked values
    executable = tvm.compile(imported.module, target=tvm.target.Target({"kind": "llvm"}))
    vm = relax.VirtualMachine(executable, tvm.cpu())

    def run(inputs: dict[str, Any]) -> list[Any]:
        return [r.numpy() for r in vm["main"](*(tvm.runtime.tensor(inputs[s.name]) for s in imported.inputs))]

    return run


def run_ort(made: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of onnxruntime, unoptimised."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def random_inputs(made: onnx.ModelProto, seed: int = 0) -> dict[str, Any]:
    """Seeded inputs for every input of a static model that is not an initialiser."""
    rng = np.random.default_rng(seed)
    initial = {t.name for t in made.graph.initializer}
    inputs = {}
    for spec in made.graph.input:
        if spec.name in initial:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(spec.type.tensor_type.elem_type)
        shape = [d.dim_value for d in spec.type.tensor_type.shape.dim]
        kind = np.dtype(dtype).kind
        inputs[spec.name] = rng.standard_normal(shape) if kind in "fV" else rng.integers(0, 2, shape)
        inputs[spec.name] = np.asarray(inputs[spec.name]).astype(dtype)
    return inputs


def check(made: onnx.ModelProto, inputs: dict[str, Any] | None = None, tolerance: float = 1e-5) -> Imported:
    """Import a static model as it stands and compare with onnxruntime; gives the import."""
    imported = to_relax(made)
    inputs = inputs if inputs is not None else random_inputs(made)
    for got, expected in zip(run_relax(imported, inputs), run_ort(made, inputs), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    return imported


def compare(
    op: str,
    inputs: list[Any],
    outputs: int = 1,
    weights: tuple[int, ...] = (),
    domain: str = "",
    opset: int = 17,
    tolerance: float = 2e-5,
    out_types: tuple[int, ...] = (),
    steps: int = 0,
    **attrs: Any,
) -> None:
    """One node on these inputs (None: left out; `weights`: positions of those that are initialisers), by us and by
    onnxruntime. Integers may differ by `steps`."""
    names = [f"i{i}" if x is not None else "" for i, x in enumerate(inputs)]
    results = [f"o{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="n", domain=domain, **attrs)
    arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    initial = [numpy_helper.from_array(arrays.pop(f"i{i}"), f"i{i}") for i in weights]
    graph_inputs = [value(n, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype)) for n, x in arrays.items()]
    types = out_types or (TensorProto.FLOAT,) * outputs
    graph_outputs = [value(r, None, t) for r, t in zip(results, types, strict=True)]
    graph = helper.make_graph([node], "g", graph_inputs, graph_outputs, initial)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = run_ort(made, arrays)
    got = run_relax(to_relax(prepare(made)), arrays)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if ours.dtype.kind in "iu":
            assert np.abs(ours.astype(np.int64) - theirs).max(initial=0) <= steps
        else:
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def same(made, shapes=None, inputs=None):
    """The prepared model, which must give what the original gives; the original must not change."""
    before = made.SerializeToString()
    prepared = prepare(load(made), shapes)
    assert made.SerializeToString() == before
    onnx.checker.check_model(prepared, full_check=True)
    inputs = inputs if inputs is not None else random_inputs(prepared)
    for got, expected in zip(run_ort(prepared, inputs), run_ort(made, inputs), strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return prepared


def ops(made):
    return [n.op_type for n in made.graph.node]
