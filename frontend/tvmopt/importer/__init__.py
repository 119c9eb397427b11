"""From an ONNX file to a Relax module, in the order of the files' use: load, prepare, check, relax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt.dims import Shapes
from tvmopt.importer.load import load
from tvmopt.importer.prepare import prepare, prepare_named
from tvmopt.importer.types import Imported, TensorSpec
from tvmopt.runtime.library import load_compiler

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx

__all__ = ["Imported", "TensorSpec", "check", "import_model", "load", "prepare", "prepare_named", "to_relax"]


def check(model: onnx.ModelProto) -> None:
    """Raise one error for all that cannot be imported; see :func:`tvmopt.importer.check.check`."""
    from tvmopt.importer.check import check

    check(model)


def to_relax(model: onnx.ModelProto) -> Imported:
    """The Relax module of a prepared model; see :func:`tvmopt.importer.relax.to_relax`."""
    from tvmopt.importer.relax import to_relax

    return to_relax(model)


def import_model(
    source: str | Path | bytes | onnx.ModelProto,
    shapes: Shapes | None = None,
    values: Mapping[str, npt.ArrayLike] | None = None,
) -> Imported:
    """Load, prepare, check and convert a model, in one call.

    Args:
        source: a path, the bytes of a model, or a ModelProto (left unchanged).
        shapes: sizes, or ranges of sizes, of inputs whose dimensions the model leaves open, by input name or by the
            name of a dimension (:func:`tvmopt.importer.prepare`).
        values: inputs that are known at compile time; they become constants.
    """
    model = load(source, mapped=True)
    prepared = prepare(model, shapes, values)  # a bad file is refused before TVM's compiler is loaded
    load_compiler()
    from tvmopt.importer.check import checked_import

    imported = checked_import(prepared)
    return replace(imported, folded=_folded(model, imported.nodes.values()))


def _folded(model: onnx.ModelProto, kept: Iterable[str]) -> tuple[str, ...]:
    """The nodes of the file that no imported node is, or is a part of (``call/inner``)."""
    from tvmopt.importer.protos import node_name

    known = set(kept)
    known |= {name[:end] for name in known for end, letter in enumerate(name) if letter == "/"}
    return tuple(dict.fromkeys(name for node in model.graph.node if (name := node_name(node)) not in known))
