"""Evaluation of ONNX models in double precision."""
