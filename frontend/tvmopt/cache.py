"""Files that many processes share and that may be made again at any time: `~/.cache/tvmopt` - for compiled models.

An entry appears whole or not at all, under a name that says what it is made of, and is never changed. The cache is
bounded: what was used longest ago goes first.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tvmopt.errors import InputError
from tvmopt.files import make_folder, private_cache
from tvmopt.texts import whole_number

FOLDER = "TVMOPT_CACHE"
"""Environment variable: another folder, or `off`: then entries last as long as the process."""

LIMIT = "TVMOPT_MODELS_MB"
"""Environment variable: MB that compiled models may take together; default: 4096."""


@cache
def _passing() -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="tvmopt-cache-")


@dataclass(frozen=True)
class Entry:
    """One file: its `key`, `bytes`, and seconds since the epoch when it was last `used`."""

    key: str
    path: Path
    bytes: int
    used: float


@dataclass(frozen=True)
class Cache:
    """The entries of one kind.

    Attributes:
        folder: where they are.
        suffix: of their files, with the dot.
        limit: bytes that they may take together.
    """

    folder: Path
    suffix: str
    limit: int

    @classmethod
    def models(cls) -> Cache:
        """The user's compiled models.

        Raises:
            InputError: the environment names a size that is no number. TvmoptError: no folder can be made.
        """
        text = os.environ.get(LIMIT, "") or "4096"
        megabytes = whole_number(text)
        if megabytes is None:
            raise InputError(
                f"{LIMIT} is {text!r}, not a number of megabytes.", fix=f"unset {LIMIT}, or set it to 4096"
            )
        where = os.environ.get(FOLDER, "")
        if where == "off":
            folder = Path(_passing().name)
        else:
            folder = Path(where) / "models" if where else private_cache("models")
        return cls(folder, ".tvmopt", megabytes << 20)

    def find(self, key: str) -> Path | None:
        """The file of a key, which counts as used now; None if there is none."""
        path = self._path(key)
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # a cache that belongs to somebody else may be read
            return path if path.is_file() else None
        return path

    def make(self, key: str, write: Callable[[Path], None]) -> Path:
        """The file of a key, written by `write` if there is none: by one process, while the others wait for it.

        Raises:
            InputError: the folder cannot be made or written; and whatever `write` raises.
        """
        make_folder(self.folder)
        with self._lock(key):
            found = self.find(key)
            if found is None:
                part = self.folder / f".{key}.{os.getpid()}{self.suffix}"
                try:
                    write(part)
                    found = part.replace(self._path(key))
                finally:
                    part.unlink(missing_ok=True)
        self.prune(keep=key)
        return found

    def entries(self) -> list[Entry]:
        """All of them, the one used last first."""
        found = []
        for path in self.folder.glob(f"*{self.suffix}") if self.folder.is_dir() else ():
            with suppress(FileNotFoundError):  # another process pruned it meanwhile
                state = path.stat()
                if not path.name.startswith("."):
                    found.append(Entry(path.name.removesuffix(self.suffix), path, state.st_size, state.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def prune(self, limit: int | None = None, keep: str = "") -> list[Entry]:
        """Delete what was used longest ago until the rest fits in `limit` bytes; what was deleted.

        A file in use stays readable for the process that has it open or mapped.
        """
        limit, room, gone = self.limit if limit is None else limit, 0, []
        for entry in self.entries():
            room += entry.bytes
            if room > limit and entry.key != keep:
                entry.path.unlink(missing_ok=True)
                room -= entry.bytes
                gone.append(entry)
        if self.folder.is_dir():
            self._sweep()
        return gone

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}"

    def _sweep(self) -> None:
        """Delete what processes that were killed have left: parts and locks a day old."""
        for path in self.folder.glob(".*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > 86_400:
                    path.unlink()

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """One process at a time makes an entry. The kernel drops the lock of a process that dies."""
        path = self.folder / f".{key}.lock"
        try:
            file = path.open("a")
        except OSError as error:
            fix = f"make it writable, or name another folder in {FOLDER}"
            raise InputError(
                f"the cache cannot be written: {error.strerror}.", where=str(self.folder), fix=fix
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
