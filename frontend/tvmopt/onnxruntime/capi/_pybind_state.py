"""`onnxruntime.capi._pybind_state`: what programs take from it."""

from tvmopt.onnxruntime.options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
from tvmopt.onnxruntime.session import PROVIDERS, ModelMetadata, NodeArg
from tvmopt.onnxruntime.values import OrtDevice, OrtValue

__all__ = [
    "ExecutionMode", "GraphOptimizationLevel", "ModelMetadata", "NodeArg", "OrtDevice", "OrtValue", "RunOptions",
    "SessionOptions", "get_all_providers", "get_available_providers", "get_device",
]  # fmt: skip


def get_available_providers() -> list[str]:
    return list(PROVIDERS)


def get_all_providers() -> list[str]:
    return list(PROVIDERS)


def get_device() -> str:
    return "CPU"
