"""tvmopt: ONNX in; a fast, checked, explained module out - an auto-scheduling front end on Apache TVM."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {  # where each name is, imported when it is first used: `import tvmopt` alone loads nothing heavy
    **dict.fromkeys(("Compiled", "Model", "compile", "explain", "inspect", "load", "refit", "run"), "tvmopt.api"),
    "bench": "tvmopt.bench",  # a package that can be called
    "compare": "tvmopt.debug.compare",
    "from_torch": "tvmopt.torch.export",
    "generate": "tvmopt.generation",
    "profile": "tvmopt.analysis.profile",
    "quantize": "tvmopt.quantization.quantize",
    "report_page": "tvmopt.debug.report_page",
    "serve": "tvmopt.serving.server",
    "surgeon": "tvmopt.debug.surgeon",
    "tune": "tvmopt.tuning.driver",
}
_MODULES = ("bench", "surgeon")

if TYPE_CHECKING:
    from tvmopt import bench as bench
    from tvmopt.analysis.profile import profile
    from tvmopt.api import Compiled, Model, compile, explain, inspect, load, refit, run
    from tvmopt.debug import surgeon
    from tvmopt.debug.compare import compare
    from tvmopt.debug.report_page import report_page
    from tvmopt.generation import generate
    from tvmopt.quantization.quantize import quantize
    from tvmopt.serving.server import serve
    from tvmopt.torch.export import from_torch
    from tvmopt.tuning.driver import tune

__all__ = [
    "Compiled",
    "Model",
    "__version__",
    "bench",
    "compare",
    "compile",
    "explain",
    "from_torch",
    "generate",
    "inspect",
    "load",
    "profile",
    "quantize",
    "refit",
    "report_page",
    "run",
    "serve",
    "surgeon",
    "tune",
]


def __getattr__(name: str) -> Any:
    """`tvmopt.compile` and its like."""
    if name not in _HOME:
        raise AttributeError(f"module 'tvmopt' has no attribute {name!r}")
    if sys.platform != "linux":
        import_module("tvmopt.targets.systems").check_here()
    module = import_module(_HOME[name])
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
