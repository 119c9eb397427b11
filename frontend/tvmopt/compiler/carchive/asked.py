"""What a C archive can be made of, and what was made - without TVM, for whoever asks for one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt.compiler.beginning import two_models
from tvmopt.compiler.request import Request
from tvmopt.errors import InputError
from tvmopt.files import check_writable
from tvmopt.toolchain.static import Archiver

if TYPE_CHECKING:
    from tvmopt.importer import Imported

EMITTED = ("artifact", "c-archive")
"""What `compile` writes."""


@dataclass(frozen=True)
class CArchive:
    """What was written.

    Attributes:
        name: of its files and functions. library: bytes of the static library.
        workspace: bytes that a run needs beside inputs and outputs; scratch: for each thread besides.
        weights: bytes in the file of weights; 0 where they are in the library.
        verified: it gave the artifact's outputs, bit by bit.
    """

    name: str
    library: int
    workspace: int
    scratch: int
    weights: int
    verified: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_request(request: Request, output: str | Path | None) -> None:
    """Refuse what no archive is made of, before anything is compiled.

    Raises:
        InputError: a GPU, no folder, or a folder that cannot be written. MissingDependency: no binutils.
    """
    if request.machine.kind != "llvm":
        raise refused(f"for a GPU ({request.machine.name})", "leave --emit out, or give a CPU: --target cpu")
    if two_models(request) is not None:
        raise refused("of a decoder beside an encoder", "leave --emit out")
    if output is None:
        raise InputError("there is no folder to write to.", where="--emit c-archive", fix="-o FOLDER")
    Archiver(request.machine.arch)
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise InputError(
            "the output is a file, and a C archive is a folder.", where=str(folder), fix="give another path"
        )
    check_writable(folder / "library.a" if folder.is_dir() else folder)


def check_sizes(imported: Imported) -> None:
    """Refuse open sizes.

    Raises:
        InputError: names the inputs that have them.
    """
    if imported.ranges:
        found = next(t for t in imported.inputs if any(not isinstance(size, int) for size in t.shape))
        shape = "x".join(str(imported.ranges[str(d)].opt) if str(d) in imported.ranges else str(d) for d in found.shape)
        told = ", ".join(imported.ranges)
        raise refused(f"with open sizes ({told})", f"give each input's sizes: --shape {found.name}:{shape}")


def refused(what: str, fix: str) -> InputError:
    return InputError(f"no C archive is made {what}.", where="--emit c-archive", fix=fix)
