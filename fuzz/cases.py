"""ONNX's own node tests in other types, and with constants for inputs: the kind "cases"; in older versions of their
operators: the kind "older".

A test comes with inputs that its operator accepts. Integers and truths stay as they are there, as constants; numbers
come from outside or are constants, too, which makes the importer evaluate the node, and are of any floating-point type
that the operator takes.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from fuzz.build import BF16, F16, F32, F64
from tvmopt.importer.evaluate import RANDOM

SMALL = 1 << 16
"""Bytes of a model, and elements of an input: larger ones hide most mutations in their weights."""
TYPES = (F32, F16, BF16, F64)
WAYS = ("outside", "constants", "mixed")
"""Where the numbers come from: from outside, from the model, or the first from outside and the others from it."""
SKIPPED = RANDOM | {"ImageDecoder"}
"""Operators whose results are no matter of numbers, or random."""
FIXED = {"Range"}
"""Operators whose numbers decide a size."""


@dataclass(frozen=True)
class Case:
    """One of ONNX's node tests: its model, and the inputs of the test by name."""

    model: bytes
    inputs: dict[str, np.ndarray]


@cache
def node_tests() -> tuple[Any, ...]:
    """ONNX's own node tests that have a model, as ONNX's loader gives them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return tuple(test for test in load_model_tests(kind="node") if test.model is not None)


@cache
def cases() -> tuple[Case, ...]:
    """The tests whose inputs are tensors, each model once."""
    found = {}
    for test in node_tests():
        if not test.data_sets or "_expanded" in test.name:
            continue
        arrays, model = test.data_sets[0][0], test.model.SerializeToString()
        plain = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiubV" and a.size < SMALL for a in arrays)
        operators = {n.op_type for n in test.model.graph.node}
        if plain and not operators & SKIPPED and len(model) < SMALL:
            names = (v.name for v in test.model.graph.input)
            found[model] = Case(model, dict(zip(names, arrays, strict=False)))
    return tuple(found[key] for key in sorted(found))


def case(index: int) -> onnx.ModelProto:
    """The model number `index`: each test in each type with each way, in an order that mixes them."""
    tests = cases()
    order = np.random.default_rng(0).permutation(len(tests) * len(TYPES) * len(WAYS))
    number = int(order[index % len(order)])
    which, rest = divmod(number, len(TYPES) * len(WAYS))
    kind, way = TYPES[rest // len(WAYS)], WAYS[rest % len(WAYS)]
    return in_type(tests[which], kind, way)


@cache
def old_cases() -> tuple[bytes, ...]:
    """The tests that are valid in an older version of their operators, once for each: it may mean something else
    there."""
    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and not schema.deprecated:
            versions.setdefault(schema.name, set()).add(schema.since_version)
    found = []
    for test in cases():
        model = onnx.ModelProto.FromString(test.model)
        if any(node.domain for node in model.graph.node) or len(model.opset_import) > 1:
            continue
        operators, newest = {node.op_type for node in model.graph.node}, model.opset_import[0].version
        in_force = {op: _version(op, newest) for op in operators}
        for version in sorted({v for op in operators for v in versions[op] if v < newest}):
            if all(_version(op, version) == in_force[op] for op in operators):
                continue
            model.opset_import[0].version = version
            with suppress(Exception):  # the checker is C++ and has a class for each thing
                onnx.checker.check_model(model, full_check=True)
                found.append(in_type(Case(model.SerializeToString(), test.inputs), F32, "outside").SerializeToString())
    return tuple(found)


def _version(operator: str, opset: int) -> int:
    """The version of an operator that an opset has; 0 for none."""
    try:
        return int(onnx.defs.get_schema(operator, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def older(index: int) -> onnx.ModelProto:
    """The model number `index` of :func:`old_cases`, in an order that mixes them."""
    models = old_cases()
    order = np.random.default_rng(0).permutation(len(models))
    return onnx.ModelProto.FromString(models[order[index % len(order)]])


def in_type(test: Case, kind: int, way: str) -> onnx.ModelProto:
    """A test with numbers of a type, from where a way says."""
    model = onnx.ModelProto.FromString(test.model)
    model.ir_version = 10  # before 4 initializers are inputs, and onnxruntime knows no newer ones than its own
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == F32:
            value.type.tensor_type.elem_type = kind
    for tensor in model.graph.initializer:
        if tensor.data_type == F32:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.INT and attribute.name in ("to", "dtype") and attribute.i == F32:
                attribute.i = kind
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == F32:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(dtype)))
    kept, operators = [], {node.op_type for node in model.graph.node}
    for value in model.graph.input:
        array = test.inputs.get(value.name)
        number = value.type.tensor_type.elem_type in TYPES and not FIXED & operators
        if "scale" in value.name:
            value.doc_string = "positive"
        if array is None or (number and (way == "outside" or (way == "mixed" and not kept))):
            kept.append(value)
            continue
        given = array.astype(dtype) if array.dtype == np.float32 else array
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16 and given.dtype != ml_dtypes.bfloat16:
            given = array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else given
        model.graph.initializer.append(numpy_helper.from_array(given, value.name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    if not kept:  # a model of constants alone is no model: something has to come in
        model.graph.input.append(helper.make_tensor_value_info("fuzz_in", F32, [2]))
        model.graph.output.append(helper.make_tensor_value_info("fuzz_out", F32, [2]))
        model.graph.node.append(helper.make_node("Abs", ["fuzz_in"], ["fuzz_out"]))
        if not any(o.domain in ("", "ai.onnx") for o in model.opset_import):
            model.opset_import.add(domain="", version=20)
    return model
