"""Models and their versions: files given by name, or a folder that is looked at again - loaded, exchanged, unloaded.

    FOLDER/squeezenet.tvmopt                   model squeezenet, version 1
    FOLDER/resnet/1/model.tvmopt               model resnet, versions 1 and 2; without a version the highest is meant
    FOLDER/resnet/2/model.tvmopt
    FOLDER/llama.tokenizer.json                a decoder's tokenizer: beside llama.tvmopt, or as tokenizer.json in the
    FOLDER/llama/1/tokenizer.json              folder of its version
    FOLDER/whisper.encoder.tvmopt              the encoder of whisper.tvmopt; encoder.tvmopt in a version's folder

A version is exchanged when its file is another one: the new one is loaded and called once, then takes the place of the
old one, which ends when its last request is answered. A file that cannot be loaded leaves the old one serving.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import InputError, TvmoptError, first_line
from tvmopt.generation import Tokenizer
from tvmopt.runtime.model import Model, load
from tvmopt.serving.alone import Alone
from tvmopt.serving.batcher import Batcher, Limits
from tvmopt.serving.protocol import unsupported
from tvmopt.serving.refusals import Refused

SUFFIX = ".tvmopt"
ENCODER = f"encoder{SUFFIX}"


@dataclass(frozen=True)
class File:
    """A file at one time, with the tokenizer and the encoder beside it: where one was replaced they are unequal."""

    path: Path
    stamp: tuple[int, int, int]
    tokenizer: File | None = None
    encoder: File | None = None

    @staticmethod
    def at(path: Path, tokenizer: Path | None = None, encoder: Path | None = None) -> File:
        status = path.stat()
        beside = [File.at(p) if p is not None and p.is_file() else None for p in (tokenizer, encoder)]
        return File(path, (status.st_mtime_ns, status.st_size, status.st_ino), *beside)


@dataclass
class Served:
    """A version of a model: its file and, if it is loaded, its batcher; else why not."""

    file: File
    batcher: Batcher | None = None
    reason: str = ""


class Repository:
    """What the server has.

    Args:
        paths: artifacts and folders of artifacts.
        observer: of :class:`tvmopt.serving.metrics.Metrics`.

    Raises:
        InputError: a path that is neither, two models of one name.
    """

    def __init__(self, paths: Iterable[Path], limits: Limits, observer: Any, tell: Any = print) -> None:
        self.limits, self._observer, self._tell = limits, observer, tell
        self.alone = Alone()
        self._folders: list[Path] = []
        self._files: list[Path] = []
        for path in paths:
            if not path.exists():
                raise InputError("there is no such file or folder.", where=str(path), fix="check the path")
            (self._folders if path.is_dir() else self._files).append(path)
        self._served: dict[str, dict[str, Served]] = {}
        self._unloaded: set[str] = set()
        self._lock = threading.RLock()  # one change at a time; readers take what is there
        self._ending: list[threading.Thread] = []  # each ends the threads of a model that is served no more
        names = [path.name.removesuffix(SUFFIX) for path in self._files]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"two files are called {twice[0]!r}.", fix="rename one: a model has its file's name")

    # -- what there is -----------------------------------------------------------------------------------------------

    def find(self, name: str, version: str = "") -> tuple[str, Batcher]:
        """A version and its batcher; without a version the highest.

        Raises:
            Refused: there is none (404), or it is not loaded (503).
        """
        versions = self._served.get(name)
        if versions is None:
            known = ", ".join(sorted(self._served)) or "none"
            raise Refused(404, f"there is no model {name!r}; there are {known}.")
        if version and version not in versions:
            raise Refused(404, f"the model {name!r} has no version {version!r}; it has {', '.join(versions)}.")
        ready = [v for v in ([version] if version else versions) if versions[v].batcher is not None]
        if not ready:
            reason = next((s.reason for s in versions.values() if s.reason), "it was unloaded")
            raise Refused(503, f"the model {name!r} is not loaded: {reason}.")
        best = max(ready, key=_order)
        batcher = versions[best].batcher
        assert batcher is not None
        return best, batcher

    def versions(self, name: str) -> list[str]:
        return sorted(self._served.get(name, ()), key=_order)

    def names(self) -> list[str]:
        """The models that there are files of now, loaded or not."""
        return sorted(self._found())

    def index(self) -> list[dict[str, str]]:
        """Every version of every model, with its state."""
        return [
            {"name": n, "version": v, "state": "READY" if s.batcher else "UNAVAILABLE", "reason": s.reason}
            for n, versions in sorted(self._served.items())
            for v, s in sorted(versions.items(), key=lambda item: _order(item[0]))
        ]

    @property
    def is_ready(self) -> bool:
        """Whether every model that should be loaded is."""
        return all(s["state"] == "READY" for s in self.index() if s["name"] not in self._unloaded)

    def waiting(self) -> dict[tuple[str, str], int]:
        """Requests in each queue."""
        return {(n, v): b.waiting for n, v, b in self._batchers()}

    @property
    def busy(self) -> int:
        """Requests that wait or run."""
        return sum(b.waiting + b.running for _, _, b in self._batchers())

    def _batchers(self) -> list[tuple[str, str, Batcher]]:
        found = [(n, v, s.batcher) for n, versions in list(self._served.items()) for v, s in list(versions.items())]
        return [(n, v, b) for n, v, b in found if b is not None]

    # -- changing it -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look at the files again: load new ones, exchange those that changed, drop those that are gone."""
        with self._lock:
            found = self._found()
            for name, files in found.items():
                for version, file in files.items():
                    known = self._served.get(name, {}).get(version)
                    if name not in self._unloaded and (known is None or known.file != file):
                        self._load(name, version, file)
            for name in list(self._served):
                for version in list(self._served[name]):
                    if version not in found.get(name, {}):
                        self._close(self._served[name].pop(version), f"{name} {version} is gone")
                if not self._served[name]:
                    del self._served[name]

    def load(self, name: str) -> None:
        """Load a model again, from its files of now.

        Raises:
            Refused: it is not there, or cannot be loaded.
        """
        with self._lock:
            files = self._found().get(name)
            if files is None:
                raise Refused(404, f"there is no file of a model {name!r}.")
            self._unloaded.discard(name)
            for version, file in files.items():
                self._load(name, version, file)
            wrong = [s.reason for s in self._served[name].values() if s.batcher is None]
            if wrong:
                raise Refused(400, wrong[0])

    def unload(self, name: str) -> None:
        """Take a model out of service; its files stay known.

        Raises:
            Refused: it is not there.
        """
        with self._lock:
            if name not in self._served:
                raise Refused(404, f"there is no model {name!r}.")
            self._unloaded.add(name)
            for served in self._served[name].values():
                self._close(served, "")

    def close(self, seconds: float) -> bool:
        """Answer what waits, then end all threads: whether all of them have ended within so many seconds. What runs
        still is a call of a model, which nothing can interrupt."""
        until = time.monotonic() + seconds
        with self._lock:
            for versions in self._served.values():
                for served in versions.values():
                    self._close(served, "")
            for thread in self._ending:
                thread.join(max(0.0, until - time.monotonic()))
            return not any(thread.is_alive() for thread in self._ending)

    def _found(self) -> dict[str, dict[str, File]]:
        found: dict[str, dict[str, File]] = {}

        def add(name: str, version: str, path: Path, prefix: str = "") -> None:
            with suppress(OSError):  # gone meanwhile
                beside = (path.with_name(f"{prefix}{end}") for end in ("tokenizer.json", ENCODER))
                found.setdefault(name, {}).setdefault(version, File.at(path, *beside))

        for path in self._files:
            name = path.name.removesuffix(SUFFIX)
            add(name, "1", path, f"{name}.")
        for folder in self._folders:
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                name = path.name.removesuffix(SUFFIX)
                if not _belongs_to_another(path):
                    add(name, "1", path, f"{name}.")
            for path in sorted(folder.glob(f"*/*/*{SUFFIX}")):
                if path.parent.name.isdigit() and path.name != ENCODER:
                    add(path.parent.parent.name, path.parent.name, path)
        return found

    def _load(self, name: str, version: str, file: File) -> None:
        versions = self._served.setdefault(name, {})
        old = versions.get(version)
        try:
            # not mapped: a file that is written over would end us
            model = load(file.path, threads=self.limits.threads, cores=self.limits.cores_of(name))
            if reason := unsupported(model):
                raise InputError(f"{reason}.", where=str(file.path))
            words = Tokenizer(file.tokenizer.path) if file.tokenizer is not None else None
            encoder = self._encoder(name, file)
            _call_once(model)
        except (TvmoptError, OSError) as error:
            told = first_line(error.what if isinstance(error, TvmoptError) else error)
            if isinstance(error, TvmoptError) and error.fix:
                told = f"{told.removesuffix('.')} ({error.fix})"
            self._tell(f"{name} {version} cannot be loaded: {told}")
            versions[version] = Served(file, old.batcher if old else None, told)
            return
        batcher = Batcher(model, self.limits, self._observer(name, version), words, encoder, self.alone)
        versions[version] = Served(file, batcher)
        self._tell(f"{name} {version}: {model.signature}")
        if old is not None:
            self._close(old, "")

    def _encoder(self, name: str, file: File) -> Model | None:
        """The encoder beside a file, if there is one."""
        if file.encoder is None:
            return None
        made = load(file.encoder.path, threads=self.limits.threads, cores=self.limits.cores_of(name))
        if reason := unsupported(made):
            raise InputError(f"{reason}.", where=str(file.encoder.path))
        _call_once(made)
        return made

    def _close(self, served: Served, told: str) -> None:
        if told:
            self._tell(told)
        if served.batcher is not None:
            batcher, served.batcher = served.batcher, None
            thread = threading.Thread(target=_end, args=(batcher,), daemon=True)
            thread.start()
            self._ending = [one for one in self._ending if one.is_alive()] + [thread]


def artifacts(paths: Iterable[Path]) -> list[Path]:
    """The files that a repository of these paths has now.

    Raises:
        InputError: see :class:`Repository`.
    """
    found = Repository(paths, Limits(), None)._found()
    return [file.path for versions in found.values() for file in versions.values()]


def _belongs_to_another(path: Path) -> bool:
    """Whether a file is the encoder of the decoder beside it."""
    name = path.name.removesuffix(f".{ENCODER}")
    return name != path.name and path.with_name(f"{name}{SUFFIX}").is_file()


def _end(batcher: Batcher) -> None:
    """Outputs of a model stay valid when it is closed."""
    batcher.close()
    batcher.model.close()
    if batcher.encoder is not None:
        batcher.encoder.close()


def _call_once(model: Model) -> None:
    """A first call, on zeros: what it makes (threads, buffers) is made before the first request."""
    with suppress(InputError):  # zeros may be no index or divisor of its
        model.run({i.name: np.zeros(i.shape, i.numpy_dtype) for i in model.inputs_at()})


def _order(version: str) -> tuple[int, str]:
    return (int(version) if version.isdigit() else -1, version)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
