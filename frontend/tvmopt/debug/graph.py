"""Cutting ONNX graphs: types of every tensor, what an output depends on, a piece between named tensors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto, helper, shape_inference

from tvmopt.analysis.metrics import propagates
from tvmopt.errors import InputError, ModelError, collect
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import byte_size, copy_tensor, count, node_name, node_reads, normal_domain

Types = Mapping[str, onnx.TypeProto]

SMALL = 1 << 14
"""Constants up to this size are shown to ONNX's shape functions, which read axes, shapes and scales."""


def weights_of(model: onnx.ModelProto) -> dict[str, TensorProto]:
    """The initialisers by name, sparse ones left out."""
    return {t.name: t for t in model.graph.initializer}


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller feeds."""
    stored = {t.name for t in model.graph.initializer}
    stored |= {t.values.name for t in model.graph.sparse_initializer}
    return [v for v in model.graph.input if v.name not in stored]


def producers(model: onnx.ModelProto) -> dict[str, int]:
    """The index of the node that computes each tensor."""
    return {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}


def skeleton(model: onnx.ModelProto, keep: int = -1) -> onnx.ModelProto:
    """The model without its initialisers, but those of at most `keep` bytes; opsets, functions, everything else."""
    slim = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    slim.producer_version, slim.domain, slim.model_version = (
        model.producer_version,
        model.domain,
        model.model_version,
    )
    slim.doc_string = model.doc_string
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    slim.metadata_props.extend(model.metadata_props)
    graph = slim.graph
    graph.name, graph.doc_string = model.graph.name or "graph", model.graph.doc_string
    for part in ("input", "output", "node", "value_info", "sparse_initializer", "quantization_annotation"):
        getattr(graph, part).extend(getattr(model.graph, part))
    for tensor in model.graph.initializer:
        if byte_size(tensor.data_type, count(tensor.dims)) <= keep:
            copy_tensor(graph.initializer.add(), tensor)
    return slim


def infer_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The type of every tensor as far as ONNX's shape inference and the model's own annotations tell.

    The weights stay out of the inference, which therefore works above protobuf's 2 GB; it runs in a child
    process, because it is C++ that trusts its input. Where it fails, the annotations are all there is.
    """
    slim = skeleton(model, SMALL)
    kept = {t.name for t in slim.graph.initializer} | {v.name for v in slim.graph.input}
    types = {v.name: v.type for v in [*model.graph.value_info, *model.graph.input, *model.graph.output]}
    for tensor in model.graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))
        if tensor.name not in kept:
            slim.graph.input.append(onnx.ValueInfoProto(name=tensor.name, type=types[tensor.name]))
    try:
        inferred = onnx.ModelProto.FromString(
            isolated(
                lambda: shape_inference.infer_shapes(slim, data_prop=propagates(slim.graph)).SerializeToString(),
                "shape inference",
            )
        )
    except (ModelError, RuntimeError):
        return types
    found = {v.name: v.type for v in [*inferred.graph.value_info, *inferred.graph.output]}
    return {**types, **{n: t for n, t in found.items() if n not in types or t.tensor_type.HasField("shape")}}


def needed(
    nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], border: Collection[str]
) -> tuple[list[int], set[str]]:
    """What `outputs` depend on, not looking behind `border`.

    Returns:
        Indices of the nodes, in order, and every name they read or give out, outputs included.
    """
    wanted = set(outputs)
    kept = []
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if any(o in wanted and o not in border for o in node.output if o):
            wanted |= node_reads(node)
            kept.append(index)
    return kept[::-1], wanted


def cut(
    model: onnx.ModelProto,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    types: Types,
) -> onnx.ModelProto:
    """The piece of a model between tensors.

    Args:
        model: its nodes are in topological order; weights may be external references.
        inputs: tensors that become inputs; those that `outputs` do not depend on are left out. Inputs of the
            model that are still needed stay inputs.
        outputs: tensors that become outputs, in this order.
        types: of every tensor, for the borders and `value_info`.
    """
    given = {v.name: v for v in inputs}
    nodes, names = needed(model.graph.node, outputs, given)
    piece = skeleton(model)
    graph = piece.graph
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        del getattr(graph, part)[:]
    graph.node.extend(model.graph.node[i] for i in nodes)
    made = {o for i in nodes for o in model.graph.node[i].output}
    for value in inputs_of(model):
        if value.name in names and value.name not in given:
            graph.input.append(value)
    graph.input.extend(v for v in inputs if v.name in names)
    for tensor in model.graph.initializer:
        if tensor.name in names and tensor.name not in given:
            copy_tensor(graph.initializer.add(), tensor)
    if graph.initializer:
        piece.ir_version = max(piece.ir_version, 4)  # before IR 4 every initialiser has to be an input too
    graph.sparse_initializer.extend(t for t in model.graph.sparse_initializer if t.values.name in names - given.keys())
    graph.output.extend(value_info(name, types) for name in outputs)
    border = {v.name for v in [*graph.input, *graph.output]}
    graph.value_info.extend(
        value_info(n, types) for n in dict.fromkeys(o for i in nodes for o in model.graph.node[i].output)
        if n in types and n not in border and n in made
    )  # fmt: skip
    used = {normal_domain(n.domain) for n in graph.node}
    keep = [f for f in piece.functions if normal_domain(f.domain) in used]
    if len(keep) < len(piece.functions):
        copies = [onnx.FunctionProto.FromString(f.SerializeToString()) for f in keep]
        del piece.functions[:]
        piece.functions.extend(copies)
    return piece


def value_info(name: str, types: Types) -> onnx.ValueInfoProto:
    """A tensor's name and type, the type left open where it is not known."""
    return onnx.ValueInfoProto(name=name, type=types[name]) if name in types else onnx.ValueInfoProto(name=name)


def resolve_outputs(model: onnx.ModelProto, names: Sequence[str], flag: str) -> list[str]:
    """Tensor names for what a user typed: a tensor, or a node, which stands for its outputs.

    Raises:
        InputError: every name that is neither, with the nearest one.
    """
    tensors = set(producers(model)) | {v.name for v in model.graph.input} | weights_of(model).keys()
    nodes = {node_name(n): [o for o in n.output if o] for n in model.graph.node}
    found: list[str] = []
    problems: list[InputError] = []
    for name in names:
        if name in tensors:
            found.append(name)
        elif name in nodes:
            found += nodes[name]
        else:
            problems.append(no_tensor(name, [*tensors, *nodes], flag))
    if problems:
        raise collect(problems)
    return list(dict.fromkeys(found))


def no_tensor(name: str, known: Collection[str], flag: str) -> InputError:
    """The error for a name that neither a tensor nor a node has."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if name and name in k and k not in near][: 3 - len(near)]
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "`tvmopt inspect MODEL --top 0` lists the nodes"
    return InputError(f"the model has no tensor or node {name!r}.", where=flag, fix=hint)
