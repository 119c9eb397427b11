"""`tvmopt surgeon extract`: the piece of a model between named tensors, as a model of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tvmopt.compiler.request import model_files
from tvmopt.debug.edit import Edited, read, write
from tvmopt.debug.graph import (
    Types,
    cut,
    infer_types,
    inputs_of,
    needed,
    no_tensor,
    producers,
    resolve_outputs,
)
from tvmopt.dims import Shapes
from tvmopt.errors import InputError, collect
from tvmopt.files import check_writable
from tvmopt.importer.shapes import bind_shapes
from tvmopt.texts import whole_number


def extract(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    nodes: Sequence[str] = (),
    shape: Shapes | None = None,
    output: str | Path,
) -> Edited:
    """Write the piece of a model between tensors.

    Args:
        inputs: tensors that become inputs, ``name``, ``name:1x3x224x224`` or ``name:1x3x224x224:float32``;
        what is
            not given comes from shape inference. Empty: the model's own inputs, as far as they are needed.
        outputs: tensors that become outputs; a node's name stands for its outputs. Empty: the model's own.
        nodes: exactly these nodes instead; inputs and outputs follow.
        shape: shapes of the model's open inputs, so that shapes inside become known.
        output: the file to write.

    Raises:
        InputError: unknown names; inputs that do not cut the outputs off from the rest; unknown types.
    """
    loaded, beside = read(model)
    before = len(loaded.graph.node)
    check_writable(output, reads=model_files(model))
    if shape:
        bind_shapes(loaded.graph, shape)
    types: dict[str, onnx.TypeProto] = dict(infer_types(loaded))
    if nodes:
        if inputs or outputs:
            raise InputError("--nodes and --inputs or --outputs exclude each other.", where="--nodes", fix="give one")
        inputs, outputs = border_of(loaded, nodes)
    wanted = resolve_outputs(loaded, outputs, "--outputs") if outputs else [o.name for o in loaded.graph.output]
    border = [_input(text, loaded, types) for text in inputs]
    if border:
        types.update((v.name, v.type) for v in border)
        _cut_off(loaded, wanted, border)
    piece = cut(loaded, border, wanted, types)
    unused = [v.name for v in border if v.name not in {i.name for i in piece.graph.input}]
    if unused:
        raise InputError(
            f"no output depends on {', '.join(map(repr, unused))}.",
            where="--inputs",
            fix="leave it out, or give other outputs",
        )
    if not piece.graph.node:
        raise InputError(
            "there is no node between these tensors.",
            where="--inputs, --outputs",
            fix="the outputs must be computed from the inputs",
        )
    kept = len(piece.graph.node)
    return write(piece, output, before, [f"kept {kept} of {before} nodes"], beside)


def border_of(model: onnx.ModelProto, nodes: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tensors that nodes read from outside, and those that others read of them.

    Raises:
        InputError: unknown nodes.
    """
    by_name: dict[str, list[int]] = {}
    for index, node in enumerate(model.graph.node):
        by_name.setdefault(node.name or next(iter(node.output), ""), []).append(index)
    problems = [no_tensor(n, by_name, "--nodes") for n in nodes if n not in by_name]
    if problems:
        raise collect(problems)
    inside = {i for n in nodes for i in by_name[n]}
    return borders(model, inside)


def borders(model: onnx.ModelProto, inside: set[int]) -> tuple[list[str], list[str]]:
    """The same for indices of nodes."""
    from tvmopt.importer.protos import node_reads

    made = {o for i in inside for o in model.graph.node[i].output if o}
    fed = producers(model).keys() | {v.name for v in inputs_of(model)}
    reads = dict.fromkeys(n for i in sorted(inside) for n in model.graph.node[i].input if n in fed and n not in made)
    outside = {o.name for o in model.graph.output}
    for index, node in enumerate(model.graph.node):
        if index not in inside:
            outside |= node_reads(node)
    gives = [o for i in sorted(inside) for o in model.graph.node[i].output if o in outside]
    return list(reads), gives


def _input(text: str, model: onnx.ModelProto, types: Types) -> onnx.ValueInfoProto:
    """A border input from ``name[:shape[:dtype]]``; names may have colons themselves."""
    known = set(producers(model)) | {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer}
    name, dims, dtype = text, "", ""
    if name not in known:
        name, _, dims = text.rpartition(":")
        if name not in known and ":" in name:
            dtype = dims
            name, _, dims = name.rpartition(":")
    if name not in known:
        raise no_tensor(text.split(":")[0] if ":" in text else text, known, "--inputs")
    kind = types.get(name)
    element = kind.tensor_type.elem_type if kind is not None else 0
    if dtype:
        try:
            element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        except (TypeError, KeyError, ValueError):
            raise InputError(
                f"{dtype!r} is no element type.", where=f"--inputs {text}", fix="float32, int64, ..."
            ) from None
    if not element:
        raise InputError(
            f"the type of {name!r} cannot be inferred.",
            where="--inputs",
            fix=f"say it: --inputs {name}:1x3x224x224:float32",
        )
    if not dims:
        return (
            onnx.ValueInfoProto(name=name, type=types[name])
            if name in types
            else helper.make_tensor_value_info(name, element, None)
        )
    sizes = [p for p in dims.replace(",", "x").strip("[]").split("x") if p]
    if not all(whole_number(s) or s == "0" for s in sizes):
        raise InputError(f"{dims!r} is no shape.", where=f"--inputs {text}", fix=f"--inputs {name}:1x3x224x224")
    return helper.make_tensor_value_info(name, element, [int(s) for s in sizes])


def _cut_off(model: onnx.ModelProto, outputs: Sequence[str], border: Sequence[onnx.ValueInfoProto]) -> None:
    """Refuse inputs that leave the outputs dependent on other inputs of the model, and name those.

    Raises:
        InputError: with the tensors to add.
    """
    given = {v.name for v in border}
    _, names = needed(model.graph.node, outputs, given)
    missing = [v.name for v in inputs_of(model) if v.name in names and v.name not in given]
    if missing:
        more = " ".join(f"--inputs {n}" for n in missing)
        raise InputError(
            f"the outputs also depend on {', '.join(map(repr, missing))}.",
            where="--inputs " + " --inputs ".join(given),
            fix=f"add {more}, or tensors on the way from there",
        )
