"""An artifact's file that is written while the model is still compiled and verified - for `tvmopt.compile`.

The weights of a model are nearly all of its file, and known first. They are written while code is generated, the
library behind them, and the process that verifies the model reads both there. The manifest, which tells what
verification found, completes the file. So the weights are written once, and beside other work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from tvmopt.files import unwritten
from tvmopt.runtime import container
from tvmopt.runtime.artifact import Artifact, pieces, read_one
from tvmopt.runtime.manifest import parse
from tvmopt.runtime.tensors import Array


class Draft:
    """The file of one artifact, in a temporary folder, which goes with the context.

    Attributes:
        path: of the file, until it is kept elsewhere.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="tvmopt-draft-", ignore_cleanup_errors=True)
        self.path, self._manifest = Path(self._folder.name, "draft.tvmopt"), Path(self._folder.name, "manifest.json")
        self._file: Any = None
        self._error: OSError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()
        self._folder.cleanup()

    def begin(self, weights: Sequence[Array]) -> None:
        """Write the weights; another time where they were others before. Where they cannot be written, in a folder for
        temporary files without room for them, nothing is begun, and :meth:`candidate` says why."""
        self._close()
        self._error = None
        try:
            self._file = self.path.open("wb")
            self._writer = container.Writer(self._file)
            self._writer.add(container.WEIGHTS, pieces(weights))
            self._file.flush()
        except OSError as error:
            self._error = error
            self._close()
            self.path.unlink(missing_ok=True)

    @property
    def begun(self) -> bool:
        return self._file is not None

    def candidate(self, artifact: Artifact) -> dict[str, Any]:
        """Write what the file lacks but the manifest; a message from which :func:`read_candidate` has the artifact in
        another process.

        Raises:
            InputError: the file, or what was begun of it, cannot be written.
        """
        with self._errors():
            if self._error is not None:
                raise self._error
            (manifest,) = self._until_manifest(artifact)
            self._file.flush()
            self._manifest.write_bytes(manifest)
        return {"parts": str(self.path), "manifest": str(self._manifest), "members": self._writer.members}

    def finish(self, artifact: Artifact) -> Path:
        """Complete the file: it is the artifact's, as :meth:`Artifact.save` writes it.

        Raises:
            InputError: the disk is full.
        """
        with self._errors():
            self._writer.add(container.MANIFEST, self._until_manifest(artifact))
            self._writer.close()
            self._file.flush()
        self._close()
        return self.path

    def _until_manifest(self, artifact: Artifact) -> Any:
        """Write the members in front of the manifest that are not there yet; the pieces of the manifest."""
        members = artifact.members()
        for name in [*members][:-1]:
            if name not in self._writer.members:
                self._writer.add(name, members[name])
        return members[container.MANIFEST]

    def _close(self) -> None:
        """Close the file, whole or not."""
        if self._file is not None:
            with suppress(OSError):  # of a full disk somebody has heard
                self._writer.close()
            with suppress(OSError):
                self._file.close()
            self._file = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritten(self.path, error) from error


def read_candidate(message: Mapping[str, Any]) -> Artifact:
    """The artifact of which :meth:`Draft.candidate` wrote, its weights mapped."""
    (manifest,) = parse(Path(message["manifest"]).read_bytes(), message["parts"])
    members = {name: (offset, size) for name, (offset, size) in message["members"].items()}
    with Path(message["parts"]).open("rb") as file:
        return read_one(file, manifest, members, message["parts"], mapped=True, verify=False)
