"""From a model that shows a finding to a small one that shows the same: fewer outputs, nodes, sizes, attributes.

Greedy: a change is kept where the smaller model still shows a finding of the same kind. Each try is a whole check in
a worker, so there is a limit to their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.inputs import inputs_of

Shows = Callable[[onnx.ModelProto], bool]
TRIES = 80


def shrink(model: onnx.ModelProto, shows: Shows, tries: int = TRIES) -> onnx.ModelProto:
    """The smallest model found for which `shows` holds, as it does for `model`."""
    left = tries
    changed, seen = True, set[bytes]()
    while changed and left > 0:
        changed = False
        for candidate in _candidates(model):
            key = candidate.SerializeToString()
            if left <= 0 or key in seen:
                continue
            seen.add(key)
            left -= 1
            if shows(candidate):
                model, changed = candidate, True
                break
    return model


def _candidates(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Smaller models, the most promising first; those that cannot be made are left out."""
    for step in (_few_nodes, _one_output, _cut_behind, _bypass, _fewer_attributes, _smaller, _plain_constants):
        try:
            yield from (m for m in step(model) if m.SerializeToString() != model.SerializeToString())
        except Exception:  # a damaged model: this step does not know it
            continue


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # a damaged model
        inferred = model
    graph = inferred.graph
    return {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without nodes, inputs and weights that no output needs."""
    wanted = {v.name for v in model.graph.output}
    nodes = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            nodes.append(node)
            wanted |= set(_reads(node))
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(nodes)]
    inputs = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in model.graph.input if v.name in wanted]
    weights = [onnx.TensorProto.FromString(t.SerializeToString()) for t in model.graph.initializer if t.name in wanted]
    for part, new in ((model.graph.node, kept), (model.graph.input, inputs), (model.graph.initializer, weights)):
        del part[:]
        part.extend(new)
    return model


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def _few_nodes(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """One node alone, two that follow each other, three: what they read becomes inputs."""
    types = _types(model)
    count = len(model.graph.node)
    for length in (1, 2, 3):
        for first in range(count - length + 1) if length < count else ():
            copy = _copy(model)
            nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in copy.graph.node[first : first + length]]
            made = {o for n in nodes for o in n.output}
            read = {name for n in nodes for name in _reads(n)}
            known = {t.name for t in copy.graph.initializer} | {v.name for v in copy.graph.input} | made
            results = [o for o in made if o in types and (length == 1 or not any(o in n.input for n in nodes))]
            del copy.graph.node[:], copy.graph.output[:]
            copy.graph.node.extend(nodes)
            copy.graph.output.extend(onnx.ValueInfoProto(name=o, type=types[o]) for o in sorted(results))
            copy.graph.input.extend(
                onnx.ValueInfoProto(name=n, type=types[n]) for n in sorted(read - known) if n in types
            )
            yield _pruned(copy)


def _one_output(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    if len(model.graph.output) < 2:
        return
    for keep in range(len(model.graph.output)):
        copy = _copy(model)
        one = onnx.ValueInfoProto.FromString(model.graph.output[keep].SerializeToString())
        del copy.graph.output[:]
        copy.graph.output.append(one)
        yield _pruned(copy)


def _cut_behind(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """An inner value is the only output; or it becomes an input."""
    types = _types(model)
    inner = [o for n in model.graph.node for o in n.output if o in types]
    for name in inner:
        if [v.name for v in model.graph.output] != [name]:
            copy = _copy(model)
            del copy.graph.output[:]
            copy.graph.output.append(onnx.ValueInfoProto(name=name, type=types[name]))
            yield _pruned(copy)
    for name in reversed(inner):
        if name not in {v.name for v in model.graph.output}:
            copy = _copy(model)
            for node in copy.graph.node:
                for i, output in enumerate(node.output):
                    if output == name:
                        node.output[i] = f"{name}_unused"
            copy.graph.input.append(onnx.ValueInfoProto(name=name, type=types[name]))
            if len(_pruned(copy).graph.node) < len(model.graph.node):  # else another result keeps the node
                yield copy


def _bypass(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """A node whose result is of its operand's type is left out."""
    types = _types(model)
    for index, node in enumerate(model.graph.node):
        for source in node.input:
            if source and source in types and types.get(node.output[0]) == types[source]:
                copy = _copy(model)
                del copy.graph.node[index]
                for other in copy.graph.node:
                    for i, name in enumerate(other.input):
                        if name == node.output[0]:
                            other.input[i] = source
                for value in copy.graph.output:
                    if value.name == node.output[0]:
                        copy.graph.node.append(helper.make_node("Identity", [source], [value.name]))
                if len(copy.graph.node) < len(model.graph.node) or node.op_type != "Identity":
                    yield _pruned(copy)


def _fewer_attributes(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    for index, node in enumerate(model.graph.node):
        for at in range(len(node.attribute)):
            copy = _copy(model)
            del copy.graph.node[index].attribute[at]
            yield copy
        if len(node.input) > 1 and node.op_type not in ("Concat", "Where", "ScatterElements", "ScatterND"):
            copy = _copy(model)
            del copy.graph.node[index].input[-1]
            yield _pruned(copy)


def _smaller(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Every axis of one size, wherever it stands, becomes smaller."""
    sizes = {d.dim_value for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    sizes |= {d for t in model.graph.initializer for d in t.dims}
    for size in sorted((s for s in sizes if s > 1), reverse=True):
        for new in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < new < size:
                made = _resized(model, size, new)
                if made is not None:
                    yield made


def _resized(model: onnx.ModelProto, size: int, new: int) -> onnx.ModelProto | None:
    copy = _copy(model)
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = new
    for tensor in copy.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.data_type == onnx.TensorProto.INT64 and array.ndim <= 1 and array.size <= 8:
            array = np.where(array == size, new, array)  # a shape
        if size in array.shape:
            array = array[tuple(slice(0, new) if d == size else slice(None) for d in array.shape)]
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return copy


def _plain_constants(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Weights become ones; an input becomes a constant."""
    for index, tensor in enumerate(model.graph.initializer):
        if tensor.data_type in (1, 10, 11) and np.prod(tensor.dims) > 1:
            copy = _copy(model)
            ones = np.ones(list(tensor.dims), numpy_helper.to_array(tensor).dtype)
            copy.graph.initializer[index].CopyFrom(numpy_helper.from_array(ones, tensor.name))
            yield copy


def describe(model: onnx.ModelProto) -> str:
    """The model in a few lines, for a finding's text."""
    lines = [f"opset {', '.join((o.domain or 'ai.onnx') + ' ' + str(o.version) for o in model.opset_import)}"]
    for value in inputs_of(model):
        kind: Any = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim]
        lines.append(f"input {value.name!r}: {_type(kind.elem_type)}{shape} {value.doc_string}")
    for tensor in model.graph.initializer:
        small = np.prod(tensor.dims, dtype=float) <= 12
        try:
            text = str(numpy_helper.to_array(tensor).tolist()) if small else ""
        except Exception:  # damaged
            text = "(damaged)"
        lines.append(f"constant {tensor.name!r}: {_type(tensor.data_type)}{list(tensor.dims)} {text}")
    for node in model.graph.node:
        attributes = ", ".join(
            f"{a.name}={helper.get_attribute_value(a)!r}"[:80] for a in node.attribute if a.type not in (5, 10)
        )
        lines.append(f"{', '.join(node.output)} = {node.domain}:{node.op_type}({', '.join(node.input)}; {attributes})")
    return "\n".join(line[:400] for line in lines)


def _type(number: int) -> str:
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"type {number}"
