"""If - for the folding walk: the branch taken where that is known at compile time, else both, folded in place.

Where sizes decide and the branches give tensors of different shapes - a dimension of 1 is squeezed, any other one is
not - one branch is taken, and calls are held to the sizes that lead into it: no kernel takes both shapes. If what
stands behind does not fit that branch, the whole preparation is tried with the other one (`prepare.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx

from tvmopt.dims import Dim, OpenSize, Range, Size, interval
from tvmopt.errors import ModelError
from tvmopt.importer.bodies import branch, inside, one_element, reshaped
from tvmopt.importer.external import array_of
from tvmopt.importer.protos import attributes, node_name, node_reads
from tvmopt.importer.walk import Array, Nodes, Walk

Graphs = dict[str, onnx.GraphProto]

VIEWS = frozenset({"Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"})
"""Operators behind which a question has the same answer."""


def fold_if(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """An If of a known condition is the branch taken; else both branches are folded in place."""
    graphs = {a.name: a.g for a in node.attribute}
    if len(graphs) != 2:
        return None
    condition = walk.array(node.input[0])
    if condition is not None and condition.size == 1:
        return _take(walk, node, graphs["then_branch" if bool(condition.reshape(())) else "else_branch"])
    if (other := _other_than_empty(walk, node, graphs)) is not None:
        return other
    if (chosen := _by_sizes(walk, node, graphs)) is not None:
        return _take(walk, node, chosen)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    before = len(walk.problems)
    for attr in copy.attribute:
        _fold_branch(walk, attr.g, f"{node_name(node)}/{attr.name.removesuffix('_branch')}")
    for value in (v for attr in copy.attribute for v in attr.g.output):  # sizes became one in the other branch
        value.type.CopyFrom(walk.types.get(value.name, value.type))
    walk.problems[before:] = [_in_branch(walk, node, problem) for problem in walk.problems[before:]]
    _of_one_rank(walk, copy)
    walk.infer_and_emit(copy)
    for name, *kinds in zip(node.output, *([v.type for v in a.g.output] for a in copy.attribute), strict=False):
        if kinds[0] == kinds[-1] and walk.open_shape(name) is None:  # ONNX's inference drops sizes that are sums
            walk.types[name] = kinds[0]
    return []


def _of_one_rank(walk: Walk, node: onnx.NodeProto) -> None:
    """Where one branch gives a scalar and the other one a tensor of one element, as paddle2onnx writes them, both give
    the latter. A result of the model is left alone: its shape is seen."""
    seen = {value.name for value in walk.model.graph.output}
    graphs = [attr.g for attr in node.attribute]
    for name, *values in zip(node.output, *(graph.output for graph in graphs), strict=False):
        shapes = [shape for value in values if (shape := walk.open_shape(value.name)) is not None]
        if name in seen or len(shapes) < len(values) or not one_element(*shapes) or len(shapes[0]) == len(shapes[1]):
            continue
        wide, low = max(shapes, key=len), 0 if len(shapes[0]) < len(shapes[1]) else 1
        flat = reshaped(walk, values[low].name, wide)
        graphs[low].node.append(flat)
        values[low].CopyFrom(onnx.ValueInfoProto(name=flat.output[0], type=walk.types[flat.output[0]]))


def _take(walk: Walk, node: onnx.NodeProto, graph: onnx.GraphProto) -> Nodes:
    """A branch in place of its If."""
    nodes, results = branch(walk, graph, node_name(node))
    walk.process(nodes)
    for name, result in zip(node.output, results, strict=False):
        if name:
            walk.bind(name, result)
    return []


@dataclass(frozen=True)
class _Question:
    """What a condition asks of sizes: ``a == b``, or ``a <= b``; or whether that is not so."""

    a: Size
    sign: str
    b: Size
    holds: bool

    def answered(self, walk: Walk, answer: bool, where: str) -> bool:
        """Hold calls to the sizes at which the answer is this one; says whether that can be said of them."""
        a, b = self.a, self.b
        try:
            if self.sign == "<=":
                small, large = (a, b) if answer == self.holds else (b + 1, a)
                walk.symbols.at_most(small, large, where)
            elif answer == self.holds:
                walk.unify(a, b, where)
            else:
                a, b = (b, a) if isinstance(a, int) else (a, b)
                low, high = interval(a - b, walk.symbols.known())
                if low < 0 and high > 0 and b != 1:  # no tensor is empty, so that what is not 1 is 2 at least
                    return False
                small, large = (b, a) if low >= 0 or high > 0 else (a, b)
                walk.symbols.at_most(small + 1, large, where)
        except OpenSize:  # values decide a size
            return False
        return True


def _question(walk: Walk, name: str) -> _Question | None:
    """What a condition asks, if it asks for open sizes."""
    makers = {output: maker for maker in walk.nodes for output in maker.output}
    holds = True
    while (maker := makers.get(walk.alias.get(name, name))) is not None and (
        maker.op_type in VIEWS or maker.op_type == "Not"
    ):
        holds ^= maker.op_type == "Not"
        name = maker.input[0]
    if maker is None or maker.op_type not in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
        return None
    sizes = [walk.sizes(walk.alias.get(i, i)) for i in maker.input]
    if any(s is None or s.size != 1 for s in sizes):
        return None
    a, b = (s.reshape(-1)[0] for s in sizes if s is not None)
    if not all(isinstance(v, Dim | int | np.integer) for v in (a, b)):
        return None
    a, b = (v if isinstance(v, Dim) else int(v) for v in (a, b))
    return {
        "Equal": _Question(a, "==", b, holds),
        "Less": _Question(b, "<=", a, not holds),
        "Greater": _Question(a, "<=", b, not holds),
        "LessOrEqual": _Question(a, "<=", b, holds),
        "GreaterOrEqual": _Question(b, "<=", a, holds),
    }[maker.op_type]


def _by_sizes(walk: Walk, node: onnx.NodeProto, graphs: Graphs) -> onnx.GraphProto | None:
    """The branch to take of an If that open sizes decide; None where both can stay, or none can be told from sizes.

    The first to be tried is the one that squeezes a dimension, as exporters write a Squeeze of a size that they do not
    know; else the one that more sizes lead into.
    """
    question = _question(walk, node.input[0]) if walk.symbols else None
    if question is None:
        return None
    back = walk.snapshot()
    found = []
    for key in ("then_branch", "else_branch"):
        before = len(walk.problems)
        _, names = inside(walk, graphs[key], node_name(node))
        fits = len(walk.problems) == before
        found.append([walk.types.get(n) for n in names] if fits else None)
        back()
    then, other = found
    if then is not None and then == other and None not in then:
        return None
    order = [(True, graphs["then_branch"], then), (False, graphs["else_branch"], other)]
    squeezes = [any(n.op_type == "Squeeze" for n in graph.node) for _, graph, _ in order]
    last = squeezes[1] if squeezes[0] != squeezes[1] else question.sign == "==" and question.holds
    ways = walk.chosen(order[::-1] if last else order)
    back = walk.snapshot()
    for answer, graph, kinds in ways:
        if kinds is not None and question.answered(walk, answer, node_name(node)):
            return graph
        back()
    return None


def _other_than_empty(walk: Walk, node: onnx.NodeProto, graphs: Graphs) -> Nodes | None:
    """An If that gives nothing where there is nothing, as torchvision's detectors have it: the branch for something,
    which computes nothing of nothing.

        Before                                          After
        if boxes(found0) == 0: an empty constant        NonMaxSuppression(boxes, ...)
        else: NonMaxSuppression(boxes, ...)
    """
    makers = {output: maker for maker in walk.nodes for output in maker.output}
    test, count = makers.get(node.input[0]), None
    while test is not None and test.op_type in ("Cast", "Identity", "Squeeze", "Reshape"):
        test = makers.get(test.input[0])
    if test is not None and test.op_type == "Equal":
        sizes = [walk.sizes(i) for i in test.input]
        if all(s is not None and s.size == 1 for s in sizes):
            values = [s.reshape(-1)[0] for s in sizes if s is not None]
            count = next((v for v in values if isinstance(v, Dim)), None) if 0 in values else None
    if count is None or not count.symbols() <= walk.symbols.decided.keys() or len(node.output) != 1:
        return None
    if any(v < 0 or not k for k, v in count.terms.items()):  # it may be 0 where its sizes are not
        return None
    empty = _constant_result(graphs["then_branch"])
    if empty is None or empty.size:
        return None
    mark = walk.mark()
    nodes, results = branch(walk, graphs["else_branch"], node_name(node))
    walk.process(nodes)
    result = walk.alias.get(results[0], results[0])
    shape = walk.open_shape(result)
    nothing = walk.symbols.known() | {name: Range(0, 0) for name in count.symbols()}
    for name, most in walk.symbols.decided.items():
        if not interval(most, nothing)[1]:
            nothing[name] = Range(0, 0)
    if shape is None or tuple(interval(size, nothing) for size in shape) != tuple((d, d) for d in empty.shape):
        walk.back_to(mark)
        return None
    walk.bind(node.output[0], result)
    return []


def _constant_result(graph: onnx.GraphProto) -> Array | None:
    """What a branch without any computation gives."""
    if len(graph.output) != 1:
        return None
    name = graph.output[0].name
    for tensor in graph.initializer:
        if tensor.name == name:
            return array_of(tensor)
    found = next((n for n in graph.node if name in n.output), None)
    if found is None or found.op_type != "Constant" or len(graph.node) != 1:
        return None
    given = attributes(found)
    value = given.get("value", given.get("value_ints", given.get("value_floats")))
    return None if value is None else np.asarray(value)


def _in_branch(walk: Walk, node: onnx.NodeProto, problem: ModelError) -> ModelError:
    """A problem of a branch, with what decides whether it is ever taken."""
    where = f"{problem.where}; in a branch of the If '{node_name(node)}'"
    inputs = deciding_inputs(walk, node.input[0])
    if not inputs:
        return ModelError(problem.what, where=where, fix=problem.fix)
    names, flags = ", ".join(f"'{i}'" for i in inputs), " ".join(f"--value {i}=NUMBER" for i in inputs)
    fix = f"input {names} decides which branch is taken; if this one never is, fix it: {flags} (in Python: values)"
    return ModelError(problem.what, where=where, fix=fix)


def deciding_inputs(walk: Walk, name: str) -> list[str]:
    """The inputs of the model that a value is computed from, in the model's order."""
    return inputs_behind(walk.nodes, walk.model.graph.input, walk.alias.get(name, name))


def inputs_behind(nodes: Iterable[onnx.NodeProto], inputs: Iterable[onnx.ValueInfoProto], name: str) -> list[str]:
    """The names of the inputs that a tensor is computed from, in their order."""
    producers = {o: n for n in nodes for o in n.output}
    seen, waiting = set[str](), [name]
    while waiting:
        if (current := waiting.pop()) not in seen:
            seen.add(current)
            waiting += node_reads(producers[current]) if current in producers else ()
    return [v.name for v in inputs if v.name in seen]


def _fold_branch(walk: Walk, graph: onnx.GraphProto, prefix: str) -> None:
    """Fold the body of a branch, in place; the constants it makes move to the outermost graph."""
    inner, names = inside(walk, graph, prefix)
    declared = [v.type for v in graph.output]
    for part in (graph.node, graph.output, graph.initializer, graph.value_info):
        del part[:]
    graph.node.extend(inner)
    for name, kind in zip(names, declared, strict=True):
        graph.output.append(onnx.ValueInfoProto(name=name, type=walk.types.get(name, kind)))
