"""One exception family: what went wrong, where, and how to mend it - for everyone who reads an error.

Every message has three parts::

    UnsupportedOp: Resize with mode='cubic' has no converter.
      where: resnet50.onnx, node 'up_3/Resize' (opset 13), input 'x' f32[1,64,28,28]
      fix:   export with mode='linear', or register a converter: docs/how-to/add-operator.md

The command line prints exactly this and exits with :attr:`TvmoptError.exit_code`. In Python the options that it
names are arguments (:func:`in_python`). A bug of ours is *not* a ``TvmoptError`` and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from tvmopt.texts import printable, printable_line


class TvmoptError(Exception):
    """Base of every error that a user can mend.

    Args:
        what: one sentence, the problem.
        where: the file, node, flag or line it concerns.
        fix: what to do about it.
        others: further problems of the same kind, found in the same pass over the input. All problems of
            one kind are collected before raising, so a user mends them in one go.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", fix: str = "", others: Sequence[TvmoptError] = ()) -> None:
        self.what, self.where, self.fix, self.others = what, where, fix, tuple(others)
        super().__init__(what)

    def __str__(self) -> str:
        return in_python(self.told())

    def told(self) -> str:
        """The message in the words of the command line."""
        lines = [printable(self.what)]  # names from a foreign model stand in an error
        if self.where:
            lines.append(f"  where: {printable_line(self.where)}")
        if self.fix:
            lines.append(f"  fix:   {printable_line(self.fix)}")
        lines += [f"{type(other).__name__}: {other.told()}" for other in self.others]
        return "\n".join(lines)


class ModelError(TvmoptError):
    """The ONNX file is damaged, inconsistent, unsafe, or lacks a shape."""


class UnsupportedOp(ModelError):
    """A node that no converter handles, or handles only with other attributes."""


class InputError(TvmoptError):
    """A tensor handed to a compiled model has a wrong name, shape, dtype or layout; or a flag's value is wrong."""


class TargetError(TvmoptError):
    """An unknown target, or one whose description contradicts itself."""


class ScheduleError(TvmoptError):
    """A schedule family refused or failed on a function it had recognised."""


class TuningError(TvmoptError):
    """A tuning run, a record or a tuning log cannot be used."""


class ArtifactError(TvmoptError):
    """A compiled file is damaged, of another version, or for another machine."""


class AccuracyError(TvmoptError):
    """Outputs differ from the reference by more than the tolerance."""

    exit_code = 3


class MissingDependency(TvmoptError):
    """An optional package or tool is not installed; ``fix`` is the command that installs it."""

    exit_code = 5


ARGUMENTS = (
    *("atol", "batch", "budget", "duration", "exact", "kernel", "model", "node", "only"),
    *("precision", "rtol", "seed", "store", "streams", "target", "threads", "tolerance", "verify"),
)
"""Options of the command line that are arguments of Python's functions, by the same names."""

_SHAPE = r"--shape (\S+):(NUMBER|[\dxN?.@]*[\dxN?])(?!\w)"
_NAMES = "|".join((*ARGUMENTS, "shape"))
_OPTION = re.compile(
    rf"(?P<command>tvmopt \w.*)|(?P<shapes>{_SHAPE}(?: {_SHAPE})*)|"
    rf"--(?P<no>no-)?(?P<name>{_NAMES})\b(?P<value> [\w./-]+(?=[,;)]|$| or ))?"
)


def in_python(text: str) -> str:
    """A message for somebody who calls functions: options as arguments. What follows ``tvmopt`` is a command: it stays.

    >>> in_python("bind them, for example: --shape x:1x3x224x224 --shape n:8")
    "bind them, for example: shape={'x': (1, 3, 224, 224), 'n': (8,)}"
    >>> in_python("compile the model with --shape seq:1..512@128")
    "compile the model with shape={'seq': ('1..512@128',)}"
    >>> in_python("bind each: --shape NAME:N"), in_python("bind the size: --shape t:NUMBER")
    ("bind each: shape={'NAME': ('N',)}", "bind the size: shape={'t': ('NUMBER',)}")
    >>> in_python("--precision fp32, or leave --threads out (--no-verify skips this)")
    "precision='fp32', or leave threads out (verify=False skips this)"
    """
    return _OPTION.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"]
    if found["shapes"]:
        pairs = re.findall(_SHAPE, found["shapes"])
        plain = {name: [d if d.isdigit() else repr(d) for d in dims.split("x")] for name, dims in pairs}
        sizes = {name: ", ".join(dims) + "," * (len(dims) == 1) for name, dims in plain.items()}
        return "shape={" + ", ".join(f"{name!r}: ({dims})" for name, dims in sizes.items()) + "}"
    if found["no"]:
        return f"{found['name']}=False"
    value = (found["value"] or "").strip()
    if not value:
        return str(found["name"])
    return f"{found['name']}={value if value.isdigit() else repr(value)}"


def compiled_already(path: str) -> ModelError:
    """The error for an artifact where a model is needed."""
    told = "This is a compiled model, or another zip file; here an ONNX file is needed."
    return ModelError(told, where=path, fix="give the ONNX file that it was compiled from")


def reason(error: BaseException) -> str:
    """What an exception says; of an OSError without its number and path, which stand elsewhere in the message.

    >>> reason(FileNotFoundError(2, "No such file or directory", "x.npy")), reason(ValueError("3 axes"))
    ('No such file or directory', '3 axes')
    """
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


_LIMITS = {
    errno.EMFILE: ("this process may not open so many files.", "raise `ulimit -n`"),
    errno.ENFILE: ("this machine has too many open files.", "end some of its processes"),
    errno.EFBIG: ("cannot write: a file may not become so large.", "raise `ulimit -f`"),
    errno.ENOSPC: (f"cannot write: {os.strerror(errno.ENOSPC)}", "free some space, or name another folder in TMPDIR"),
    errno.EDQUOT: (f"cannot write: {os.strerror(errno.EDQUOT)}", "free some space, or name another folder in TMPDIR"),
}


def last_line(error: BaseException) -> str:
    """The last line of what a foreign error says, where TVM's checks say it; the error's type where it says nothing.

    >>> last_line(ValueError("Traceback:\\n  a.cc\\nCheck failed: a < b\\n")), last_line(KeyError())
    ('Check failed: a < b', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def first_line(said: BaseException | str, most: int = 300) -> str:
    """The first line of a text, or of what an error says - its type where it says nothing -, `most` letters of it.

    >>> first_line("a\\nb"), first_line(ValueError("\\n not so \\n")), first_line(KeyError()), first_line("")
    ('a', 'not so', 'KeyError', '')
    """
    lines = str(said).strip().splitlines()
    return (lines[0].strip() if lines else type(said).__name__ if isinstance(said, BaseException) else "")[:most]


def limit_of(error: BaseException | None, where: str = "") -> InputError | None:
    """The limit of the machine, or of this process, that an exception is due to; None where it is due to none.

    >>> print(limit_of(OSError(errno.EMFILE, "Too many open files")))
    this process may not open so many files.
      fix:   raise `ulimit -n`
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _LIMITS:
            what, fix = _LIMITS[error.errno]
            return InputError(what, where=where, fix=fix)
        error = error.__cause__ or error.__context__
    return None


def collect(errors: Sequence[TvmoptError]) -> TvmoptError:
    """Fold several problems of one kind into the first, so that raising it tells them all."""
    first = errors[0]
    return type(first)(first.what, where=first.where, fix=first.fix, others=errors[1:])
