"""Writing ONNX models of any size, all or nothing: weights beside the model where protobuf's 2 GB end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import onnx
from google.protobuf.message import EncodeError
from onnx import TensorProto, numpy_helper

from tvmopt.debug.graph import skeleton
from tvmopt.errors import ModelError
from tvmopt.files import atomic_write, check_writable, save_arrays
from tvmopt.importer.protos import STRING, byte_size, copy_tensor, count

SINGLE = 1 << 30
"""Weights up to this many bytes stay in the model's own file, unless they lay beside it before."""
INLINE = 1 << 10
"""Tensors up to this size are never moved out: shapes, axes and scales, which readers look at."""
PAGE = 4096  # external tensors start at multiples of it, so that runtimes can map them


def has_external(path: str | Path) -> bool:
    """Whether a model file keeps weights beside itself."""
    model = onnx.load(str(path), load_external_data=False)
    return any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all initialisers."""
    return sum(byte_size(t.data_type, count(t.dims)) for t in model.graph.initializer)


def save_inputs(feeds: Mapping[str, Any], model: Path) -> Path:
    """Write a model's inputs beside it, as ``<name>.npz``; the file appears when it is complete."""
    path = model.with_suffix(".npz")
    with atomic_write(path) as stream:
        save_arrays(stream, feeds)
    return path


def save(model: onnx.ModelProto, path: str | Path, *, external: bool | None = None) -> Path:
    """Write a model whose data is in memory; the file appears when it is complete.

    Args:
        path: the file; with external data there is a second one, ``<name>.data``, written and renamed first.
        external: keep weights above 1 kB beside the model; None: when they have more than 1 GiB.

    Raises:
        InputError: it cannot be written there.
        ModelError: what is left in the model's own file exceeds 2 GB.
    """
    path = Path(path)
    check_writable(path)
    if external is None:
        external = weight_bytes(model) > SINGLE
    if not external:
        with atomic_write(path) as file:
            file.write(_bytes(model, path))
        return path
    slim = skeleton(model)
    data = path.with_name(path.name + ".data")
    with atomic_write(data) as file:
        for tensor in model.graph.initializer:
            _place(tensor, slim.graph.initializer.add(), file, data.name)
    with atomic_write(path) as file:
        file.write(_bytes(slim, path))
    return path


def _place(source: TensorProto, target: TensorProto, file: IO[bytes], location: str) -> None:
    """Write a tensor's bytes into the data file and leave a reference; small ones and strings stay inline."""
    size = byte_size(source.data_type, count(source.dims))
    if size <= INLINE or source.data_type == STRING:
        copy_tensor(target, source)
        return
    raw = source.raw_data
    if not source.HasField("raw_data"):
        raw = numpy_helper.from_array(numpy_helper.to_array(source)).raw_data
    file.write(bytes(-file.tell() % PAGE))
    target.name, target.data_type, target.data_location = source.name, source.data_type, TensorProto.EXTERNAL
    target.dims.extend(source.dims)
    for key, value in (("location", location), ("offset", str(file.tell())), ("length", str(len(raw)))):
        entry = target.external_data.add()
        entry.key, entry.value = key, value
    file.write(raw)


def _bytes(model: onnx.ModelProto, path: Path) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise ModelError(
            f"The model without its initialisers is above protobuf's 2 GB: {error}.",
            where=str(path),
            fix="its constants are nodes: `tvmopt surgeon sanitize` makes them initialisers",
        ) from None


def size_of(path: Path) -> int:
    """Bytes of a model file and its data file."""
    data = path.with_name(path.name + ".data")
    return path.stat().st_size + (os.path.getsize(data) if data.exists() else 0)
