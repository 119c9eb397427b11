"""Every kernel of a compiled model, observed in a real run: layer by layer without changing what is fused.

Marking inner tensors as outputs changes the fusion that one wants to look at. Here the module runs as it is; TVM's
instrument hook copies what each kernel wrote. A kernel's result is then looked for among the tensors of the ONNX
nodes it computes, whatever its layout: axes permuted (NHWC), reshaped, or several tensors side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison, compare
from tvmopt.analysis.observe import Seen, candidates, laid_out
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Layer, Trace
from tvmopt.importer.protos import node_name, node_reads, operator

HOW = "every kernel of the compiled model, observed in one run"


def trace(
    layers: Layers,
    seen: Sequence[Seen],
    tolerances: Mapping[str, tuple[int, int]],
    label: str,
    **options: Any,
) -> Trace:
    """The observed kernels against the reference's tensors, in graph order.

    Args:
        tolerances: (longest sum, sums in sequence) of each tensor, for the comparator.
        options: `rtol`, `atol`, `precision` of the comparator.
    """
    index = positions(layers)
    mine = [sorted({index[n] for n in s.nodes if n in index}) for s in seen]
    named = {i for nodes in mine for i in nodes}
    found = [
        _layer(layers, s, nodes, candidates(layers.nodes, nodes, named), tolerances, options)
        for s, nodes in zip(seen, mine, strict=True)
    ]
    ordered = sorted((one for one in found if one is not None), key=lambda one: one.index)
    return judged(layers, Trace(label, HOW, tuple(ordered)))


def judged(layers: Layers, found: Trace) -> Trace:
    """The trace with its first real difference.

    A layer that differs while one that depends on it agrees was matched with the wrong tensor, or its error does
    no harm: it is not the first. (A convolution's kernel may leave its bias to the next one, for example.)
    """
    nodes = layers.nodes
    position = {layer.index for layer in found.layers if layer.status == "ok" and layer.comparison.spread > 0}
    reaches: list[bool] = [False] * len(nodes)  # whether a later layer that agrees depends on this node
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        for name in node_reads(node):
            readers.setdefault(name, []).append(i)
    for i in range(len(nodes) - 1, -1, -1):
        after = {r for o in nodes[i].output for r in readers.get(o, ())}
        reaches[i] = any(r in position or reaches[r] for r in after)
    wrong = [p for p, layer in enumerate(found.layers) if layer.status == "differs"]
    real = [p for p in wrong if not reaches[found.layers[p].index]]
    first = real[0] if real else None
    return Trace(found.label, found.how, found.layers, first, len(wrong) - len(real))


def positions(layers: Layers) -> dict[str, int]:
    """Name of a node -> its index."""
    return {node_name(node): i for i, node in enumerate(layers.nodes)}


def _layer(
    layers: Layers, seen: Seen, inside: Sequence[int], names: Sequence[str],
    tolerances: Mapping[str, tuple[int, int]], options: Mapping[str, Any],
) -> Layer | None:  # fmt: skip
    """The best match of one kernel's result."""
    if not inside:
        return None
    found = np.load(seen.file, mmap_mode="r")
    best: tuple[OutputComparison, str] | None = None
    for name in names:
        expected = layers.value(name)
        if expected is None or expected.size != found.size:
            continue
        reduction, depth = tolerances.get(name, (1, 1))
        one = matched(name, expected, found, reduction=reduction, depth=depth, **options)
        if best is None or _rank(one) < _rank(best[0]):
            best = (one, name)
        if one.ok:
            break
    if best is None:
        best = _joined(layers, found, inside, tolerances, options)
    nodes = tuple(node_name(layers.nodes[i]) for i in inside)
    producer = _producer(layers, best[1]) if best else None
    at = producer if producer is not None and producer in inside else inside[-1]
    node = layers.nodes[at]
    return Layer(
        at, node_name(node), operator(node), best[1] if best else "",
        "unmatched" if best is None else "ok" if best[0].ok else "differs",
        best[0] if best else OutputComparison(seen.symbol, "no tensor of the model has its size"),
        seen.symbol, seen.weights, nodes,
    )  # fmt: skip


def _rank(one: OutputComparison) -> tuple[bool, float]:
    return (not one.ok, one.needed or (float("inf") if one.problem else 0.0))


def _producer(layers: Layers, name: str) -> int | None:
    for i, node in enumerate(layers.nodes):
        if name in node.output:
            return i
    return None


def _joined(
    layers: Layers, found: Array, inside: Sequence[int], tolerances: Mapping[str, tuple[int, int]],
    options: Mapping[str, Any],
) -> tuple[OutputComparison, str] | None:  # fmt: skip
    """Several tensors side by side in one result: parallel products combined."""
    nodes = layers.nodes
    names = [o for i in inside for o in nodes[i].output if o and layers.value(o) is not None]
    for axis in range(-1, -found.ndim - 1, -1):
        width = found.shape[axis]
        groups: dict[tuple[int, ...], list[str]] = {}
        for name in names:
            array = layers.value(name)
            if (
                array is not None
                and array.ndim
                and array.size * width == found.size * array.shape[axis if -axis <= array.ndim else -1]
            ):
                groups.setdefault(array.shape, []).append(name)
        for shape, group in groups.items():
            count = found.size // max(1, int(np.prod(shape)))
            if count < 2 or len(group) < count or found.size % max(1, int(np.prod(shape))):
                continue
            whole = np.concatenate(
                [np.asarray(layers.value(n)) for n in group[:count]], axis if -axis <= len(shape) else -1
            )
            reduction, depth = tolerances.get(group[0], (1, 1))
            one = matched(group[0], whole, found, reduction=reduction, depth=depth, **options)
            if one.ok:
                return one, group[0]
    return None


def matched(name: str, expected: Array, found: Array, **options: Any) -> OutputComparison:
    """The comparison in the layout of the result that fits best: as it is, or with axes permuted."""
    if expected.shape == found.shape and expected.dtype == found.dtype:
        straight = compare({name: np.asarray(expected)}, {name: np.asarray(found)}, **options).outputs[0]
        if straight.ok:
            return straight
    moved = laid_out(np.asarray(expected), np.asarray(found))
    if moved.dtype != expected.dtype:
        moved = moved.astype(expected.dtype)
    return compare({name: np.asarray(expected)}, {name: moved}, **options).outputs[0]
