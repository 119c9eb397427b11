"""tvmopt: ONNX in; a fast, checked, explained module out - an auto-scheduling front end on Apache TVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_API = ("Compiled", "Model", "compile", "explain", "inspect", "load", "refit", "run")

if TYPE_CHECKING:
    from tvmopt.api import Compiled, Model, compile, explain, inspect, load, refit, run

__all__ = ["Compiled", "Model", "__version__", "compile", "explain", "inspect", "load", "refit", "run"]


def __getattr__(name: str) -> Any:
    """`tvmopt.compile` and its like, imported when first used: `import tvmopt` alone loads nothing heavy."""
    if name in _API:
        from tvmopt import api

        return getattr(api, name)
    if name == "profile":
        from tvmopt.analysis.profile import profile

        return profile
    if name == "compare":
        from tvmopt.debug.compare import compare

        return compare
    if name == "surgeon":
        from tvmopt.debug import surgeon

        return surgeon
    if name == "bench":  # a package that can be called
        import tvmopt.bench

        return tvmopt.bench
    raise AttributeError(f"module 'tvmopt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
