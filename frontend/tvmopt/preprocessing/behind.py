"""A model with what stands behind it as nodes of its own graph: probabilities, and the largest scores of each row; the
boxes of a detector are of :mod:`tvmopt.preprocessing.detections`.

the model -> Softmax -> TopK -> y [.., k] the scores, the largest first, and y_classes [.., k] int64
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.errors import InputError
from tvmopt.importer.inline import rename_free
from tvmopt.importer.protos import describe_type, opset_versions, to_tensor
from tvmopt.preprocessing import boxes
from tvmopt.preprocessing.detections import NODES, Detections
from tvmopt.preprocessing.scores import Scores, parse

K_IS_AN_INPUT = 10
"""The opset from which TopK has its k as an input."""
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def with_stages_behind(
    model: onnx.ModelProto, stages: Mapping[str, str], labels: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Write stages behind a model, in place.

    Args:
        stages: text of a stage (:mod:`tvmopt.preprocessing.scores`, or `boxes`) by the name of an output; "" is the
            only one, or of a pair the one of four numbers a box.
        labels: names of classes, likewise, or by the output of their numbers.

    Returns:
        The names of the classes, by the output that has their numbers.

    Raises:
        InputError: a stage or its names do not fit the model.
    """
    named = {}
    for name, text in stages.items():
        value = _output(model.graph, name, text)
        given = value.name
        if text.startswith(boxes.PREFIX):
            where = f"--postprocess {given}={text}"
            numbers, count = Detections(model, value, boxes.parse(text), where).write()
        else:
            scores = parse(text)
            count = _classes(model.graph, value, scores, text)
            numbers = _write(model, value, scores)
        names = labels.get(name) or labels.get(given) or labels.get(numbers) or ()
        if names and count and len(names) != count:
            what = f"there are {len(names)} names, and '{given}' has {count} classes."
            raise InputError(what, where=f"--postprocess {text}", fix="give a name for each class, in their order")
        if names:
            named[numbers] = tuple(names)
    return named


KEEPS = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast"}
"""Operators that hand on the numbers of their first input."""


def repeated(model: onnx.ModelProto) -> list[str]:
    """The outputs, with their stages written, whose softmax is one of what a Softmax of the model gave."""
    made = {output: node for node in model.graph.node for output in node.output}
    found = []
    for node in model.graph.node:
        if node.op_type == "Softmax" and node.name.startswith(f"{NODES}/"):
            before = made.get(node.input[0])
            while before is not None and before.op_type in KEEPS:
                before = made.get(before.input[0])
            if before is not None and before.op_type == "Softmax":
                found.append(node.name.removeprefix(f"{NODES}/").removesuffix("/softmax"))
    return found


def _output(graph: onnx.GraphProto, name: str, text: str) -> onnx.ValueInfoProto:
    where = f"--postprocess {name + '=' if name else ''}{text}"
    told = ", ".join(f"'{v.name}' {describe_type(v.type)}" for v in graph.output)
    found = [v for v in graph.output if v.name == name] if name else list(graph.output)
    if not name and text.startswith(boxes.PREFIX) and len(found) > 1:
        found = [v for v in found if [d.dim_value for d in v.type.tensor_type.shape.dim][-1:] == [4]] or found
    if not found:
        raise InputError(f"the model has no output '{name}'.", where=where, fix=f"its outputs are {told}")
    if len(found) > 1:
        fix = f"name one: --postprocess NAME={text.partition(':')[0]}:...; there are {told}"
        raise InputError("the model has several outputs.", where=where, fix=fix)
    return found[0]


def _classes(graph: onnx.GraphProto, value: onnx.ValueInfoProto, scores: Scores, text: str) -> int:
    """How many classes an output has; 0 where that is not known."""
    where, kind = f"--postprocess {value.name}={text}", value.type.tensor_type
    computed = {name for node in graph.node for name in node.output}
    dims = kind.shape.dim
    if kind.elem_type not in FLOATS or not dims or value.name not in computed:
        what = f"the output '{value.name}' is {describe_type(value.type)}."
        raise InputError(what, where=where, fix="name an output that the model computes, of floats [.., classes]")
    count = int(dims[_axis(value)].dim_value)
    if count and scores.top_k > count:
        what = f"top-k is {scores.top_k}, and '{value.name}' has {count} classes."
        raise InputError(what, where=where, fix=f"top-k={count} or less")
    return count


def _axis(value: onnx.ValueInfoProto) -> int:
    """The axis of the classes: the last one, but for axes of size 1 behind it, as global poolings leave them."""
    sizes = [int(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
    wide = [axis for axis, size in enumerate(sizes) if size != 1 and axis]
    return wide[-1] if wide else len(sizes) - 1


def _write(model: onnx.ModelProto, value: onnx.ValueInfoProto, scores: Scores) -> str:
    """The nodes behind the others; the output keeps its name. Returns the name of the output of classes, if any."""
    graph, name, opset = model.graph, value.name, opset_versions(model).get("", 1)
    axis = _axis(value)
    taken = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    taken |= {each for node in graph.node for each in (*node.input, *node.output)}
    inner, between, classes, k = (
        _fresh(text, taken) for text in (f"{NODES}/{name}", f"{NODES}/{name}/softmax", f"{name}_classes", f"{NODES}/k")
    )
    for node in graph.node:
        for index, output in enumerate(node.output):
            if output == name:
                node.output[index] = inner
    rename_free(graph, {name: inner})
    value.name = name  # which `rename_free` takes for a use
    for kept in [v for v in graph.value_info if v.name == name]:
        graph.value_info.remove(kept)
    if scores.softmax:
        result = between if scores.top_k else name
        graph.node.append(helper.make_node("Softmax", [inner], [result], name=f"{NODES}/{name}/softmax", axis=axis))
        inner = result
    if not scores.top_k:
        return ""
    called, count = f"{NODES}/{name}/top_k", {"k": scores.top_k} if opset < K_IS_AN_INPUT else {}
    if not count:
        graph.initializer.append(to_tensor(np.array([scores.top_k], np.int64), k))
    inputs = [inner] if count else [inner, k]
    graph.node.append(helper.make_node("TopK", inputs, [name, classes], name=called, axis=axis, **count))
    value.type.tensor_type.shape.dim[axis].dim_value = scores.top_k
    numbers = onnx.ValueInfoProto()
    numbers.CopyFrom(value)
    numbers.name, numbers.type.tensor_type.elem_type = classes, TensorProto.INT64
    outputs = list(graph.output)
    outputs.insert(outputs.index(value) + 1, numbers)
    del graph.output[:]
    graph.output.extend(outputs)
    return classes


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
