"""A decoder beside an encoder, as exporters write it - two files, or one with an If - as the two models that tvmopt
compiles: the step, and what is computed once of the encoder's output.

    decoder_with_past_model.onnx    tokens, caches of both kinds -> scores, longer caches               the step
    decoder_model.onnx              tokens, encoder's output -> scores, caches of both kinds            the beginning
    decoder_model_merged.onnx       If(use_cache_branch) the one, else the other

Of the beginning only the caches of the encoder's output are kept, under the names that the step reads them by: a step
whose own caches are empty computes the rest. So no weight is in both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from tvmopt.errors import InputError, ModelError
from tvmopt.fields import FLAG, has_flag
from tvmopt.importer.decoder import OTHER_ATTENTION, find
from tvmopt.importer.load import load
from tvmopt.importer.protos import node_reads


@dataclass(frozen=True)
class Pair:
    """The two models.

    Attributes:
        beginning: None where the decoder looks at its own text alone.
        ids: the input of tokens; what the beginning computes does not depend on it.
    """

    step: onnx.ModelProto
    beginning: onnx.ModelProto | None
    ids: str


def pair(source: Any, first: Any = None, values: Collection[str] = ()) -> Pair | None:
    """The two models of a decoder; None where `source` is one model.

    Args:
        source: a model: a path, bytes or a ModelProto. first: the file of its first call, if that is another.
        values: inputs that the caller binds: a branch that is chosen is one model.

    Raises:
        InputError: `first` is given, and `source` or `first` is no such file.
        ModelError: a model cannot be read.
    """
    if first is not None:
        step = load(source)
        ids = _roles(step).ids
        if not ids or not _other_caches(step):
            raise InputError(
                "the model reads no caches of an encoder's output.",
                where=_told(source),
                fix="--first is for a decoder with inputs past_key_values.*.encoder.*; leave it out",
            )
        return Pair(step, _beginning(load(first), step, _told(first)), ids)
    if FLAG in values or not _decides(source):
        return None
    return _merged(load(source), _told(source))


def refuse_both(model: onnx.ModelProto) -> None:
    """Refuse a model that is still two: for what imports one.

    Raises:
        InputError: an input decides which form of a decoder the model computes.
    """
    if _decides(model) and _merged(model, "the model") is not None:
        raise InputError(
            f"the model is two forms of a decoder, and its input '{FLAG}' says which: here one is looked at.",
            where=f"model '{model.graph.name}', input '{FLAG}'",
            fix="give the file of the steps, decoder_with_past_model.onnx, or choose them where the command takes "
            f"--value {FLAG}=1 (in Python values={{'{FLAG}': 1}}); `tvmopt compile` takes both",
        )


def _told(source: Any) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the model"


def _decides(source: Any) -> bool:
    """Whether a model has the input that decides; nothing is parsed of a file that does not even have the word."""
    if isinstance(source, onnx.ModelProto):
        return any(value.name == FLAG for value in source.graph.input)
    return has_flag(source)


def _merged(model: onnx.ModelProto, where: str) -> Pair | None:
    """Both models of a file whose nodes are one If that an input decides."""
    choices = [node for node in model.graph.node if node.op_type == "If" and list(node.input) == [FLAG]]
    if len(choices) != 1:
        return None
    graphs = {a.name: a.g for a in choices[0].attribute}
    branches = [_taken(model, choices[0], graphs[f"{name}_branch"]) for name in ("then", "else")]
    reads = [_read_caches(branch) for branch in branches]
    if bool(reads[0]) == bool(reads[1]):
        return None
    step, first = branches if reads[0] else branches[::-1]
    kept = [o.name for o in step.graph.output if not OTHER_ATTENTION.search(o.name)]
    step = pruned(step, {name: name for name in kept})
    beginning = _beginning(first, step, where) if _other_caches(step) else None
    return Pair(step, beginning, _roles(step).ids)


def _taken(model: onnx.ModelProto, choice: onnx.NodeProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    """The model in which one branch is always taken."""
    made = onnx.ModelProto()
    made.CopyFrom(_without_graph(model))
    made.graph.name = model.graph.name
    made.graph.initializer.extend([*model.graph.initializer, *graph.initializer])
    made.graph.input.extend(model.graph.input)
    made.graph.output.extend(model.graph.output)
    results = [o.name for o in graph.output]
    renamed = {inner: outer for inner, outer in zip(results, choice.output, strict=True) if inner != outer}
    outside = [node for node in model.graph.node if node is not choice]
    made.graph.node.extend([*outside, *graph.node])
    for inner, outer in renamed.items():
        made.graph.node.append(helper.make_node("Identity", [inner], [outer], name=outer))
    return made


def _without_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto(
        ir_version=model.ir_version, producer_name=model.producer_name, producer_version=model.producer_version
    )
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    return made


def _beginning(first: onnx.ModelProto, step: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """What the first call computes of the encoder's output, by the names of the step's inputs.

    Raises:
        ModelError: it does not compute a cache that the step reads.
    """
    outputs = {o.name for o in first.graph.output}
    wanted: dict[str, str] = {}
    missing: list[str] = []
    for name in _other_caches(step):
        ending = name.removeprefix("past_key_values").removeprefix("past")
        found = [f"{word}{ending}" for word in ("present", "present_key_values") if f"{word}{ending}" in outputs]
        missing += [] if found else [name]
        wanted |= {found[0]: name} if found else {}
    if missing:
        raise ModelError(
            f"The first call does not compute {', '.join(missing)}, which the step reads.",
            where=where,
            fix="give the file of the same export without a past (decoder_model.onnx): its outputs are present.*",
        )
    return pruned(first, wanted)


def pruned(model: onnx.ModelProto, outputs: Mapping[str, str]) -> onnx.ModelProto:
    """The part of a model that computes some of its outputs, under new names."""
    live, nodes = set(outputs), []
    for node in reversed(model.graph.node):
        if live.intersection(node.output):
            live |= node_reads(node)
            nodes.append(node)
    made = _without_graph(model)
    graph = made.graph
    graph.name = model.graph.name
    graph.node.extend(nodes[::-1])
    stored = [t for t in model.graph.initializer if t.name in live]
    graph.initializer.extend(stored)
    graph.input.extend(v for v in model.graph.input if v.name in live)
    for value in model.graph.output:
        if value.name in outputs:
            graph.output.append(value)
            graph.output[-1].name = outputs[value.name]
            if outputs[value.name] != value.name:
                name = outputs[value.name]
                graph.node.append(helper.make_node("Identity", [value.name], [name], name=f"{name}/renamed"))
    return made


def _read_caches(model: onnx.ModelProto) -> list[str]:
    """The caches that a model reads, of any kind."""
    read: set[str] = set().union(*(node_reads(node) for node in model.graph.node))
    return [v.name for v in model.graph.input if v.name.startswith("past") and v.name in read]


def _other_caches(model: onnx.ModelProto) -> list[str]:
    """The caches that a step reads and does not make longer."""
    own = {cache.past for cache in _roles(model).caches}
    return [name for name in _read_caches(model) if name not in own and OTHER_ATTENTION.search(name)]


def _roles(model: onnx.ModelProto) -> Any:
    stored = {t.name for t in model.graph.initializer}
    values: Iterable[onnx.ValueInfoProto] = (v for v in model.graph.input if v.name not in stored)
    return find(values, model.graph.output)
