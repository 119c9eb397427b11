"""Steps that may crash, in forks of a process that has imported what they need - for `compare` and `reduce`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tvmopt.errors import ModelError
from tvmopt.importer.isolate import isolated


def warm() -> None:
    """Import what the forks need, so that each of them starts at once; nothing is run."""
    from tvmopt.runtime.library import load_compiler

    load_compiler()
    for name in ("onnxruntime", "tvm.relax", "tvmopt.pipeline", "tvmopt.runtime.model", "tvmopt.tuning.logs"):
        import_module(name)


def forked(step: Callable[[], Any], what: str) -> Any:
    """The step in a fork; a bug's traceback becomes an error of ours, so that it is a row of the table."""
    try:
        return isolated(step, what)
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"The {what} fails: {lines[-1][:500] if lines else error}") from None
