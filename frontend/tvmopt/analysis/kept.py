"""Which tensors a compiled model keeps in caches that round them - for the oracle, which then rounds them, too.

`--kv-cache` stores a decoder's keys and values in fewer bits (:mod:`tvmopt.operators.stored`), and attention reads what
is stored. The judge marks the nodes that make the caches, by a private attribute::

    present.0.key = Concat(past_key_values.0.key, new)     its result is rounded
    y, present.0.key, present.0.value = Attention(...)     both caches, before scores are computed
    present.0.key = Identity(new)                          what makes `new`: a past without rows is no input
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.deviation import PEAK, Limits
from tvmopt.analysis.oracle.rounding import rms_of_rows
from tvmopt.analysis.oracle.values import KEPT, Unsupported, Value, is_real
from tvmopt.operators.stored import FLOAT, as_stored
from tvmopt.runtime.roles import Cache, Roles

SIZES = {"Shape", "Size"}
"""Operators that read none of a tensor's numbers."""
STRINGS = 8
"""AttributeProto.STRINGS."""


class Kept(NamedTuple):
    """An output of a model that is a rounded cache.

    Attributes:
        tensor: its numbers, before other nodes give them other names. kind: how they are stored.
    """

    tensor: str
    kind: str


def mark(model: Any, roles: Roles, kind: str) -> bool:
    """Mark the nodes that make a decoder's caches, and no others, in the model itself; for "float32" none.

    Returns:
        Whether a node is marked now, or was before.

    Raises:
        Unsupported: a cache is made in another way.
    """
    touched = False
    makers = {name: node for node in model.graph.node for name in node.output if name}
    for node in model.graph.node:
        for attribute in [a for a in node.attribute if a.name == KEPT]:
            node.attribute.remove(attribute)
            touched = True
    for cache in roles.caches if kind != FLOAT else ():
        tensor = _origin(cache.present, makers)
        node = makers.get(tensor)
        if node is None or not _makes(node, cache, model, makers):
            raise Unsupported(f"no node is known that makes the cache {cache.present!r}")
        _attribute(node)[list(node.output).index(tensor)] = kind.encode()
        touched = True
    return touched


def kept(model: Any) -> dict[str, Kept]:
    """The outputs of a marked model that are rounded caches."""
    kinds: dict[str, str] = {}
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == KEPT:
                kinds |= {n: k.decode() for n, k in zip(node.output, attribute.strings, strict=True) if k}
    if not kinds:
        return {}
    makers = {name: node for node in model.graph.node for name in node.output if name}
    origins = {o.name: _origin(o.name, makers) for o in model.graph.output}
    return {name: Kept(tensor, kinds[tensor]) for name, tensor in origins.items() if tensor in kinds}


def as_found(caches: Mapping[str, Kept], found: Mapping[str, Array]) -> dict[str, Value]:
    """What an engine keeps in its caches, by its outputs: for the oracle, which goes on with these numbers."""
    arrays = {cache.tensor: np.asarray(found[name]) for name, cache in caches.items() if name in found}
    return {tensor: Value(array, array.dtype) for tensor, array in arrays.items() if is_real(array.dtype)}


def stepped(
    cache: Kept, exact: Array, before: Array, found: Array, runs: Sequence[Array], limits: Limits
) -> tuple[Array, list[Array]]:
    """(The numbers of a cache that the oracle may have, the nearest to `found`; the same with the errors of the runs).

    A number whose own error may bring it to the other side of the middle between two steps may be either.

    Args:
        exact: the oracle's. before: what it rounds to these. runs: the same in runs that only round.
    """
    with np.errstate(all="ignore"):
        errors = [np.nan_to_num(run - before, nan=0.0, posinf=0.0, neginf=0.0) for run in runs]
        width = PEAK * limits.rms * rms_of_rows(before) + limits.element * np.abs(before)
        for error in errors:
            sizes = np.maximum(np.abs(error), rms_of_rows(error))
            width = np.maximum(width, limits.factor * np.maximum(sizes, np.sqrt(np.mean(np.square(error)))))
        either = [exact, *(as_stored(before + way * width, cache.kind) for way in (-1, 1))]
        nearest = np.clip(found, np.fmin.reduce(either), np.fmax.reduce(either))
    nearest = np.where(np.isfinite(found), nearest, exact)
    return nearest, [nearest + error for error in errors]


def _origin(name: str, makers: Mapping[str, Any]) -> str:
    """The tensor whose numbers these are, before nodes that only give them another name."""
    while name in makers:
        node = makers[name]
        if node.op_type != "Identity" and not (node.op_type == "Concat" and len(node.input) == 1):
            break
        name = node.input[0]
    return name


def _makes(node: Any, cache: Cache, model: Any, makers: Mapping[str, Any]) -> bool:
    """Whether a node makes a cache longer, or all of one whose past no node reads."""
    if cache.past in {_origin(name, makers) for name in node.input if name}:
        return True
    return not any(cache.past in one.input for one in model.graph.node if one.op_type not in SIZES)


def _attribute(node: Any) -> Any:
    """The kinds of a node's outputs, "" at first."""
    for attribute in node.attribute:
        if attribute.name == KEPT:
            return attribute.strings
    made = node.attribute.add(name=KEPT, type=STRINGS)
    made.strings.extend([b""] * len(node.output))
    return made.strings
