"""One artifact for several targets: a library for each, and every distinct weight once - for `tvmopt.compile`.

Weights of equal bytes are one, within a target and across targets. They lie in members by who has them, so that loading
reads what the chosen target needs and nothing else:

    library.x86-64-v3.so                    library.x86-64-v4.so
    weights.x86-64-v3.bin                   weights.x86-64-v4.bin           packed for one of them
    weights.x86-64-v3+x86-64-v4.bin                                         the same for both

A target with code for several numbers of threads is there once for each: `x86-64-v4@1`, `x86-64-v4@2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tvmopt.files import atomic_write
from tvmopt.runtime import container
from tvmopt.runtime.artifact import Artifact, check_parts, open_file, pieces, read_one
from tvmopt.runtime.choice import best, preferred, titles
from tvmopt.runtime.manifest import Manifest, Part, Weight, fleet_json, parse
from tvmopt.runtime.tensors import ALIGNMENT, Array

Key = tuple[str, int]
"""What weights of equal bytes share: their SHA-256, and how many bytes they are."""


@dataclass
class _Segment:
    """A member with the weights that some targets have alike."""

    holders: tuple[str, ...]
    places: dict[Key, int] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    size: int = 0

    def add(self, key: Key, array: Array) -> None:
        self.places[key] = self.size
        self.arrays.append(array)
        self.size += -(-key[1] // ALIGNMENT) * ALIGNMENT

    @property
    def name(self) -> str:
        return f"weights.{'+'.join(self.holders)}.bin"

    @cached_property
    def part(self) -> Part:
        return Part(self.size, container.sha256(pieces(self.arrays)))


@dataclass(frozen=True)
class Fleet:
    """The artifacts of one model for several targets, which become one file.

    Attributes:
        members: an artifact for each target, as `compile` makes it for that target alone.
    """

    members: tuple[Artifact, ...]

    @property
    def here(self) -> int:
        """Which member this machine runs; where it can run none, the one that needs most."""
        manifests = [member.manifest for member in self.members]
        found = best(manifests) or preferred(manifests)[0]
        return next(i for i, manifest in enumerate(manifests) if manifest is found)

    def save(self, path: str | Path, *, strip_weights: bool = False) -> Path:
        """Write the file, all or nothing.

        Raises:
            InputError: it cannot be written there.
        """
        names = titles([(member.manifest.target, member.manifest.threads) for member in self.members])
        keys = [_keys(member) for member in self.members]
        segments = _segments(names, self.members, keys)
        manifests = [
            _manifest(name, member, own, [s for s in segments if name in s.holders])
            for name, member, own in zip(names, self.members, keys, strict=True)
        ]
        if strip_weights:
            manifests = [replace(manifest, stripped=True) for manifest in manifests]
        members: dict[str, Any] = {} if strip_weights else {s.name: list(pieces(s.arrays)) for s in segments}
        members |= {manifest.library: [m.library] for manifest, m in zip(manifests, self.members, strict=True)}
        members[container.MANIFEST] = [fleet_json(manifests)]
        with atomic_write(path) as file:
            container.write(file, members)
        return Path(path)

    @classmethod
    def read(cls, path: str | Path) -> Fleet | None:
        """All targets of a file; None where it is for one only.

        Raises:
            ArtifactError: see `tvmopt.runtime.artifact.read`.
        """
        where = str(path)
        with open_file(path) as file:
            directory = container.read_directory(file, where)
            manifests = parse(directory.manifest, where, intact=directory.intact)
            if len(manifests) == 1 and manifests[0].library == container.LIBRARY:
                return None
            check_parts(manifests, directory.members, where)
            found = [read_one(file, m, directory.members, where, mapped=True) for m in manifests]
        return cls(tuple(found))


def _keys(member: Artifact) -> list[Key]:
    return [(container.sha256([_bytes(array)]), array.nbytes) for array in member.weights]


def _bytes(array: Array) -> Any:
    return array.reshape(-1).view("uint8")


def _segments(names: Sequence[str], members: Sequence[Artifact], keys: Sequence[Sequence[Key]]) -> list[_Segment]:
    """Every distinct weight in the member of those targets that have it, in the order in which they are met."""
    holders: dict[Key, list[str]] = {}
    for name, own in zip(names, keys, strict=True):
        for key in dict.fromkeys(own):
            holders.setdefault(key, []).append(name)
    found: dict[tuple[str, ...], _Segment] = {}
    for member, own in zip(members, keys, strict=True):
        for key, array in zip(own, member.weights, strict=True):
            who = tuple(holders[key])
            segment = found.setdefault(who, _Segment(who))
            if key[1] and key not in segment.places:
                segment.add(key, array)
    return sorted((s for s in found.values() if s.size), key=lambda segment: segment.name)


def _manifest(name: str, member: Artifact, keys: Sequence[Key], segments: Sequence[_Segment]) -> Manifest:
    """A target's manifest, with its weights where they lie in its members."""
    old, start = member.manifest, 0
    places: dict[Key, int] = {}
    for segment in segments:
        places |= {key: start + place for key, place in segment.places.items()}
        start += segment.size
    weights = tuple(
        Weight(weight.name, weight.shape, weight.dtype, places.get(key, 0))
        for weight, key in zip(old.weights, keys, strict=True)
    )
    parts = {f"library.{name}.so": Part(len(member.library), container.sha256([member.library]))}
    parts |= {segment.name: segment.part for segment in segments}
    return replace(old, weights=weights, parts=parts, fleet=())
