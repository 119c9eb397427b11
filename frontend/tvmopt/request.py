"""What one compile is asked for: the model, the machine, the precision, the records - for CPUs and GPUs alike."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvmopt.children import Progress
from tvmopt.precision import check as check_precision
from tvmopt.runtime.manifest import Manifest
from tvmopt.targets import Machine
from tvmopt.tuning.logs import RecordLookup


@dataclass(frozen=True)
class Request:
    """What one compile is asked for; see :func:`tvmopt.compile`."""

    source: Any
    machine: Machine
    precision: str = "fp32"
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    name: str = ""
    records: bool = True
    cuda_graph: bool = True
    store: str | os.PathLike[str] | None = None
    without: tuple[str, ...] = ()
    generic: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_precision(self.precision, self.machine)

    @property
    def title(self) -> str:
        """What the model is called: as asked, or as its file is."""
        if self.name:
            return self.name
        return Path(self.source).name if isinstance(self.source, str | os.PathLike) else "model.onnx"


def request_of(manifest: Manifest, model: Any) -> Request:
    """What an artifact was asked for, of another model."""
    machine = Machine.load("cpu" if manifest.target == Machine.load("cpu").name else manifest.target)
    if manifest.kind == "llvm":
        machine = machine.with_cores(manifest.threads)
    options = manifest.options
    return Request(model, machine, manifest.precision, options.get("shapes", {}), exact=options.get("exact", False))


@dataclass
class Progressed:
    """Reports stages and times them."""

    report: Progress | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.report:
            self.report(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def record_lookup(request: Request) -> RecordLookup | None:
    """The tuning records a compile considers: the user's store, then those that ship for exactly this target."""
    if not request.records:
        return None
    return RecordLookup.default(request.machine, Path(request.store) if request.store else None)


def source_hash(source: Any) -> str:
    """SHA-256 of a model: of its file and its external data, in the order of their names, or of its bytes."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if not isinstance(source, str | os.PathLike):
        return hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
    import onnx

    path = Path(source)
    digest = hashlib.sha256()
    names = {path.name}
    model = onnx.load(str(path), load_external_data=False)
    for tensor in model.graph.initializer:
        names |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    for name in (path.name, *sorted(names - {path.name})):
        file_path = path.parent / name
        with (file_path if file_path.exists() else path.resolve().parent / name).open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()


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
