"""`onnxruntime.capi.onnxruntime_pybind11_state`: the exceptions."""

from tvmopt.onnxruntime.exceptions import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    RuntimeException,
)

__all__ = [
    "Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented", "RuntimeException",
]  # fmt: skip
