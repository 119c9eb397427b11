"""tvmopt as an ONNX backend (``onnx.backend.base``): for ONNX's own test suite and for tools that speak this interface.

    rep = TvmoptBackend.prepare(model)
    outputs = rep.run([x, axes])

The first ``run`` compiles the model, for the shapes it is given and for the *values* of the inputs that a
compiler must know: axes, shapes, paddings, counts; TensorRT calls them build-time shape tensors. The table is
:mod:`tvmopt.importer.converters.static_inputs`. A later ``run`` with other shapes, or other such values,
compiles again; one with the same ones reuses what is there. ``prepare(model, values={...})`` binds for good.
An input that is a sequence or an optional becomes as many tensors as the first run gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import tvm
from onnx import TypeProto, helper
from onnx.backend.base import Backend, BackendRep
from tvm import relax

from tvmopt.errors import InputError
from tvmopt.importer import Imported, load, prepare
from tvmopt.importer.converters.static_inputs import compile_time_inputs
from tvmopt.importer.lowbits import pack, unpack
from tvmopt.importer.relax import to_relax
from tvmopt.targets import Machine

PIPELINES = ("tvmopt", "stock")
"""How a module is compiled: our pipeline, or TVM's own after our import (to tell an importer's fault from a pass's)."""


def _parts(name: str, kind: TypeProto, value: Any) -> tuple[list[onnx.NodeProto], dict[str, tuple[TypeProto, Any]]]:
    """Nodes that make the input `name` out of plain tensors, and those tensors."""
    if kind.HasField("optional_type"):
        inner = kind.optional_type.elem_type
        if value is None:
            return [helper.make_node("Optional", [], [name], type=inner)], {}
        whole = f"{name}/element"
        nodes, tensors = _parts(whole, inner, value)
        return [*nodes, helper.make_node("Optional", [whole], [name])], tensors
    if kind.HasField("sequence_type"):
        inner = kind.sequence_type.elem_type
        if not value:
            return [helper.make_node("SequenceEmpty", [], [name], dtype=inner.tensor_type.elem_type)], {}
        nodes, tensors = [], {}
        for i, element in enumerate(value):
            more, parts = _parts(f"{name}/{i}", inner, element)
            nodes += more
            tensors |= parts
        made = helper.make_node("SequenceConstruct", [f"{name}/{i}" for i in range(len(value))], [name])
        return [*nodes, made], tensors
    return [], {name: (kind, np.asarray(value))}


def plain_inputs(
    model: onnx.ModelProto, feeds: Mapping[str, Any]
) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """The model with sequences and optionals taken apart as `feeds` has them, and its plain tensors."""
    if all(v.type.HasField("tensor_type") for v in model.graph.input):
        return model, {k: np.asarray(v) for k, v in feeds.items()}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    arrays: dict[str, npt.NDArray[Any]] = {}
    values, nodes = [], []
    for value in model.graph.input:
        if value.name not in feeds:
            values.append(value)
            continue
        made, tensors = _parts(value.name, value.type, feeds[value.name])
        nodes += made
        for name, (kind, array) in tensors.items():
            tensor = TypeProto()
            tensor.CopyFrom(kind)
            tensor.tensor_type.ClearField("shape")
            values.append(onnx.ValueInfoProto(name=name, type=tensor))
            arrays[name] = array
    nodes += changed.graph.node
    for part, new in ((changed.graph.input, values), (changed.graph.node, nodes)):
        copies = [type(item).FromString(item.SerializeToString()) for item in new]
        del part[:]
        part.extend(copies)
    return changed, arrays


class TvmoptRep(BackendRep):  # type: ignore[misc]  # ONNX has no types
    """One model, compiled on its first run, and again for other shapes or compile-time values."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Any], pipeline: str) -> None:
        if pipeline not in PIPELINES:
            raise InputError(f"There is no pipeline {pipeline!r}.", fix=f"use one of {', '.join(PIPELINES)}")
        self.model = onnx.inliner.inline_local_functions(model) if model.functions else model
        self.values, self.pipeline = dict(values), pipeline
        known = {t.name for t in model.graph.initializer} | set(self.values)
        self.names = [v.name for v in model.graph.input if v.name not in known]
        self._compiled: dict[Any, tuple[Imported, Any]] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, for inputs in order or by name; a sequence is a list, an empty optional None."""
        named = inputs if isinstance(inputs, Mapping) else dict(zip(self.names, _listed(inputs), strict=False))
        model, feeds = plain_inputs(self.model, named)
        static = set(compile_time_inputs(model))
        values = {k: v for k, v in feeds.items() if k in static}
        data = {k: v for k, v in feeds.items() if k not in static}
        key = (
            tuple((k, v.dtype.name, v.shape, v.tobytes()) for k, v in values.items()),
            tuple((k, v.shape) for k, v in data.items()),
        )
        if key not in self._compiled:
            shapes = {k: v.shape for k, v in data.items()}
            self._compiled[key] = _compile(model, shapes, {**self.values, **values}, self.pipeline)
        imported, machine = self._compiled[key]
        arguments = [tvm.runtime.tensor(_contiguous(pack(data[spec.name]))) for spec in imported.inputs]
        results = machine["main"](*arguments)
        return tuple(_array(r, s.dtype) for r, s in zip(results, imported.outputs, strict=True))


def _listed(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, list | tuple) else [inputs]


def _contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array).reshape(array.shape)


def _array(value: Any, dtype: str) -> Any:
    """A result as NumPy; a sequence as a list."""
    if not isinstance(value, tvm.runtime.Tensor):
        return [_array(item, dtype) for item in value]
    return unpack(value.numpy(), dtype)


def _compile(
    model: onnx.ModelProto, shapes: Mapping[str, Any], values: Mapping[str, Any], pipeline: str
) -> tuple[Imported, Any]:
    imported = to_relax(prepare(load(model), shapes, values), dynamic=True)
    if pipeline == "stock":
        import_module("tvmopt.lowering.clamp").install()  # what TVM's pipeline makes of checked values
        executable = tvm.compile(imported.module, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    else:
        from tvmopt.pipeline import build, lower

        machine = Machine.load("cpu")
        executable = build(lower(imported.module, machine), machine)
    return imported, relax.VirtualMachine(executable, tvm.cpu())


class TvmoptBackend(Backend):  # type: ignore[misc]  # ONNX has no types
    """``onnx.backend.base.Backend`` on tvmopt, for the device "CPU"."""

    @classmethod
    def prepare(
        cls,
        model: onnx.ModelProto,
        device: str = "CPU",
        values: Mapping[str, Any] | None = None,
        pipeline: str = "tvmopt",
        **kwargs: Any,
    ) -> TvmoptRep:
        """A model ready to run; see the module's docstring for when it is compiled.

        Args:
            values: inputs bound at compile time, by name.
            pipeline: one of :data:`PIPELINES`.
        """
        if not cls.supports_device(device):
            raise InputError(f"There is no device {device!r} here.", fix="use device='CPU'")
        return TvmoptRep(model, values or {}, pipeline)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is ours."""
        return device.split(":")[0] == "CPU"
