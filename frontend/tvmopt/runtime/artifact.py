"""The artifact `model.tvmopt`: write it, read it, check it - one file with manifest, library and weights.

Reading needs no TVM. Weights are read into anonymous memory (huge pages where the system has them: a matrix of many
megabytes in 4 KiB pages costs a TLB miss a row) or, on request, mapped from the file and shared between processes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import ArtifactError, InputError, reason
from tvmopt.files import atomic_write, open_plain
from tvmopt.runtime import container
from tvmopt.runtime.manifest import Manifest, Part, Weight
from tvmopt.runtime.tensors import ALIGNMENT, HUGE, Array, TensorInfo, aligned_empty
from tvmopt.targets import detect_host
from tvmopt.targets.detect import host_arch

_CHUNK = 16 << 20  # bytes read at a time


@dataclass(frozen=True)
class Artifact:
    """A compiled model: what `compile` makes and `load` runs.

    Attributes:
        manifest: what it is.
        library: the shared library's bytes.
        weights: one C-contiguous, 64-byte aligned array for each of `manifest.weights`; empty when stripped.
        where: the file, for messages.
    """

    manifest: Manifest
    library: bytes = field(repr=False)
    weights: tuple[Array, ...] = field(repr=False)
    where: str = "artifact"

    @classmethod
    def build(cls, manifest: Manifest, library: bytes, weights: Sequence[tuple[TensorInfo, Array]]) -> Artifact:
        """Complete a manifest: lay the weights out and hash the parts."""
        layout, arrays, offset = [], [], 0
        for info, array in weights:
            layout.append(Weight(info.name, info.shape, info.dtype, offset))
            arrays.append(_aligned(array, info))
            offset += -(-info.nbytes // ALIGNMENT) * ALIGNMENT
        parts = {
            "library.so": Part(len(library), container.sha256([library])),
            "weights.bin": Part(offset, container.sha256(_pieces(arrays))),
        }
        return cls(replace(manifest, weights=tuple(layout), parts=parts), library, tuple(arrays), manifest.model)

    def stripped(self) -> Artifact:
        """The same without its weights."""
        return replace(self, manifest=replace(self.manifest, stripped=True), weights=())

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
        members: dict[str, Any] = {"manifest.json": [self.manifest.to_json()], "library.so": [self.library]}
        if not self.manifest.stripped:
            members["weights.bin"] = list(_pieces(self.weights))
        with atomic_write(path, durable=durable) as file:
            container.write(file, members)
        return path

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
        arch = self.manifest.arch or host_arch()
        if arch != host_arch():
            return f"the artifact is for {arch}, this machine is {host_arch()}"
        if self.manifest.kind != "llvm":
            return ""
        host = detect_host()
        missing = [f for f in self.manifest.features if f not in host.features]
        return f"this machine lacks instructions the artifact uses: {', '.join(missing)}" if missing else ""


def is_artifact(path: str | Path) -> bool:
    """Whether a file is one of ours (a zip; ONNX files are not)."""
    try:
        with open_plain(path) as file:
            return file.read(4) == b"PK\x03\x04"
    except (OSError, ValueError) as error:
        raise InputError(f"cannot open the file: {reason(error)}", where=str(path), fix="check the path") from error


def read_manifest(path: str | Path) -> Manifest:
    """The manifest alone (fast: nothing else is read or checked)."""
    where = str(path)
    with _open(Path(path)) as file:
        directory = container.read_directory(file, where)
        return Manifest.from_json(directory.manifest, where, intact=directory.intact)


def read(path: str | Path, *, mapped: bool = False, verify: bool = True) -> Artifact:
    """Read an artifact and check it.

    Args:
        path: the file.
        mapped: map the weights from the file instead of reading them: less memory when several processes run
            one model.
        verify: compare the hashes of library and weights (about a second a gigabyte).

    Raises:
        ArtifactError: damaged, cut short, of another version, or not an artifact.
    """
    where = str(path)
    with _open(Path(path)) as file:
        directory = container.read_directory(file, where)
        manifest, parts = Manifest.from_json(directory.manifest, where, intact=directory.intact), directory.members
        _check_parts(manifest, parts, where)
        file.seek(parts["library.so"][0])
        library = file.read(parts["library.so"][1])
        weights: tuple[Array, ...] = ()
        if not manifest.stripped:
            memory = _memory(file, *parts["weights.bin"], mapped=mapped)
            weights = tuple(_slice(memory, weight) for weight in manifest.weights)
    if verify:
        found = {"library.so": container.sha256([library])}
        if not manifest.stripped:
            found["weights.bin"] = container.sha256([memory])
        for name, digest in found.items():
            if digest != manifest.parts[name].sha256:
                raise ArtifactError(
                    f"{name} does not match the manifest's hash: the file was damaged or changed.",
                    where=where,
                    fix="copy the file again, or compile the model again",
                )
    return Artifact(manifest, library, weights, where)


def _open(path: Path) -> Any:
    if path.is_dir():
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


def _check_parts(manifest: Manifest, parts: dict[str, tuple[int, int]], where: str) -> None:
    expected = {"library.so"} if manifest.stripped else {"library.so", "weights.bin"}
    wrong = [n for n in expected if n not in parts or n not in manifest.parts or parts[n][1] != manifest.parts[n].bytes]
    wrong += sorted(set(parts) - expected - {"manifest.json"})
    if not manifest.stripped and manifest.weight_bytes != parts.get("weights.bin", (0, -1))[1]:
        wrong.append("weights.bin")
    if wrong:
        raise ArtifactError(
            f"{wrong[0]} is missing or has another size than the manifest says.",
            where=where,
            fix="copy the file again, or compile the model again",
        )


def _memory(file: Any, offset: int, size: int, *, mapped: bool) -> Array:
    """The weights' bytes, 64-byte aligned and writable (DLPack requires it) without ever reaching the file."""
    if size == 0:
        return np.empty(0, np.uint8)
    if mapped and offset % ALIGNMENT == 0:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(whole, np.uint8, size, offset)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, Python's default, gets no huge pages
    room = mmap.mmap(-1, size + HUGE, flags=private)
    with suppress(AttributeError, OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(room, np.uint8)
    start = -memory.ctypes.data % HUGE
    memory = memory[start : start + size]
    file.seek(offset)
    view: Any = memory.data
    for begin in range(0, size, _CHUNK):
        file.readinto(view[begin : begin + _CHUNK])
    return memory


def _slice(memory: Array, weight: Weight) -> Array:
    info = weight.info
    return memory[weight.offset : weight.offset + info.nbytes].view(info.numpy_dtype).reshape(info.shape)


def _aligned(array: Array, info: TensorInfo) -> Array:
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(info.shape, info.numpy_dtype)
    copy[...] = array
    return copy


def _pieces(arrays: Sequence[Array]) -> Iterator[Any]:
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        yield flat
        yield bytes(-flat.nbytes % ALIGNMENT)
