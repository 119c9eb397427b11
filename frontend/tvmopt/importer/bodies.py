"""Branches and bodies of control flow under names of their own - for the folding walk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tvmopt.dims import Size
from tvmopt.errors import ModelError
from tvmopt.importer.inline import instantiate
from tvmopt.importer.protos import live, make_type, node_name
from tvmopt.importer.walk import Nodes, Walk


def truth(node: onnx.NodeProto, known: np.ndarray[Any, Any]) -> bool:
    """The condition that a body gives, where it is constant.

    Raises:
        ModelError: it is not one truth value.
    """
    check_truth(node, np.dtype(known.dtype).name, known.shape)
    return bool(known.reshape(-1)[0])


def check_truth(node: onnx.NodeProto, dtype: str, shape: Sequence[Size] | None) -> None:
    """Refuse a condition that a body gives, of this type and shape, if it is not one truth value.

    Raises:
        ModelError: it is none.
    """
    known = [size for size in shape or () if isinstance(size, int)]
    if dtype == "bool" and one_element(known):
        return
    has = f"type {dtype}" if dtype != "bool" else f"shape {list(shape or ())}"
    raise ModelError(
        f"{node.op_type} cannot go on: the condition that its body gives has {has}.",
        where=f"node '{node_name(node)}'",
        fix="give one truth value behind each trip",
    )


def first_condition(walk: Walk, node: onnx.NodeProto) -> bool | None:
    """Whether a Loop makes its first trip, as far as its condition says; None where that is known only at run time."""
    if len(node.input) < 2 or not node.input[1]:
        return True
    known = walk.array(node.input[1])
    return None if known is None else bool(known.reshape(-1)[0])


def branch(
    walk: Walk,
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
            weights[tensor.name] = walk.fresh(f"{prefix}/{tensor.name}")
            walk.add_weight(weights[tensor.name], tensor)
    mapping.update(weights)
    nodes = instantiate(graph.node, mapping, prefix, walk.fresh)
    return nodes, [mapping.get(v.name, v.name) for v in graph.output]


def inside(walk: Walk, graph: onnx.GraphProto, prefix: str, actual: Sequence[str] = ()) -> tuple[Nodes, list[str]]:
    """The folded nodes of a subgraph that its results depend on, which stay together, and the names of the results,
    each of which one of these nodes computes; constants that it makes are the model's.

    Args:
        actual: the values of its formal inputs.
    """
    nodes, results = branch(walk, graph, prefix, actual)
    outside, walk.nodes = walk.nodes, []
    walk.depth += 1
    try:
        walk.process(nodes)
        names: list[str] = []
        for result in results:
            source = walk.alias.get(result, result)
            produced = {o for n in walk.nodes for o in n.output}
            if source not in produced or source in names:
                name = walk.fresh(f"{prefix}/out")
                walk.nodes.append(helper.make_node("Identity", [source], [name], name=name))
                if source in walk.types:
                    walk.types[name] = walk.types[source]
                source = name
            names.append(source)
        return live(walk.nodes, names), names
    finally:
        walk.depth -= 1
        walk.nodes = outside


def one_element(*shapes: Sequence[Size] | None) -> bool:
    """Whether tensors of these shapes are known to have one element each."""
    return all(shape is not None and all(size == 1 for size in shape) for shape in shapes)


def reshaped(walk: Walk, name: str, shape: Sequence[Size]) -> onnx.NodeProto:
    """The node that gives a tensor another shape, under a fresh name whose type the walk knows."""
    prefix = f"{name}/reshaped"
    target, output = walk.fresh(f"{prefix}/shape"), walk.fresh(prefix)
    walk.set_constant(target, np.array(shape, np.int64))
    walk.types[output] = make_type(walk.types[name].tensor_type.elem_type, tuple(shape))
    return helper.make_node("Reshape", [name, target], [output], name=output)
