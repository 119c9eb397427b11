"""What an artifact says of itself, as typed data - for loading, `tvmopt run` and `tvmopt inspect`.

Everything that decides whether the file may be used is here: format and versions, the machine's instructions
it needs, hashes of its parts. No time, path or host name is: the same input gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tvmopt.dims import FOUND, Dim, Range, holds, is_open, lowest, symbols_of
from tvmopt.errors import ArtifactError
from tvmopt.operators.stored import CARRIERS, FLOAT
from tvmopt.plain import plain, typed
from tvmopt.runtime import container
from tvmopt.runtime.roles import Roles
from tvmopt.runtime.tensors import TensorInfo, from_plain, numpy_dtype
from tvmopt.texts import threads_of

FORMAT = 8
"""Of an artifact for one target. 6: tokens of decoders had no places; 5: decoders were not told how many scores to
give; 4: without decoders; 3: without open sizes; 2: inputs had to lie at 64 bytes; 1: without the manifest's hash and
the pool of threads in the library."""

FLEET = 9
"""Of an artifact for several targets: `manifest.json` has a manifest for each, and weights lie in several members."""


@dataclass(frozen=True)
class Weight:
    """One weight tensor: `offset` bytes from the start of `weights.bin`, a multiple of 64 (in a fleet: see `parts`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.name, self.shape, self.dtype)


@dataclass(frozen=True)
class Part:
    """Size in bytes and SHA-256 of one member."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Member:
    """One target of an artifact for a fleet, as this machine sees it.

    Attributes:
        title: the target's name; with the number of threads, where the file has code for several: "x86-64-v4@2".
        target, mcpu, arch, features, threads: see :class:`Manifest`.
        library, weights: bytes; `shared`: of its weights those that other targets have, too, stored once.
        verified: its numbers were compared when it was compiled.
        lacks: the instructions, or the instruction set, that this machine has not; empty where it can run it.
        chosen: it is the one that is run, or looked at.
    """

    title: str
    target: str
    mcpu: str
    arch: str
    features: tuple[str, ...]
    threads: int
    library: int
    weights: int
    shared: int
    verified: bool
    lacks: tuple[str, ...] = ()
    chosen: bool = False


@dataclass(frozen=True)
class Manifest:
    """The manifest of one artifact.

    Attributes:
        format: version of this file format.
        versions: of tvmopt, apache-tvm, apache-tvm-ffi that made it.
        model: file name (no folder) of the ONNX model; `model_sha256` its hash.
        structure: hash of the compiled program without its weights; equal structures can exchange weights.
        inputs, outputs: in the order of the model; an open size is a text, such as "seq" or "past + 1".
        symbols: the range of each open size. conditions: what else must hold of them (`tvmopt.dims.holds`).
        weights: the weight tensors, in the order the program takes them after the inputs.
        target: name of the machine; `kind` "llvm" or "cuda"; `mcpu` LLVM's CPU or CUDA's architecture.
        features: ISA features the code may use; loading refuses a machine that lacks one.
        arch: instruction set of the library ("x86_64", "aarch64"); empty in older files: that of the machine that
            made it.
        threads: TVM threads it was compiled for.
        precision: "fp32", ...
        decoder: what its inputs and outputs are, if it is one.
        records: the tuning records used, as lines of a log without samples; `refit` schedules by them.
        options: further options of the compile that `refit` must repeat (shapes, ...).
        stripped: the weights were left out; `tvmopt refit` puts them in.
        accuracy: what verification found; empty if it was not asked for.
        report: :class:`tvmopt.report.Report` as plain data, without its timings.
        parts: member -> :class:`Part`. In a fleet the target's own library, and the members that hold its weights:
            offsets count through those, in the order of their names.
        fleet: the targets of the file, if it is for several, as this machine sees them; no part of the file.
    """

    format: int
    versions: dict[str, str]
    model: str
    model_sha256: str
    structure: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    weights: tuple[Weight, ...]
    target: str
    kind: str
    mcpu: str
    features: tuple[str, ...]
    threads: int
    precision: str
    arch: str = ""
    symbols: dict[str, Range] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    decoder: Roles = field(default_factory=Roles)
    records: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    stripped: bool = False
    accuracy: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    fleet: tuple[Member, ...] = ()

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, UTF-8, one trailing newline."""
        return _canonical(self._kept())

    def _kept(self) -> dict[str, Any]:
        """What is written of it."""
        return {name: value for name, value in plain(self).items() if name != "fleet"}

    @property
    def library(self) -> str:
        """The name of the member that is its library."""
        return next((name for name in self.parts if name.startswith("library")), container.LIBRARY)

    @property
    def title(self) -> str:
        """What its file calls its target: by the name and, where there is code for several, the number of threads."""
        return self.library.removeprefix("library").removesuffix(".so").removeprefix(".") or self.target

    @property
    def segments(self) -> tuple[str, ...]:
        """The names of the members that hold its weights, in order."""
        return tuple(sorted(name for name in self.parts if name.startswith("weights")))

    @property
    def values(self) -> dict[str, Any]:
        """The inputs that were bound when it was compiled: numbers, lists of them and arrays, by name."""
        return {name: from_plain(value) for name, value in self.options.get("values", {}).items()}

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, padding included."""
        return max((-(-(w.offset + w.info.nbytes) // 64) * 64 for w in self.weights), default=0)

    @classmethod
    def from_json(cls, data: bytes, where: str, *, intact: bool = True) -> Manifest:
        """Parse and check that of an artifact for one target: see :func:`parse`."""
        return parse(data, where, intact=intact)[0]

    def _check_values(self) -> None:
        """Raise a TypeError about the first field whose type is right and whose value cannot be."""
        for tensor in (*self.inputs, *self.outputs, *(w.info for w in self.weights)):
            if numpy_dtype(tensor.dtype).kind not in "biufV" or str(tensor.dtype) != tensor.dtype:
                raise TypeError(f"{tensor.name!r} has the dtype {tensor.dtype!r}")
            if any(type(d) not in (int, Dim) or (isinstance(d, int) and d < 0) for d in tensor.shape):
                raise TypeError(f"{tensor.name!r} has a dimension that is no size")
            decided = {n for n in symbols_of(tensor.shape) if n.startswith(FOUND)} if tensor in self.outputs else set()
            if not symbols_of(tensor.shape) <= self.symbols.keys() | decided:
                raise TypeError(f"{tensor.name!r} has an open size without a range")
        read = {str(d) for info in self.inputs for d in info.shape if isinstance(d, Dim) and d.is_symbol}
        if read != self.symbols.keys() or any(is_open(w.shape) for w in self.weights):
            raise TypeError("its open sizes are not those of its inputs")
        if any(not lowest(n) <= r.min <= r.opt <= r.max < 1 << 31 for n, r in self.symbols.items()):
            raise TypeError("a range of an open size is none")
        self._check_decoder()
        for condition in self.conditions:
            holds(condition, {name: r.opt for name, r in self.symbols.items()})
        if any(w.offset < 0 or w.offset % 64 for w in self.weights):
            raise TypeError("a weight is not 64-byte aligned")
        if self.kind not in ("llvm", "cuda") or self.threads < 1:
            raise TypeError(f"it is of kind {self.kind!r} for {threads_of(self.threads)}")

    def _check_decoder(self) -> None:
        inputs, outputs = ({t.name: t.shape for t in side} for side in (self.inputs, self.outputs))
        roles = self.decoder
        for one in roles.caches:
            if len(inputs.get(one.past, ())) != 4 or len(outputs.get(one.present, ())) != 4:
                raise TypeError(f"it has no cache {one.past!r} that leaves as {one.present!r}")
        lengths = {str(inputs[one.past][2]) for one in roles.caches}
        if roles.in_place and (len(lengths) != 1 or not lengths <= self.symbols.keys()):
            raise TypeError("its caches have no one length")
        if roles.kept not in CARRIERS or (roles.kept != FLOAT and not roles.in_place):
            raise TypeError(f"its caches are kept as {roles.kept!r}")
        if not {roles.ids, roles.mask, roles.positions} <= {"", *inputs} or roles.logits not in {"", *outputs}:
            raise TypeError("its decoder names an input or output that it lacks")


def fleet_json(manifests: Sequence[Manifest]) -> bytes:
    """The `manifest.json` of a fleet's artifact, as canonical as that of one target."""
    return _canonical({"format": FLEET, "fleet": [manifest._kept() for manifest in manifests]})


def _canonical(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, default=str) + "\n").encode()


def parse(data: bytes, where: str, *, intact: bool = True) -> tuple[Manifest, ...]:
    """The manifests in a `manifest.json`, checked: one, or several of different targets for a fleet.

    Args:
        intact: the bytes have the hash that the file says. Of another format version that is said first.

    Raises:
        ArtifactError: not JSON, another format version, changed, a field missing, unknown or of the wrong type or
            value.
    """
    try:
        raw = json.loads(data)
        found = raw.get("format") if isinstance(raw, dict) else None
        if found not in (FORMAT, FLEET):
            raise ArtifactError(
                f"the artifact has format version {found!r}; this tvmopt reads version {FORMAT} ({FLEET} of fleets).",
                where=where,
                fix="compile the model again with this tvmopt, or install the tvmopt that wrote the file",
            )
        if not intact:
            raise ValueError("it does not have the hash that the file says")
        manifests = tuple(_one(one) for one in (raw["fleet"] if found == FLEET else [raw]))
        if found == FLEET and (not manifests or len({(m.target, m.threads) for m in manifests}) < len(manifests)):
            raise TypeError("the targets of its fleet are none, or two of one name")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(
            f"the manifest is damaged: {error}",
            where=where,
            fix="compile the model again: tvmopt compile MODEL",
        ) from error
    return manifests


def _one(raw: Any) -> Manifest:
    if isinstance(raw, dict) and "fleet" in raw:
        raise TypeError("manifest has an unknown field 'fleet'")
    manifest: Manifest = typed(Manifest, raw, "manifest")
    if manifest.format != FORMAT:
        raise TypeError(f"it is of format {manifest.format}")
    manifest._check_values()
    return manifest


def check_versions(manifest: Manifest, where: str) -> None:
    """Compare the TVM that made an artifact's code with the one here; code and runtime must be of one version.

    Raises:
        ArtifactError: they differ.
    """
    here = installed_versions()
    differ = [
        f"{package} {manifest.versions.get(package, 'unknown')}, here is {version}"
        for package, version in here.items()
        if manifest.versions.get(package) != version
    ]
    if differ:
        raise ArtifactError(
            f"the artifact was made with other versions: {'; '.join(differ)}.",
            where=where,
            fix="compile the model again with the versions here, or install those that made it",
        )


@cache
def installed_versions() -> dict[str, str]:
    """Versions of the packages whose runtime the artifact's code calls, as far as they are known here."""
    found = {}
    for package in ("apache-tvm", "apache-tvm-ffi"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
