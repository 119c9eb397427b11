"""The four operations on ONNX files, as Python functions: extract, fold, sanitize, reduce.

from tvmopt import surgeon

surgeon.extract("model.onnx", inputs=["/encoder/in"], outputs=["/encoder/out"], output="part.onnx")
"""

from __future__ import annotations

from tvmopt.debug.edit import Edited
from tvmopt.debug.extract import extract
from tvmopt.debug.fold import fold
from tvmopt.debug.reduce import Reduced, reduce
from tvmopt.debug.sanitize import sanitize

__all__ = ["Edited", "Reduced", "extract", "fold", "reduce", "sanitize"]
