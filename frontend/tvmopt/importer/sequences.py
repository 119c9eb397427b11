"""Sequences whose members are known by name - for the folding walk: what reads them reads tensors.

A SequenceMap becomes its body once for each member, so that shapes decide the branches in it: PyTorch writes
``torch.hstack`` and ``torch.atleast_1d`` as an If on a rank within such a body.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tvmopt.importer.bodies import branch
from tvmopt.importer.protos import attributes, node_name
from tvmopt.importer.walk import Nodes, Rule, Walk


def members(walk: Walk, name: str) -> list[str] | None:
    """The names of a sequence's tensors; None where the walk does not know them."""
    made = walk.maker(name)
    if made is None or made.domain or made.op_type not in ("SequenceConstruct", "SequenceEmpty"):
        return None
    return list(made.input)


def map_members(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A SequenceMap: its body once for each member; inputs that are no sequences are passed to every one."""
    given: list[list[str] | None] = []
    for name in node.input:
        is_sequence = name in walk.types and walk.types[name].HasField("sequence_type")
        given.append(members(walk, name) if is_sequence else None)
        if is_sequence and given[-1] is None:
            return None
    if not given or not given[0] or any(each is not None and len(each) != len(given[0]) for each in given):
        return None
    body, prefix, weights = attributes(node)["body"], node_name(node), dict[str, str]()
    nodes: Nodes = []
    columns: list[list[str]] = [[] for _ in node.output]
    for place in range(len(given[0])):
        actual = [name if each is None else each[place] for name, each in zip(node.input, given, strict=True)]
        inner, results = branch(walk, body, f"{prefix}/{place}", actual, weights)
        nodes += inner
        for column, result in zip(columns, results, strict=True):
            column.append(result)
    made = zip(node.output, columns, strict=True)
    return nodes + [
        helper.make_node("SequenceConstruct", column, [name], name=f"{prefix}/{name}") for name, column in made if name
    ]


def split_members(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A SplitToSequence of known lengths: a Split, and a Squeeze of each piece where the axis goes."""
    given, shape, opset = attributes(node), walk.open_shape(node.input[0]), walk.opsets.get("", 1)
    split = walk.array(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(1)
    axis = given.get("axis", 0)
    if split is None or not shape or not -len(shape) <= axis < len(shape) or not isinstance(size := shape[axis], int):
        return None
    lengths = [int(n) for n in split.reshape(-1)]
    if not split.ndim and lengths[0] > 0:
        lengths = [min(lengths[0], size - start) for start in range(0, size, lengths[0])]
    if not lengths or min(lengths) < 0 or sum(lengths) != size:
        return None  # the converter says what is wrong
    prefix = node_name(node)

    def constant(values: list[int]) -> str:
        name = walk.fresh(f"{prefix}/numbers")
        walk.set_constant(name, np.array(values, np.int64))
        return name

    def taking(
        op_type: str, name: str, values: list[int], word: str, outputs: list[str], **more: int
    ) -> onnx.NodeProto:
        named = f"{prefix}/{outputs[0]}"
        if opset < 13:
            return helper.make_node(op_type, [name], outputs, name=named, **{word: values}, **more)
        return helper.make_node(op_type, [name, constant(values)], outputs, name=named, **more)

    pieces = [walk.fresh(f"{prefix}/{place}") for place in range(len(lengths))]
    nodes = [taking("Split", node.input[0], lengths, "split", pieces, axis=axis)]
    if (len(node.input) < 2 or not node.input[1]) and not given.get("keepdims", 1):
        whole, pieces = pieces, [walk.fresh(f"{piece}/squeezed") for piece in pieces]
        nodes += [taking("Squeeze", a, [axis], "axes", [b]) for a, b in zip(whole, pieces, strict=True)]
    return [*nodes, helper.make_node("SequenceConstruct", pieces, list(node.output), name=prefix)]


def member_at(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A SequenceAt at a constant position: another name of the member."""
    names, position = members(walk, node.input[0]), walk.array(node.input[1])
    if names is None or position is None or not -len(names) <= int(position.reshape(-1)[0]) < len(names):
        return None
    return walk.bind(node.output[0], names[int(position.reshape(-1)[0])])


def concatenated(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A ConcatFromSequence along an axis that the members have: a Concat, whose shape the walk finds."""
    names, given = members(walk, node.input[0]), attributes(node)
    if not names or given.get("new_axis", 0):
        return None
    return [helper.make_node("Concat", names, list(node.output), name=node_name(node), axis=given["axis"])]


HANDLERS: dict[tuple[str, str], Rule] = {
    ("", "SequenceMap"): map_members,
    ("", "SplitToSequence"): split_members,
    ("", "SequenceAt"): member_at,
    ("", "ConcatFromSequence"): concatenated,
}
