"""Floating-point types by their names - for every room."""

HALVES = ("float16", "bfloat16")
"""Types of 16 bits. What adds them up does so in float32, as onnxruntime does: 1,536 ones of bfloat16 added up in
bfloat16 are 256."""
