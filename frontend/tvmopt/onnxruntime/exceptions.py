"""onnxruntime's exceptions, by its names; each is a :class:`TvmoptError` too."""

from __future__ import annotations

from tvmopt.errors import InputError, ModelError, TvmoptError


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


def missing(name: str, instead: str) -> NotImplemented:
    """The error of a part of the interface that is refused."""
    return NotImplemented(f"onnxruntime's {name} is not part of tvmopt's session.", where=name, fix=instead)
