"""Files on the disk that can be made again at any time, shared by any number of processes - for `compile`.

    kernels     machine code of kernels, by a hash of everything that decides it (`compiler/kernels.py`)
    models      compiled models of the drop-in session and of PyTorch (`variants`)
    artifacts   what a compile wrote, for the same compile again (`compiler/kept.py`)

A file appears whole or not at all and is never changed. What was not used for longest goes first when there
is too much.
`TVMOPT_CACHE` names another folder, or is `off`; `TVMOPT_CACHE_MB` (512), `TVMOPT_MODELS_MB` (4096) and
`TVMOPT_ARTIFACTS_MB` (2048) limit the sizes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any, ClassVar, Self

from tvmopt.errors import InputError, TvmoptError
from tvmopt.files import atomic_write, make_folder, private_cache
from tvmopt.texts import whole_number

FOLDER = "TVMOPT_CACHE"
_DIGEST = hashlib.sha256().digest_size
_LEAST_AGE = 60.0
"""Seconds after which a use is noted again, which is a write to the disk, and the folder is looked through again."""


@dataclass(frozen=True)
class Entry:
    """One file: its key, bytes, and when it was used last (seconds since 1970)."""

    key: str
    size: int
    used: float


@dataclass(frozen=True)
class Cache:
    """The files of one kind.

    Attributes:
        folder: None where nothing is kept.
        limit: bytes that all files together may have.
    """

    folder: Path | None
    limit: int

    kind: ClassVar[str]
    suffix: ClassVar[str] = ""
    variable: ClassVar[str]
    megabytes: ClassVar[int]

    @classmethod
    def default(cls) -> Self:
        """The user's, as the environment says.

        Raises:
            InputError: the limit is no number.
        """
        text = os.environ.get(cls.variable, "") or str(cls.megabytes)
        limit = 0 if text == "0" else whole_number(text)
        if limit is None:
            fix = "give a number of megabytes; 0 keeps nothing"
            raise InputError(f"{cls.variable} is {text!r}, not a number.", fix=fix)
        where = os.environ.get(FOLDER, "")
        if where == "off" or not limit:
            return cls(None, 0)
        try:
            folder = Path(where) / cls.kind if where else private_cache(cls.kind)
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, TvmoptError):  # nothing needs it
            return cls(None, 0)
        return cls(folder, limit << 20)

    def entries(self) -> list[Entry]:
        """All files, the one that was used last first."""
        return sorted(self._entries(), key=lambda entry: (-entry.used, entry.key))

    def prune(self, limit: int | None = None, keep: str = "") -> list[Entry]:
        """Remove what was not used for longest, until all fits into the limit (bytes); what was removed.

        A file in use stays readable for the process that has it open or mapped; that of the key `keep` stays.
        """
        left = self.limit if limit is None else limit
        removed = []
        for entry in self.entries():
            left -= entry.size
            if left < 0 and entry.key != keep:
                with suppress(OSError):  # another process was faster
                    self.path(entry.key).unlink()
                    removed.append(entry)
        return removed

    def tidy(self) -> None:
        """Prune, at most once a minute: to look at thousands of files takes a while."""
        if self.folder is None:
            return
        stamp = self.folder / ".pruned"
        with suppress(OSError):
            if not stamp.exists() or time.time() - stamp.stat().st_mtime > _LEAST_AGE:
                stamp.touch()
                self.prune()

    def path(self, key: str) -> Path:
        """Where the file of a key is."""
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}{self.suffix}"

    def _entries(self) -> Iterator[Entry]:
        for path in self.folder.glob(f"??/*{self.suffix}") if self.folder is not None else ():
            with suppress(OSError):
                status = path.stat()
                if not path.name.startswith("."):
                    yield Entry(path.name.removesuffix(self.suffix), status.st_size, status.st_mtime)

    def _use(self, path: Path) -> bool:
        """Note that a file was used; whether it is there."""
        try:
            if time.time() - path.stat().st_mtime > _LEAST_AGE:
                with suppress(OSError):  # of somebody else
                    os.utime(path)
        except OSError:
            return False
        return True


class Kernels(Cache):
    """Machine code. A file begins with the hash of what it holds."""

    kind, variable, megabytes = "kernels", "TVMOPT_CACHE_MB", 512

    def get(self, key: str) -> bytes | None:
        """What was kept under a key; None where there is nothing, or nothing whole."""
        if self.folder is None:
            return None
        path = self.path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() != data[:_DIGEST]:
            with suppress(OSError):
                path.unlink()
            return None
        self._use(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep something; where it cannot be written, it is not kept."""
        if self.folder is None:
            return
        path = self.path(key)
        with suppress(OSError, TvmoptError):
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path, durable=False) as file:  # what the disk has not got then does not have its hash
                file.write(hashlib.sha256(content).digest() + content)


class Models(Cache):
    """Compiled models, mapped by the processes that use them. Where none is kept they last while the process does."""

    kind, suffix, variable, megabytes = "models", ".tvmopt", "TVMOPT_MODELS_MB", 4096

    def path(self, key: str) -> Path:
        folder = Path(_passing().name) if self.folder is None else self.folder
        return folder / key[:2] / f"{key}{self.suffix}"

    def find(self, key: str) -> Path | None:
        """The file of a key; None if there is none."""
        path = self.path(key)
        return path if self._use(path) else None

    def prune(self, limit: int | None = None, keep: str = "") -> list[Entry]:
        """As :meth:`Cache.prune`; with the last model all notes go."""
        removed = super().prune(limit, keep)
        if limit == 0 and self.folder is not None:
            for note in (n for suffix in (".refused", ".json") for n in self.folder.glob(f"??/*{suffix}")):
                note.unlink(missing_ok=True)
        return removed

    def is_refused(self, key: str) -> bool:
        """Whether :meth:`refuse` was told of a key."""
        return self.path(key).with_suffix(".refused").exists()

    def refuse(self, key: str) -> None:
        """Note that nothing can be made for a key."""
        note = self.path(key).with_suffix(".refused")
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()

    def noted(self, key: str) -> Any:
        """What :meth:`note` was given last for a key; None if there is nothing."""
        try:
            return json.loads(self.path(key).with_suffix(".json").read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def note(self, key: str, what: Any) -> None:
        """Keep a few words for a key: plain data, which later processes find."""
        note = self.path(key).with_suffix(".json")
        with suppress(OSError, InputError):
            note.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(note) as file:
                file.write(json.dumps(what).encode())

    def make(self, key: str, write: Callable[[Path], None]) -> Path:
        """The file of a key, written by `write` if there is none: by one process, while the others wait for it.

        Raises:
            InputError: it cannot be written; and whatever `write` raises.
        """
        path = self.path(key)
        make_folder(path.parent)
        with self._lock(path):
            if not self._use(path):
                part = path.with_name(f".{key}.{os.getpid()}{self.suffix}")
                try:
                    write(part)
                    part.replace(path)
                finally:
                    part.unlink(missing_ok=True)
        if self.folder is not None:
            self.prune(keep=key)
        return path

    @contextmanager
    def _lock(self, path: Path) -> Iterator[None]:
        """One process at a time makes a file. The system drops the lock of a process that dies."""
        lock = path.with_name(f".{path.name}.lock")
        try:
            file = lock.open("a")
        except OSError as error:
            fix = f"make it writable, or name another folder in {FOLDER}"
            raise InputError(
                f"the cache cannot be written: {error.strerror}.", where=str(lock.parent), fix=fix
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)


class Artifacts(Cache):
    """What compiles wrote. The second half of a key is the hash of the model: the first says whether it is needed."""

    kind, suffix, variable, megabytes = "artifacts", ".tvmopt", "TVMOPT_ARTIFACTS_MB", 2048

    def begun(self, start: str) -> bool:
        """Whether there is a file whose key begins so (with two characters at least)."""
        if self.folder is None:
            return False
        return any(self.folder.glob(f"{start[:2]}/{start}*{self.suffix}"))

    def find(self, key: str) -> Path | None:
        """The file of a key; None if there is none."""
        if self.folder is None:
            return None
        path = self.path(key)
        return path if self._use(path) else None

    def drop(self, key: str) -> None:
        """Remove a file that is damaged."""
        with suppress(OSError):
            self.path(key).unlink()

    def put(self, key: str, size: int, write: Callable[[Path], object]) -> None:
        """Keep what `write` writes to the path that it is given, of about so many bytes; where it cannot be written,
        or is more than a quarter of all that may be kept, it is not."""
        if self.folder is None or 4 * size > self.limit:
            return
        path = self.path(key)
        with suppress(OSError, TvmoptError):
            path.parent.mkdir(exist_ok=True)
            write(path)
            self.prune(keep=key)


@once
def _passing() -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="tvmopt-models-")


KINDS = (Kernels, Models, Artifacts)
