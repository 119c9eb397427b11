"""A random ONNX graph while it grows: its values with their types, its nodes, and what each node's outputs are.

A rule of `fuzz/rules` asks for operands (`pick`, `like`, `constant`, `indices`) and adds nodes (`node`). The types of a
node's outputs come from ONNX's own shape inference, a node at a time: a rule needs to know what an operator takes, not
what it gives. What cannot be built raises `Reject`, and another rule is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from fuzz.inputs import noted

F32, F16, BF16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
I8, I16, I32, I64 = TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64
U8, U16, U32, U64, BOOL = (
    TensorProto.UINT8,
    TensorProto.UINT16,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.BOOL,
)
FLOATS = (F32, F16, BF16, F64)
SIGNED, UNSIGNED = (I8, I16, I32, I64), (U8, U16, U32, U64)
INTEGERS = SIGNED + UNSIGNED
ALL = (*FLOATS, *INTEGERS, BOOL)

SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33)
LIMIT = 1 << 13
"""Elements of a value that a rule makes up; results may have eight times as many."""
OPSETS = (13, 14, 17, 18, 19, 20, 21, 22, 23)
ODD_NAMES = (
    "main",
    "x y",
    "a/b.c:0",
    "ümläut",
    "0",
    "-1",
    "float",
    "T",
    "conv2d",
    "\u2603",
    "a" * 70,
    "R.x",
    "%s{}",
    "lambda",
)
CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")


class Reject(Exception):
    """This node cannot be built here."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: `data` where it is a constant."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


def numpy_type(dtype: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))


class Builder:
    """Grows one graph. Everything random comes from `rng`, so a seed is a graph.

    Args:
        kind: the floating-point type, where it is not left to chance.

    Attributes:
        float: the floating-point type that most values of this graph have.
        values: what operands are picked from.
    """

    def __init__(self, rng: np.random.Generator, kind: int = 0) -> None:
        self.rng = rng
        self.opset = int(rng.choice(OPSETS))
        self.float = kind or int(rng.choice([F32, F16, F64, BF16], p=[0.82, 0.08, 0.07, 0.03]))
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.made: dict[str, Value] = {}
        self._odd = bool(rng.random() < 0.05)
        self._known = bool(rng.random() < 0.04)  # everything is a constant: what the importer folds is tried too

    # -- choices ------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self, options: Sequence[int]) -> int:
        """One of these sizes for an axis that may as well be open: see :mod:`fuzz.opened`."""
        return int(self.choice(options))

    def integer(self, low: int, high: int) -> int:
        """Between the two, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self, low: float, high: float) -> float:
        return float(np.float32(self.rng.uniform(low, high)))

    def axis(self, rank: int) -> int:
        """One of `rank` axes, counted from the front or from the back."""
        if rank < 1:
            raise Reject("no axes")
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Some axes, at least one where there is one."""
        chosen = [a for a in range(rank) if self.chance(0.5)] or ([self.integer(0, rank - 1)] if rank else [])
        return [a - rank if self.chance(0.3) else a for a in chosen]

    def shape(self, ranks: Iterable[int] = (1, 2, 2, 3, 3, 4, 4, 5), limit: int = LIMIT) -> tuple[int, ...]:
        rank = int(self.choice(list(ranks)))
        dims: list[int] = []
        for _ in range(rank):
            room = max(1, limit // max(1, prod(dims)))
            dims.append(int(self.choice([s for s in SIZES if s <= room])))
        if rank and self.chance(0.008):
            dims[self.integer(0, rank - 1)] = 0
        return tuple(int(d) for d in self.rng.permutation(dims)) if 0 not in dims else tuple(dims)

    # -- values -------------------------------------------------------------------------------------------

    def input(self, dtype: int, shape: Sequence[int], note: str = "") -> Value:
        """A graph input. `note` says what it may hold: see :mod:`fuzz.inputs`."""
        if self._known:
            return self.constant(
                noted(note, tuple(shape), self.rng) if note else self.random(dtype, shape), dtype, True
            )
        name = self._name("x")
        info = helper.make_tensor_value_info(name, dtype, list(shape))
        info.doc_string = note
        self.inputs[name] = info
        return self._add(Value(name, dtype, tuple(int(d) for d in shape)))

    def constant(self, array: Any, dtype: int | None = None, offer: bool = False) -> Value:
        """An initializer; with `offer` other nodes may read it too."""
        data = np.asarray(array) if dtype is None else np.asarray(array).astype(numpy_type(dtype))
        name = self._name("c")
        tensor = numpy_helper.from_array(np.ascontiguousarray(data).reshape(data.shape), name)
        self.constants[name] = tensor
        value = Value(name, tensor.data_type, data.shape, data)
        if offer:
            self._add(value)
        self.made[name] = value
        return value

    def fresh(self, dtype: int, shape: Sequence[int], constant: float = 0.3, note: str = "") -> Value:
        """A new input, or with this probability a constant."""
        if not note and self.chance(constant):
            return self.constant(self.random(dtype, shape), dtype, offer=True)
        return self.input(dtype, shape, note)

    def weight(self, dtype: int, shape: Sequence[int], fan: int = 1, constant: float = 0.8) -> Value:
        """Weights, scaled so that sums of `fan` products stay of the size of their operands."""
        if self.chance(constant):
            array = self.random(dtype, shape)
            return self.constant(array / np.sqrt(max(1, fan)) if dtype in FLOATS else array, dtype)
        return self.input(dtype, shape)

    def random(self, dtype: int, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """Random numbers of a type: normal, fair coins, small integers."""
        if dtype in FLOATS:
            return self.rng.standard_normal(tuple(shape)).astype(numpy_type(dtype))
        if dtype == BOOL:
            return self.rng.integers(0, 2, tuple(shape)).astype(bool)
        low = -5 if dtype in SIGNED else 0
        return self.rng.integers(low, 10, tuple(shape)).astype(numpy_type(dtype))

    def indices(self, shape: Sequence[int], low: int, high: int, unique: int | None = None) -> Value:
        """Integers in [low, high): an input that says so, or a constant; `unique`: along this axis none repeats."""
        if high <= low:
            raise Reject("no index is in range")
        dtype = int(self.choice([I64, I64, I32]))
        if unique is not None:
            note = f"unique {unique} {low} {high}"
        else:
            note = f"range {low} {high}"
        if self.chance(0.4):
            return self.constant(noted(note, tuple(shape), self.rng), dtype)
        return self.input(dtype, shape, note)

    def pick(
        self, dtypes: Sequence[int] = (), ranks: Sequence[int] = (1, 2, 2, 3, 3, 4, 4, 5), fresh: float = 0.2
    ) -> Value:
        """An operand of one of these types and ranks: mostly a late value of the graph, else a new one."""
        dtypes = dtypes or (self.float,)
        fitting = [v for v in self.values if v.dtype in dtypes and v.rank in ranks]
        if fitting and not self.chance(fresh):
            late = fitting[-3:] if self.chance(0.7) else fitting
            return self.choice(late)
        dtype = self.float if self.float in dtypes else int(self.choice(dtypes))
        return self.fresh(dtype, self.shape(ranks), 0.15)

    def like(self, value: Value, exact: bool = False, dtype: int | None = None, limit: int = 4 * LIMIT) -> Value:
        """An operand that broadcasts with `value` (with `exact`: to its shape)."""
        dtype = value.dtype if dtype is None else dtype

        def fits(other: Value) -> bool:
            if other.dtype != dtype:
                return False
            try:
                joint = np.broadcast_shapes(other.shape, value.shape)
            except ValueError:
                return False
            return prod(joint) <= limit and (not exact or joint == value.shape)

        fitting = [v for v in self.values if fits(v)]
        if fitting and self.chance(0.6):
            return self.choice(fitting)
        dims = [1 if self.chance(0.25) else d for d in value.shape]
        drop = self.integer(0, len(dims)) if self.chance(0.3) else 0
        dims = dims[drop:]
        if not exact and self.chance(0.1):
            dims = [int(self.choice((1, 2, 3))), *([1] * (value.rank - len(dims))), *dims]
        if not exact and dims and self.chance(0.15):
            at = [i for i, d in enumerate(reversed(value.shape)) if d == 1 and i < len(dims)]
            if at:
                dims[-1 - self.choice(at)] = int(self.choice(SIZES))
        if prod(np.broadcast_shapes(tuple(dims), value.shape)) > limit:
            dims = list(value.shape)
        return self.fresh(dtype, dims, 0.5)

    # -- nodes --------------------------------------------------------------------------------------------

    def node(
        self,
        op: str,
        operands: Sequence[Value | None],
        outputs: int = 1,
        domain: str = "",
        offer: bool = True,
        **attrs: Any,
    ) -> Any:
        """Add a node; its outputs (one: the value itself). Types follow from ONNX's shape inference.

        Raises:
            Reject: the operator is not in this opset, the operands do not fit, or a result is too large or unknown.
        """
        names = [self._name("v") for _ in range(outputs)]
        proto = helper.make_node(
            op, [v.name if v else "" for v in operands], names, self._name("n"), domain=domain, **attrs
        )
        types = self._types(proto)
        results = []
        for name in names:
            if name not in types:
                raise Reject(f"{op}: the type of an output is unknown")
            kind, shape = types[name]
            if any(d < 0 for d in shape) or prod(shape) > 8 * LIMIT:
                raise Reject(f"{op}: shape {shape}")
            if 0 in shape and not any(v and 0 in v.shape for v in operands):
                raise Reject(f"{op}: an empty result of operands that are not empty")
            if 0 in shape[2:] and op in CONVOLUTIONS:
                raise Reject(f"{op}: no window fits, which onnxruntime refuses")
            results.append(Value(name, kind, shape))
        self.nodes.append(proto)
        for value in results:
            self.made[value.name] = value
            if offer:
                self.values.append(value)
        return results[0] if outputs == 1 else results

    def raw(self, proto: onnx.NodeProto, results: Sequence[Value]) -> None:
        """Add a node whose outputs' types the rule knows (one with subgraphs)."""
        self.nodes.append(proto)
        for value in results:
            self.made[value.name] = value
            self.values.append(value)

    def name(self) -> str:
        """A name that nothing else has, for what :meth:`raw` adds."""
        return self._name("v")

    def since(self, opset: int) -> None:
        """Reject where the graph's opset is older."""
        if self.opset < opset:
            raise Reject(f"opset {opset}")

    def axes_operand(self, axes: Sequence[int], since: int) -> tuple[list[Value], dict[str, Any]]:
        """Axes as an input from this opset on, before as an attribute."""
        if self.opset >= since:
            return [self.constant(np.array(axes, np.int64))], {}
        return [], {"axes": list(axes)}

    def _types(self, proto: onnx.NodeProto) -> dict[str, tuple[int, tuple[int, ...]]]:
        """The element type and the shape of each result of a node, by name.

        Raises:
            Reject: ONNX refuses the node, or a shape is unknown.
        """
        known = {n: self.made[n] for n in proto.input if n}
        return self._infer(proto, {n: v.shape for n, v in known.items()}, self.constants)

    def _infer(
        self, proto: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], constants: Mapping[str, onnx.TensorProto]
    ) -> dict[str, tuple[int, tuple[int, ...]]]:
        """What ONNX infers of a node whose operands have these shapes, and these values where they are constants."""
        try:
            schema = onnx.defs.get_schema(proto.op_type, self.opset, proto.domain)
            types = {n: helper.make_tensor_type_proto(self.made[n].dtype, shape) for n, shape in shapes.items()}
            data = {n: constants[n] for n in shapes if n in constants}
            opsets = [helper.make_opsetid("", self.opset)]
            found = dict(onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets))
        except Exception as error:  # SchemaError, InferenceError, TypeError: ONNX refuses the node
            raise Reject(f"{proto.op_type}: {error}") from None
        results = {}
        for name, kind in found.items():
            tensor = kind.tensor_type
            if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
                raise Reject(f"{proto.op_type}: a shape is unknown")
            results[name] = (tensor.elem_type, tuple(int(d.dim_value) for d in tensor.shape.dim))
        return results

    def _name(self, prefix: str) -> str:
        taken = len(self.made) + len(self.nodes) + len(self.inputs) + len(self.constants)
        self._count = getattr(self, "_count", taken) + 1
        if self._odd and self.chance(0.3):
            return f"{self.choice(ODD_NAMES)}{'' if self.chance(0.3) and self._count < 4 else self._count}"
        return f"{prefix}{self._count}"

    def _add(self, value: Value) -> Value:
        self.values.append(value)
        self.made[value.name] = value
        return value

    # -- the model ----------------------------------------------------------------------------------------

    def model(self) -> onnx.ModelProto:
        """The graph as a model: every value that nobody reads is an output, and now and then another one."""
        read = {n for node in self.nodes for n in _reads(node)}
        computed = [v for node in self.nodes for n in node.output if (v := self.made.get(n))]
        leaves = [v for v in computed if v.name not in read]
        others = [v for v in computed if v.name in read and self.chance(0.1)]
        outputs = [v for v in computed if v in leaves or v in others]
        graph = helper.make_graph(
            self.nodes, "fuzz",
            [info for name, info in self.inputs.items() if name in read],
            [helper.make_tensor_value_info(v.name, v.dtype, v.shape) for v in outputs],
            [tensor for name, tensor in self.constants.items() if name in read],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset)]
        domains = {n.domain for n in self.nodes if n.domain}
        opsets += [helper.make_opsetid(d, 1) for d in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9 if self.opset < 23 else 11)


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                yield from _reads(inner)
            yield from (o.name for o in graph.output)
