"""Instantiating a function, a branch or a loop body: copies of its nodes under new names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx
from onnx import AttributeProto

from tvmopt.errors import ModelError
from tvmopt.importer.protos import normal_domain

Fresh = Callable[[str], str]


def instantiate(
    nodes: Iterable[onnx.NodeProto],
    mapping: dict[str, str],
    prefix: str,
    fresh: Fresh,
    attributes: Mapping[str, AttributeProto] | None = None,
) -> list[onnx.NodeProto]:
    """Copies of `nodes` with their values renamed; what `mapping` lacks gets a fresh name below `prefix`.

    Args:
        mapping: new names of values, the formal inputs and outputs among them; grows by the inner values.
        prefix: the name of the node that is expanded; nodes are called ``prefix/inner``.
        attributes: what ``ref_attr_name`` refers to; None outside functions.
    """
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name or node.op_type}"
        for name in node.output:
            if name and name not in mapping:
                mapping[name] = fresh(f"{prefix}/{name}")
        for names in (copy.input, copy.output):
            renamed = [mapping.get(n, n) if n else "" for n in names]
            del names[:]
            names.extend(renamed)
        _rewrite_attributes(copy, mapping, attributes)
        copies.append(copy)
    return copies


def _rewrite_attributes(
    node: onnx.NodeProto, mapping: Mapping[str, str], attributes: Mapping[str, AttributeProto] | None
) -> None:
    """Substitute attribute references and rename what subgraphs take from outside, in place."""
    kept = []
    for attr in node.attribute:
        if attr.ref_attr_name and attributes is not None:
            if attr.ref_attr_name not in attributes:
                continue  # not given and without a default: absent
            value = AttributeProto()
            value.CopyFrom(attributes[attr.ref_attr_name])
            value.name = attr.name
            kept.append(value)
            continue
        for graph in [*([attr.g] if attr.HasField("g") else []), *attr.graphs]:
            rename_free(graph, mapping, attributes)
        kept.append(attr)
    if attributes is not None:
        copies = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend(copies)


def rename_free(
    graph: onnx.GraphProto,
    mapping: Mapping[str, str],
    attributes: Mapping[str, AttributeProto] | None = None,
) -> None:
    """Rename, in place, the names that a subgraph takes from outside; its own names stay."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    outer = {k: v for k, v in mapping.items() if k not in own}
    for node in graph.node:
        renamed = [outer.get(n, n) for n in node.input]
        del node.input[:]
        node.input.extend(renamed)
        _rewrite_attributes(node, outer, attributes)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def expand_function(
    node: onnx.NodeProto, function: onnx.FunctionProto, fresh: Fresh
) -> tuple[list[onnx.NodeProto], list[tuple[str, str]]]:
    """The nodes that `node`, a call of `function`, stands for.

    Returns:
        The nodes, and (output of the call, value of the body) pairs that are left to be made equal: an output
        that is an input of the function, or is left out by the call.

    Raises:
        ModelError: the call gives more inputs or outputs than the function has.
    """
    if len(node.input) > len(function.input) or len(node.output) > len(function.output):
        raise ModelError(
            f"The call of function '{function.name}' does not fit its definition.",
            where=f"node '{node.name}'",
            fix="repair the model, or export it again",
        )
    attributes = {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in node.attribute}
    actual = list(node.input) + [""] * (len(function.input) - len(node.input))
    mapping = dict(zip(function.input, actual, strict=True))
    produced = {name for inner in function.node for name in inner.output if name}
    for formal, name in zip(function.output, node.output, strict=False):
        if name and formal in produced and formal not in mapping:
            mapping[formal] = name
    prefix = node.name or next((o for o in node.output if o), node.op_type)
    nodes = instantiate(function.node, mapping, prefix, fresh, attributes)
    pairs = zip(node.output, function.output, strict=False)
    return nodes, [(name, mapping[formal]) for name, formal in pairs if name and mapping[formal] != name]


def schema_function(
    node: onnx.NodeProto, opset: int, input_types: Sequence[onnx.TypeProto | None]
) -> onnx.FunctionProto | None:
    """The body that ONNX's standard defines `node` by, or None when it is a primitive operator."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, normal_domain(node.domain))
    except (onnx.defs.SchemaError, TypeError):
        return None
    try:
        plain = [v for v in schema.function_opset_versions if v <= opset]
        if schema.has_function and plain:
            data = schema.get_function_with_opset_version(max(plain))
        elif schema.has_context_dependent_function and all(t is not None for t in input_types):
            versions = schema.context_dependent_function_opset_versions
            version = max([v for v in versions if v <= opset], default=versions[0])
            types = [t.SerializeToString() for t in input_types if t is not None]
            data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
        else:
            return None
        function = onnx.FunctionProto.FromString(data)
    except Exception:  # the C++ body builder does not like the node: its converter, if any, has the say
        return None
    declared = {a.name for a in function.attribute_proto}
    for name, attribute in schema.attributes.items():
        if name not in declared and attribute.default_value.type:
            function.attribute_proto.append(attribute.default_value)
    return function if function.node else None
