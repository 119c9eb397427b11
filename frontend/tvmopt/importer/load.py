"""Reading an ONNX model that nobody vouches for - the first step of an import.

What comes out is a ModelProto whose protobuf is whole, whose tensors hold what they claim, whose names are
defined once and before their use, whose nodes fit their operators' schemas. Everything after relies on that.
Nothing here runs ONNX's C++ checker: it stops at the first problem, and it cannot look at models above 2 GB.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tvmopt.errors import ModelError, collect, compiled_already, first_line
from tvmopt.importer.external import LARGE, load_external
from tvmopt.importer.inside import without_weights
from tvmopt.importer.maps import maps, without_maps
from tvmopt.importer.protos import copy_model, human
from tvmopt.importer.structure import sort_graphs, verify_names, verify_structure
from tvmopt.importer.tensors import all_tensors, verify_tensors
from tvmopt.targets.memory import free_memory

WHOLE = 1 << 26
"""Bytes of a model's file up to which it is read whole: a file that stays open must not change meanwhile."""
LARGEST = 1 << 31
"""Bytes of a protobuf from which on it is none."""
DAMAGED = "check that the file is an ONNX model and was copied whole, or export it again"


def load(source: str | Path | bytes | onnx.ModelProto, mapped: bool = False) -> onnx.ModelProto:
    """Read and verify a model.

    Args:
        source: a path, the bytes of a model, or a ModelProto (never changed; copied where it must be).
        mapped: leave large weights in their files; `tvmopt.importer.external.array_of` has their numbers. Those inside
            the model's own file are left there if it is larger than :data:`WHOLE`.

    Returns:
        The model with external data read in, nodes in topological order, and tensors in place of dictionaries.

    Raises:
        ModelError: what is wrong with the file, all problems of a kind at once.
    """
    model, path, file = _read(source, mapped)
    for verify in (verify_structure, verify_tensors):
        _raise(verify(model, path))
    if any(t.data_location == onnx.TensorProto.EXTERNAL for _, t in all_tensors(model)):
        model = _own(model, source)
        _raise(load_external(model, file, path, mapped))
    _raise(verify_names(model, path))
    if maps(model):
        model = without_maps(_own(model, source))
    return sort_graphs(model, source)


def _raise(problems: list[ModelError]) -> None:
    if problems:
        raise collect(problems[:100])


def _own(model: onnx.ModelProto, source: object) -> onnx.ModelProto:
    """A model that may be changed: a copy when the caller handed in a proto."""
    if model is not source:
        return model
    return copy_model(model)


def _read(source: str | Path | bytes | onnx.ModelProto, mapped: bool) -> tuple[onnx.ModelProto, str, Path | None]:
    """The parsed protobuf, what to call it in messages, and its file, beside which external data lies."""
    if isinstance(source, onnx.ModelProto):
        return source, "the model", None
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "the model"), "the model", None
    if not isinstance(source, str | os.PathLike):
        raise ModelError(
            f"A model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}.",
            fix="pass the path of an .onnx file",
        )
    path = Path(source)
    try:
        data = _file_bytes(path, mapped)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelError(
            f"The model cannot be read: {reason}.", where=str(path), fix="check the path and its permissions"
        ) from None
    return _parse(data, str(path)), str(path), path


def _file_bytes(path: Path, mapped: bool) -> bytes:
    """The bytes of a regular file that fits memory (a pipe or a device would hang or never end), or of a model whose
    large weights are left in it."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if mapped and WHOLE < status.st_size < LARGEST and (small := without_weights(path, LARGE)) is not None:
        return small
    available = free_memory()
    if 2 * status.st_size > available:  # the bytes, and the protobuf made of them
        raise ValueError(f"it has {human(status.st_size)} and {human(available)} of memory are free")
    return path.read_bytes()


def _parse(data: bytes, path: str) -> onnx.ModelProto:
    if not data:
        raise ModelError("The model file is empty.", where=path, fix=DAMAGED)
    if data[:4] == b"PK\x03\x04":
        raise compiled_already(path)
    if data[4:8] == b"ORTM":
        told = "This is a model in onnxruntime's own format (.ort), and holds no graph of ONNX."
        raise ModelError(told, where=path, fix="give the ONNX file that it was converted from")
    if len(data) >= LARGEST:
        raise ModelError(
            f"A protobuf of {human(len(data))} is above protobuf's limit of 2 GB.",
            where=path,
            fix="save the weights as external data: onnx.save(model, path, save_as_external_data=True)",
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"This is not an ONNX protobuf: {first_line(error)}.", where=path, fix=DAMAGED) from None
    if not model.HasField("graph"):
        raise ModelError("The protobuf holds no graph.", where=path, fix=DAMAGED)
    return model
