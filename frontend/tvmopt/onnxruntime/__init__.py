"""onnxruntime's Python interface over compiled models: change one import, keep the program.

    import tvmopt.onnxruntime as ort                     # was: import onnxruntime as ort

    session = ort.InferenceSession("model.onnx")         # compiled when it is first used, then taken from the cache
    outputs = session.run(None, {"x": x})

For packages that import onnxruntime themselves, :func:`install` puts this module in its place first. What is not here
is refused by name (`tvmopt.onnxruntime.exceptions.NotImplemented`), with what to do instead.
"""

from __future__ import annotations

from typing import Any

from tvmopt.onnxruntime import backend, capi, datasets
from tvmopt.onnxruntime.capi._pybind_state import get_all_providers, get_available_providers, get_device
from tvmopt.onnxruntime.exceptions import absent
from tvmopt.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from tvmopt.onnxruntime.replace import install, real, uninstall
from tvmopt.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg
from tvmopt.onnxruntime.values import IOBinding, OrtDevice, OrtValue, copy_tensors

__version__ = "1.32.0"
"""The version of onnxruntime whose interface this is."""

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata",
    "NodeArg", "OrtDevice", "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions", "backend", "capi",
    "copy_tensors", "datasets", "disable_telemetry_events", "enable_telemetry_events", "get_all_providers",
    "get_available_providers", "get_build_info", "get_device", "get_version_string", "install", "preload_dlls",
    "real", "set_default_logger_severity", "set_default_logger_verbosity", "set_seed", "uninstall",
]  # fmt: skip

SessionIOBinding = IOBinding


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    return "tvmopt"


def set_default_logger_severity(severity: int) -> None:
    """Taken; `SessionOptions.log_severity_level` has an effect."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Taken, without effect."""


def set_seed(seed: int) -> None:
    """Taken; models that draw random numbers are refused."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Taken; no library of CUDA's is needed."""


def enable_telemetry_events() -> None:
    """Nothing is ever sent."""


def disable_telemetry_events() -> None:
    """Nothing is ever sent."""


def __getattr__(name: str) -> Any:
    """Refuse the rest of onnxruntime by its name."""
    absent("onnxruntime", name)
