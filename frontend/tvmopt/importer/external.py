"""Data of tensors that lies in a file beside the model: read, or left there and looked at where it lies.

A model of gigabytes keeps its weights in such files. Whoever only looks at a weight now and then (an import, the oracle
of verification) maps it: what is mapped belongs to the system's page cache, which all processes share and which makes
room where memory is short.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ModelError
from tvmopt.importer.protos import BITS, byte_size, count
from tvmopt.importer.tensors import all_tensors

LARGE = 1 << 16
"""Bytes of a weight from which on it stays in its file: smaller ones are sizes and scalars, which much code reads."""


def load_external(model: onnx.ModelProto, file: Path | None, path: str, mapped: bool = False) -> list[ModelError]:
    """Read external data into the tensors; one error for each tensor whose data cannot or must not be read.

    Data must be a regular file; offset and length must lie in it. Links are followed if they lead into the folder that
    the model lies in, or, where the model itself is a link, into the folder that the linked file lies in: Hugging
    Face's cache links model and data to files beside each other.

    Args:
        mapped: leave large weights of the graph where they are; :func:`array_of` has their numbers.
    """
    problems = []
    weights = len(model.graph.initializer) if mapped else 0  # which come first
    for number, (where, tensor) in enumerate(all_tensors(model)):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        try:
            place = _place(tensor, file)
            with _opened(*place) as data:
                if number < weights and place[2] >= LARGE:
                    _stay(tensor, *place)
                    continue
                data.seek(place[1])
                tensor.raw_data = data.read(place[2])
        except (OSError, ValueError) as error:
            text = f"{error.strerror}: '{error.filename}'" if isinstance(error, OSError) else str(error)
            problems.append(
                ModelError(
                    f"The external data of a tensor cannot be read: {text}.",
                    where=f"{path}, {where}",
                    fix="keep the data file beside the model as it was exported, or save a single file",
                )
            )
            continue
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return problems


def array_of(tensor: TensorProto) -> npt.NDArray[Any]:
    """The numbers of a tensor; of one that stayed in its file a view of them, which a caller must not write into.

    Raises:
        ModelError: the file has changed since the model was loaded.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor))
    entries = {e.key: e.value for e in tensor.external_data}
    real, offset, length = entries["location"], int(entries["offset"]), int(entries["length"])
    try:
        with _opened(Path(real), offset, length) as data:
            begin = offset - offset % mmap.ALLOCATIONGRANULARITY
            view = mmap.mmap(data.fileno(), offset + length - begin, access=mmap.ACCESS_COPY, offset=begin)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The external data of a tensor has changed while it was used: {error}.",
            where=f"initialiser '{tensor.name}'",
            fix="leave the model's files alone until it is compiled",
        ) from None
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if kind.itemsize * 8 == BITS[tensor.data_type]:
        array: npt.NDArray[Any] = np.frombuffer(view, kind, count(tensor.dims), offset - begin)
        return array.reshape(tuple(tensor.dims))
    whole = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=view[offset - begin :])
    return np.asarray(numpy_helper.to_array(whole))  # several numbers a byte


def place_of(location: str, file: Path) -> Path:
    """The file that external data of a model's file lies in.

    Raises:
        ValueError: it is not in the model's folder, nor in the one that the model is a link to.
    """
    if os.path.isabs(location) or ".." in Path(location).parts or location[1:2] == ":":
        raise ValueError(f"'{location}' leaves the model's folder")
    folders = [Path(os.path.realpath(folder)) for folder in (file.parent, file.resolve().parent)]
    places = [folder / location for folder in folders]
    real = Path(os.path.realpath(next((place for place in places if place.exists()), places[0])))
    if not any(real.is_relative_to(folder) for folder in folders):
        raise ValueError(f"'{location}' is a link that leaves the model's folder")
    return real


def _place(tensor: TensorProto, file: Path | None) -> tuple[Path, int, int]:
    """The file that a tensor's data lies in, the offset in it and the length.

    Raises:
        ValueError: it says what it must not.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if not isinstance(location, str) or not location or "\0" in location:
        raise ValueError("its location is missing or not text")
    if file is None:
        raise ValueError(f"the model was given as bytes, so '{location}' has no folder; give its path")
    real = place_of(location, file)
    wanted = byte_size(tensor.data_type, count(tensor.dims))
    offset, length = (_integer(entries.get(k, d), k) for k, d in (("offset", "0"), ("length", str(wanted))))
    if length != wanted:
        raise ValueError(f"its length is {length}, but its shape {list(tensor.dims)} needs {wanted} bytes")
    return real, offset, length


def _stay(tensor: TensorProto, real: Path, offset: int, length: int) -> None:
    """Tell a tensor where its data lies, wherever the model that holds it goes."""
    del tensor.external_data[:]
    for key, value in (("location", str(real)), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=value))


@contextmanager
def _opened(real: Path, offset: int, length: int) -> Iterator[BinaryIO]:
    """A regular file that has so many bytes.

    Raises:
        OSError, ValueError: it is none, or has fewer.
    """
    descriptor = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ValueError(f"'{real.name}' is not a regular file")
    with os.fdopen(descriptor, "rb") as data:
        if offset + length > status.st_size:
            raise ValueError(f"'{real.name}' has {status.st_size} bytes, {offset} + {length} are wanted")
        yield data


def _integer(text: str, key: str) -> int:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"its {key} '{text!s:.40}' is not a size")
    return int(text)
