"""What a converter is told about its node, and the words to refuse it - for authors of converters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm
from tvm import relax, tirx

from tvmopt.dims import Size, is_open
from tvmopt.errors import ModelError, UnsupportedOp
from tvmopt.importer.converters.below import Below
from tvmopt.importer.protos import node_name
from tvmopt.importer.sizes import shape_of, to_tvm


class Inputs(list[Any]):
    """The inputs of a node; an index past the end is an input left out: ``None``."""

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return list(self)[item]
        return list(self)[item] if item < len(self) else None


@dataclass(frozen=True)
class Context:
    """One node, as its converter sees it.

    Attributes:
        op_type, domain, opset: which operator; the domain of ai.onnx is ``""``, the opset is the domain's.
        name: the node's name, for messages (its first output's name where it has none).
        outputs: names of the outputs, ``""`` for one left out.
        output_types: ``(dtype, shape)`` an output where shape inference knows it, else ``None``; an open size is a
            `tvmopt.dims.Dim`.
        node: the NodeProto itself.
        node_inputs: what its inputs were converted to.
        input_elem_types: the ONNX element types (``TensorProto.FLOAT8E4M3FN``), 0 where unknown;
            they tell apart what shares a storage dtype (see :mod:`tvmopt.importer.lowbits`).
        below: what is known of each input's integers, where they are computed as indices.
        subgraph: converts a graph attribute in place, given its inputs; returns its outputs (how loops unroll).
    """

    op_type: str
    domain: str
    opset: int
    name: str
    outputs: tuple[str, ...]
    output_types: tuple[tuple[str, tuple[Size, ...]] | None, ...]
    node: onnx.NodeProto
    stock_converter: Callable[[Any, dict[str, Any]], Any]
    node_inputs: Inputs = field(default_factory=Inputs)
    input_elem_types: tuple[int, ...] = ()
    below: tuple[Below | None, ...] = ()
    subgraph: Callable[[onnx.GraphProto, Sequence[Any]], list[Any]] | None = None

    def indexes(self, number: int, sizes: Sequence[Any]) -> bool:
        """Whether input `number` is known to hold indices of axes of these sizes, TVM's."""
        known = self.below[number] if number < len(self.below) else None
        return known is not None and known.inside(list(sizes))

    @property
    def num_outputs(self) -> int:
        """How many outputs the node lists, left-out ones included."""
        return len(self.outputs)

    def wants(self, index: int) -> bool:
        """Whether output `index` is listed and named."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def decided(self, axis: int) -> Any:
        """The size along an axis of the first output, which values decide in a run, as TVM has it: the one that the
        preparation has named, or else a new one."""
        known = self.output_types[0]
        return tirx.Var("selected", "int64") if known is None or not is_open(known[1]) else to_tvm(known[1][axis])

    def array(self, expr: Any, what: str = "") -> npt.NDArray[Any] | None:
        """The value of a constant input, or of one whose elements are sizes; ``None`` when left out.

        Raises:
            UnsupportedOp: the input is computed at run time and `what` names it (else: ``None``).
        """
        if isinstance(expr, np.ndarray):
            return expr  # sizes, some of them open
        if isinstance(expr, tvm.ir.GenericConst):
            return np.asarray(expr.value.numpy())
        if expr is not None and what:
            raise self.unsupported(f"its {what} is computed at run time", "make it a constant of the model")
        return None

    def unsupported(self, reason: str, fix: str = "export the model without this node") -> UnsupportedOp:
        """The error to raise when this node cannot be converted, because of `reason`."""
        prefix = f"{self.domain}::" if self.domain else ""
        return UnsupportedOp(
            f"{prefix}{self.op_type} cannot be imported: {reason}.",
            where=f"node '{self.name}' (opset {self.opset})",
            fix=fix,
        )

    def invalid(self, what: str, fix: str, number: int) -> ModelError:
        """The error to raise when a constant input of this node has a value that the operator does not allow."""
        return ModelError(what, where=f"node '{self.name}', input '{self.node.input[number]}'", fix=fix)

    def stock(self, inputs: Any, attrs: dict[str, Any]) -> Any:
        """What TVM's own converter makes of these inputs and attributes (same conventions as ours)."""
        return self.stock_converter(inputs, attrs)


def open_size(node: onnx.NodeProto, inputs: Inputs) -> str:
    """Says which input has a size that only a run tells, or ""; it follows NonZero or NonMaxSuppression, or an If whose
    branches differ."""
    for name, value in zip(node.input, inputs, strict=False):
        kind = getattr(value, "ty", None)
        if type(kind).__name__ == "AnyType":  # the branches of an If give tensors of different ranks
            return f"the rank of its input '{name}' is decided by values, at run time"
        if not isinstance(kind, relax.TensorType):
            continue
        if shape_of(value) is None:
            return f"the size of its input '{name}' is decided by values, at run time"
    return ""


SELECTING = ("NonZero", "Compress", "Unique", "NonMaxSuppression")
"""Operators of whose result a run decides the size."""


def selected_by(graph: onnx.GraphProto, name: str) -> str:
    """The node that decides the size of a tensor, as the end of a place; "" where none is known."""
    makers = {output: node for node in graph.node for output in node.output}
    behind, seen = [name], set[str]()
    while behind:
        node = makers.get(behind.pop())
        if node is None or node.output[0] in seen:
            continue
        if node.op_type in SELECTING:
            return f", behind node '{node_name(node)}' ({node.op_type})"
        seen.add(node.output[0])
        behind.extend(node.input)
    return ""


Result = Any  # relax.Expr | tuple[relax.Expr | None, ...]; tvm has no type stubs
Converter = Callable[[relax.BlockBuilder, Inputs, dict[str, Any], Context], Result]
