"""The artifact `model.tvmopt`: write it, read it, check it - one file with manifest, library and weights.

Of a file for several targets (`fleet.py` writes it) the one to run is read, and of the weights only its own.

Reading needs no TVM. Weights are read into anonymous memory (huge pages where the system has them: a matrix of many
megabytes in 4 KiB pages costs a TLB miss a row) or, on request, mapped from the file and shared between processes.
"""

from __future__ import annotations

import io
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import ArtifactError, InputError, reason
from tvmopt.files import atomic_write, open_plain
from tvmopt.runtime import container
from tvmopt.runtime.choice import chosen, shown, unfit
from tvmopt.runtime.cores import Cores, ask_memory, running_on
from tvmopt.runtime.manifest import Manifest, Part, Weight, parse
from tvmopt.runtime.tensors import ALIGNMENT, HUGE, Array, TensorInfo, address, aligned_empty
from tvmopt.targets import detect_host

Members = Mapping[str, tuple[int, int]]
"""Where each member of a file lies: offset and size in bytes."""

_CHUNK = 16 << 20  # bytes read at a time


@dataclass(frozen=True)
class LaidOut:
    """Weights as they lie in a file.

    Attributes:
        layout: their descriptions. arrays: C-contiguous and aligned. part: all their bytes, hashed.
    """

    layout: tuple[Weight, ...]
    arrays: tuple[Array, ...] = field(repr=False)
    part: Part

    @classmethod
    def of(cls, weights: Sequence[tuple[TensorInfo, Array]]) -> LaidOut:
        layout, arrays, offset = [], [], 0
        for info, array in weights:
            layout.append(Weight(info.name, info.shape, info.dtype, offset))
            arrays.append(_aligned(array, info))
            offset += -(-info.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(layout), tuple(arrays), Part(offset, container.sha256(pieces(arrays))))


@dataclass(frozen=True)
class Artifact:
    """A compiled model: what `compile` makes and `load` runs.

    Attributes:
        manifest: what it is.
        library: the shared library's bytes.
        weights: one C-contiguous, 64-byte aligned array for each of `manifest.weights`; empty when stripped.
        where: the file, for messages.
        beginning: of a decoder that looks at an encoder's output, what computes its caches of that output, once.
    """

    manifest: Manifest
    library: bytes = field(repr=False)
    weights: tuple[Array, ...] = field(repr=False)
    where: str = "artifact"
    beginning: Artifact | None = field(default=None, repr=False)

    @classmethod
    def build(cls, manifest: Manifest, library: bytes, weights: Sequence[tuple[TensorInfo, Array]]) -> Artifact:
        """Complete a manifest: lay the weights out and hash the parts."""
        return cls.of(manifest, library, LaidOut.of(weights))

    @classmethod
    def of(cls, manifest: Manifest, library: bytes, weights: LaidOut) -> Artifact:
        """Likewise, of weights that are laid out."""
        parts = {container.LIBRARY: Part(len(library), container.sha256([library])), container.WEIGHTS: weights.part}
        return cls(replace(manifest, weights=weights.layout, parts=parts), library, weights.arrays, manifest.model)

    def stripped(self) -> Artifact:
        """The same without its weights."""
        return replace(self, manifest=replace(self.manifest, stripped=True), weights=())

    def alone(self) -> Artifact:
        """One target of a fleet as an artifact of its own; any other as it is."""
        old = self.manifest
        if old.library == container.LIBRARY:
            return self
        pairs = [(weight.info, array) for weight, array in zip(old.weights, self.weights, strict=False)]
        one = replace(Artifact.build(replace(old, fleet=()), self.library, pairs), where=self.where)
        return one if not old.stripped else replace(one, manifest=replace(one.manifest, weights=old.weights))

    def begun_by(self, beginning: Artifact) -> Artifact:
        """The same with another artifact in it, which computes what it looks at."""
        data = beginning.to_bytes()
        part = Part(len(data), container.sha256([data]))
        parts = self.manifest.parts | {container.BEGINNING: part}
        takes = [str(info) for info in beginning.manifest.inputs]
        manifest = replace(self.manifest, parts=parts, options=self.manifest.options | {"beginning": takes})
        return replace(self, manifest=manifest, beginning=beginning)

    def with_weights(self, weights: Sequence[tuple[TensorInfo, Array]], manifest: Manifest) -> Artifact:
        """The same library with other weights; `manifest` tells model and accuracy."""
        return Artifact.build(replace(manifest, stripped=False), self.library, weights)

    def save(self, path: str | Path, *, durable: bool = True) -> Path:
        """Write the file, all or nothing.

        Args:
            durable: wait until it is on the disk; a file for another process of now need not be.

        Raises:
            InputError: it cannot be written there.
        """
        path = Path(path)
        with atomic_write(path, durable=durable) as file:
            container.write(file, self.members())
        return path

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        file = io.BytesIO()
        container.write(file, self.members())
        return file.getvalue()

    def members(self) -> dict[str, Any]:
        """The members of the file, each as pieces of its bytes. The manifest is last: it tells what verification found,
        and the others are written before (`draft.py`)."""
        one = self.alone()
        members: dict[str, Any] = {} if one.manifest.stripped else {container.WEIGHTS: list(pieces(one.weights))}
        members[container.LIBRARY] = [one.library]
        if one.beginning is not None:
            members[container.BEGINNING] = [one.beginning.to_bytes()]
        return members | {container.MANIFEST: [one.manifest.to_json()]}

    def check_host(self) -> None:
        """Refuse a machine that lacks an instruction the code uses.

        Raises:
            ArtifactError: names the missing features.
        """
        reason = self.unfit()
        if reason:
            raise ArtifactError(
                f"{reason}.",
                where=f"{self.where} (compiled for {self.manifest.target}, this is {detect_host().name})",
                fix=f"compile the model for this machine: tvmopt compile {self.manifest.model} --target cpu",
            )

    def unfit(self) -> str:
        """Why this machine's processor cannot run the library; empty if it can."""
        return unfit(self.manifest)


def is_artifact(path: str | Path) -> bool:
    """Whether a file is one of ours (a zip; ONNX files are not)."""
    try:
        with open_plain(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except (OSError, ValueError) as error:
        raise InputError(f"cannot open the file: {reason(error)}", where=str(path), fix="check the path") from error


def read_manifest(path: str | Path, *, target: str = "") -> Manifest:
    """The manifest alone (fast: nothing else is read or checked).

    Args:
        target: of a fleet's artifact, which one to look at; default: that which this machine runs, or, where it can run
            none, that which needs most. `fleet` has all of them.

    Raises:
        ArtifactError: not an artifact, or damaged. InputError: there is no target of that name.
    """
    where = str(path)
    with open_file(path) as file:
        directory = container.read_directory(file, where)
        return shown(parse(directory.manifest, where, intact=directory.intact), where, target)


def read(
    path: str | Path, *, mapped: bool = False, verify: bool = True, target: str = "", threads: int = 0,
    cores: Cores | None = None,
) -> Artifact:  # fmt: skip
    """Read an artifact and check it.

    Args:
        path: the file.
        mapped: map the weights from the file instead of reading them: less memory when several processes run
            one model.
        verify: compare the hashes of library and weights (about a second a gigabyte).
        target: the name of the one to read; default: of a fleet's artifact the best that this machine can run.
        threads: that will be used: of an artifact with code for several numbers that for so many, or the next more, or
            the most; default: the cores that this process may use.
        cores: whose memory the weights are to lie in; those that are mapped lie where the file's pages are.

    Raises:
        ArtifactError: damaged, cut short, of another version, or not an artifact; of a fleet's targets this machine can
            run none.
        InputError: there is no target of that name.
    """
    where = str(path)
    with open_file(path) as file, running_on(cores):
        nodes = cores.nodes if cores is not None else ()
        return _read(file, where, target, threads, mapped=mapped, verify=verify, nodes=nodes)


def _read(
    file: Any, where: str, target: str, threads: int, *, mapped: bool, verify: bool, nodes: tuple[int, ...] = ()
) -> Artifact:
    """An open file: see :func:`read`."""
    directory = container.read_directory(file, where)
    manifests = parse(directory.manifest, where, intact=directory.intact)
    check_parts(manifests, directory.members, where)
    found = chosen(manifests, where, target, threads)
    return read_one(file, found, directory.members, where, mapped=mapped, verify=verify, nodes=nodes)


def read_one(
    file: Any, manifest: Manifest, members: Members, where: str, *, mapped: bool = False, verify: bool = True,
    nodes: tuple[int, ...] = (),
) -> Artifact:  # fmt: skip
    """One target of an open file whose parts are checked: see :func:`read`."""
    file.seek(members[manifest.library][0])
    library = file.read(members[manifest.library][1])
    memory: list[Array] = []
    if not manifest.stripped:
        memory = _segments(file, [members[name] for name in manifest.segments], mapped, nodes)
    inner = _bytes_of(file, members[container.BEGINNING]) if container.BEGINNING in manifest.parts else b""
    if verify:
        found = {manifest.library: container.sha256([library])}
        found |= {name: container.sha256([part]) for name, part in zip(manifest.segments, memory, strict=False)}
        found |= {container.BEGINNING: container.sha256([inner])} if inner else {}
        for name, digest in found.items():
            if digest != manifest.parts[name].sha256:
                raise ArtifactError(
                    f"{name} does not match the manifest's hash: the file was damaged or changed.",
                    where=where,
                    fix="copy the file again, or compile the model again",
                )
    weights = () if manifest.stripped else tuple(_slice(memory, weight) for weight in manifest.weights)
    beginning = _read(io.BytesIO(inner), where, "", 0, mapped=False, verify=False, nodes=nodes) if inner else None
    return Artifact(manifest, library, weights, where, beginning)


def _bytes_of(file: Any, place: tuple[int, int]) -> bytes:
    file.seek(place[0])
    return bytes(file.read(place[1]))


def open_file(path: str | Path) -> Any:
    """Open a file that is to be an artifact.

    Raises:
        InputError: it is no path. ArtifactError: it is a folder, or cannot be opened.
    """
    if not isinstance(path, str | os.PathLike):
        fix = "give the path of the file that `tvmopt compile` wrote"
        raise InputError(f"an artifact is read from a path, not from {type(path).__name__}.", fix=fix)
    if Path(path).is_dir():
        raise ArtifactError(
            "a folder, not an artifact.", where=str(path), fix="give the file that `tvmopt compile` wrote"
        )
    try:
        return open_plain(path)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot open the artifact: {reason(error)}",
            where=str(path),
            fix="give the file that `tvmopt compile` wrote",
        ) from error


def check_parts(manifests: Sequence[Manifest], members: Members, where: str) -> None:
    """Compare what the manifests say of the members with those that there are.

    Raises:
        ArtifactError: a member is missing, is one too many, or has another size.
    """
    expected: set[str] = set()
    wrong: list[str] = []
    for manifest in manifests:
        needed = {manifest.library, *(() if manifest.stripped else manifest.segments)}
        needed |= {container.BEGINNING} & manifest.parts.keys()
        sizes = {name: manifest.parts[name].bytes if name in manifest.parts else -1 for name in needed}
        wrong += sorted(name for name, size in sizes.items() if members.get(name, (0, -2))[1] != size)
        expected |= needed
        if not manifest.stripped:
            wrong += _misplaced([sizes[name] for name in manifest.segments], manifest)
    wrong += sorted(set(members) - expected - {container.MANIFEST})
    if wrong:
        raise ArtifactError(
            f"{wrong[0]} is missing or has another size than the manifest says.",
            where=where,
            fix="copy the file again, or compile the model again",
        )


def _misplaced(sizes: Sequence[int], manifest: Manifest) -> list[str]:
    """That weights do not fill the members that hold them, or that one lies in two."""
    ends = list(accumulate(sizes))
    filled = manifest.weight_bytes == (ends[-1] if ends else 0)
    whole = all(
        bisect_right(ends, w.offset) == bisect_right(ends, w.offset + w.info.nbytes - 1)
        for w in manifest.weights
        if w.info.nbytes
    )
    return [] if filled and whole else [manifest.segments[0] if manifest.segments else container.WEIGHTS]


def _segments(file: Any, places: Sequence[tuple[int, int]], mapped: bool, nodes: tuple[int, ...] = ()) -> list[Array]:
    """The bytes of the members that hold weights: mapped, or read into one piece of memory, of these NUMA nodes."""
    if mapped and all(offset % ALIGNMENT == 0 for offset, _ in places):
        return [_mapped(file, *place) for place in places]
    memory, found, begin = _memory(sum(size for _, size in places)), [], 0
    ask_memory(address(memory), memory.nbytes, nodes)
    for offset, size in places:
        part = memory[begin : begin + size]
        begin += size
        file.seek(offset)
        view: Any = part.data
        for start in range(0, size, _CHUNK):
            file.readinto(view[start : start + _CHUNK])
        found.append(part)
    return found


def _mapped(file: Any, offset: int, size: int) -> Array:
    """A part of the file, writable (DLPack requires it) without ever reaching the file."""
    if size == 0:
        return np.empty(0, np.uint8)
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return np.frombuffer(whole, np.uint8, size, offset)


def _memory(size: int) -> Array:
    """Memory for so many bytes, in huge pages where the system has them."""
    if size == 0:
        return np.empty(0, np.uint8)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, Python's default, gets no huge pages
    room = mmap.mmap(-1, size + HUGE, flags=private)
    with suppress(AttributeError, OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(room, np.uint8)
    start = -memory.ctypes.data % HUGE
    return memory[start : start + size]


def _slice(segments: Sequence[Array], weight: Weight) -> Array:
    info, begin = weight.info, weight.offset
    for segment in segments:
        if begin < segment.nbytes:
            return segment[begin : begin + info.nbytes].view(info.numpy_dtype).reshape(info.shape)
        begin -= segment.nbytes
    return np.empty(info.shape, info.numpy_dtype)  # of no bytes


def _aligned(array: Array, info: TensorInfo) -> Array:
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(info.shape, info.numpy_dtype)
    copy[...] = array
    return copy


def pieces(arrays: Sequence[Array]) -> Iterator[Any]:
    """The bytes of weights one after another, each filled up to a multiple of 64."""
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        yield flat
        yield bytes(-flat.nbytes % ALIGNMENT)
