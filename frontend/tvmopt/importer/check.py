"""What of a prepared model cannot be imported, all of it at once: node, operator, opset, reason, fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import onnx

from tvmopt import children
from tvmopt.errors import ModelError, UnsupportedOp, collect
from tvmopt.importer.contrib import HANDLERS as EXPANDED
from tvmopt.importer.converters import CONVERTERS
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import (
    describe_type,
    dtype_name,
    node_name,
    normal_domain,
    operator,
    opset_versions,
    subgraphs,
)
from tvmopt.importer.relax import ADD_A_CONVERTER, STOCK_DOMAINS, has_converter, to_relax
from tvmopt.importer.types import Imported

REASONS = {
    ("", "Loop"): (
        "its trip count or its condition is computed at run time",
        "make the trip count a constant, or bind the input it comes from with `values`",
    ),
    ("", "Scan"): ("the length of its scan axis is not known", "bind the shapes it depends on with --shape"),
}
"""Why an operator that the preparation usually removes may still be there, and what helps."""

OPEN = (
    "a shape, an axis or a mode that it depends on is not known, or is none that onnxruntime has",
    "bind open dimensions with --shape, and make its axes and pads constants",
)
"""Why an operator that the preparation writes out as others may still be there."""

LACKING = {
    "object": ("it works on strings, which TVM lacks", "leave the text part of the model to the caller"),
    **dict.fromkeys(
        ("complex64", "complex128"),
        ("it works on complex numbers, which TVM lacks", "leave the complex part of the model to the caller"),
    ),
}
"""Of element types that TVM lacks, by NumPy's names: why no node of them is converted, and what to do."""


def check(model: onnx.ModelProto) -> None:
    """Raise for everything in a prepared model that is known not to import.

    Raises:
        UnsupportedOp: the first problem, the others in ``others``.
    """
    problems = list(_problems(model))
    if problems:
        raise collect(problems)


def checked_import(model: onnx.ModelProto) -> Imported:
    """The import of a prepared model, or one error with what :func:`check` and the converters refuse."""
    problems: list[ModelError] = list(_problems(model))
    borders = any(not isinstance(p, UnsupportedOp) for p in problems)
    borders |= any(dtype_name(t.data_type) in LACKING for t in model.graph.initializer)  # of no use to TVM
    try:
        if not borders:
            imported = _converted(model)
    except ModelError as error:
        named = {p.where.partition(" (")[0] for p in problems}
        refused = [error, *error.others]
        problems += [p for p in refused if isinstance(p, ModelError) and p.where.partition(" (")[0] not in named]
    if problems:
        first, *rest = problems
        raise type(first)(first.what, where=first.where, fix=first.fix, others=_alone(rest))
    return imported


def _converted(model: onnx.ModelProto) -> Imported:
    """The conversion, tried out in a child process first: TVM's C++ trusts what it is given.

    The trial reads no large weights: it costs a tenth of a second for a ResNet-50. A process that is expendable does
    without.
    """
    if not children.expendable:
        isolated(lambda: to_relax(model, trial=True) and None, "conversion", model.graph.name)
    return to_relax(model)


def _alone(problems: list[ModelError]) -> list[ModelError]:
    """The problems without those nested in them: each is listed once."""
    return [type(p)(p.what, where=p.where, fix=p.fix) for p in problems]


def _problems(model: onnx.ModelProto) -> Iterator[ModelError]:
    for role, values in (("Input", model.graph.input), ("Output", model.graph.output)):
        for value in values:
            kind = describe_type(value.type)
            if not value.type.HasField("tensor_type"):
                text = f"{role} '{value.name}' is a {kind}, not a tensor."
                fix = "split it into tensors before exporting"
                yield ModelError(text, where=f"{role.lower()} '{value.name}'", fix=fix)
            elif _element(value.type) in LACKING:
                text = f"{role} '{value.name}' is {kind}; TVM has no such element type."
                fix = "leave the text or complex part of the model to the caller"
                yield ModelError(text, where=f"{role.lower()} '{value.name}'", fix=fix)
    yield from _graph_problems(model.graph, opset_versions(model), _types(model))


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = model.graph
    types = {v.name: v.type for v in [*graph.input, *graph.output, *graph.value_info]}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))
    return types


def _graph_problems(
    graph: onnx.GraphProto, opsets: dict[str, int], types: dict[str, onnx.TypeProto]
) -> Iterator[UnsupportedOp]:
    for node in graph.node:
        domain = normal_domain(node.domain)
        supported = has_converter(domain, node.op_type)
        if not supported:
            reason, fix = REASONS.get((domain, node.op_type)) or _unknown(domain, node, opsets)
        else:
            kinds = (_element(types.get(name)) for name in (*node.input, *node.output))
            reason, fix = next((LACKING[kind] for kind in kinds if kind in LACKING), ("", ""))
        if reason:
            inputs = ", ".join(f"'{i}' {describe_type(types[i])}" for i in node.input if i in types)
            yield UnsupportedOp(
                f"{operator(node)} cannot be imported: {reason}.",
                where=f"node '{node_name(node)}' (opset {opsets.get(domain, '?')})"
                + (f", inputs {inputs}" if inputs else ""),
                fix=fix,
            )
        if supported:
            for inner in subgraphs(node):
                yield from _graph_problems(inner, opsets, types)


def _element(kind: onnx.TypeProto | None) -> str:
    """NumPy's name of the type of a tensor's elements; empty where it is not known."""
    known = kind is not None and kind.HasField("tensor_type") and kind.tensor_type.elem_type
    return dtype_name(kind.tensor_type.elem_type) if kind is not None and known else ""


def _unknown(domain: str, node: onnx.NodeProto, opsets: dict[str, int]) -> tuple[str, str]:
    """The reason for an operator that nobody converts: it does not exist, or it is only not done yet."""
    try:
        onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except (onnx.defs.SchemaError, TypeError):
        if (domain, node.op_type) in EXPANDED:
            return OPEN
        expanded = {o for d, o in EXPANDED if d == domain}
        known = {o for d, o in CONVERTERS if d == domain} | set(STOCK_DOMAINS.get(domain, ())) | expanded
        near = difflib.get_close_matches(node.op_type, known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        if domain == "":
            return f"opset {opsets.get('', '?')} has no operator of that name{hint}", "repair the model"
        return f"no converter is registered for the domain '{domain}'{hint}", ADD_A_CONVERTER
    return "it has no converter", ADD_A_CONVERTER
