"""`tvmopt surgeon fold`: nodes whose inputs are constants, replaced by their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.compiler.request import model_files
from tvmopt.debug.edit import Edited, read, write
from tvmopt.debug.graph import infer_types, weights_of
from tvmopt.dims import Shapes
from tvmopt.errors import InputError
from tvmopt.files import check_writable
from tvmopt.importer.evaluate import Array, evaluate, foldable
from tvmopt.importer.isolate import isolated
from tvmopt.importer.protos import (
    attributes,
    byte_size,
    copy_tensor,
    count,
    drop_unused_weights,
    human,
    node_name,
    node_reads,
    opset_versions,
    static_shape,
    subgraphs,
    to_tensor,
)
from tvmopt.importer.shapes import bind_shapes

GROWTH = 1 << 24
"""A value of more bytes than this, and more than the constants it comes from, is left to be computed."""


def fold(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    shape: Shapes | None = None,
    limit: int = GROWTH,
    output: str | Path,
) -> Edited:
    """Write the model with its constant parts computed: shape arithmetic of known shapes, chains of constants.

    Args:
        shape: shapes of open inputs; every Shape of a static tensor becomes a constant.
        limit: most bytes of a constant that is larger than what it was computed from (Expand, Tile,
            ConstantOfShape make large ones of nothing).
        output: the file to write.

    Quantization pairs (QuantizeLinear, DequantizeLinear of weights) and random operators stay.

    Raises:
        InputError: a negative limit, a shape that does not fit.
    """
    if limit < 0:
        raise InputError(f"the limit is {limit} bytes.", where="--limit", fix="0 or more")
    check_writable(output, reads=model_files(model))
    loaded, beside = read(model)
    before = len(loaded.graph.node)
    if shape:
        bind_shapes(loaded.graph, shape)
    folded, changes = fold_model(loaded, limit)
    return write(folded, output, before, changes, beside)


def fold_model(model: onnx.ModelProto, limit: int = GROWTH) -> tuple[onnx.ModelProto, list[str]]:
    """The model with constants folded and what they left behind removed, in memory; and what was done."""
    from tvmopt.importer.protos import copy_model

    result = copy_model(model)
    total = 0
    skipped: list[str] = []
    while True:
        types = infer_types(result)
        values, skipped = isolated(partial(_round, result, types, limit), "folding", model.graph.name)
        if not values:
            break
        total += _replace(result, values)
    drop_unused_weights(result)
    changes = [f"folded {total} nodes"] if total else []
    return result, changes + [f"left {text}" for text in skipped]


def _round(
    model: onnx.ModelProto, types: Mapping[str, onnx.TypeProto], limit: int
) -> tuple[dict[str, Array], list[str]]:
    """The values of every node that can be computed now, by output name, and what was too large."""
    constants: dict[str, Any] = dict(weights_of(model))
    values: dict[str, Array] = {}
    skipped = []
    opset = opset_versions(model).get("", 1)
    outputs = {o.name for o in model.graph.output}

    def array(name: str) -> Array:
        if name in values:
            return values[name]
        return np.asarray(numpy_helper.to_array(constants[name]))

    for node in model.graph.node:
        made = [o for o in node.output if o]
        if any(True for _ in subgraphs(node)):
            continue
        known = node.op_type == "Shape" and static_shape(types.get(node.input[0])) is not None
        names = [i for i in node.input if i]
        if not known and not all(n in constants or n in values for n in names):
            continue
        if node.op_type == "Constant" and node.input:
            continue
        shapes = {o: (types[o].tensor_type.elem_type, static_shape(types[o])) for o in made if o in types}
        sizes = [byte_size(k, count(s)) for k, s in shapes.values() if s is not None]
        found: dict[str, Array] | None
        if known:
            found = {made[0]: _shape(node, static_shape(types[node.input[0]]) or ())}
        elif node.op_type == "Constant":
            found = _constant(node)
        else:
            given = {n: array(n) for n in names}
            elements = sum(count(s) for _, s in shapes.values() if s is not None) if len(sizes) == len(made) else None
            if not foldable(node, given, elements):
                continue
            if sum(sizes) > max(limit, sum(a.nbytes for a in given.values())):
                skipped.append(f"{node_name(node)} ({node.op_type}): its value has {human(sum(sizes))}")
                continue
            found = evaluate(node, given, opset, shapes)
        if found is not None and not outputs.intersection(found):
            values.update(found)
    return values, skipped


def _shape(node: onnx.NodeProto, shape: tuple[int, ...]) -> Array:
    found = attributes(node)
    return np.asarray(shape[found.get("start", 0) : found.get("end", len(shape))], np.int64)


def _constant(node: onnx.NodeProto) -> dict[str, Array] | None:
    """The value of a Constant node, whichever attribute holds it; None for strings and sparse ones."""
    found = attributes(node)
    for key, dtype in (
        ("value_float", "f4"),
        ("value_floats", "f4"),
        ("value_int", "i8"),
        ("value_ints", "i8"),
    ):
        if key in found:
            return {node.output[0]: np.asarray(found[key], dtype)}
    value = found.get("value")
    return {node.output[0]: value} if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS" else None


def _replace(model: onnx.ModelProto, values: Mapping[str, Array]) -> int:
    """Make initialisers of `values` and drop the nodes that computed them; how many."""
    graph = model.graph
    kept, tensors = [], {}
    for node in graph.node:
        made = [o for o in node.output if o]
        if made and all(o in values for o in made):
            literal = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
            for name in made:
                if node.op_type == "Constant" and literal is not None:
                    copy = onnx.TensorProto()
                    copy_tensor(copy, literal)
                    copy.name = name
                    tensors[name] = copy
                else:
                    tensors[name] = to_tensor(values[name], name)
        else:
            kept.append(node)
    dropped = len(graph.node) - len(kept)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    read = set().union(*(node_reads(n) for n in nodes)) if nodes else set()
    del graph.node[:]
    graph.node.extend(nodes)
    for name, tensor in tensors.items():
        if name in read:
            copy_tensor(graph.initializer.add(), tensor)
    return dropped
