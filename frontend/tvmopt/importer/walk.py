"""What the folding walk knows of a graph - names, constants, types, nodes kept - for `fold.py` and its rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.dims import OpenSize, Size, is_open, replaced
from tvmopt.errors import ModelError
from tvmopt.importer.external import array_of
from tvmopt.importer.fractions import with_sizes
from tvmopt.importer.inline import rename_free
from tvmopt.importer.own import others
from tvmopt.importer.protos import (
    make_type,
    node_reads,
    normal_domain,
    open_shape,
    opset_versions,
    static_shape,
    subgraphs,
    tensor_type,
)
from tvmopt.importer.symbols import Symbols
from tvmopt.targets.memory import free_memory

Array = npt.NDArray[Any]
Nodes = list[onnx.NodeProto]
Way = TypeVar("Way")

DATA_BYTES = 1 << 14
"""Constants up to this size are shown to ONNX's shape functions, which read axes, shapes and scales."""


@dataclass
class Walk(ABC):
    """The state of the walk over one model, and what a rule may ask of it or change.

    Attributes:
        model: the model, without initialisers; they are in `initializers`.
        has_converter: says of (domain, op_type) whether the importer converts it as it stands.
        nodes: the nodes that stay, in order.
        constants: arrays that the walk made, by name.
        types: what is known of every value; an open size stands there as text (`tvmopt.importer.protos.open_shape`).
        symbols: what is known of the open sizes.
        below: integer tensors all of whose elements are less than a size.
        open_values: small integer tensors whose elements are sizes, some of them open, by name.
        fractions: small tensors on the way to sizes, by name: floats that are sizes or parts of them, and truth values
            that calls decide (`fractions.py`).
        problems: nodes that contradict themselves.
        depth: how many branches and bodies the node of now lies in that stay what they are.
        choices: where a rule may go several ways, which to go, in the order of the walk; behind them the first.
        asked: how many ways there were each time.
        in_doubt: how many of these ways had been chosen when the first problem was found.
    """

    model: onnx.ModelProto
    initializers: dict[str, TensorProto]
    has_converter: Callable[[str, str], bool]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    problems: list[ModelError] = field(default_factory=list)
    symbols: Symbols = field(default_factory=Symbols)
    open_values: dict[str, Array] = field(default_factory=dict)
    fractions: dict[str, Array] = field(default_factory=dict)
    below: dict[str, Size] = field(default_factory=dict)
    depth: int = 0
    choices: tuple[int, ...] = ()
    asked: list[int] = field(default_factory=list)
    in_doubt: int | None = None

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.opsets = opset_versions(self.model)
        self.functions = {(normal_domain(f.domain), f.name): f for f in others(self.model.functions)}
        self.initializers = dict(self.initializers)
        self.results = {o.name for o in graph.output}
        self.alias: dict[str, str] = {}
        self.names = set(self.initializers) | {v.name for v in graph.input}
        self.names |= {name for node in graph.node for name in node.output}
        self.declared = {v.name: v.type for v in graph.value_info if not _is_open(v.type)}
        self.blocked: dict[str, tuple[onnx.NodeProto, bool]] = {}
        """Matrices that a DequantizeLinear by blocks makes: that node, and whether blocks lie along the first axis."""
        self.memory = free_memory()
        self.budget = self.memory // 4
        for name, tensor in self.initializers.items():
            self.types[name] = helper.make_tensor_type_proto(tensor.data_type, tuple(tensor.dims))
        for value in graph.input:
            self.types.setdefault(value.name, value.type)

    def run(self) -> None:
        """Walk all nodes of the graph."""
        self.process(self.model.graph.node)

    def process(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Process `nodes`, and whatever they expand to, in order."""
        stack = list(reversed(list(nodes)))
        while stack:
            node = self._resolved(stack.pop())
            expansion = self._one(node)
            if self.problems and self.in_doubt is None:
                self.in_doubt = len(self.asked)
            stack.extend(reversed(expansion))

    def fresh(self, name: str) -> str:
        """A value name that nobody has yet."""
        candidate, n = name, 1
        while candidate in self.names:
            n += 1
            candidate = f"{name}_{n}"
        self.names.add(candidate)
        return candidate

    def array(self, name: str) -> Array | None:
        """The value of a constant, or None."""
        if name not in self.constants and name in self.initializers:
            array = array_of(self.initializers[name])
            if array.nbytes > DATA_BYTES:
                return array
            self.constants[name] = array
        return self.constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Whether the value of `name` is known."""
        return name in self.constants or name in self.initializers

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a value, of those that stay; None where it is given, or known."""
        return next((node for node in reversed(self.nodes) if name in node.output), None)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The static shape of a value, or None."""
        return static_shape(self.types.get(name))

    def open_shape(self, name: str) -> tuple[Size, ...] | None:
        """The shape of a value, of which some sizes may be open, or None."""
        return self.shape_of_type(self.types.get(name))

    def shape_of_type(self, kind: onnx.TypeProto | None) -> tuple[Size, ...] | None:
        """The shape in a type, open sizes as what stands for them, or None."""
        shape = open_shape(kind)
        return shape if shape is None or not is_open(shape) else tuple(map(self.symbols.canonical, shape))

    def sizes(self, name: str) -> Array | None:
        """The value of a small tensor whose elements may be open sizes, or None."""
        return self.open_values[name] if name in self.open_values else self.array(name)

    def unify(self, a: Size, b: Size, where: str) -> Size:
        """The one size that both are, because the node `where` takes them for equal."""
        return self.symbols.unify(a, b, where, self._replace_symbols)

    def is_less(self, a: Size, b: Size) -> bool:
        """Whether ``a < b`` in every call."""
        try:
            return self.symbols.less(a, b)
        except OpenSize:
            return False

    def settled(self, shape: Iterable[Size]) -> tuple[Size, ...]:
        """A shape in the symbols of now."""
        now = {name: size for name, (size, _) in self.symbols.replaced.items()}
        return tuple(self.symbols.canonical(replaced(d, now)) for d in shape)

    def _replace_symbols(self, mapping: Mapping[str, Size]) -> None:
        """Write these sizes in place of symbols, in all types and values."""
        for name, kind in self.types.items():
            if _is_open(kind) and (shape := open_shape(kind)) is not None:
                self.types[name] = make_type(kind.tensor_type.elem_type, [replaced(d, mapping) for d in shape])
        for array in self.open_values.values():
            for index, size in np.ndenumerate(array):
                array[index] = replaced(size, mapping)
        for array in self.fractions.values():
            for index, number in np.ndenumerate(array):
                array[index] = with_sizes(number, mapping)
        self.below = {name: replaced(size, mapping) for name, size in self.below.items()}

    def set_open_value(self, node: onnx.NodeProto, array: Array, elem_type: int) -> None:
        """Record the value of a node that computes sizes; the node stays, for other engines."""
        name = node.output[0]
        if not is_open(array.ravel()):
            self.set_constant(name, array.astype(helper.tensor_dtype_to_np_dtype(elem_type)))
            return
        self.open_values[name] = array
        self.types[name] = make_type(elem_type, array.shape)
        self.emit(node)

    def set_fraction(self, node: onnx.NodeProto, array: Array, elem_type: int) -> None:
        """Record the value of a node that computes parts of sizes, or truth values of them; the node stays."""
        self.fractions[node.output[0]] = array
        self.types[node.output[0]] = make_type(elem_type, array.shape)
        self.emit(node)

    def set_constant(self, name: str, array: Array) -> None:
        """Record the value of `name`."""
        self.constants[name] = array
        self.types[name] = tensor_type(array)

    def add_weight(self, name: str, tensor: TensorProto) -> None:
        """Take over an initialiser of a subgraph under a new name."""
        self.set_constant(name, np.asarray(numpy_helper.to_array(tensor)))

    def mark(self) -> tuple[int, int]:
        """A place to come :meth:`back_to`."""
        return len(self.nodes), len(self.problems)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget the nodes and problems since `mark`; constants made since are dropped as unused."""
        del self.nodes[mark[0] :]
        del self.problems[mark[1] :]
        if not self.problems:
            self.in_doubt = None

    def snapshot(self) -> Callable[[], None]:
        """What takes everything back to what is known now: nodes, names, types, and sizes found to be equal."""
        mark, symbols, asked = self.mark(), deepcopy(self.symbols), len(self.asked)
        tables = ("alias", "below", "constants", "types")
        kept = {table: dict(getattr(self, table)) for table in tables}
        values, fractions = ({n: a.copy() for n, a in table.items()} for table in (self.open_values, self.fractions))

        def back() -> None:
            self.back_to(mark)
            del self.asked[asked:]
            vars(self.symbols).update(vars(deepcopy(symbols)))
            for table in tables:
                setattr(self, table, dict(kept[table]))
            self.open_values, self.fractions = ({n: a.copy() for n, a in t.items()} for t in (values, fractions))

        return back

    def chosen(self, ways: Sequence[Way]) -> Sequence[Way]:
        """The ways to go, beginning with the one that `choices` says."""
        number = self.choices[len(self.asked)] if len(self.asked) < len(self.choices) else 0
        self.asked.append(len(ways))
        return [*ways[number:], *ways[:number]]

    def bind(self, name: str, source: str) -> list[onnx.NodeProto]:
        """Make `name` another name of `source`; results of the graph need a node to keep theirs."""
        source = self.alias.get(source, source)
        if name in self.results:
            if self.is_constant(source):
                array = self.array(source)
                assert array is not None
                self.set_constant(name, array)
            else:
                self.emit(helper.make_node("Identity", [source], [name], name=f"{name}/Identity"))
                if source in self.types:
                    self.types[name] = self.types[source]
        else:
            self.alias[name] = source
        return []

    def emit(self, node: onnx.NodeProto) -> None:
        """Keep `node` in the graph."""
        self.nodes.append(node)

    def _resolved(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The node with aliases replaced by what they stand for; a copy where that changes it."""
        if not any(name in self.alias for name in node_reads(node)):
            return node
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        renamed = [self.alias.get(n, n) for n in node.input]
        del copy.input[:]
        copy.input.extend(renamed)
        for graph in subgraphs(copy):
            rename_free(graph, self.alias)
        return copy

    @abstractmethod
    def _one(self, node: onnx.NodeProto) -> Nodes:
        """Fold, keep or expand one node; what it expands to is still to be processed."""

    @abstractmethod
    def infer_and_emit(self, node: onnx.NodeProto) -> Nodes:
        """Infer types; fold the node, or expand it by its definition, or keep it."""


def _is_open(kind: onnx.TypeProto) -> bool:
    """Whether a type names an open size."""
    return any(d.dim_param for d in kind.tensor_type.shape.dim)


Rule = Callable[[Walk, onnx.NodeProto], "Nodes | None"]
"""Gives the nodes that stand for its node (none: a constant or another name was recorded); None: does not apply."""
