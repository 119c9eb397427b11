"""Machine code of kernels on the disk, so that what was compiled once is not compiled again - for `compile`.

A kernel's key is a hash of everything that decides its code: its loops, the target, the versions of TVM and of our
last passes (`compiler/kernels.py`). Files appear whole or not at all and begin with the hash of what they hold, so that
any number of processes can share the folder; those that were not used for longest are removed when there are too many.

`TVMOPT_CACHE` names another folder, or is `off`; `TVMOPT_CACHE_MB` limits the size (default 512).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tvmopt.errors import InputError, TvmoptError
from tvmopt.files import atomic_write, private_cache
from tvmopt.texts import whole_number

DEFAULT_MB = 512
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
    """The files of one folder.

    Attributes:
        folder: None where nothing is kept.
        limit: bytes that all files together may have.
    """

    folder: Path | None
    limit: int

    @classmethod
    def default(cls) -> Cache:
        """The user's, as the environment says.

        Raises:
            InputError: TVMOPT_CACHE_MB is no number.
        """
        text = os.environ.get("TVMOPT_CACHE_MB", "") or str(DEFAULT_MB)
        limit = 0 if text == "0" else whole_number(text)
        if limit is None:
            fix = "give a number of megabytes; 0 keeps nothing"
            raise InputError(f"TVMOPT_CACHE_MB is {text!r}, not a number.", fix=fix)
        where = os.environ.get("TVMOPT_CACHE", "")
        if where == "off" or not limit:
            return cls(None, 0)
        try:
            folder = Path(where) if where else private_cache("kernels")
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, TvmoptError):  # a compile does not need it
            return cls(None, 0)
        return cls(folder, limit << 20)

    def get(self, key: str) -> bytes | None:
        """What was kept under a key; None where there is nothing, or nothing whole."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
            used = path.stat().st_mtime
        except OSError:
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() != data[:_DIGEST]:
            with suppress(OSError):
                path.unlink()
            return None
        if time.time() - used > _LEAST_AGE:
            with suppress(OSError):
                os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep something; where it cannot be written, it is not kept."""
        if self.folder is None:
            return
        path = self._path(key)
        with suppress(OSError, TvmoptError):
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as file:
                file.write(hashlib.sha256(content).digest() + content)

    def tidy(self) -> None:
        """Prune, at most once a minute: to look at thousands of files takes a while."""
        if self.folder is None:
            return
        stamp = self.folder / ".pruned"
        with suppress(OSError):
            if not stamp.exists() or time.time() - stamp.stat().st_mtime > _LEAST_AGE:
                stamp.touch()
                self.prune()

    def entries(self) -> list[Entry]:
        """All files, the one that was used last first."""
        return sorted(self._entries(), key=lambda entry: (-entry.used, entry.key))

    def prune(self, limit: int | None = None) -> list[Entry]:
        """Remove what was not used for longest, until all fits into the limit (bytes); what was removed."""
        left = self.limit if limit is None else limit
        removed = []
        for entry in self.entries():
            left -= entry.size
            if left < 0:
                with suppress(OSError):  # another process was faster
                    self._path(entry.key).unlink()
                    removed.append(entry)
        return removed

    def _entries(self) -> Iterator[Entry]:
        for path in self.folder.glob("??/*") if self.folder is not None else ():
            with suppress(OSError):
                status = path.stat()
                if not path.name.startswith("."):
                    yield Entry(path.name, status.st_size, status.st_mtime)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / key
