"""What an operation of `tvmopt surgeon` did, and the reading and writing they share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tvmopt.debug.files import has_external, save, size_of
from tvmopt.debug.graph import inputs_of
from tvmopt.importer import load
from tvmopt.importer.protos import describe_type


@dataclass(frozen=True)
class Edited:
    """One operation on one model.

    Attributes:
        path: where the result was written.
        nodes: before and after.
        bytes: of the result, data file included.
        inputs, outputs: names and types of the result's borders.
        changes: what was done, one line each.
    """

    path: Path
    nodes: tuple[int, int]
    bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    changes: tuple[str, ...] = ()


def read(source: Any) -> tuple[onnx.ModelProto, bool]:
    """A model with its data in memory and its nodes in order, and whether its file keeps weights beside it."""
    model = load(source)
    beside = isinstance(source, str | os.PathLike) and has_external(os.fspath(source))
    return model, beside


def write(model: onnx.ModelProto, output: str | Path, before: int, changes: Sequence[str], beside: bool) -> Edited:
    """Save the result of an operation and describe it."""
    path = save(model, output, external=True if beside else None)
    return Edited(
        path,
        (before, len(model.graph.node)),
        size_of(path),
        tuple(f"{v.name} {describe_type(v.type)}" for v in inputs_of(model)),
        tuple(f"{v.name} {describe_type(v.type)}" for v in model.graph.output),
        tuple(changes),
    )
