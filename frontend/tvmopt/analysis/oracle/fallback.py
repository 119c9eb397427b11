"""Operators without an implementation of the oracle's own: the body of their schema, onnx.reference, onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.analysis.oracle.values import KEPT, ROUNDS, Call, Unsupported, Value, is_real
from tvmopt.errors import first_line

CONTROL = frozenset({"Loop", "If"})
"""Operators whose bodies see the tensors around them."""
_PRIVATE = {KEPT, ROUNDS}
"""Attributes that are the judge's own."""


def function_body(call: Call, domain: str) -> Any:
    """The function that defines an operator, its attributes filled in; None where there is none."""
    import onnx

    own = "" if domain == "ai.onnx" else domain
    node = _public(call.node)
    try:
        schema = onnx.defs.get_schema(call.op, call.version, own)
    except onnx.defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        types = []
        for kind in call.kinds:
            if kind is None or kind.kind == "O":  # onnx's C++ would read a type that is not there
                return None
            number = onnx.helper.np_dtype_to_tensor_dtype(kind)
            types.append(onnx.helper.make_tensor_type_proto(number, None).SerializeToString())
        version = max((v for v in schema.context_dependent_function_opset_versions if v <= call.version), default=0)
        if not version:
            return None
        try:
            raw = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
        except Exception:  # a C++ exception of any class: the schema cannot make the body
            return None
    elif schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= call.version), default=0)
        raw = schema.get_function_with_opset_version(version) if version else b""
    else:
        return None
    if not raw:
        return None
    body = onnx.FunctionProto.FromString(raw) if isinstance(raw, bytes) else raw
    return _bound(body, node, schema)


def _public(node: Any) -> Any:
    """The node without what the judge marks it with."""
    if not any(a.name in _PRIVATE for a in node.attribute):
        return node
    plain = type(node)()
    plain.CopyFrom(node)
    for attribute in [a for a in plain.attribute if a.name in _PRIVATE]:
        plain.attribute.remove(attribute)
    return plain


def _bound(body: Any, node: Any, schema: Any) -> Any:
    """The body with the node's attributes in place of references to them."""
    import onnx

    given = {a.name: a for a in node.attribute}
    for name, declared in schema.attributes.items():
        if name not in given and declared.default_value.name:
            given[name] = declared.default_value
    bound = onnx.FunctionProto()
    bound.CopyFrom(body)
    for inner in bound.node:
        kept = []
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                kept.append(attribute)
            elif attribute.ref_attr_name in given:
                value = onnx.AttributeProto()
                value.CopyFrom(given[attribute.ref_attr_name])
                value.name = attribute.name
                kept.append(value)
        kept = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del inner.attribute[:]
        inner.attribute.extend(kept)
    return bound


class Fallback:
    """Single nodes by other implementations.

    Args:
        opsets, ir_version: of the model.
        notes: gets a line for each operator that was not evaluated in double precision.
    """

    def __init__(self, opsets: dict[str, int], ir_version: int, notes: list[str]) -> None:
        self.opsets, self.ir_version, self.notes = opsets, ir_version, notes

    def run(self, call: Call, domain: str, values: list[Value | None]) -> list[Any]:
        """The outputs of one node.

        Raises:
            Unsupported: nobody can evaluate it.
        """
        if call.op in CONTROL:
            raise Unsupported(f"{call.op} needs its scope")
        problems = []
        for runner, doubles in ((self._reference, True), (self._reference, False), (self._onnxruntime, False)):
            try:
                found = runner(call, domain, values, doubles)
            except Exception as error:  # foreign code raises anything; the next implementation is asked
                problems.append(first_line(error, 200))
                continue
            if not doubles:
                self._note(f"{call.op} was evaluated in the model's own types")
            return found
        raise Unsupported(f"nothing evaluates {call.op}: {'; '.join(problems)}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _reference(self, call: Call, domain: str, values: list[Value | None], doubles: bool) -> list[Any]:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(self._model(call, domain, values, doubles))
        return list(evaluator.run(None, _feeds(call, values, doubles)))

    def _onnxruntime(self, call: Call, domain: str, values: list[Value | None], doubles: bool) -> list[Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        model = self._model(call, domain, values, doubles)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, _feeds(call, values, doubles)))

    def _model(self, call: Call, domain: str, values: list[Value | None], doubles: bool) -> Any:
        """The node as a model, its inputs as they are given."""
        from onnx import helper

        own = "" if domain == "ai.onnx" else domain
        opsets = {"": self.opsets.get("ai.onnx", call.version), own: call.version}
        inputs: list[Any] = []
        for name, value in zip(call.node.input, values, strict=False):
            if name and value is not None and name not in {v.name for v in inputs}:
                array = _array(value, doubles)
                inputs.append(_info(helper, name, array))
        outputs = [helper.make_empty_tensor_value_info(n) for n in call.node.output if n]
        graph = helper.make_graph([_public(call.node)], "node", inputs, outputs)
        imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=min(self.ir_version, 11))


def _info(helper: Any, name: str, array: Any) -> Any:
    if isinstance(array, list):
        kind = helper.np_dtype_to_tensor_dtype(array[0].dtype) if array else 1
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _array(value: Value, doubles: bool) -> Any:
    if isinstance(value.array, list):
        return [np.asarray(a) for a in value.array]
    array = np.asarray(value.array)
    if doubles or not is_real(value.kind):
        return array
    return array.astype(value.kind)


def _feeds(call: Call, values: list[Value | None], doubles: bool) -> dict[str, Any]:
    named = zip(call.node.input, values, strict=False)
    return {n: _array(v, doubles) for n, v in named if n and v is not None}
