"""The artifact of the same compile, made earlier: taken from the disk in place of compiling - for `tvmopt.compile`.

What a compile follows from is its key: the bytes of the model with its external data, the request, the machine, the
tuning records that it would find, how it is verified, the versions of the libraries and the sources of this package.
Nothing is kept of compiles that were asked to be verified and could not be, of GPUs (nvcc and its libraries decide,
too), with extensions (they are not ours to hash), or that dump what is in between.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tvmopt
from tvmopt import children
from tvmopt.cache import Artifacts
from tvmopt.compiler.request import Request, source_hash
from tvmopt.errors import ArtifactError
from tvmopt.extensions import foreign
from tvmopt.files import copied, moved
from tvmopt.report import Report
from tvmopt.runtime import artifact as artifacts
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.manifest import FORMAT
from tvmopt.tuning.store import default_path

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime")
"""What takes part in a compile or in its verification."""

COMPILERS = ("CC", "TVMOPT_CROSS_CC")
"""Environment variables that name the C compiler that links."""

_HALF = 32
"""Characters of a key that stand for the compile, and as many for the model."""


@dataclass(frozen=True)
class Kept:
    """Where the artifact of one compile is kept.

    Attributes:
        start: the first half of its key: of everything but the model.
    """

    cache: Artifacts
    start: str
    source: Any

    @classmethod
    def of(cls, request: Request, verify: bool, tolerance: float | None) -> Kept | None:
        """None where nothing is kept of such a compile.

        Raises:
            InputError: the cache's limit is no number.
        """
        kept = Artifacts.default()
        if kept.folder is None or request.machine.kind != "llvm" or request.dumps or foreign():
            return None
        asked = _asked(request)
        if asked is None:
            return None
        parts = [asked, verify, tolerance, tuned(request.records, request.store), made_by()]
        return cls(kept, hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_HALF], request.source)

    def report(self) -> Report | None:
        """What was done, without the artifact itself."""
        found = self._first(artifacts.read_manifest)
        return None if found is None else _told(found[1].report)

    def find(self) -> tuple[Artifact, Report] | None:
        """The artifact, whole and as it was written, and what was done; None where there is none."""
        found = self._first(artifacts.read)
        if found is None:
            return None
        artifact: Artifact = found[1]
        return replace(artifact, where=artifact.manifest.model), _told(artifact.manifest.report)

    def copy(self, output: str | Path) -> Report | None:
        """The artifact as a file of its own, checked; what was done. None where there is none.

        Raises:
            InputError: the file cannot be written.
        """
        found = self._first(partial(artifacts.read, mapped=True))
        return _told(found[1].manifest.report) if found is not None and copied(found[0], output) else None

    def keep(self, artifact: Artifact, verify: bool, file: Path | None = None) -> Path | None:
        """Keep an artifact for the next time; the file, where it is kept.

        Args:
            file: the artifact's, which becomes that one.
        """
        manifest = artifact.manifest
        if verify and not manifest.accuracy.get("verified"):
            return None
        key, size = self._key(manifest.model_sha256), sum(part.bytes for part in manifest.parts.values())
        self.cache.put(key, size, partial(moved, file) if file else partial(artifact.save, durable=False))
        return self.cache.find(key)

    def _first(self, read: Callable[[Path], Any]) -> tuple[Path, Any] | None:
        """The file, if it is there, and what `read` makes of it; the model is read only where one of the same request
        is. None, and no file, where it is damaged, or another model's."""
        if not self.cache.begun(self.start):
            return None
        model = ""
        with suppress(Exception):  # a model that cannot be read: to compile it says why
            model = source_hash(self.source)
        path = self.cache.find(self._key(model)) if model else None
        if path is None:
            return None
        children.dismiss()  # a compile is hardly needed any more, and reading goes faster alone
        with suppress(ArtifactError):
            found = read(path)
            if getattr(found, "manifest", found).model_sha256 == model:
                return path, found
        self.cache.drop(self._key(model))
        return None

    def _key(self, model: str) -> str:
        return self.start + model[:_HALF]


def _told(report: dict[str, Any]) -> Report:
    return replace(Report.from_dict(report), cached=True)


def _asked(request: Request) -> list[Any] | None:
    """A request as JSON data, the model's size in place of the model; None where it is no such data."""
    source = request.source
    try:
        size = len(source) if isinstance(source, bytes) else os.stat(source).st_size if _is_path(source) else 0
        plain = replace(request, source="").to_dict()
        return [request.title, size, json.loads(json.dumps(plain, sort_keys=True))]
    except (OSError, TypeError, ValueError):
        return None


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def tuned(records: bool = True, store: str | os.PathLike[str] | None = None) -> Sequence[Any]:
    """What stands for the user's tuning records: it changes whenever they do."""
    if not records:
        return ()
    path = Path(store) if store else default_path()
    found = []
    for file in (path, Path(f"{path}-wal")):
        with suppress(OSError):
            status = file.stat()
            if status.st_size:
                found.append((str(path), status.st_mtime_ns, status.st_size))
    return found


def made_by() -> list[Any]:
    """What makes an artifact, the request aside: this package, the libraries, the C compiler that is asked for."""
    return [tvmopt.__version__, FORMAT, versions(), sources(), [os.environ.get(v, "") for v in COMPILERS]]


@cache
def versions() -> dict[str, str]:
    """Those of :data:`PACKAGES` that are installed."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def sources() -> str:
    """Hash of this package's files: sources, descriptions of machines, records that ship."""
    digest = hashlib.sha256()
    root = Path(tvmopt.__file__).parent
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(folder, name)
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\0".encode() + content)
    return digest.hexdigest()
