"""tvmopt as an ONNX backend (``onnx.backend.base``): for ONNX's own test suite and for tools that speak this interface.

``prepare(model)`` returns a :class:`TvmoptRep`; its first ``run`` compiles the model for the shapes it is given and
for the *values* of those inputs that a compiler needs to know (axes, shapes, paddings, counts): see
:mod:`tvmopt.importer.converters.static_inputs`. A later ``run`` with other shapes or other such values compiles again;
one with the same reuses. ``prepare(model, values={...})`` binds inputs for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from onnx.backend.base import Backend, BackendRep
from tvm import relax

from tvmopt.importer._scratch import import_model
from tvmopt.importer.lowbits import pack, unpack
from tvmopt.importer.converters.static_inputs import compile_time_inputs


class TvmoptRep(BackendRep):
    """One model, compiled on its first run."""

    def __init__(self, model: onnx.ModelProto, values: dict[str, Any], pipeline: str) -> None:
        self.model, self.values, self.pipeline = model, values, pipeline
        known = {t.name for t in model.graph.initializer}
        self.names = [v.name for v in model.graph.input if v.name not in known and v.name not in values]
        self.static = compile_time_inputs(model)
        self._compiled: dict[Any, Any] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        feeds = dict(zip(self.names, inputs, strict=False))
        if isinstance(inputs, dict): feeds = inputs
        values = {k: np.asarray(v) for k, v in feeds.items() if k in self.static}
        data = {k: np.asarray(v) for k, v in feeds.items() if k not in self.static}
        key = tuple((k, str(v.dtype), v.shape, v.tobytes()) for k, v in values.items()) + tuple(
            (k, v.shape) for k, v in data.items())
        if key not in self._compiled:
            self._compiled[key] = self._compile({k: v.shape for k, v in data.items()}, {**self.values, **values})
        imported, vm = self._compiled[key]
        args = []
        for spec in imported.inputs:
            a = np.ascontiguousarray(data[spec.name]).reshape(data[spec.name].shape)
            args.append(tvm.runtime.tensor(pack(a)))
        result = vm["main"](*args)
        return tuple(_back(r, s.dtype) for r, s in zip(result, imported.outputs, strict=True))

    def _compile(self, shapes: dict[str, Any], values: dict[str, Any]) -> Any:
        imported = import_model(self.model, shapes=shapes, values=values)
        target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
        executable = tvm.compile(imported.module, target=target)
        return imported, relax.VirtualMachine(executable, tvm.cpu())


def _back(value: Any, dtype: str) -> Any:
    if not hasattr(value, "numpy"):
        return [_back(v, dtype) for v in value]
    a = value.numpy()
    return unpack(a, dtype)


class TvmoptBackend(Backend):
    """``onnx.backend.base.Backend`` on tvmopt; device "CPU" only."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", values: Any = None, pipeline: str = "stock", **kwargs: Any) -> TvmoptRep:
        return TvmoptRep(model, values or {}, pipeline)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"
