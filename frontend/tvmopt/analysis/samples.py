"""Seeded inputs that a model can digest - for verification, `tvmopt run --fill random` and benchmarks.

Token ids must stay inside the embedding table, masks are zero or one: bounds of integer inputs are read off
the graph. The same seed gives the same arrays on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tvmopt.runtime.tensors import Array, numpy_dtype

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
    inputs: Sequence[Info],
    *,
    seed: int = 0,
    fill: str = "random",
    bounds: Mapping[str, int | Sequence[int]] | None = None,
) -> dict[str, Array]:
    """Arrays by input name.

    Floats are standard normal, booleans fair coins, integers uniform within their bounds.

    Args:
        fill: "random", "zeros" or "ones".
        bounds: of integer inputs the lowest value and the first that is too large, from
            :func:`tvmopt.analysis.bounds.integer_bounds` (older artifacts: only the latter); default 0 and 2.
    """
    generator = np.random.default_rng(seed)
    arrays = {}
    for info in inputs:
        dtype = numpy_dtype(info.dtype)
        if fill in ("zeros", "ones"):
            arrays[info.name] = np.full(info.shape, fill == "ones", dtype)
        elif dtype.kind in "iu":
            bound = (bounds or {}).get(info.name, SMALL)
            low, high = (0, bound) if isinstance(bound, int) else bound
            high = min(high, int(np.iinfo(dtype).max))
            arrays[info.name] = generator.integers(low, max(low + 1, high), info.shape).astype(dtype)
        elif dtype.kind == "b":
            arrays[info.name] = generator.integers(0, 2, info.shape).astype(dtype)
        else:
            arrays[info.name] = generator.standard_normal(info.shape).astype(dtype)
    return arrays


KINDS = ("random", "random", "around 1000", "times 1000", "zeros", "one Inf", "one NaN")
"""What the first seeds stand for, in every word of tvmopt: two random inputs, then floats that are random around 1000,
a thousand times larger, zero, and random with one infinite or undefined value. Later seeds are random."""


def described(seed: int) -> str:
    """A seed in words.

    >>> described(6)
    'seed 6 (one NaN)'
    """
    kind = KINDS[seed] if seed < len(KINDS) else "random"
    return f"seed {seed} ({kind})"


def trial_inputs(
    inputs: Sequence[Info], seed: int, bounds: Mapping[str, int | Sequence[int]] | None = None
) -> dict[str, Array]:
    """The inputs of a seed.

    >>> from tvmopt.runtime.tensors import TensorInfo
    >>> trial_inputs([TensorInfo("x", (2,), "float32")], 6)["x"]
    array([0.12573022,        nan], dtype=float32)
    """
    kind = KINDS[seed] if seed < len(KINDS) else "random"
    arrays = sample_inputs(inputs, seed=0 if kind != "random" else seed, bounds=bounds)
    floats = {n: a for n, a in arrays.items() if a.dtype.kind not in "iub"}
    for name, array in floats.items():
        if kind == "around 1000":
            arrays[name] = (array.astype(np.float32) + 1000).astype(array.dtype)
        elif kind == "times 1000":
            arrays[name] = (array.astype(np.float32) * 1000).astype(array.dtype)
        elif kind == "zeros":
            arrays[name] = np.zeros_like(array)
    first = next((a for a in floats.values() if a.size), None)
    if kind.startswith("one") and first is not None:
        first.reshape(-1)[first.size // 2] = np.inf if kind == "one Inf" else np.nan
    return arrays


def trials(inputs: Sequence[Info]) -> tuple[int, ...]:
    """The seeds that verification tries; models without float inputs have only the random ones."""
    known = any(numpy_dtype(i.dtype).kind not in "iub" for i in inputs)
    return tuple(range(len(KINDS))) if known else (0, 1)


SUMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare")
USUAL = 64  # terms of a sum of which nothing is known


def longest_reduction(model: Any) -> tuple[int, int]:
    """(terms of the longest sum, number of layers that sum) of an ONNX model, from the shapes of its weights and of
    what it reduces.

    The comparator's tolerance comes from these two numbers.
    """
    graph = model.graph
    values = {i.name: i for i in graph.initializer}
    for node in graph.node:  # weights kept as Constant nodes
        if node.op_type == "Constant":
            values.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    dims = {name: tuple(value.dims) for name, value in values.items()}
    data = _known_shapes(model) if any(node.op_type in (*SUMS, "CumSum") for node in graph.node) else {}
    longest, depth = 1, 0
    for node in graph.node:
        shape = dims.get(node.input[1], ()) if len(node.input) > 1 else ()
        terms = 0
        if node.op_type in ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"):
            terms = int(np.prod(shape[1:], dtype=np.int64)) if shape else USUAL
        elif node.op_type in ("MatMul", "MatMulInteger"):
            terms = shape[-2] if len(shape) > 1 else USUAL
        elif node.op_type in SUMS:
            terms = _reduced(node, data.get(node.input[0]), values)
        elif node.op_type == "CumSum":
            terms = max(data.get(node.input[0]) or (USUAL,))
        elif node.op_type in ("Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum") or node.op_type.startswith("Reduce"):
            terms = max(shape, default=USUAL)
        if terms:
            longest, depth = max(longest, terms), depth + 1
    return longest, max(1, depth)


def _known_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The static shapes of inputs and of what shape inference finds, or has found."""
    import onnx

    graph = model.graph
    if not graph.value_info:
        try:
            graph = onnx.shape_inference.infer_shapes(model).graph
        except Exception:  # a model of over 2 GB, or one that contradicts itself: the usual number of terms then
            graph = model.graph
    shapes = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.dim_value > 0 for d in tensor.shape.dim):
            shapes[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return shapes | {i.name: tuple(i.dims) for i in graph.initializer}


def _reduced(node: Any, shape: tuple[int, ...] | None, values: Mapping[str, Any]) -> int:
    """Terms that a Reduce node adds for one element: the extents of its axes, all of them where none are given."""
    from onnx import numpy_helper

    if shape is None:
        return USUAL
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
    if len(node.input) > 1 and node.input[1]:
        if node.input[1] not in values:
            return int(np.prod(shape, dtype=np.int64))
        axes = numpy_helper.to_array(values[node.input[1]]).tolist()
    chosen = [shape[a] for a in axes if -len(shape) <= a < len(shape)] if axes else shape
    return int(np.prod(chosen, dtype=np.int64))
