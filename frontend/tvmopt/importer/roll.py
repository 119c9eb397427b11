"""Loops that stay loops: a body is folded once, and a run computes it as often as it says - for `control.py`.

What the conversion is handed is an ONNX Loop whose body is marked (:data:`ROLLED`): every value in it has a type,
states that each trip hands on as they are have become values from outside, and constants are those of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.dims import Dim, Size, is_open
from tvmopt.errors import UnsupportedOp
from tvmopt.importer.bodies import check_truth, first_condition, inside, one_element, reshaped, truth
from tvmopt.importer.places import numbered
from tvmopt.importer.protos import (
    attributes,
    describe_type,
    dtype_name,
    make_type,
    node_name,
    node_reads,
    operator,
    subgraphs,
)
from tvmopt.importer.walk import Nodes, Walk

ROLLED = "tvmopt: computed trip by trip"
"""The text of documentation that marks the body of such a loop."""

ENDLESS = 1 << 31
"""From here on a trip count is none: exporters write the largest integer for "until something says stop"."""


class OtherShapes(Exception):
    """States, by number, that have another shape behind a trip than before it, and that shape: of one element both, or
    no trip reads what they were."""

    def __init__(self, shapes: dict[int, tuple[Size, ...]]) -> None:
        super().__init__(f"states of other shapes: {shapes}")
        self.shapes = shapes


def is_rolled(node: onnx.NodeProto) -> bool:
    """Whether a node is a loop that a run goes through."""
    return node.op_type == "Loop" and any(graph.doc_string == ROLLED for graph in subgraphs(node))


def roll(walk: Walk, node: onnx.NodeProto, as_they_are: bool = False) -> Nodes | None:
    """Keep a Loop as a loop. None where it is none of tensors: its conversion says what it makes of it.

    Args:
        as_they_are: the states begin with the shapes that they have.

    Raises:
        OtherShapes: it is to be tried with states of these shapes.
    """
    body = next(a.g for a in node.attribute if a.name == "body")
    carried = list(node.input[2:])
    kinds = [walk.types.get(name) for name in carried]
    states = [kind for kind in kinds if kind is not None and walk.shape_of_type(kind) is not None]
    if len(states) < len(kinds):
        return None
    mark, prefix = walk.mark(), node_name(node)
    fixed = _unchanged(body, len(carried))
    formals = _formal_inputs(walk, prefix, states)
    always = walk.fresh(f"{prefix}/true")
    walk.set_constant(always, np.array(True))  # else there is no such trip
    actual = [formals[0], always, *(a if same else f for a, f, same in zip(carried, formals[2:], fixed, strict=True))]
    with numbered(walk, node, formals):
        inner, names = inside(walk, body, prefix, actual)
    if len(walk.problems) > mark[1]:
        return []
    varying = [i for i, same in enumerate(fixed) if not same]
    if not as_they_are:
        _keep_shapes(walk, node, [(i, formals[2 + i], 1 + i) for i in varying], inner, names)
    results = [names[0], *(names[1 + i] for i in varying)]
    rows = [(n, o) for n, o in zip(names[1 + len(carried) :], node.output[len(carried) :], strict=False) if o]
    copied = {n.output[0]: n.input[0] for n in inner if n.op_type == "Identity"}
    going = walk.array(copied.get(names[0], names[0]))
    always_on = going is not None and truth(node, going)
    reason = _why_not(walk, node, [(formals[2 + i], names[1 + i]) for i in varying], always_on, [n for n, _ in rows])
    if not reason and names[0] not in walk.types:
        maker = next((operator(one) for one in inner if names[0] in one.output), "graph")
        reason = f"the type of what its body's {maker} computes is not known"
    if reason:
        walk.problems.append(_refused(node, walk.opsets.get("", 1), reason))
        return []
    condition = walk.types[names[0]]
    check_truth(node, dtype_name(condition.tensor_type.elem_type), walk.shape_of_type(condition))
    graph = helper.make_graph(
        inner,
        body.name or "body",
        [_value(walk, name) for name in (*formals[:2], *(formals[2 + i] for i in varying))],
        [_value(walk, name) for name in (*results, *(name for name, _ in rows))],
        doc_string=ROLLED,
    )
    outputs = []
    for i in varying:
        name = node.output[i] if i < len(node.output) and node.output[i] else walk.fresh(f"{prefix}/state")
        walk.types[name] = walk.types[formals[2 + i]]
        outputs.append(name)
    count = _trips(walk, node, always_on)
    if count == 0 and not any(is_open(walk.shape_of_type(walk.types[name]) or ()) for name, _ in rows):
        return _never(walk, node, rows)
    for name, out in rows:
        shape = walk.shape_of_type(walk.types[name]) or ()
        kind = make_type(walk.types[name].tensor_type.elem_type, (0 if count is None else count, *shape))
        if count is None:
            kind.tensor_type.shape.dim[0].Clear()
        walk.types[out] = kind
        outputs.append(out)
    given = [*[*node.input, "", ""][:2], *(carried[i] for i in varying)]
    walk.emit(helper.make_node("Loop", given, outputs, name=prefix, body=graph))
    for i, same in enumerate(fixed):
        if same and i < len(node.output) and node.output[i]:
            walk.bind(node.output[i], carried[i])
    return []


def scan_as_loop(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """The Loop that a Scan of opset 9 or later is: each trip gathers its slices, and results are turned in the end."""
    given = attributes(node)
    body, count = given["body"], given["num_scan_inputs"]
    states, inputs = list(node.input[:-count]), list(node.input[-count:])
    ranks = [len(walk.open_shape(name) or ()) for name in inputs]
    axes = [a % rank for a, rank in zip(given.get("scan_input_axes", [0] * count), ranks, strict=True)]
    outputs = len(node.output) - len(states)
    into, turned = (list(given.get(f"scan_output_{what}", [0] * outputs)) for what in ("axes", "directions"))
    if walk.opsets.get("", 1) < 10 and any(turned):  # a Slice had no steps
        return None
    prefix, made = node_name(node), helper.make_node

    def fresh(what: str) -> str:
        return walk.fresh(f"{prefix}/{what}")

    def number(what: str, value: Any) -> str:
        name = fresh(what)
        walk.set_constant(name, np.array(value, np.int64))
        return name

    shape, length, last, trip, back = (fresh(what) for what in ("shape", "length", "last", "trip", "back"))
    before = [
        made("Shape", [inputs[0]], [shape], name=shape),
        made("Gather", [shape, number("axis", axes[0])], [length], name=length),
        made("Sub", [length, number("one", 1)], [last], name=last),
    ]
    condition, going = fresh("condition"), fresh("going")
    loop = onnx.GraphProto(name=body.name or "body")
    loop.input.extend([onnx.ValueInfoProto(name=trip), onnx.ValueInfoProto(name=condition), *body.input[: len(states)]])
    loop.initializer.extend(body.initializer)
    backward = given.get("scan_input_directions", [0] * count)
    loop.node.extend([made("Identity", [condition], [going], name=going), made("Sub", [last, trip], [back], name=back)])
    for name, axis, behind, formal in zip(inputs, axes, backward, body.input[len(states) :], strict=True):
        place = back if behind else trip
        loop.node.append(made("Gather", [name, place], [formal.name], name=fresh("slice"), axis=axis))
    loop.node.extend(body.node)
    loop.output.extend([onnx.ValueInfoProto(name=going), *body.output])
    rows = list(node.output[len(states) :])
    whole, behind_it = [], []
    for index, (name, axis, reverse) in enumerate(zip(rows, into, turned, strict=True)):
        rank = len(body.output[len(states) + index].type.tensor_type.shape.dim) + 1
        steps: list[onnx.NodeProto] = []
        if name and reverse:
            bounds = [number(w, [v]) for w, v in (("from", -1), ("to", -(2**62)), ("axis", 0), ("step", -1))]
            steps.append(made("Slice", ["", *bounds], [""], name=fresh("turned")))
        if name and axis % rank:
            order = [*range(1, axis % rank + 1), 0, *range(axis % rank + 1, rank)]
            steps.append(made("Transpose", [""], [""], name=fresh("moved"), perm=order))
        current = fresh("rows") if steps else name
        whole.append(current)
        for step in steps:
            step.input[0], step.output[0] = current, name if step is steps[-1] else fresh("rows")
            current = step.output[0]
        behind_it += steps
    node_of_loop = made("Loop", [length, "", *states], [*node.output[: len(states)], *whole], name=prefix, body=loop)
    return [*before, node_of_loop, *behind_it]


def _never(walk: Walk, node: onnx.NodeProto, rows: Sequence[tuple[str, str]]) -> Nodes:
    """A loop that does not run once: its states are what they were, and it collects nothing."""
    for name, out in rows:
        dtype = helper.tensor_dtype_to_np_dtype(walk.types[name].tensor_type.elem_type)
        walk.set_constant(out, np.zeros((0, *(walk.shape(name) or ())), dtype))
    for name, state in zip(node.output, node.input[2:], strict=False):
        if name:
            walk.bind(name, state)
    return []


def _value(walk: Walk, name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=walk.types[name])


def _unchanged(body: onnx.GraphProto, states: int) -> list[bool]:
    """For each state of a loop: whether every trip hands on what it was given."""
    source = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    same = []
    for formal, result in zip(body.input[2 : 2 + states], body.output[1 : 1 + states], strict=True):
        name = result.name
        while name in source:
            name = source[name]
        same.append(name == formal.name)
    return same


def _formal_inputs(walk: Walk, prefix: str, kinds: Sequence[onnx.TypeProto]) -> list[str]:
    """Names of the trip number, the condition and states of these types inside a body."""
    trip, condition = walk.fresh(f"{prefix}/trip"), walk.fresh(f"{prefix}/going")
    states = [walk.fresh(f"{prefix}/state") for _ in kinds]
    walk.types[trip] = helper.make_tensor_type_proto(TensorProto.INT64, ())
    walk.types[condition] = helper.make_tensor_type_proto(TensorProto.BOOL, ())
    for name, kind in zip(states, kinds, strict=True):
        walk.types[name] = kind
    return [trip, condition, *states]


def _keep_shapes(
    walk: Walk, node: onnx.NodeProto, states: Sequence[tuple[int, str, int]], inner: Nodes, names: list[str]
) -> None:
    """Give results of one element the ranks of the states that they become, where they have fewer axes.

    Args:
        states: of each its number, its name before a trip, and where in `names` its name behind one is.
        inner, names: the nodes of the body and the names of its results, changed in place.

    Raises:
        OtherShapes: states may as well begin with another shape, and have to.
    """
    read = set[str]().union(*map(node_reads, inner))
    limit = walk.array(node.input[0]) if node.input[0] else np.array(1)
    certain = bool(first_condition(walk, node)) and limit is not None and limit.reshape(-1)[0] >= 1
    other: dict[int, tuple[Size, ...]] = {}
    for number, formal, at in states:
        before, after = walk.shape_of_type(walk.types[formal]), walk.open_shape(names[at])
        if before is None or after is None or before == after:
            continue
        seen = number < len(node.output) and node.output[number] in walk.results
        alike, wider = one_element(before, after), len(after) > len(before)
        if (certain and formal not in read) or (alike and wider and (certain or not seen)):
            other[number] = after
        elif alike and not wider and not seen:
            flat = reshaped(walk, names[at], before)
            inner.append(flat)
            names[at] = flat.output[0]
    if other:
        raise OtherShapes(other)


def _why_not(
    walk: Walk, node: onnx.NodeProto, states: Sequence[tuple[str, str]], always: bool, rows: Sequence[str]
) -> str:
    """Why a loop cannot be gone through at run time; empty where it can.

    Args:
        states: the names of each before and behind a trip. always: whether every trip says that another one
            may follow. rows: what trips give.
    """
    for formal, name in states:
        before, after = walk.types[formal], walk.types.get(name)
        alike = after is not None and before.tensor_type.elem_type == after.tensor_type.elem_type
        if after is None or not alike or walk.shape_of_type(before) != walk.shape_of_type(after):
            found = describe_type(after) if after is not None else "a tensor of unknown type"
            return f"what it hands on from trip to trip changes its type: {describe_type(before)} becomes {found}"
    for name in rows:
        if name not in walk.types or walk.shape_of_type(walk.types[name]) is None:
            return f"the shape of '{name}', which it collects, is decided by values"
    limit = walk.array(node.input[0]) if node.input[0] else None
    bounded = node.input[0] and (limit is None or int(limit.reshape(-1)[0]) < ENDLESS)
    if always and not bounded:
        return "nothing in it ever says stop"
    return ""


def _trips(walk: Walk, node: onnx.NodeProto, always: bool) -> Size | None:
    """How often a loop runs, where that follows from sizes; `always`: no trip says that it is the last."""
    first = first_condition(walk, node)
    if first is False:
        return 0
    sizes = walk.sizes(node.input[0]) if node.input[0] else None
    if not always or first is None or sizes is None or sizes.size != 1:
        return None
    trips = sizes.reshape(-1)[0]
    return trips if isinstance(trips, Dim) else max(0, int(trips))


def _refused(node: onnx.NodeProto, opset: int, reason: str) -> UnsupportedOp:
    return UnsupportedOp(
        f"Loop cannot be imported: {reason}, and its trip count or its condition is computed at run time.",
        where=f"node '{node_name(node)}' (opset {opset})",
        fix="make the trip count a constant, or bind the input that it comes from: --value NAME=NUMBER",
    )


def write_types(walk: Walk, nodes: Sequence[onnx.NodeProto]) -> None:
    """Write what the walk knows of types in the end into bodies of loops and branches, which the conversion looks at
    alone."""
    for node in nodes:
        for graph in subgraphs(node):
            write_types(walk, graph.node)
            if not is_rolled(node) and node.op_type != "If":
                continue
            border = [*graph.input, *graph.output]
            names = [o for inner in graph.node for o in inner.output if o and o not in {v.name for v in border}]
            graph.value_info.extend(onnx.ValueInfoProto(name=name) for name in names)
            for value in (*border, *graph.value_info):
                if (shape := walk.open_shape(value.name)) is not None:
                    value.type.CopyFrom(make_type(walk.types[value.name].tensor_type.elem_type, shape))


def inner_names(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """What the nodes in bodies of loops compute."""
    found: set[str] = set()
    for node in nodes:
        for graph in subgraphs(node):
            found |= {o for inner in graph.node for o in inner.output} | inner_names(graph.node)
    return found
