"""Large weights inside of a model's own file: the model is read without them, and they are left where they lie.

An ONNX file is a protobuf, and a weight's bytes are one run of it. So they can be treated like external data that lies
in the model's own file (:mod:`tvmopt.importer.external`), and a model of gigabytes is neither read nor parsed whole. A
message is a sequence of fields, of which only these are looked into; all others are copied as they are::

    ModelProto   [ .. | 7: graph .. ]
    GraphProto   [ .. | 5: initializer | 5: initializer | .. ]
    TensorProto  [ dims, type, name .. | 9: raw_data, 64 KB or more ]  ->  [ .. | location, offset, length ]

What is not written as every exporter writes it - a graph in two pieces, a weight with bytes that its shape does not
have - is not for this file: the model is then read whole, and refused where it is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from onnx import TensorProto

from tvmopt.fields import GRAPH, INITIALIZER, LENGTH, RAW_DATA, Unusual, fields
from tvmopt.importer.protos import BITS, byte_size, count


def without_weights(path: Path, large: int) -> bytes | None:
    """The model in a file, its weights of `large` bytes and more as external data of this very file; None where there
    are none, or where the file has to be read whole.

    Raises:
        OSError: the file cannot be read.
    """
    if path.name[1:2] == ":":  # as a location it would be taken for a drive
        return None
    with path.open("rb") as file:
        end = file.seek(0, 2)
        try:
            graphs = [field for field in fields(file, 0, end) if field[0] == GRAPH]
            if len(graphs) != 1:
                return None
            ((_, begin, first, last),) = graphs
            graph, moved = _graph(file, first, last, path.name, large)
            if not moved:
                return None
            return b"".join((_read(file, 0, begin), _whole(GRAPH, graph), _read(file, last, end)))
        except (Unusual, DecodeError):
            return None


def _graph(file: BinaryIO, begin: int, end: int, name: str, large: int) -> tuple[bytes, int]:
    """A graph without its large weights, and how many these are."""
    parts, moved, done = [], 0, begin
    for number, start, first, last in fields(file, begin, end):
        if number == INITIALIZER and last - first >= large and (tensor := _tensor(file, first, last, name, large)):
            parts += [_read(file, done, start), _whole(INITIALIZER, tensor)]
            moved, done = moved + 1, last
    return b"".join((*parts, _read(file, done, end))), moved


def _tensor(file: BinaryIO, begin: int, end: int, name: str, large: int) -> bytes | None:
    """A tensor that says where its bytes lie; None where it is small, or anything but dimensions, a type and bytes."""
    places = [field for field in fields(file, begin, end) if field[0] == RAW_DATA]
    if len(places) != 1:
        return None
    ((_, start, first, last),) = places
    if last - first < large:
        return None
    tensor = TensorProto.FromString(_read(file, begin, start) + _read(file, last, end))
    plain = {field.name for field, _ in tensor.ListFields()} <= {"dims", "data_type", "name", "doc_string"}
    if not plain or tensor.data_type not in BITS or any(d < 0 for d in tensor.dims):
        return None
    if byte_size(tensor.data_type, count(tensor.dims)) != last - first:
        return None
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", first), ("length", last - first)):
        tensor.external_data.add(key=key, value=str(value))
    made: bytes = tensor.SerializeToString()
    return made


def _read(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    found = file.read(end - begin)
    if len(found) != end - begin:  # somebody has made it shorter
        raise Unusual
    return found


def _whole(number: int, value: bytes) -> bytes:
    """A field of bytes with its key and its length."""
    return _number(number << 3 | LENGTH) + _number(len(value)) + value


def _number(value: int) -> bytes:
    """A whole number as :func:`tvmopt.fields.fields` reads it.

    >>> _number(1).hex(), _number(300).hex()
    ('01', 'ac02')
    """
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))
