"""Timing that can be believed: engines in their own processes, interleaved rounds, intervals, verdicts.

The package is also the function: ``tvmopt.bench("resnet50.onnx")`` is :func:`tvmopt.bench.run.bench`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that can be called: the API's word and the package have one name."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        from tvmopt.bench.run import bench

        return bench(*args, **named)


sys.modules[__name__].__class__ = _Callable
