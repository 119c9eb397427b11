"""ONNX files made from another, for the reference to run: with rounded weights, with more outputs - for `judge`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tvmopt.analysis.sensitivity import rounded

if TYPE_CHECKING:
    import onnx

_IN_ONE_FILE = 1 << 30  # bytes; protobuf ends at 2 GB


def write_rounded(source: str | Path, target: str | Path, precision: str) -> None:
    """An ONNX file like `source` whose float32 weights (initializers of two dimensions and more) are rounded."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(source))
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 2:
            values = rounded({"": numpy_helper.to_array(tensor)}, precision)[""]
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    _save(model, target)


def write_with_outputs(source: str | Path, target: str | Path, names: Iterable[str]) -> None:
    """An ONNX file like `source` that gives these tensors as well."""
    import onnx

    model = onnx.load(str(source))
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    _save(model, target)


def _save(model: onnx.ModelProto, target: str | Path) -> None:
    import onnx

    large = model.ByteSize() > _IN_ONE_FILE
    onnx.save_model(
        model, str(target), save_as_external_data=large, location=Path(target).name + ".data" if large else None
    )
