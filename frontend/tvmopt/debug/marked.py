"""Every tensor marked as an output: the layers of an engine whose kernels cannot be observed.

Marking changes what the engine fuses, so agreement of every layer proves nothing about the fused whole, which is
compared first. A difference that disappears under marking is looked for by prefixes: one inner tensor is an output
at a time, and everything before it stays fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import compare
from tvmopt.bench.records import Job
from tvmopt.debug.engines import run_engine
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Layer, Trace
from tvmopt.debug.reduce import smallest
from tvmopt.importer.protos import node_name, operator

HOW = "every tensor marked as an output: fusion differs from the whole"
BY_PREFIX = "one tensor an output at a time, what comes before it fused"


def trace_marked(
    layers: Layers,
    job: Job,
    tolerances: Mapping[str, tuple[int, int]],
    label: str,
    folder: Path,
    progress: Callable[[str], None],
    **options: Any,
) -> Trace:
    """All tensors in a few runs; where none differs though an output does, a bisection over prefixes."""
    names = [o for n in layers.nodes for o in n.output if o and layers.value(o) is not None]
    found: list[Layer] = []
    for number, chunk in enumerate(layers._chunks(names)):
        progress(f"{label}: layers, part {number + 1}")
        outputs, _ = run_engine(replace(job, model=str(layers.marked(chunk, "engine.onnx"))), layers.feeds, folder)
        found += [_one(layers, n, outputs, tolerances, options) for n in chunk]
    first = next((i for i, layer in enumerate(found) if layer.status == "differs"), None)
    if first is not None:
        return Trace(label, HOW, tuple(found), first)

    def fails(index: int) -> bool:
        path = layers.marked([names[index]], "prefix.onnx")
        outputs, _ = run_engine(replace(job, model=str(path)), layers.feeds, folder)
        found[index] = _one(layers, names[index], outputs, tolerances, options)
        return found[index].status == "differs"

    finals = [i for i, n in enumerate(names) if n in {o.name for o in layers.model.graph.output}]
    if not finals or not fails(finals[-1]):
        return Trace(label, HOW, tuple(found))
    progress(f"{label}: only the fused whole differs; bisecting")
    where = smallest(finals[-1] + 1, fails, "bisect")
    return Trace(label, BY_PREFIX, tuple(found), where)


def _one(
    layers: Layers, name: str, outputs: Mapping[str, Any], tolerances: Mapping[str, tuple[int, int]],
    options: Mapping[str, Any],
) -> Layer:  # fmt: skip
    index = next(i for i, n in enumerate(layers.nodes) if name in n.output)
    node = layers.nodes[index]
    reduction, depth = tolerances.get(name, (1, 1))
    found = {name: np.asarray(outputs[name])} if name in outputs else {}
    expected = {name: np.asarray(layers.value(name))}
    one = compare(expected, found, reduction=reduction, depth=depth, **options).outputs[0]
    status = "ok" if one.ok else "differs" if name in outputs else "unmatched"
    return Layer(index, node_name(node), operator(node), name, status, one, nodes=(node_name(node),))
