"""Small questions about ONNX protobufs, answered once and without TVM - for the files of the importer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tvmopt.dims import LONGEST, Dim, Size, parse
from tvmopt.importer.types import TensorSpec

STRING = TensorProto.STRING
MOST_ELEMENTS = (1 << 31) - 1
"""Of an axis."""

BITS = {
    TensorProto.FLOAT: 32,
    TensorProto.UINT8: 8,
    TensorProto.INT8: 8,
    TensorProto.UINT16: 16,
    TensorProto.INT16: 16,
    TensorProto.INT32: 32,
    TensorProto.INT64: 64,
    TensorProto.BOOL: 8,
    TensorProto.FLOAT16: 16,
    TensorProto.DOUBLE: 64,
    TensorProto.UINT32: 32,
    TensorProto.UINT64: 64,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
    TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.FLOAT8E4M3FNUZ: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8,
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
}
"""Bits of an element in ``raw_data``, by element type; strings have none."""
for _name, _bits in (("FLOAT8E8M0", 8), ("UINT2", 2), ("INT2", 2)):
    if hasattr(TensorProto, _name):
        BITS[getattr(TensorProto, _name)] = _bits

KINDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
"""The field that holds an attribute's value, by its type."""


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set: for long lists of operators."""
    return frozenset(text.split())


def normal_domain(domain: str) -> str:
    """The default domain has two names; we use the empty one."""
    return "" if domain == "ai.onnx" else domain


def operator(node: onnx.NodeProto) -> str:
    """The operator with its domain where that is not the default: ``com.microsoft::Gelu``."""
    domain = normal_domain(node.domain)
    return f"{domain}::{node.op_type}" if domain else node.op_type


def node_name(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's name where it has none."""
    return str(node.name or next((o for o in node.output if o), node.op_type))


def dtype_name(elem_type: int) -> str:
    """NumPy's word for an ONNX element type (``"float32"``, ``"bfloat16"``); strings are ``"object"``."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name)


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """The static name, shape and dtype of a graph input or output; unknown dimensions are -1."""
    tensor = value.type.tensor_type
    dims = (d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return TensorSpec(value.name, tuple(dims), dtype_name(tensor.elem_type))


def static_shape(kind: onnx.TypeProto | None) -> tuple[int, ...] | None:
    """The shape of a tensor type when all of it is known."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    if not all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims):
        return None
    return tuple(d.dim_value for d in dims)


def open_shape(kind: onnx.TypeProto | None) -> tuple[Size, ...] | None:
    """The shape of a tensor type, open sizes (a `dim_param` that the walk wrote) as `tvmopt.dims.Dim`; None if a size
    is not known at all."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    sizes: list[Size] = []
    for d in kind.tensor_type.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            sizes.append(d.dim_value)
        elif d.dim_param and not d.dim_param.startswith("unk__"):
            sizes.append(parse(d.dim_param))
        else:
            return None
    return tuple(sizes)


def input_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The shapes of a static model's inputs, by name."""
    return {value.name: tensor_spec(value).shape for value in model.graph.input}


def make_type(elem_type: int, shape: Iterable[Size]) -> onnx.TypeProto:
    """A tensor type; open sizes as text. A size of a longer text than is read stays unknown: a sum of what many
    selections find."""
    return helper.make_tensor_type_proto(elem_type, [_told(size) for size in shape])


def _told(size: Size) -> int | str | None:
    if not isinstance(size, Dim):
        return int(size)
    return text if len(text := str(size)) <= LONGEST else None


def byte_size(elem_type: int, count: int) -> int:
    """Bytes of `count` elements in memory (strings: a pointer each)."""
    return (BITS.get(elem_type, 64) * count + 7) // 8


def describe_type(kind: onnx.TypeProto) -> str:
    """A type in words: ``float32[batch,3,224,?]``."""
    if not kind.HasField("tensor_type"):
        return str(kind.WhichOneof("value") or "no type").removesuffix("_type")
    tensor = kind.tensor_type
    name = dtype_name(tensor.elem_type) if tensor.elem_type in {*BITS, STRING} else f"type {tensor.elem_type}"
    name = "string" if name == "object" else name
    if not tensor.HasField("shape"):
        return f"{name}[unknown rank]"
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return f"{name}[{','.join(dims)}]"


def tensor_type(array: npt.NDArray[Any]) -> onnx.TypeProto:
    """The ONNX type of an array."""
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def to_tensor(array: npt.NDArray[Any], name: str = "") -> TensorProto:
    """The TensorProto of an array, 0-d and non-contiguous ones included."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def copy_tensor(target: TensorProto, source: TensorProto) -> None:
    """Copy a tensor field by field: CopyFrom goes through bytes, of which protobuf allows 2 GB."""
    plain = source.data_location != TensorProto.EXTERNAL and not source.HasField("segment")
    if plain and source.HasField("raw_data"):
        target.name, target.data_type, target.raw_data = source.name, source.data_type, source.raw_data
        target.dims.extend(source.dims)
    else:
        target.CopyFrom(source)


def copy_model(source: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model of any size."""
    copy = onnx.ModelProto(ir_version=source.ir_version, producer_name=source.producer_name)
    copy.producer_version = source.producer_version
    copy.opset_import.extend(source.opset_import)
    copy.functions.extend(source.functions)
    copy.graph.name = source.graph.name
    for part in ("input", "output", "node", "value_info", "sparse_initializer"):
        getattr(copy.graph, part).extend(getattr(source.graph, part))
    for tensor in source.graph.initializer:
        copy_tensor(copy.graph.initializer.add(), tensor)
    return copy


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes: branches and loop bodies."""
    for attr in node.attribute:
        if attr.HasField("g"):
            yield attr.g
        yield from attr.graphs


def free_names(graph: onnx.GraphProto) -> set[str]:
    """The names that a subgraph takes from outside."""
    bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= node_reads(node) - bound
        bound.update(node.output)
    return free | ({o.name for o in graph.output} - bound)


def live(nodes: Sequence[onnx.NodeProto], results: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that a result depends on, in order."""
    wanted = set(results)
    found = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted |= node_reads(node)
            found.append(node)
    return found[::-1]


def node_reads(node: onnx.NodeProto) -> set[str]:
    """All names a node reads, those inside its subgraphs included."""
    names = {i for i in node.input if i}
    for graph in subgraphs(node):
        names |= free_names(graph)
    return names


def drop_unused_weights(model: onnx.ModelProto) -> int:
    """Remove initialisers that nothing reads, in place; how many."""
    graph = model.graph
    read = set().union(*(node_reads(n) for n in graph.node), {o.name for o in graph.output})
    unused = [i for i, t in enumerate(graph.initializer) if t.name not in read]
    for index in reversed(unused):
        del graph.initializer[index]
    return len(unused)


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """The opset of each domain; models older than IR 3 have none and mean 1."""
    return {normal_domain(o.domain): o.version for o in model.opset_import} or {"": 1}


def attributes(node: onnx.NodeProto, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The attributes as Python values: strings decoded, tensors as arrays, empty lists as empty tuples.

    Args:
        without: how the names of attributes begin that are left out.
    """
    values = {}
    for attr in node.attribute:
        if attr.name.startswith(without):
            continue
        value = helper.get_attribute_value(attr)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, TensorProto):
            value = numpy_helper.to_array(value)
        elif not isinstance(value, int | float | str) and hasattr(value, "__iter__"):
            value = tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        values[attr.name] = value
    return values


def count(dims: Any) -> int:
    """Number of elements of a shape (exact: Python integers do not overflow)."""
    return math.prod(int(d) for d in dims)


def human(size: int) -> str:
    """Bytes for people: ``1.5 GB``."""
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.3g} {unit}" if unit != "bytes" else f"{size} bytes"
        value /= 1000
    raise AssertionError("unreachable")
