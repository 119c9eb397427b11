"""Seeded inputs that a model can digest - for verification, `tvmopt run --fill random` and benchmarks.

Token ids must stay inside the embedding table, masks are zero or one: bounds of integer inputs are read off
the graph. The same seed gives the same arrays on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tvmopt.runtime.tensors import Array, numpy_dtype

_FORWARD = {  # operators that hand their first input's values on
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
    *("Squeeze", "Transpose", "Unsqueeze"),
}
SMALL = 2  # bound of an integer input of which nothing is known: 0 and 1 are valid for masks, types, flags


class Info(Protocol):
    """Anything with name, shape and dtype."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


def sample_inputs(
    inputs: Sequence[Info], *, seed: int = 0, fill: str = "random", bounds: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Arrays by input name.

    Floats are standard normal, booleans fair coins, integers uniform in [0, bound).

    Args:
        fill: "random", "zeros" or "ones".
        bounds: exclusive upper bounds of integer inputs, from :func:`integer_bounds`; default 2.
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for info in inputs:
        dtype = numpy_dtype(info.dtype)
        if fill in ("zeros", "ones"):
            arrays[info.name] = np.full(info.shape, fill == "ones", dtype)
        elif dtype.kind in "iu":
            bound = min((bounds or {}).get(info.name, SMALL), int(np.iinfo(dtype).max))
            arrays[info.name] = generator.integers(0, max(1, bound), info.shape).astype(dtype)
        elif dtype.kind == "b":
            arrays[info.name] = generator.integers(0, 2, info.shape).astype(dtype)
        else:
            arrays[info.name] = generator.standard_normal(info.shape).astype(dtype)
    return arrays


def integer_bounds(model: Any) -> dict[str, int]:
    """Exclusive upper bounds of the integer inputs of an ONNX model that index something: token ids."""
    graph = model.graph
    shapes = {i.name: tuple(i.dims) for i in graph.initializer}
    for value in (*graph.value_info, *graph.input):
        shapes.setdefault(value.name, tuple(d.dim_value for d in value.type.tensor_type.shape.dim))
    users: dict[str, list[tuple[Any, int]]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            users.setdefault(name, []).append((node, index))
    bounds = {}
    for value in graph.input:
        found = _index_bounds(value.name, users, shapes)
        if found:
            bounds[value.name] = min(found)
    return bounds


def _index_bounds(
    name: str, users: Mapping[str, list[tuple[Any, int]]], shapes: Mapping[str, tuple[int, ...]]
) -> list[int]:
    found, todo, seen = [], [name], {name}
    while todo:
        for node, index in users.get(todo.pop(), ()):
            if node.op_type in ("Gather", "GatherElements") and index == 1:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                shape = shapes.get(node.input[0], ())
                if -len(shape) <= axis < len(shape) and shape[axis] > 0:
                    found.append(int(shape[axis]))
            elif node.op_type in _FORWARD and (index == 0 or node.op_type == "Concat"):
                todo += [output for output in node.output if output not in seen]
                seen.update(node.output)
    return found


def longest_reduction(model: Any) -> tuple[int, int]:
    """(terms of the longest sum, number of layers that sum) of an ONNX model, from the shapes of its weights.

    The comparator's tolerance comes from these two numbers.
    """
    dims = {i.name: tuple(i.dims) for i in model.graph.initializer}
    for node in model.graph.node:  # weights kept as Constant nodes
        if node.op_type == "Constant":
            dims[node.output[0]] = next((tuple(a.t.dims) for a in node.attribute if a.name == "value"), ())
    longest, depth = 1, 0
    for node in model.graph.node:
        shape = dims.get(node.input[1], ()) if len(node.input) > 1 else ()
        terms = 0
        if node.op_type in ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"):
            terms = int(np.prod(shape[1:], dtype=np.int64)) if shape else 64
        elif node.op_type in ("MatMul", "MatMulInteger"):
            terms = shape[-2] if len(shape) > 1 else 64
        elif (
            node.op_type == "Gemm"
            or node.op_type in ("LSTM", "GRU", "RNN", "Attention", "Einsum")
            or node.op_type.startswith("Reduce")
        ):
            terms = max(shape, default=64)
        if terms:
            longest, depth = max(longest, terms), depth + 1
    return longest, max(1, depth)
