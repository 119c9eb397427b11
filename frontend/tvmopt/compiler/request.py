"""What one compile is asked for: the model, the machine, the precision, the records - for CPUs and GPUs alike."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tvmopt.compiler.dump import Dumps
from tvmopt.dims import Shapes
from tvmopt.errors import InputError
from tvmopt.fields import mentions
from tvmopt.files import open_plain
from tvmopt.runtime.manifest import Manifest
from tvmopt.runtime.tensors import from_plain, to_plain
from tvmopt.targets import Machine, names
from tvmopt.targets.precision import check as check_precision
from tvmopt.targets.precision import check_int8, check_kv_cache
from tvmopt.texts import printable_line


@dataclass(frozen=True)
class Request:
    """What one compile is asked for; see :func:`tvmopt.compile`."""

    source: Any
    machine: Machine
    precision: str = "fp32"
    shapes: Shapes = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    int8: str = "auto"
    kv_cache: str = "fp32"
    name: str = ""
    records: bool = True
    cuda_graph: bool = True
    store: str | os.PathLike[str] | None = None
    without: tuple[str, ...] = ()
    generic: tuple[str, ...] = ()
    dumps: Dumps = field(default_factory=Dumps)
    preprocess: Mapping[str, str] = field(default_factory=dict)
    postprocess: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: Any = None

    def __post_init__(self) -> None:
        _check_source(self.source)
        if self.first is not None:
            _check_source(self.first)
        check_precision(self.precision, self.machine)
        check_int8(self.int8)
        check_kv_cache(self.kv_cache)

    def plain_shapes(self) -> dict[str, list[int | str] | str]:
        """The shapes as JSON data."""
        return {
            name: shape if isinstance(shape, str) else [d if isinstance(d, str) else int(d) for d in shape]
            for name, shape in self.shapes.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """The request as JSON data, for another process; the model has to be a file (:func:`as_file`)."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "source": os.fspath(self.source),
            "machine": self.machine.as_dict(),
            "shapes": self.plain_shapes(),
            "values": {name: to_plain(value) for name, value in self.values.items()},
            "store": None if self.store is None else os.fspath(self.store),
            "first": None if self.first is None else os.fspath(self.first),
            "without": list(self.without),
            "generic": list(self.generic),
            "dumps": self.dumps.to_dict(),
            "preprocess": dict(self.preprocess),
            "postprocess": dict(self.postprocess),
            "labels": {name: list(names) for name, names in self.labels.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Request:
        """The request that :meth:`to_dict` wrote."""
        read = {
            "machine": Machine.from_dict(data["machine"]),
            "values": {name: from_plain(value) for name, value in data["values"].items()},
            "without": tuple(data["without"]),
            "generic": tuple(data["generic"]),
            "dumps": Dumps.from_dict(data["dumps"]),
        }
        return cls(**{**data, **read})

    @property
    def whole(self) -> Any:
        """The model with what was asked to stand before and behind it: the source itself, or a ModelProto.

        Raises:
            ModelError, InputError: the model cannot be read, or a stage does not fit it.
        """
        return self._staged[0]

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The names of classes, by the output that has their numbers."""
        return self._staged[1]

    @cached_property
    def _staged(self) -> tuple[Any, dict[str, tuple[str, ...]]]:
        from tvmopt.importer import load
        from tvmopt.importer.maps import has_maps

        if not self.preprocess and not self.postprocess:
            return load(self.source) if has_maps(self.source) else self.source, {}
        from tvmopt.preprocessing.behind import with_stages_behind
        from tvmopt.preprocessing.stages import staged

        model = staged(load(self.source), self.preprocess, self.shapes, bool(self.postprocess))
        return model, with_stages_behind(model, self.postprocess, self.labels)

    @property
    def title(self) -> str:
        """What the model is called: as asked, or as its file is, whose name may be bytes that are no text."""
        if self.name:
            return printable_line(self.name)
        return printable_line(Path(self.source).name) if isinstance(self.source, str | os.PathLike) else "model.onnx"


def _check_source(source: Any) -> None:
    """Refuse what is no model, before anything looks into it.

    Raises:
        InputError: it is neither a path nor bytes nor a ModelProto.
    """
    if not isinstance(source, str | os.PathLike | bytes | bytearray | memoryview) and not _is_proto(source):
        what = f"a model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}."
        raise InputError(what, fix="pass the path of an .onnx file")


def _is_proto(source: Any) -> bool:
    return hasattr(source, "SerializeToString")


def request_of(manifest: Manifest, model: Any) -> Request:
    """What an artifact was asked for, of another model."""
    machine = _machine_of(manifest)
    if manifest.kind == "llvm":
        machine = machine.with_cores(manifest.threads)
    options = manifest.options
    shapes, exact, int8 = options.get("shapes", {}), options.get("exact", False), options.get("int8", "auto")
    stages: dict[str, Any] = {name: options.get(name, {}) for name in ("preprocess", "postprocess")}
    more = {"kv_cache": options.get("kv_cache", "fp32"), "labels": options.get("labels", {}), **stages}
    return Request(model, machine, manifest.precision, shapes, manifest.values, exact, int8, **more)


def _machine_of(manifest: Manifest) -> Machine:
    """The machine that an artifact was compiled for: this one, if it has its name and its instructions.

    A machine that is not known has the description of its level and more instructions, `x86-64-v4` with AVX512-VNNI for
    instance: the name alone does not tell which of the two was meant.
    """
    here = Machine.load("cpu")
    needed = {feature for feature in manifest.features if not feature.startswith("amx-")}
    mine = {feature for feature in here.instructions if not feature.startswith("amx-")}
    if manifest.target == here.name and (needed == mine or manifest.target not in names()):
        return here
    return Machine.load(manifest.target)


def source_hash(source: Any, loaded: Any = None) -> str:
    """SHA-256 of a model: of its file and its external data, in the order of their names, or of its bytes.

    Args:
        loaded: the model in the file, without its external data, where it was read before.

    Raises:
        OSError, ValueError: a file is none, or external data lies where it must not; to load the model says so.
    """
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if not isinstance(source, str | os.PathLike):
        return hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
    path = Path(source)
    digest = hashlib.sha256()
    room = memoryview(bytearray(1 << 24))  # new memory for each piece takes longer than its hash
    for file_path in (path, *(place for _, place in sorted(external_places(path, loaded).items()))):
        with open_plain(file_path) as file:
            while size := file.readinto(room):  # type: ignore[attr-defined]  # of a plain file
                digest.update(room[:size])
    return digest.hexdigest()


LOCATION = b"location"
"""The key under which ONNX notes the name of a file with external data."""


def external_files(path: Path, loaded: Any = None) -> set[str]:
    """Names of the files with external data of a model; nothing is parsed where the file has none.

    Args:
        loaded: the model in the file, where it was read before.
    """
    if loaded is None and not mentions(path, LOCATION):
        return set()
    import onnx

    from tvmopt.importer.tensors import all_tensors

    model = loaded or onnx.load(str(path), load_external_data=False)
    return {e.value for _, t in all_tensors(model) for e in t.external_data if e.key == LOCATION.decode()}


def external_places(path: Path, loaded: Any = None) -> dict[str, Path]:
    """Where the external data of a model lies, by the names that the model has for it.

    Raises:
        ValueError: outside the model's folder.
    """
    names = external_files(path, loaded) - {path.name}
    if not names:
        return {}
    from tvmopt.importer.external import place_of

    return {name: place_of(name, path) for name in names}


def model_files(*sources: Any) -> Iterator[Path]:
    """The files of models and artifacts, external data included; of what is given as bytes there are none."""
    for source in sources:
        if isinstance(source, str | os.PathLike):
            yield Path(source)
            with suppress(Exception):  # a model that cannot be read: who loads it says why
                yield from external_places(Path(source)).values()


@contextmanager
def as_file(source: Any) -> Iterator[Path]:
    """The model as a file, for a child process; temporary when it came as bytes or as a ModelProto."""
    if isinstance(source, str | os.PathLike):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="tvmopt-model-") as folder:
        path = Path(folder) / "model.onnx"
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            import onnx

            copy = onnx.ModelProto()
            copy.CopyFrom(source)
            large = source.ByteSize() > 1 << 30
            onnx.save(copy, str(path), save_as_external_data=large)
        yield path
