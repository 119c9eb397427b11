"""The file an artifact is: a plain, uncompressed zip with aligned members and the same bytes every time.

Any zip tool can list it. Members are stored, dated 1980-01-01 and start at multiples of 4096 bytes (padding in the
local header's extra field, as Android's zipalign does it), so that weights can be mapped into memory as they lie. The
archive's comment is the manifest's hash, and the manifest has those of the other members. Reading trusts nothing:
member names are never used as paths, and offsets and sizes must lie inside the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from tvmopt.errors import ArtifactError

MANIFEST, LIBRARY, WEIGHTS = MEMBERS = ("manifest.json", "library.so", "weights.bin")
BEGINNING = "beginning.tvmopt"
"""A decoder's other artifact, whole: what it computes once of what it looks at."""
OF_TARGETS = re.compile(r"library\.[\w.@-]+\.so|weights\.[\w.@+-]+\.bin", re.ASCII)
"""Members of a fleet's artifact: the library of one target; weights that some targets have alike."""

PAGE = 4096
_PADDING_ID = 0xD935  # Android's alignment record; ignored by every reader
_RECOMPILE = "compile the model again: tvmopt compile MODEL"


def holders(name: str) -> list[str]:
    """The targets that have the weights of a member of a fleet's artifact.

    >>> holders("weights.x86-64-v3+x86-64-v4.bin"), holders(WEIGHTS)
    (['x86-64-v3', 'x86-64-v4'], [])
    """
    names = name.removeprefix("weights").removesuffix(".bin").removeprefix(".")
    return names.split("+") if names else []


Buffer = Any  # bytes-like: bytes, memoryview, mmap, a contiguous NumPy array (typing has a name for it from 3.12)


class Writer:
    """Writes members one after the other, each the concatenation of its pieces; the manifest's hash is the comment.

    Attributes:
        members: where each lies in the file: offset and size in bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.members: dict[str, tuple[int, int]] = {}
        self._file, self._archive = file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def add(self, name: str, pieces: Iterable[Buffer]) -> None:
        """Write a member."""
        views = [memoryview(piece).cast("B") for piece in pieces]
        if name == MANIFEST:
            self._archive.comment = _comment(views)
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        info.external_attr, info.create_system = 0o644 << 16, 3
        info.CRC, info.file_size = 0, sum(view.nbytes for view in views)
        zip64 = info.file_size > 1 << 30
        start = self._file.tell() + len(info.FileHeader(zip64)) + 4
        info.extra = struct.pack("<HH", _PADDING_ID, -start % PAGE) + bytes(-start % PAGE)
        self.members[name] = (start + -start % PAGE, info.file_size)
        with self._archive.open(info, "w", force_zip64=zip64) as member:
            for view in views:
                member.write(view)

    def close(self) -> None:
        """Write the zip's directory: the file is whole then, and stays open."""
        self._archive.close()


def write(file: IO[bytes], members: Mapping[str, Iterable[Buffer]]) -> None:
    """Write a whole file of these members, in their order."""
    writer = Writer(file)
    for name, pieces in members.items():
        writer.add(name, pieces)
    writer.close()


@dataclass(frozen=True)
class Directory:
    """What a file holds: member -> (offset, size), the manifest's bytes, and whether those have the hash that the file
    says."""

    members: dict[str, tuple[int, int]]
    manifest: bytes
    intact: bool


def read_directory(file: IO[bytes], where: str) -> Directory:
    """The members and the manifest, everything checked.

    Raises:
        ArtifactError: not a zip, truncated, with other members than an artifact has, compressed or
            overlapping.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            comment = archive.comment
            infos = archive.infolist()
            size = file.seek(0, os.SEEK_END)
            names = [info.filename for info in infos]
            problem = _name_problem(names)
            if problem:
                raise ArtifactError(problem, where=where, fix="give a file that `tvmopt compile` wrote")
            found = {info.filename: (_data_offset(file, info), info.file_size) for info in infos}
            if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
                raise ArtifactError("a member is compressed or encrypted.", where=where, fix=_RECOMPILE)
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, NotImplementedError, EOFError, LookupError) as error:
        if where.endswith(".onnx"):
            raise ArtifactError("an ONNX file, not compiled yet.", where=where, fix=f"tvmopt compile {where}") from None
        raise ArtifactError(f"not a tvmopt artifact, or damaged: {error}", where=where, fix=_RECOMPILE) from error
    end = 0
    for name, (offset, length) in sorted(found.items(), key=lambda item: item[1]):
        if offset < end or offset + length > size:
            raise ArtifactError(
                f"the file is cut short or its member {name} overlaps another.", where=where, fix=_RECOMPILE
            )
        end = offset + length
    offset, length = found[MEMBERS[0]]
    file.seek(offset)
    manifest = file.read(length)
    return Directory(found, manifest, comment == _comment([manifest]))


def _comment(manifest: Iterable[Buffer]) -> bytes:
    return b"manifest.json sha256 " + sha256(manifest).encode()


def _name_problem(names: list[str]) -> str:
    if MANIFEST not in names:
        return "a zip file, but not a tvmopt artifact: it has no manifest.json."
    strangers = sorted(name for name in set(names) - {*MEMBERS, BEGINNING} if not OF_TARGETS.fullmatch(name))
    if strangers:
        return f"not a tvmopt artifact: it has a member {strangers[0][:80]!r} that none has."
    if len(names) != len(set(names)):
        return "not a tvmopt artifact: two members have one name."
    return "" if any(n.startswith("library") for n in names) else f"not a tvmopt artifact: it has no {LIBRARY}."


def _data_offset(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) != 30 or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no local header for {info.filename}")
    name, extra = struct.unpack("<HH", header[26:30])
    return int(info.header_offset + 30 + name + extra)


def sha256(pieces: Iterable[Buffer]) -> str:
    """Hex SHA-256 of the concatenated pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
