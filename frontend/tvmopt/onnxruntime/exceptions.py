"""onnxruntime's exceptions, by its names; each is a :class:`TvmoptError` too."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NoReturn

from tvmopt.errors import InputError, ModelError, TvmoptError, UnsupportedOp


class Fail(TvmoptError):
    """The model cannot be run."""


class RuntimeException(Fail):
    """A call failed."""


class InvalidArgument(InputError):
    """A name, shape or type of an input or output is wrong."""


class InvalidGraph(ModelError):
    """The model is inconsistent or has an operator that is not supported."""


class InvalidProtobuf(ModelError):
    """The file is no ONNX model."""


class NoSuchFile(ModelError):
    """There is no file of this name."""


class NotImplemented(TvmoptError):
    """Part of onnxruntime's interface that tvmopt does not have."""


class NoModel(Fail):
    """Named for programs that catch it; tvmopt does not raise it (no model is loaded)."""


class ModelLoaded(Fail):
    """Named for programs that catch it; tvmopt does not raise it (a model is loaded already)."""


class ModelLoadCanceled(Fail):
    """Named for programs that catch it; tvmopt does not raise it (loading was cancelled)."""


class ModelRequiresCompilation(Fail):
    """Named for programs that catch it; tvmopt does not raise it (the model must be compiled first)."""


class EngineError(Fail):
    """Named for programs that catch it; tvmopt does not raise it (the engine failed)."""


class EPFail(Fail):
    """Named for programs that catch it; tvmopt does not raise it (a provider failed)."""


class DeviceReset(Fail):
    """Named for programs that catch it; tvmopt does not raise it (the device was reset)."""


class NotFound(Fail):
    """Named for programs that catch it; tvmopt does not raise it (something is missing)."""


KINDS = (
    (UnsupportedOp, NotImplemented),
    (ModelError, InvalidGraph),
    (InputError, InvalidArgument),
    (TvmoptError, Fail),
)
"""What onnxruntime raises where a compile fails with one of ours; the first that fits."""


def as_theirs(error: TvmoptError) -> TvmoptError:
    """The error itself, of onnxruntime's class too: programs that catch `InvalidGraph` and go another way still do.

    >>> problem = as_theirs(UnsupportedOp("no converter"))
    >>> isinstance(problem, NotImplemented), isinstance(problem, UnsupportedOp), str(problem)
    (True, True, 'no converter')
    """
    theirs = next(theirs for ours, theirs in KINDS if isinstance(error, ours))
    if not isinstance(error, theirs):
        both = type(theirs.__name__, (theirs, type(error)), {}) if not issubclass(theirs, type(error)) else theirs
        error.__class__ = both
    return error


def missing(name: str, instead: str) -> NotImplemented:
    """The error of a part of the interface that is refused."""
    return NotImplemented(f"onnxruntime's {name} is not part of tvmopt's session.", where=name, fix=instead)


def absent(owner: str, name: str) -> NoReturn:
    """Raises:
    AttributeError: always; it says what is refused, and where what there is stands.
    """
    if name.startswith("_"):
        raise AttributeError(f"{owner} has no attribute {name!r}")
    raise AttributeError(str(missing(f"{owner}.{name}", "see docs/how-to/onnxruntime.md for what there is")))


class _RefusingClass(type):
    def __getattr__(cls, name: str) -> Any:
        absent(cls.__name__, name)


class Refusing(metaclass=_RefusingClass):
    """A class of onnxruntime's interface: what it lacks is refused by name, on the class and on what is made of it."""

    def __getattr__(self, name: str) -> Any:
        absent(type(self).__name__, name)


class Settings(Refusing):
    """One whose attributes are all known: an unknown one, and one of another type, is refused when it is set, too."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if not known and "_sealed" in self.__dict__:
            absent(type(self).__name__, name)
        wanted = next((kind for kind in (Integral, str) if isinstance(self.__dict__.get(name), kind)), object)
        if not isinstance(value, wanted):
            word = "a number" if wanted is Integral else "a text"
            raise TypeError(f"{type(self).__name__}.{name} is {word}, not {value!r}")
        object.__setattr__(self, name, value)
