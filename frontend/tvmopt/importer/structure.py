"""Is the graph of a model file well formed: names, order, opsets, attributes? All problems at once.

The names and attributes of a file are untrusted. After these checks every name is text, defined exactly once
and before its use; every node fits its operator's schema (:mod:`.schemas`); functions do not call themselves.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from tvmopt.errors import ModelError
from tvmopt.importer.protos import (
    BITS,
    STRING,
    copy_model,
    node_name,
    node_reads,
    normal_domain,
    operator,
    opset_versions,
    subgraphs,
)
from tvmopt.importer.schemas import node_problems

REPAIR = "repair the model, or export it again"
MAX_NODES = 1_000_000
"""Nodes after inlining all functions: a few kilobytes of nested functions can ask for billions."""

Scope = tuple[str, Any, Any]  # where, the nodes, and the GraphProto or FunctionProto that holds them


def scopes(model: onnx.ModelProto) -> Iterator[Scope]:
    """Every graph and function body, with the words that say where it is."""
    yield from _graph_scopes(model.graph, "")
    for function in model.functions:
        where = f" of function '{function.name}'"
        yield where, function.node, function
        for node in function.node:
            for graph in subgraphs(node):
                yield from _graph_scopes(graph, f" in node '{node_name(node)}'{where}")


def _graph_scopes(graph: onnx.GraphProto, where: str) -> Iterator[Scope]:
    yield where, graph.node, graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graph_scopes(inner, f" in node '{node_name(node)}'{where}")


def verify_structure(model: onnx.ModelProto, path: str) -> list[ModelError]:
    """Text, opsets, border types and attributes: what can be said of each item by itself."""
    broken = next(_not_text(model, "model"), None)
    if broken:
        return [ModelError(f"A name is not text (UTF-8): {broken}.", where=path, fix="the file is damaged")]
    problems = _opset_problems(model, path) + _border_problems(model.graph, path)
    if problems:
        return problems
    functions = {(normal_domain(f.domain), f.name) for f in model.functions}
    opsets = opset_versions(model)
    for where, nodes, scope in scopes(model):
        own = {normal_domain(o.domain): o.version for o in getattr(scope, "opset_import", ())} or opsets
        for node in nodes:
            for text in node_problems(node, own, functions):
                at = f"{path}, node '{node_name(node)}' ({operator(node)}){where}"
                problems.append(ModelError(text, where=at, fix=REPAIR))
    return problems


def _not_text(message: Message, where: str) -> Iterator[str]:
    """Paths of string fields that are not UTF-8: protobuf hands them out as bytes."""
    if isinstance(message, TensorProto):
        fields = [("name", message.name)] + [("external_data", e) for e in message.external_data]
        for name, value in fields:
            if isinstance(value, bytes) or (
                isinstance(value, Message) and not all(isinstance(v, str) for v in (value.key, value.value))
            ):
                yield f"{where}.{name}"
        return
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            continue
        path = f"{where}.{field.name}"
        if field.type == field.TYPE_STRING:
            values = [value] if isinstance(value, str | bytes) else value
            if any(isinstance(v, bytes) for v in values):
                yield path
        elif field.type == field.TYPE_MESSAGE:
            values = [value] if isinstance(value, Message) else value
            for i, inner in enumerate(values):
                yield from _not_text(inner, path if inner is value else f"{path}[{i}]")


def _opset_problems(model: onnx.ModelProto, path: str) -> list[ModelError]:
    problems = []
    versions = opset_versions(model)
    newest = onnx.defs.onnx_opset_version()
    for domain, version in versions.items():
        if version < 1:
            text = f"Opset {version} of domain '{domain or 'ai.onnx'}' does not exist."
            problems.append(ModelError(text, where=path, fix=REPAIR))
        elif domain == "" and version > newest:
            text = f"The model uses opset {version}; onnx {onnx.__version__} knows opsets up to {newest}."
            problems.append(ModelError(text, where=path, fix="upgrade onnx, or export the model with an older opset"))
    if "" not in versions and any(normal_domain(n.domain) == "" for n in model.graph.node):
        text = "The model does not say which opset of ai.onnx its nodes use."
        problems.append(ModelError(text, where=path, fix="add an opset_import of the domain ''"))
    return problems


def _border_problems(graph: onnx.GraphProto, path: str) -> list[ModelError]:
    problems = []
    if not graph.output:
        text = "The graph has no output, so there is nothing to compute."
        problems.append(ModelError(text, where=path, fix=REPAIR))
    initial = {t.name for t in graph.initializer}
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            for text in _type_problems(value, role, value.name in initial):
                problems.append(ModelError(text, where=f"{path}, {role} '{value.name}'", fix=REPAIR))
    return problems


def _type_problems(value: onnx.ValueInfoProto, role: str, known: bool) -> Iterator[str]:
    if not value.name:
        yield f"An {role} has no name."
    kind = value.type.WhichOneof("value")
    if kind is None and role == "input" and not known:
        yield f"Input '{value.name}' has no type."
    if kind == "tensor_type":
        tensor = value.type.tensor_type
        if tensor.elem_type not in BITS and tensor.elem_type != STRING and (tensor.elem_type or role == "input"):
            yield f"{role.capitalize()} '{value.name}' has element type {tensor.elem_type}, no ONNX type."
        if any(d.HasField("dim_value") and d.dim_value < -1 for d in tensor.shape.dim):
            yield f"{role.capitalize()} '{value.name}' has a negative dimension."


def verify_names(model: onnx.ModelProto, path: str) -> list[ModelError]:
    """Every name defined once and before (or at least independently of) its use; functions that end."""
    problems = [ModelError(t, where=path, fix=REPAIR) for t in _graph_name_problems(model.graph, set(), "")]
    for function in model.functions:
        where = f" of function '{function.name}'"
        texts = _name_problems(function.node, list(function.input), list(function.output), set(), where)
        problems += [ModelError(t, where=path, fix=REPAIR) for t in texts]
    return problems or _function_problems(model, path)


def _graph_name_problems(graph: onnx.GraphProto, outer: set[str], where: str) -> Iterator[str]:
    inputs = [v.name for v in graph.input]
    initial = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    for role, names in (
        ("inputs", inputs),
        ("initialisers", initial),
        ("outputs", [v.name for v in graph.output]),
    ):
        if role == "outputs" and where:
            continue  # a branch may give one value twice
        for name in sorted({n for n in names if names.count(n) > 1} if len(set(names)) < len(names) else ()):
            yield f"Two {role}{where} are called '{name}'."
    sources = list(dict.fromkeys(inputs + initial))
    yield from _name_problems(graph.node, sources, [v.name for v in graph.output], outer, where)


def _name_problems(
    nodes: Sequence[onnx.NodeProto], sources: list[str], results: list[str], outer: set[str], where: str
) -> Iterator[str]:
    """Duplicates, undefined names and cycles in one scope, then in the scopes inside it."""
    producer = dict.fromkeys(sources, "")
    twice = False
    for node in nodes:
        for name in node.output:
            if name in producer:
                twice = True
                yield f"Tensor '{name}'{where} is defined twice, by node '{node_name(node)}' and before."
            if name:
                producer[name] = node_name(node)
    visible = outer | producer.keys()
    missing = False
    for node in nodes:
        for name in sorted({i for i in node.input if i} - visible):
            missing = True
            yield f"Node '{node_name(node)}' ({operator(node)}){where} reads '{name}', which nothing defines."
        for graph in subgraphs(node):
            yield from _graph_name_problems(graph, visible, f" in node '{node_name(node)}'{where}")
    for name in results:
        if name not in visible:
            missing = True
            yield f"Output '{name}'{where} is computed by no node."
    if not missing and not twice:
        _, stuck = topological_order(nodes)
        if stuck:
            names = ", ".join(f"'{node_name(nodes[i])}'" for i in stuck[:5])
            yield f"{len(stuck)} nodes{where} wait for each other in a cycle, among them {names}."


def topological_order(nodes: Sequence[onnx.NodeProto]) -> tuple[list[int], list[int]]:
    """Indices of the nodes in an order that defines before it reads, the given order where it is free.

    Returns the order and the indices left over: those in or behind a cycle.
    """
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits: list[int] = []
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        sources = {producer[name] for name in node_reads(node) if name in producer}
        waits.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(i)
    ready = [i for i, n in enumerate(waits) if n == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers.get(i, ()):
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    return order, [i for i, n in enumerate(waits) if n > 0]


def _function_problems(model: onnx.ModelProto, path: str) -> list[ModelError]:
    """Functions defined twice, calling themselves, or growing beyond all bounds when inlined."""
    bodies: dict[tuple[str, str], onnx.FunctionProto] = {}
    problems = []
    for function in model.functions:
        key = (normal_domain(function.domain), function.name)
        if key in bodies and not getattr(function, "overload", ""):
            text = f"Function '{function.name}' is defined twice."
            problems.append(ModelError(text, where=path, fix=REPAIR))
        bodies.setdefault(key, function)
    sizes: dict[tuple[str, str], int] = {}
    active: list[tuple[str, str]] = []

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (normal_domain(node.domain), node.op_type)
            total += 1 + sum(size(g.node) for g in subgraphs(node))
            if key in active or len(active) > 100:
                raise RecursionError(" -> ".join(name for _, name in [*active[:5], key]))
            if key in bodies:
                if key not in sizes:
                    active.append(key)
                    sizes[key] = size(bodies[key].node)
                    active.pop()
                total += sizes[key]
        return total

    try:
        expanded = max(
            [size(model.graph.node)] + [size([f.node[i]]) for f in model.functions for i in range(len(f.node))]
        )
    except RecursionError as error:
        text = f"A function calls itself, or calls go too deep: {error}."
        return [*problems, ModelError(text, where=path, fix=REPAIR)]
    if expanded > MAX_NODES:
        text = f"Inlining the model's functions would make {expanded} nodes; the limit is {MAX_NODES}."
        problems.append(ModelError(text, where=path, fix=REPAIR))
    return problems


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def sort_graphs(model: onnx.ModelProto, source: object = None) -> onnx.ModelProto:
    """The model with the nodes of every scope in topological order; a copy when that changes anything and the
    model is the caller's own (`source`)."""
    if all(topological_order(nodes)[0] == list(range(len(nodes))) for _, nodes, _ in scopes(model)):
        return model
    if model is source:
        model = copy_model(model)
    for _, nodes, scope in list(scopes(model)):
        order, _ = topological_order(nodes)
        if order != list(range(len(nodes))):
            ordered = list(map(_copy, (nodes[i] for i in order)))
            del scope.node[:]
            scope.node.extend(ordered)
    return model
