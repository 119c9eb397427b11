"""Files that appear whole or not at all, and a look before long work whether they can be written - for every room
that writes one for a user."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tvmopt.errors import InputError, TvmoptError, collect, limit_of, reason


def check_writable(*paths: str | Path | None, reads: Iterable[str | Path] = ()) -> None:
    """Refuse what cannot be written, before the work whose results go there; None and "" are passed over.

    Args:
        reads: files that the work reads: no result may replace one of them. They are asked for only where a result
            would replace anything.

    Raises:
        InputError: each path that is a folder, or whose folder is missing or cannot be written; that stands for two
            results, or is one of `reads`.
    """
    problems = [(str(p), problem) for p in paths if p and (problem := _problem(p))]
    if not problems:
        plain = [Path(p) for p in paths if p and not _special(Path(p))]
        real = [path.resolve() for path in plain]
        problems = [
            (str(path), ("two results would be written to one file.", "give each a file of its own"))
            for at, path in enumerate(plain)
            if real[at] in real[:at]
        ]
        if there := [path for path in plain if path.exists()]:
            problems += [
                (str(path), (f"the result would replace {source}, which is read.", "give another file"))
                for source in reads
                for path in there
                if os.path.exists(source) and os.path.samefile(path, source)
            ]
    if problems:
        raise collect([InputError(what, where=path, fix=fix) for path, (what, fix) in problems])


def check_path(given: Any, what: str) -> None:
    """Refuse what names no file.

    Raises:
        InputError: it is no path.
    """
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{what} is a path, not {type(given).__name__}.", fix="give the path of a file")


def _problem(given: str | Path) -> tuple[str, str] | None:
    """What is wrong with a path to write to, and how to mend it.

    Raises:
        InputError: it is no path.
    """
    check_path(given, "an output")
    path = Path(given)
    if str(given) == "-":
        return "the standard output takes no results.", "give the name of a file; ./- is one that is called so"
    try:
        if path.is_dir() or str(given).endswith(os.sep):
            return "the output is a folder.", f"give a file in it: {path / 'NAME'}"
        if _special(path):
            return None
        folder = _folder(path)
        if folder is None:
            return "the folder of the output does not exist.", "create it, or give another"
        handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    except (OSError, ValueError) as error:
        return f"cannot write the file: {reason(error)}", "give another path, or mend the folder's permissions"
    os.close(handle)
    os.unlink(name)
    return None


def _folder(path: Path) -> Path | None:
    """The folder of a file to write, links followed; None where there is none, as in a working directory that somebody
    has removed."""
    try:
        folder = path.resolve().parent
    except FileNotFoundError:
        return None
    return folder if folder.is_dir() else None


def _special(path: Path) -> bool:
    """Whether the path is there and no plain file: /dev/stdout, a named pipe. What is written there goes to a temporary
    file first, since whoever writes a zip goes back in it."""
    return path.exists() and not path.is_file()


@contextmanager
def atomic_write(path: str | Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete; on any error or Ctrl-C nothing is left.

    A link is followed: what it points to is replaced, not the link.

    Args:
        durable: it is on the disk when it appears, whatever happens to the power.

    Raises:
        InputError: the folder does not exist or cannot be written, or the disk is full.
    """
    problem = _problem(path)
    if problem:
        raise InputError(problem[0], where=str(path), fix=problem[1])
    path = Path(path)
    if _special(path):
        try:
            with path.open("wb") as stream, tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                shutil.copyfileobj(file, stream)
        except BrokenPipeError:
            raise  # `... | head`: whoever reads has enough
        except OSError as error:
            raise unwritten(path, error) from error
        return
    real = path.resolve()
    handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=real.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, real)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise unwritten(path, error) from error
        raise


def copied(source: Path, output: str | Path, *, durable: bool = True) -> bool:
    """Copy a file, which the system does faster than it can be written anew; False if it is not there.

    Raises:
        InputError: the copy cannot be written.
    """
    try:
        opened = source.open("rb")
    except OSError:  # a file of the cache, of which another process needed the room
        return False
    with opened, atomic_write(output, durable=durable) as file:
        try:  # in the kernel: no page passes through this process, and some file systems share them
            while os.copy_file_range(opened.fileno(), file.fileno(), 1 << 30):
                pass
        except (AttributeError, OSError):  # another system; between file systems of another kernel; /dev/stdout
            shutil.copyfileobj(opened, file, 1 << 24)
    return True


def moved(source: Path, place: Path) -> None:
    """Move a file to its place at once, or copy it to another file system, where it appears when it is whole."""
    try:
        os.replace(source, place)
    except OSError:
        copied(source, place, durable=False)


def unwritten(path: Path, error: OSError) -> InputError:
    """Why a file could not be written: the disk is full, or may not be written to."""
    if error.errno != errno.ENOSPC and (limit := limit_of(error, str(path))):
        return limit
    return InputError(f"cannot write the file: {reason(error)}", where=str(path), fix="free some space")


def open_plain(path: str | Path) -> IO[bytes]:
    """Open a plain file to read, links followed. A pipe would hang, and a device may never end.

    Raises:
        OSError, ValueError: it cannot be opened, or is another kind of file.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"it is not a path but {type(path).__name__}")
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ValueError("it is a folder" if stat.S_ISDIR(mode) else "it is not a plain file")
    return os.fdopen(handle, "rb")


def read_plain(path: str | Path) -> str:
    """The text of a plain file, as UTF-8.

    Raises:
        OSError, ValueError: as for :func:`open_plain`, or it is no UTF-8.
    """
    with open_plain(path) as file:
        return file.read().decode()


def make_folder(path: str | Path) -> None:
    """Make a folder to write to, with those above it; one that is there is fine.

    Raises:
        InputError: it cannot be made, or is a file.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"cannot make the folder: {reason(error)}"
        raise InputError(told, where=str(path), fix="give another path") from error


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a file's name may be bytes that are no text


def private_cache(name: str) -> Path:
    """A folder of this user's for what can be made again, `name` in it; nobody else may have put anything there.

    Raises:
        TvmoptError: none can be made.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmopt"
    for base in (cache, Path(tempfile.gettempdir()) / f"tvmopt-{os.getuid()}"):
        folder = base / name
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid == os.getuid() and base.stat().st_uid == os.getuid():
                return folder
    raise TvmoptError("no folder for a cache can be written.", where=str(cache), fix="set XDG_CACHE_HOME")


def array_format(path: str | Path) -> str:
    """How arrays are written there: ``"npy"`` (one array) or ``"npz"`` (several, by name; also into a pipe).

    Raises:
        InputError: a name that promises another format.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".npy", ".npz"):
        return suffix[1:]
    if _special(Path(path)):
        return "npz"
    raise InputError(
        f"arrays are not written as {suffix!r} files." if suffix else "the name does not say how to write arrays.",
        where=str(path),
        fix="give a name that ends in .npz (all outputs, by name) or .npy (the only output)",
    )


def save_arrays(file: str | Path | IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Arrays by name into an .npz. `np.savez` would do, but takes the names as keyword arguments: an ONNX tensor may
    be called "file".
    """
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
