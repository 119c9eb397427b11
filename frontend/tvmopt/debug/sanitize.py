"""`tvmopt surgeon sanitize`: a model as every tool likes it - named, ordered, typed, without dead weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import version_converter

from tvmopt.compiler.request import model_files
from tvmopt.debug.edit import Edited, read, write
from tvmopt.debug.fold import GROWTH, fold_model
from tvmopt.debug.graph import SMALL, infer_types, needed, skeleton, value_info, weights_of
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, ModelError, first_line
from tvmopt.files import check_writable
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import (
    attributes,
    copy_model,
    copy_tensor,
    drop_unused_weights,
    normal_domain,
    opset_versions,
    subgraphs,
)
from tvmopt.importer.shapes import bind_shapes


def sanitize(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    shape: Shapes | None = None,
    opset: int | None = None,
    fold: bool = False,
    output: str | Path,
) -> Edited:
    """Write the model cleaned up; what it computes stays the same.

    Nodes in topological order and named, each name once; nodes and weights that no output needs removed; Identity,
    Dropout of inference and Casts to the own type removed; initialisers no longer listed as inputs; every tensor
    annotated with its inferred type. The graph's inputs stay, also unused ones: they are the interface.

    Args:
        shape: shapes to give to open inputs.
        opset: convert to this version of ONNX's operators.
        fold: fold constants too.
        output: the file to write.

    Raises:
        ModelError: the opset conversion failed.
    """
    check_writable(output, reads=model_files(model))
    loaded, beside = read(model)
    before = len(loaded.graph.node)
    result, changes = copy_model(loaded), []
    if shape:
        bind_shapes(result.graph, shape)
    changes += _stored_inputs(result)  # first: the conversion takes what is listed as an input for one
    if opset is not None:
        result, text = convert(result, opset)
        changes += text
    changes += [t for step in (_bypass, _dead, _names) for t in step(result)]
    if fold:
        result, text = fold_model(result, GROWTH)
        changes += text + _dead(result)
    changes += _annotate(result)
    return write(result, output, before, changes, beside)


def convert(model: onnx.ModelProto, opset: int) -> tuple[onnx.ModelProto, list[str]]:
    """The model at another opset, by ONNX's converter; large weights stay out of its sight.

    Raises:
        InputError: no such opset.
        ModelError: the converter failed.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise InputError(f"there is no opset {opset}.", where="--opset", fix=f"1 to {newest}")
    old = opset_versions(model).get("", 1)
    if old == opset:
        return model, []
    slim = skeleton(model, SMALL)
    slim.ir_version = max(slim.ir_version, 4)  # before IR 4 the converter does not know a weight that is no input
    shown = {t.name for t in slim.graph.initializer}
    stripped = {n: t for n, t in weights_of(model).items() if n not in shown}
    listed = {v.name for v in slim.graph.input}
    stand_ins = [
        onnx.helper.make_tensor_value_info(n, t.data_type, tuple(t.dims))
        for n, t in stripped.items()
        if n not in listed
    ]
    slim.graph.input.extend(stand_ins)
    try:
        data = isolated(lambda: version_converter.convert_version(slim, opset).SerializeToString(), "opset conversion")
    except (ModelError, RuntimeError) as error:
        text = first_line(error)
        raise ModelError(
            f"The model cannot be converted to opset {opset}: {text}",
            where=f"opset {old}",
            fix="leave --opset out, or export the model with it",
        ) from None
    result = onnx.ModelProto.FromString(data)
    names = {v.name for v in stand_ins}
    inputs = [v for v in result.graph.input if v.name not in names]
    del result.graph.input[:]
    result.graph.input.extend(inputs)
    present = {t.name for t in result.graph.initializer}
    for name, tensor in stripped.items():
        if name not in present:
            copy_tensor(result.graph.initializer.add(), tensor)
    return result, [f"converted opset {old} to {opset}"]


def _stored_inputs(model: onnx.ModelProto) -> list[str]:
    """Initialisers need not be inputs since IR 4; listed as such they forbid folding."""
    stored = weights_of(model)
    kept = [v for v in model.graph.input if v.name not in stored]
    dropped = len(model.graph.input) - len(kept)
    if dropped:
        copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in kept]
        del model.graph.input[:]
        model.graph.input.extend(copies)
        model.ir_version = max(model.ir_version, 4)
    return [f"{dropped} initialisers are no longer inputs"] if dropped else []


def _bypass(model: onnx.ModelProto) -> list[str]:
    """Remove nodes that hand their input on, where no border or subgraph would notice."""
    graph = model.graph
    types = infer_types(model)
    fixed = {o.name for o in graph.output} | {n for node in graph.node for g in subgraphs(node) for n in _names_in(g)}
    alias: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = alias.get(name, name)
        if _idle(node, types) and node.output[0] not in fixed:
            alias[node.output[0]] = node.input[0]
        else:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    if alias:
        del graph.node[:]
        graph.node.extend(kept)
    return [f"removed {len(alias)} nodes that do nothing"] if alias else []


def _idle(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    if normal_domain(node.domain) or sum(bool(o) for o in node.output) != 1 or not node.input:
        return False
    if node.op_type == "Cast" and node.input[0] in types:
        return bool(attributes(node).get("to") == types[node.input[0]].tensor_type.elem_type)
    return node.op_type == "Identity" or (node.op_type == "Dropout" and not (len(node.input) > 2 and node.input[2]))


def _names_in(graph: onnx.GraphProto) -> set[str]:
    names = {i for n in graph.node for i in n.input} | {o.name for o in graph.output}
    return names.union(*(_names_in(g) for n in graph.node for g in subgraphs(n)))


def _dead(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    alive, _ = needed(graph.node, [o.name for o in graph.output], ())
    dead = sorted(set(range(len(graph.node))) - set(alive))
    for index in reversed(dead):
        del graph.node[index]
    unused = drop_unused_weights(model)
    changes = [f"removed {len(dead)} dead nodes"] if dead else []
    return changes + ([f"removed {unused} unused initialisers"] if unused else [])


def _names(model: onnx.ModelProto) -> list[str]:
    """Name every node, each name once; tensors keep theirs: callers and data files know them."""
    seen: set[str] = {n.name for n in model.graph.node}
    taken: set[str] = set()
    changed = 0
    for node in model.graph.node:
        if node.name and node.name not in taken:
            taken.add(node.name)
            continue
        base = node.name or f"{node.op_type}_{next((o for o in node.output if o), 'node')}"
        name, n = base, 1
        while name in taken or (name in seen and name != base) or not name:
            n += 1
            name = f"{base}_{n}"
        node.name = name
        taken.add(name)
        changed += 1
    return [f"named {changed} nodes"] if changed else []


def _annotate(model: onnx.ModelProto) -> list[str]:
    """Write the inferred type of every tensor between nodes into the model."""
    graph = model.graph
    types = infer_types(model)
    border = {v.name for v in [*graph.input, *graph.output]}
    names = [o for n in graph.node for o in n.output if o and o in types and o not in border]
    before = {v.name: v.type.SerializeToString() for v in graph.value_info}
    infos = [value_info(n, types) for n in names]
    changed = sum(before.get(v.name) != v.type.SerializeToString() for v in infos)
    del graph.value_info[:]
    graph.value_info.extend(infos)
    for value in graph.output:
        if value.name in types:
            value.type.CopyFrom(types[value.name])
    return [f"annotated {changed} tensors with their types"] if changed else []
