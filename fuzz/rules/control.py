"""Control flow whose course is known when the model is compiled: If, Loop and Scan."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fuzz.build import BOOL, I64, Builder, Reject, Value

ACTIVATIONS = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")


def branch(b: Builder) -> None:
    """An If on a constant, or on a comparison of constants; both branches read values outside."""
    a = b.pick()
    other = b.like(a, exact=True)
    name = b.name()
    graphs = []
    for what in ("then", "else"):
        inner = f"{name}_{what}"
        nodes = [helper.make_node(b.choice(ACTIVATIONS), [a.name], [inner + "_0"])]
        nodes.append(helper.make_node("Add", [inner + "_0", other.name if b.chance(0.5) else a.name], [inner]))
        graphs.append(helper.make_graph(nodes, what, [], [helper.make_tensor_value_info(inner, a.dtype, a.shape)]))
    condition = b.constant(np.array(b.chance(0.5)))
    b.raw(
        helper.make_node("If", [condition.name], [name], then_branch=graphs[0], else_branch=graphs[1]),
        [Value(name, a.dtype, a.shape)],
    )


def loop(b: Builder) -> None:
    """A Loop of known length, with a carried value and a collected one."""
    a = b.pick(ranks=(1, 2, 3))
    step = b.like(a, exact=True)
    trips = b.integer(1, 4)
    name, collected = b.name(), b.name()
    inside = [f"{name}_{w}" for w in ("i", "c", "s", "c2", "s2", "o")]
    i, c, s, c2, s2, o = inside
    nodes = [
        helper.make_node("Identity", [c], [c2]),
        helper.make_node(b.choice(["Add", "Mul", "Sub"]), [s, step.name], [s2]),
        helper.make_node(b.choice(ACTIVATIONS), [s2], [o]),
    ]
    if b.chance(0.3):
        nodes.insert(1, helper.make_node("Cast", [i], [f"{name}_f"], to=a.dtype))
        nodes[2] = helper.make_node("Mul", [s, f"{name}_f"], [s2])
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes, "body",
        [info(i, I64, []), info(c, BOOL, []), info(s, a.dtype, a.shape)],
        [info(c2, BOOL, []), info(s2, a.dtype, a.shape), info(o, a.dtype, a.shape)],
    )  # fmt: skip
    condition = b.constant(np.array(True)).name if b.chance(0.5) else ""
    count = b.constant(np.array(trips, np.int64))
    b.raw(
        helper.make_node("Loop", [count.name, condition, a.name], [name, collected], body=body),
        [Value(name, a.dtype, a.shape), Value(collected, a.dtype, (trips, *a.shape))],
    )


def scan(b: Builder) -> None:
    a = b.pick(ranks=(2, 3))
    axis = b.integer(0, a.rank - 1)
    steps = a.shape[axis]
    inner = tuple(d for k, d in enumerate(a.shape) if k != axis)
    if not 0 < steps <= 9:
        raise Reject("many steps")
    start = b.fresh(a.dtype, inner, 0.5)
    name, collected = b.name(), b.name()
    s, x, s2, o = (f"{name}_{w}" for w in ("s", "x", "s2", "o"))
    nodes = [
        helper.make_node(b.choice(["Add", "Mul", "Max"]), [s, x], [s2]),
        helper.make_node(b.choice(ACTIVATIONS), [s2], [o]),
    ]
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "body",
        [info(s, a.dtype, inner), info(x, a.dtype, inner)],
        [info(s2, a.dtype, inner), info(o, a.dtype, inner)],
    )
    attrs = {"scan_input_axes": [axis], "num_scan_inputs": 1}
    if b.chance(0.3):
        attrs["scan_input_directions"] = [1]
    b.raw(
        helper.make_node("Scan", [start.name, a.name], [name, collected], body=body, **attrs),
        [Value(name, a.dtype, inner), Value(collected, a.dtype, (steps, *inner))],
    )


RULES = [(0.8, branch), (0.7, loop), (0.5, scan)]
