"""`onnxruntime.capi.onnxruntime_inference_collection`: the session and its tensors, under another path."""

from tvmopt.onnxruntime.session import InferenceSession
from tvmopt.onnxruntime.values import IOBinding, OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue"]
