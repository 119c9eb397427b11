"""The modules below `onnxruntime.capi` that programs import."""

from tvmopt.onnxruntime.capi import _pybind_state as _pybind_state
from tvmopt.onnxruntime.capi import onnxruntime_inference_collection as onnxruntime_inference_collection
from tvmopt.onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
