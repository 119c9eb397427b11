"""Our module in the place of onnxruntime's, for packages that import it themselves."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from tvmopt.onnxruntime.exceptions import missing

PACKAGE = "tvmopt.onnxruntime"

PARTS = ("backend", "capi", "datasets")
"""Modules of it that onnxruntime has, too."""

TOOLS = ("quantization", "tools", "transformers")
"""Modules of onnxruntime that change models: its own are taken, where it is installed, and what they run runs here."""

_LOCK = threading.RLock()
_kept: dict[str, ModuleType] = {}


class _Tools(MetaPathFinder):
    """Finds :data:`TOOLS` in the folder of onnxruntime itself, which is not imported for it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "onnxruntime" or name not in TOOLS:
            return None
        real = PathFinder.find_spec(package)
        return PathFinder.find_spec(fullname, real.submodule_search_locations) if real is not None else None


_tools = _Tools()


def install() -> None:
    """Make ``import onnxruntime`` mean `tvmopt.onnxruntime`, in this process, for what is imported from now on."""
    with _LOCK:
        if sys.modules.get("onnxruntime") is sys.modules[PACKAGE]:
            return
        _kept.update(_taken())
        for name in _kept:
            del sys.modules[name]
        for name in [n for n in sys.modules if n == PACKAGE or n.removeprefix(f"{PACKAGE}.").split(".")[0] in PARTS]:
            sys.modules[name.removeprefix("tvmopt.")] = sys.modules[name]
        sys.meta_path.append(_tools)


def uninstall() -> None:
    """Undo :func:`install`."""
    with _LOCK:
        if sys.modules.get("onnxruntime") is not sys.modules[PACKAGE]:
            return
        for name in _taken():
            del sys.modules[name]
        sys.modules.update(_kept)
        _kept.clear()
        sys.meta_path.remove(_tools)


def real() -> Any:
    """onnxruntime itself, also where ours stands in its place.

    Raises:
        NotImplemented: it is not installed.
    """
    with _LOCK:
        ours = sys.modules.get("onnxruntime") is sys.modules[PACKAGE]
        if ours:
            uninstall()
        try:
            return importlib.import_module("onnxruntime")
        except ImportError:
            raise missing("fallback without onnxruntime", "pip install onnxruntime") from None
        finally:
            if ours:
                install()


def _taken() -> dict[str, ModuleType]:
    return {n: m for n, m in sys.modules.items() if n == "onnxruntime" or n.startswith("onnxruntime.")}
