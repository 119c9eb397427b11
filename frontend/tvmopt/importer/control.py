"""Loop and Scan - for the folding walk: written out where their course is known at compile time and short, else kept as
loops (:mod:`tvmopt.importer.roll`). If is in :mod:`tvmopt.importer.branches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import helper

from tvmopt.dims import Dim, OpenSize, Size, is_open
from tvmopt.importer.bodies import branch, first_condition, one_element, reshaped, truth
from tvmopt.importer.branches import fold_if
from tvmopt.importer.counting import counted
from tvmopt.importer.protos import attributes, make_type, node_name, node_reads
from tvmopt.importer.roll import OtherShapes, roll, scan_as_loop
from tvmopt.importer.walk import Nodes, Rule, Walk

MOST_NODES = 1_000
"""A loop is written out when its trips times its body's nodes stay below this: that takes less time in a run (a trip of
a loop costs 4 us more than its kernels), and code that grows with it."""

MOST_SHAPES = 3
"""How often states may be found to have another shape behind a trip, before a loop is refused for that."""

MOST_OF_CHANGING_STATES = 5_000
"""The same for a loop that cannot stay one: from trip to trip it hands on tensors of other shapes."""


def fold_loop(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A Loop: written out where its trips are known and few, else kept; of many trips whose states change their shapes
    it is written out, too."""
    node = counted(walk, node) or node
    written = _written_out(walk, node, MOST_NODES)
    if written is not None:
        return written
    node = _without_dead_states(walk, node)
    back, before, kept = _start(walk), len(walk.problems), None
    for last in (*[False] * MOST_SHAPES, True):
        try:
            kept = roll(walk, node, as_they_are=last)
            break
        except OtherShapes as found:
            back()
            node = _reshaped_states(walk, node, found.shapes)
            back = _start(walk)
    if kept is not None and len(walk.problems) == before:
        return kept
    problems = walk.problems[before:]
    back()
    written = _written_out(walk, node, MOST_OF_CHANGING_STATES)
    if written is None:
        walk.problems += problems
    return kept if written is None else written


def _without_dead_states(walk: Walk, node: onnx.NodeProto) -> onnx.NodeProto:
    """The loop without the states that nobody reads, neither a trip nor what stands behind the loop: paddle2onnx hands
    on every variable of a body, and such a one may have any shape before the first trip."""
    graph = walk.model.graph
    if walk.depth or not set(node.output) <= {"", *(name for one in graph.node for name in one.output)}:
        return node  # of a body or a function: what is read behind it has other names by now
    body = next(a.g for a in node.attribute if a.name == "body")
    read = {value.name for value in graph.output}.union(*(node_reads(one) for one in graph.node))
    inner = {value.name for value in body.output}.union(*(node_reads(one) for one in body.node))
    states = zip(body.input[2:], node.input[2:], node.output, strict=False)
    dead = [i for i, (formal, _, out) in enumerate(states) if formal.name not in inner and out not in read]
    made = onnx.NodeProto()
    made.CopyFrom(node)
    body = next(a.g for a in made.attribute if a.name == "body")
    for i in reversed(dead):
        del made.input[2 + i], made.output[i], body.input[2 + i], body.output[1 + i]
    return made


def _reshaped_states(walk: Walk, node: onnx.NodeProto, shapes: dict[int, tuple[Size, ...]]) -> onnx.NodeProto:
    """The loop with states of these shapes, by number, before the first trip: of the same element where they have one,
    else of anything, for no trip reads it."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for index, shape in shapes.items():
        name = node.input[2 + index]
        kind = make_type(walk.types[name].tensor_type.elem_type, shape)
        if one_element(walk.open_shape(name), shape):
            flat = reshaped(walk, name, shape)
            walk.process([flat])
            made.input[2 + index] = walk.alias.get(flat.output[0], flat.output[0])
        elif alike := [other for other in node.input[2:] if walk.types[other] == kind]:
            made.input[2 + index] = alike[0]
        elif not is_open(shape):
            made.input[2 + index] = zeros = walk.fresh(f"{node_name(node)}/before")
            walk.set_constant(zeros, np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)))
    return made


def _written_out(walk: Walk, node: onnx.NodeProto, most: int) -> Nodes | None:
    """A Loop whose trip count and conditions are constants as the nodes of all trips; None where these are not known,
    or more than `most`."""
    body = next(a.g for a in node.attribute if a.name == "body")
    alive = first_condition(walk, node)
    if alive is None or (node.input[0] and not walk.is_constant(node.input[0])):
        return None
    limit = _loop_limit(walk, node)
    wanted, limit = limit, min(limit, most // max(len(body.node), 1) + 1)
    if wanted > limit and _never_stops(body):
        return None  # not after so many trips: each of them would try to write out the loops in it
    carried = list(node.input[2:])
    scans: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    back, prefix, weights = _start(walk), node_name(node), dict[str, str]()
    trip = 0
    while alive and trip < limit:
        iteration, condition = walk.fresh(f"{prefix}/i"), walk.fresh(f"{prefix}/cond")
        walk.set_constant(iteration, np.full(_declared(body.input[0]), trip, np.int64))
        walk.set_constant(condition, np.full(_declared(body.input[1]), True))
        nodes, results = branch(walk, body, f"{prefix}/{trip}", [iteration, condition, *carried], weights)
        walk.process(nodes)
        results = [walk.alias.get(r, r) for r in results]
        value = walk.array(results[0])
        if value is None:
            back()
            return None
        alive = truth(node, value)
        carried, outputs = results[1 : 1 + len(carried)], results[1 + len(carried) :]
        for values, output in zip(scans, outputs, strict=False):
            values.append(output)
        trip += 1
    if (alive and trip < _loop_limit(walk, node)) or (not trip and any(node.output[len(carried) :])):
        back()
        return None
    return _finish(walk, node, carried, scans, [0] * len(scans))


def _declared(formal: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The shape of a loop's number or condition: TensorFlow's exporter writes a list of one element."""
    return (1,) * len(formal.type.tensor_type.shape.dim)


def _never_stops(body: onnx.GraphProto) -> bool:
    """Whether a body hands on the condition that it got."""
    if len(body.input) < 2 or not body.output:
        return False
    made = {output: n.input[0] for n in body.node if n.op_type == "Identity" for output in n.output}
    name = body.output[0].name
    while name in made:
        name = made[name]
    return bool(name == body.input[1].name)


def _start(walk: Walk) -> Callable[[], None]:
    """What takes back what is tried now; with open sizes, what it would have said of them, too."""
    return walk.snapshot() if walk.symbols else partial(walk.back_to, walk.mark())


def _loop_limit(walk: Walk, node: onnx.NodeProto) -> int:
    limit = walk.array(node.input[0]) if node.input[0] else None
    return int(limit.reshape(-1)[0]) if limit is not None else 1 << 62


def _finish(
    walk: Walk,
    node: onnx.NodeProto,
    states: Sequence[str],
    scans: Sequence[Sequence[str]],
    axes: Sequence[int],
) -> Nodes:
    """Bind the final states, and stack what every trip gave."""
    for name, state in zip(node.output, states, strict=False):
        if name:
            walk.bind(name, state)
    nodes: Nodes = []
    for name, values, axis in zip(node.output[len(states) :], scans, axes, strict=True):
        if not name:
            continue
        stacked = []
        for value in values:
            stacked.append(walk.fresh(f"{value}/slice"))
            if walk.opsets.get("", 1) >= 13:
                where = walk.fresh(f"{value}/axis")
                walk.set_constant(where, np.array([axis], np.int64))
                nodes.append(helper.make_node("Unsqueeze", [value, where], [stacked[-1]], name=stacked[-1]))
            else:
                nodes.append(helper.make_node("Unsqueeze", [value], [stacked[-1]], name=stacked[-1], axes=[axis]))
        nodes.append(helper.make_node("Concat", stacked, [name], name=f"{node_name(node)}/stack", axis=axis))
    return nodes


def fold_scan(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A Scan of opset 9 or later: written out where its steps are known and few, else a Loop."""
    if walk.opsets.get("", 1) < 9:
        return None
    given = attributes(node)
    body, count = given["body"], given["num_scan_inputs"]
    if not 1 <= count <= len(node.input) or len(body.input) != len(node.input):
        return None
    states, inputs = list(node.input[:-count]), list(node.input[-count:])
    shapes = [walk.open_shape(i) for i in inputs]
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
    lengths = [s[a] for s, a in zip(shapes, axes, strict=True) if s]
    trips = lengths[0]
    try:
        for other in lengths[1:]:
            trips = walk.unify(trips, other, node_name(node))
            if trips != other and not isinstance(other, Dim):
                return None
    except OpenSize:  # values decide them
        return None
    if isinstance(trips, Dim) or trips * max(len(body.node), 1) > MOST_NODES:
        return scan_as_loop(walk, node)
    if trips < 1:
        return None
    scans: list[list[str]] = [[] for _ in range(outputs)]
    prefix, weights = node_name(node), dict[str, str]()
    for trip in range(trips):
        slices = []
        for name, axis, back in zip(inputs, axes, backward, strict=True):
            index, part = walk.fresh(f"{prefix}/i"), walk.fresh(f"{prefix}/{trip}/{name}")
            walk.set_constant(index, np.array(trips - 1 - trip if back else trip, np.int64))
            walk.process([helper.make_node("Gather", [name, index], [part], name=part, axis=axis)])
            slices.append(part)
        nodes, results = branch(walk, body, f"{prefix}/{trip}", [*states, *slices], weights)
        walk.process(nodes)
        results = [walk.alias.get(r, r) for r in results]
        states = results[: len(states)]
        for values, result, back in zip(scans, results[len(states) :], reverse, strict=False):
            values.insert(0, result) if back else values.append(result)
    return _finish(walk, node, states, scans, output_axes)


HANDLERS: dict[tuple[str, str], Rule] = {
    ("", "If"): fold_if,
    ("", "Loop"): fold_loop,
    ("", "Scan"): fold_scan,
}
