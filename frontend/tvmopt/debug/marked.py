"""Every tensor marked as an output: the layers of an engine whose kernels cannot be observed.

Marking changes what the engine fuses, so agreement of every layer proves nothing about the fused whole, which is
compared first. A difference that disappears under marking is looked for by prefixes: one inner tensor is an output
at a time, and everything before it stays fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.bench.records import Job
from tvmopt.children import Progress
from tvmopt.debug.engines import run_engine
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Layer, Trace
from tvmopt.debug.reduce import smallest
from tvmopt.importer.protos import node_name, operator

HOW = "every tensor marked as an output: fusion differs from the whole"
BY_PREFIX = "one tensor an output at a time, what comes before it fused"


Compared = Callable[[Mapping[str, Array], str], Mapping[str, OutputComparison]]
"""Tensors that an engine computed, and its precision -> what the judge says of them."""


def trace_marked(layers: Layers, job: Job, label: str, folder: Path, compare: Compared, progress: Progress) -> Trace:
    """All tensors in a few runs; where none differs though an output does, a bisection over prefixes."""
    names = [o for n in layers.nodes for o in n.output if o and layers.value(o) is not None]
    found: list[Layer] = []

    def layered(chunk: Sequence[str], file: str) -> list[Layer]:
        outputs, _ = run_engine(replace(job, model=str(layers.marked(chunk, file))), layers.feeds, folder)
        outputs = {n: np.asarray(a) for n, a in outputs.items()}
        compared = compare({n: outputs[n] for n in chunk if n in outputs}, job.precision)
        return [_layer(layers, n, compared.get(n)) for n in chunk]

    for number, chunk in enumerate(layers.chunks(names)):
        progress(f"{label}: layers, part {number + 1}")
        found += layered(chunk, "engine.onnx")
    first = next((i for i, layer in enumerate(found) if layer.status == "differs"), None)
    if first is not None:
        return Trace(label, HOW, tuple(found), first)

    def fails(index: int) -> bool:
        (found[index],) = layered([names[index]], "prefix.onnx")
        return found[index].status == "differs"

    outputs = {o.name for o in layers.model.graph.output}
    finals = [i for i, n in enumerate(names) if n in outputs]
    if not finals or not fails(finals[-1]):
        return Trace(label, HOW, tuple(found))
    progress(f"{label}: only the fused whole differs; bisecting")
    where = smallest(finals[-1] + 1, fails, "bisect")
    return Trace(label, BY_PREFIX, tuple(found), where)


def _layer(layers: Layers, name: str, one: OutputComparison | None) -> Layer:
    index = next(i for i, n in enumerate(layers.nodes) if name in n.output)
    node = layers.nodes[index]
    status = "unmatched" if one is None else "ok" if one.ok else "differs"
    missing = OutputComparison(name, "missing from the result")
    return Layer(index, node_name(node), operator(node), name, status, one or missing, nodes=(node_name(node),))
