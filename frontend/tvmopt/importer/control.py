"""If, Loop and Scan whose course is known at compile time, written out - for the folding walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from tvmopt.importer.inline import instantiate
from tvmopt.importer.protos import attributes, node_name

if TYPE_CHECKING:
    from tvmopt.importer.fold import Folder

MOST_NODES = 5_000
"""A loop is written out when its trips times its body's nodes stay below this."""

Nodes = list[onnx.NodeProto]
Handler = Callable[["Folder", onnx.NodeProto], "Nodes | None"]


def _branch(
    folder: Folder,
    graph: onnx.GraphProto,
    prefix: str,
    actual: Sequence[str] = (),
    weights: dict[str, str] | None = None,
) -> tuple[Nodes, list[str]]:
    """The nodes of a subgraph under fresh names, and the names of its outputs.

    Args:
        actual: the values of its formal inputs.
        weights: new names of its initialisers, filled on the first call and used by the next ones.
    """
    mapping = {v.name: name for v, name in zip(graph.input, actual, strict=False)}
    weights = {} if weights is None else weights
    for tensor in graph.initializer:
        if tensor.name not in weights:
            weights[tensor.name] = folder.fresh(f"{prefix}/{tensor.name}")
            folder.add_weight(weights[tensor.name], tensor)
    mapping.update(weights)
    nodes = instantiate(graph.node, mapping, prefix, folder.fresh)
    return nodes, [mapping.get(v.name, v.name) for v in graph.output]


def fold_if(folder: Folder, node: onnx.NodeProto) -> Nodes | None:
    """An If of a known condition is the branch taken; else both branches are folded in place."""
    graphs = {a.name: a.g for a in node.attribute}
    if len(graphs) != 2:
        return None
    condition = folder.array(node.input[0])
    if condition is not None and condition.size == 1:
        graph = graphs["then_branch" if bool(condition.reshape(())) else "else_branch"]
        nodes, results = _branch(folder, graph, node_name(node))
        folder.walk(nodes)
        for name, result in zip(node.output, results, strict=False):
            if name:
                folder.bind(name, result)
        return []
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attr in copy.attribute:
        _fold_branch(folder, attr.g, f"{node_name(node)}/{attr.name.removesuffix('_branch')}")
    folder.infer_and_emit(copy)
    return []


def _fold_branch(folder: Folder, graph: onnx.GraphProto, prefix: str) -> None:
    """Fold the body of a branch, in place; the constants it makes move to the outermost graph."""
    nodes, results = _branch(folder, graph, prefix)
    outside, folder.nodes = folder.nodes, []
    try:
        folder.walk(nodes)
        names = []
        for result in results:
            source = folder.alias.get(result, result)
            produced = {o for n in folder.nodes for o in n.output}
            if source not in produced or source in names:  # a branch must compute each of its outputs
                name = folder.fresh(f"{prefix}/out")
                folder.nodes.append(helper.make_node("Identity", [source], [name], name=name))
                if source in folder.types:
                    folder.types[name] = folder.types[source]
                source = name
            names.append(source)
        inner = folder.nodes
    finally:
        folder.nodes = outside
    declared = [v.type for v in graph.output]
    for part in (graph.node, graph.output, graph.initializer, graph.value_info):
        del part[:]
    graph.node.extend(inner)
    for name, kind in zip(names, declared, strict=True):
        graph.output.append(onnx.ValueInfoProto(name=name, type=folder.types.get(name, kind)))


def fold_loop(folder: Folder, node: onnx.NodeProto) -> Nodes | None:
    """A Loop whose trip count and conditions are constants, written out."""
    body = next(a.g for a in node.attribute if a.name == "body")
    limit, alive = _loop_start(folder, node)
    if limit is None or alive is None:
        return None
    limit = min(limit, MOST_NODES // max(len(body.node), 1) + 1)
    carried = list(node.input[2:])
    scans: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    mark, prefix, weights = folder.mark(), node_name(node), dict[str, str]()
    trip = 0
    while alive and trip < limit:
        iteration, condition = folder.fresh(f"{prefix}/i"), folder.fresh(f"{prefix}/cond")
        folder.set_constant(iteration, np.array(trip, np.int64))
        folder.set_constant(condition, np.array(True))
        nodes, results = _branch(folder, body, f"{prefix}/{trip}", [iteration, condition, *carried], weights)
        folder.walk(nodes)
        results = [folder.alias.get(r, r) for r in results]
        value = folder.array(results[0])
        if value is None:
            folder.back_to(mark)
            return None
        alive = bool(value.reshape(-1)[0])
        carried, outputs = results[1 : 1 + len(carried)], results[1 + len(carried) :]
        for values, output in zip(scans, outputs, strict=False):
            values.append(output)
        trip += 1
    if (alive and trip < _loop_limit(folder, node)) or (not trip and any(node.output[len(carried) :])):
        folder.back_to(mark)
        return None
    return _finish(folder, node, carried, scans, [0] * len(scans))


def _loop_limit(folder: Folder, node: onnx.NodeProto) -> int:
    limit = folder.array(node.input[0]) if node.input[0] else None
    return int(limit.reshape(-1)[0]) if limit is not None else 1 << 62


def _loop_start(folder: Folder, node: onnx.NodeProto) -> tuple[int | None, bool | None]:
    """Trip count and first condition; None for what is known only at run time."""
    names = [*node.input[:2], "", ""]
    known = all(not n or folder.is_constant(n) for n in names[:2])
    if not known:
        return None, None
    condition = folder.array(names[1]) if names[1] else None
    return _loop_limit(folder, node), bool(condition.reshape(-1)[0]) if condition is not None else True


def _finish(
    folder: Folder,
    node: onnx.NodeProto,
    states: Sequence[str],
    scans: Sequence[Sequence[str]],
    axes: Sequence[int],
) -> Nodes:
    """Bind the final states, and stack what every trip gave."""
    for name, state in zip(node.output, states, strict=False):
        if name:
            folder.bind(name, state)
    nodes: Nodes = []
    for name, values, axis in zip(node.output[len(states) :], scans, axes, strict=True):
        if not name:
            continue
        stacked = []
        for value in values:
            stacked.append(folder.fresh(f"{value}/slice"))
            if folder.opsets.get("", 1) >= 13:
                where = folder.fresh(f"{value}/axis")
                folder.set_constant(where, np.array([axis], np.int64))
                nodes.append(helper.make_node("Unsqueeze", [value, where], [stacked[-1]], name=stacked[-1]))
            else:
                nodes.append(
                    helper.make_node("Unsqueeze", [value], [stacked[-1]], name=stacked[-1], axes=[axis])
                )
        nodes.append(helper.make_node("Concat", stacked, [name], name=f"{node_name(node)}/stack", axis=axis))
    return nodes


def fold_scan(folder: Folder, node: onnx.NodeProto) -> Nodes | None:
    """A Scan over a static axis, written out (opset 9 and later)."""
    if folder.opsets.get("", 1) < 9:
        return None
    given = attributes(node)
    body, count = given["body"], given["num_scan_inputs"]
    if not 1 <= count <= len(node.input) or len(body.input) != len(node.input):
        return None
    states, inputs = list(node.input[:-count]), list(node.input[-count:])
    shapes = [folder.shape(i) for i in inputs]
    if any(not s for s in shapes):
        return None
    axes = list(given.get("scan_input_axes", [0] * count))
    backward = list(given.get("scan_input_directions", [0] * count))
    outputs = len(node.output) - len(states)
    output_axes = list(given.get("scan_output_axes", [0] * outputs))
    reverse = list(given.get("scan_output_directions", [0] * outputs))
    if not len(axes) == len(backward) == count or not len(output_axes) == len(reverse) == outputs:
        return None
    if any(not -len(s or ()) <= a < len(s or ()) for s, a in zip(shapes, axes, strict=True)):
        return None
    lengths = {s[a] for s, a in zip(shapes, axes, strict=True) if s}
    trips = lengths.pop()
    if lengths or not 0 < trips * max(len(body.node), 1) <= MOST_NODES:
        return None
    scans: list[list[str]] = [[] for _ in range(outputs)]
    prefix, weights = node_name(node), dict[str, str]()
    for trip in range(trips):
        slices = []
        for name, axis, back in zip(inputs, axes, backward, strict=True):
            index, part = folder.fresh(f"{prefix}/i"), folder.fresh(f"{prefix}/{trip}/{name}")
            folder.set_constant(index, np.array(trips - 1 - trip if back else trip, np.int64))
            folder.walk([helper.make_node("Gather", [name, index], [part], name=part, axis=axis)])
            slices.append(part)
        nodes, results = _branch(folder, body, f"{prefix}/{trip}", [*states, *slices], weights)
        folder.walk(nodes)
        results = [folder.alias.get(r, r) for r in results]
        states = results[: len(states)]
        for values, result, back in zip(scans, results[len(states) :], reverse, strict=False):
            values.insert(0, result) if back else values.append(result)
    return _finish(folder, node, states, scans, output_axes)


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "If"): fold_if,
    ("", "Loop"): fold_loop,
    ("", "Scan"): fold_scan,
}
