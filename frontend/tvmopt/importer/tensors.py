"""Are the tensors of a model file what they claim: type, size, data, place on disk?

A tensor in a file is untrusted: its dimensions may promise terabytes, its data may be shorter than its shape,
its external data may lie in ``/etc``. The checks use file sizes and Python integers only, so nothing is
allocated for a lie, and all tensors are looked at before any external data is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto

from tvmopt.errors import ModelError
from tvmopt.importer.protos import BITS, STRING, byte_size, count, dtype_name, human, node_name
from tvmopt.targets.memory import free_memory

TYPED_FIELDS = {
    "float_data": {TensorProto.FLOAT, TensorProto.COMPLEX64},
    "double_data": {TensorProto.DOUBLE, TensorProto.COMPLEX128},
    "int64_data": {TensorProto.INT64},
    "uint64_data": {TensorProto.UINT32, TensorProto.UINT64},
    "string_data": {STRING},
}
"""The typed data field of an element type; all others use ``int32_data``."""


def all_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Every tensor of a model and words that say where it is: initialisers and attributes, at any depth."""
    yield from _graph_tensors(model.graph, "")
    for function in model.functions:
        where = f" of function '{function.name}'"
        yield from _node_tensors(function.node, where)
        for attr in function.attribute_proto:
            yield from _attribute_tensors(attr, f"attribute '{attr.name}'{where}")


def _graph_tensors(graph: onnx.GraphProto, where: str) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield f"initialiser '{tensor.name}'{where}", tensor
    for sparse in graph.sparse_initializer:
        yield f"values of sparse initialiser '{sparse.values.name}'{where}", sparse.values
        yield f"indices of sparse initialiser '{sparse.values.name}'{where}", sparse.indices
    yield from _node_tensors(graph.node, where)


def _node_tensors(nodes: Iterable[onnx.NodeProto], where: str) -> Iterator[tuple[str, TensorProto]]:
    for node in nodes:
        for attr in node.attribute:
            yield from _attribute_tensors(attr, f"attribute '{attr.name}' of node '{node_name(node)}'{where}")


def _attribute_tensors(attr: onnx.AttributeProto, where: str) -> Iterator[tuple[str, TensorProto]]:
    if attr.HasField("t"):
        yield where, attr.t
    for tensor in attr.tensors:
        yield where, tensor
    if attr.HasField("sparse_tensor"):
        yield where, attr.sparse_tensor.values
        yield where, attr.sparse_tensor.indices
    for graph in [*([attr.g] if attr.HasField("g") else []), *attr.graphs]:
        yield from _graph_tensors(graph, f" in {where}")


def tensor_problem(tensor: TensorProto) -> str:
    """What is wrong with a tensor's own fields, or the empty string; external data is looked at elsewhere."""
    kind = tensor.data_type
    if kind not in BITS and kind != STRING:
        return f"has element type {kind}, which is not an ONNX type"
    if any(d < 0 for d in tensor.dims):
        return f"has a negative dimension: {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "is split into segments, which ONNX never finished defining"
    total = count(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL:
        return "holds strings in external data" if kind == STRING else ""
    label = f"{dtype_name(kind)}{list(tensor.dims)}".replace("object", "string")
    if tensor.HasField("raw_data") and kind != STRING:
        wanted, found = byte_size(kind, total), len(tensor.raw_data)
        filled = [f for f in (*TYPED_FIELDS, "int32_data") if len(getattr(tensor, f))]
        if filled:
            return f"holds its data twice, in raw_data and {filled[0]}"
        return "" if wanted == found else f"is {label}, {human(wanted)}, but holds {human(found)}"
    if tensor.HasField("raw_data"):
        return "holds strings as raw bytes"
    field = next((f for f, kinds in TYPED_FIELDS.items() if kind in kinds), "int32_data")
    wanted = total
    if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        wanted *= 2
    elif kind in BITS and BITS[kind] < 8:
        wanted = byte_size(kind, total)
    found = len(getattr(tensor, field))
    return "" if found == wanted else f"is {label}, {wanted} values, but holds {found} in {field}"


def verify_tensors(model: onnx.ModelProto, path: str) -> list[ModelError]:
    """One error for each tensor that contradicts itself; one when all together do not fit memory."""
    problems, total = [], 0
    for where, tensor in all_tensors(model):
        problem = tensor_problem(tensor)
        if problem:
            problems.append(
                ModelError(
                    f"A tensor {problem}.",
                    where=f"{path}, {where}",
                    fix="the file is damaged: copy or export it again",
                )
            )
        elif tensor.data_location == TensorProto.EXTERNAL:
            total += byte_size(tensor.data_type, count(tensor.dims))
    available = free_memory()
    if total > available and not problems:
        problems.append(
            ModelError(
                f"The external tensors need {human(total)}; {human(available)} of memory are free.",
                where=path,
                fix="use a machine with more memory",
            )
        )
    return problems
