"""What a decoder's inputs and outputs are - token ids, mask, positions, caches - and the names of its sizes, for the
preparation.

Exporters write one decoder in many ways, and most name each open size apart: torch calls the lengths ``s15``, ``s43``,
.... A cache that comes in as ``past_key_values.0.key`` and leaves as ``present.0.key`` tells what they are::

    past_key_values.0.key   [batch, heads, past, depth]        attention_mask   [batch, past + new]
    input_ids               [batch, new]                       position_ids     [batch, new]

So all of them get two symbols, and nothing has to be solved for. What a decoder looks at besides its own text has a
third one::

    past_key_values.0.encoder.key   [batch, heads, encoder, depth]      encoder_attention_mask   [batch, encoder]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import TensorProto

from tvmopt.dims import PAST
from tvmopt.errors import ModelError
from tvmopt.runtime.roles import Cache, Roles

PAST_LENGTH, NEW_LENGTH, OTHER_LENGTH = "past_sequence_length", "sequence_length", "encoder_sequence_length"
"""Names of the three sizes where the file has none."""

LENGTH_AXIS = 2
"""The axis of a cache [batch, heads, length, depth] that grows."""

LOGITS = "logits"
"""What every exporter calls the scores."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
INTEGERS = (TensorProto.INT64, TensorProto.INT32)

OTHER_ATTENTION = re.compile(r"encoder|cross", re.IGNORECASE)
"""Caches of what a decoder looks at besides its own text: they do not grow."""

SHORT_MEMORY = re.compile(r"sliding|window", re.IGNORECASE)
"""Lengths of caches that forget their first rows."""


def find(inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]) -> Roles:
    """The roles of a graph's inputs and outputs; none where it is no decoder with caches that grow."""
    values = {v.name: v for v in inputs}
    ends = {v.name: v for v in outputs}
    caches = []
    for name, value in values.items():
        match = re.fullmatch(r"past(?:_key_values)?(\W.*|_.*)", name)
        if match is None or not _is_cache(value) or OTHER_ATTENTION.search(name):
            continue
        found = [f"{word}{match[1]}" for word in ("present", "present_key_values") if f"{word}{match[1]}" in ends]
        if found:
            caches.append(Cache(name, found[0]))
    ids = next((n for n in ("input_ids", "decoder_input_ids") if n in values and _rank(values[n]) == 2), "")
    if not caches or not ids:
        return Roles()
    mask, positions = (_integers(values, n) for n in ("attention_mask", "position_ids"))
    logits = LOGITS if LOGITS in ends and _rank(ends[LOGITS]) in (-1, 3) else ""
    return Roles(tuple(caches), ids, mask, positions, logits)


def onnx_interface(path: str) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Inputs and outputs of a file, for :func:`find`; its weights are not read."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {t.name for t in graph.initializer}
    return [i for i in graph.input if i.name not in stored], list(graph.output)


def name_sizes(values: Iterable[onnx.ValueInfoProto], decoder: Roles, given: Mapping[str, Any]) -> None:
    """Give the open sizes of a decoder's inputs the names that belong together, in place.

    Args:
        given: what the caller binds, by the name of an input or of a size: a name that is bound stays. Where nothing
            tells the number of sequences, it is one.

    Raises:
        ModelError: some of the caches forget their first rows, and their lengths are not bound.
    """
    inputs = {v.name: v for v in values}
    caches = [inputs[cache.past] for cache in decoder.caches]
    lengths = {_name(cache, LENGTH_AXIS) for cache in caches} - set(given)
    short = sorted(filter(SHORT_MEMORY.search, lengths))
    if short and len(lengths) > 1:
        raise ModelError(
            f"Some caches have a length of their own, '{short[0]}': they forget their first rows.",
            where=", ".join(c.name for c in caches if _name(c, LENGTH_AXIS) == short[0]),
            fix="export the model with caches of one length, as torch.onnx.export does, or bind all lengths: "
            + " ".join(f"--shape {name}:NUMBER" for name in sorted(lengths)),
        )
    ids = inputs[decoder.ids]
    batch = _name(ids, 0) or _name(caches[0], 0)
    one = bool(batch) and not any(name == batch or name in inputs for name in given)
    new = _name(ids, 1)
    new = new if new and "seq" in new.lower() else NEW_LENGTH
    past = _name(caches[0], LENGTH_AXIS)
    past = past if past.startswith(PAST) else PAST_LENGTH
    known = set(given)
    length = ids.type.tensor_type.shape.dim[1]
    size = str(length.dim_value) if length.HasField("dim_value") else new
    wanted: list[tuple[onnx.ValueInfoProto, tuple[str, ...]]] = [(ids, (batch, new))]
    wanted += [(cache, (batch, "", past, "")) for cache in caches]
    wanted += [(inputs[decoder.mask], (batch, f"{past} + {size}"))] if decoder.mask else []
    wanted += [(inputs[decoder.positions], (batch, new))] if decoder.positions else []
    wanted += _beside(inputs, batch)
    for value, names in wanted:
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if dim.HasField("dim_value") or not name or (dim.dim_param in known and dim.dim_param != batch):
                continue
            if name == batch and one:
                dim.dim_value = 1
            else:
                dim.dim_param = name


def _beside(inputs: Mapping[str, onnx.ValueInfoProto], batch: str) -> list[tuple[onnx.ValueInfoProto, tuple[str, ...]]]:
    """The inputs that say what a decoder looks at besides its own text, and the names of their sizes."""
    found = [value for name, value in inputs.items() if OTHER_ATTENTION.search(name) and 2 <= _rank(value) <= 4]
    axes = {2: 1, 3: 1, 4: LENGTH_AXIS}  # a mask, an encoder's output, a cache
    names = [_name(value, axes[_rank(value)]) for value in found]
    length = next((name for name in names if "seq" in name.lower() or "len" in name.lower()), OTHER_LENGTH)
    made = []
    for value in found:
        own = [""] * _rank(value)
        own[0], own[axes[_rank(value)]] = batch, length
        made.append((value, tuple(own)))
    return made


def _is_cache(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in FLOATS and _rank(value) == 4


def _integers(values: Mapping[str, onnx.ValueInfoProto], name: str) -> str:
    """The name of an input of integers [.., ..], "" where it is none."""
    value = values.get(name)
    if value is None or value.type.tensor_type.elem_type not in INTEGERS or _rank(value) != 2:
        return ""
    return name


def _rank(value: onnx.ValueInfoProto) -> int:
    tensor = value.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else -1


def _name(value: onnx.ValueInfoProto, axis: int) -> str:
    """The name of an open size; "" where it is a number. A size without a name gets one."""
    dim = value.type.tensor_type.shape.dim[axis]
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return ""
    return dim.dim_param or f"{value.name}_{axis}"
