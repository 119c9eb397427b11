"""What an import gives: the Relax module and the names, shapes and dtypes at its border, for every room."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvmopt.dims import Range, Size
from tvmopt.runtime.roles import Roles

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class TensorSpec:
    """One input or output: its ONNX name, its shape and its dtype in NumPy's words (``"float32"``). An open size is a
    `tvmopt.dims.Dim`."""

    name: str
    shape: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True)
class Imported:
    """One imported model.

    Attributes:
        module: an IRModule with one Relax function ``main``; its parameters are `inputs` in order,
            it returns a tuple of `outputs`; weights are constants.
        inputs, outputs: the border, with the ONNX names.
        model: the prepared ONNX model that `module` was made of; it is the reference for every check.
        nodes: the ONNX node of each binding's name in `module` (names are sanitised to ``[A-Za-z0-9_]``).
        ranges: of the open sizes. conditions: what else holds of them in every call that the model takes.
        decoder: what its inputs and outputs are, if it is one.
        folded: nodes of the file that are not in `model`: they were computed at compile time, or nothing reads them.
    """

    module: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    model: onnx.ModelProto
    nodes: dict[str, str]
    folded: tuple[str, ...] = ()
    ranges: dict[str, Range] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    decoder: Roles = field(default_factory=Roles)
