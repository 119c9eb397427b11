"""`onnxruntime.backend`: ONNX's interface of backends, `prepare` and `run`, over sessions."""

from __future__ import annotations

from typing import Any

from tvmopt.onnxruntime.exceptions import InvalidArgument
from tvmopt.onnxruntime.options import SessionOptions
from tvmopt.onnxruntime.session import InferenceSession

OPTIONS = ("graph_optimization_level", "intra_op_num_threads", "inter_op_num_threads", "log_severity_level")
"""What :func:`prepare` takes of a session's options."""


class OnnxRuntimeBackendRep:
    """A model that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **options: Any) -> Any:
        """The outputs for one array, or for a list of one array an input."""
        nodes = self._session.get_inputs()
        given = inputs if isinstance(inputs, list) else [inputs]
        if len(given) != len(nodes):
            what = f"the model has {len(nodes)} inputs, and {len(given)} are given."
            raise InvalidArgument(what, fix="give a list of one array an input")
        return self._session.run(None, {node.name: array for node, array in zip(nodes, given, strict=True)})


def supports_device(device: str) -> bool:
    """Whether models run there: on the CPU."""
    return device == "CPU"


def is_compatible(model: Any, device: str | None = None, **options: Any) -> bool:
    """Whether a model may be given: what is not supported is told when it is compiled."""
    return device is None or supports_device(device)


def prepare(model: Any, device: str | None = None, **options: Any) -> Any:
    """A model ready to run.

    Args:
        model: a path, bytes, an `onnx.ModelProto`, or a session.
        options: some of a session's options.

    Raises:
        InvalidArgument: an unknown device or option.
    """
    if isinstance(model, OnnxRuntimeBackendRep):
        return model
    if isinstance(model, InferenceSession):
        return OnnxRuntimeBackendRep(model)
    if not is_compatible(model, device):
        raise InvalidArgument(f"the device is {device!r}.", where="backend.prepare", fix="give 'CPU'")
    settings = SessionOptions()
    for name, value in options.items():
        if name not in OPTIONS:
            raise InvalidArgument(f"there is no option {name!r} of a backend.", fix=f"one of {', '.join(OPTIONS)}")
        setattr(settings, name, value)
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    return OnnxRuntimeBackendRep(InferenceSession(source, settings))


def run_model(model: Any, inputs: Any, device: str | None = None, **options: Any) -> Any:
    """Prepare a model and run it once."""
    return prepare(model, device, **options).run(inputs)


run = run_model
