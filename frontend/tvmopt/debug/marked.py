"""Every tensor marked as an output: the layers of an engine whose kernels cannot be observed.

Marking changes what the engine fuses, so agreement of every layer proves nothing about the fused whole, which is
compared first. A difference that disappears under marking is looked for by prefixes: one inner tensor is an output
at a time, and everything before it stays fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tvmopt.analysis.comparator import OutputComparison
from tvmopt.bench.records import Job
from tvmopt.debug.engines import run_engine
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Layer, Trace
from tvmopt.debug.reduce import smallest
from tvmopt.importer.protos import node_name, operator

if TYPE_CHECKING:
    from tvmopt.debug.session import Session

HOW = "every tensor marked as an output: fusion differs from the whole"
BY_PREFIX = "one tensor an output at a time, what comes before it fused"


def trace_marked(session: Session, job: Job, label: str) -> Trace:
    """All tensors in a few runs; where none differs though an output does, a bisection over prefixes."""
    layers, folder = session.layers, session.folder
    names = [o for n in layers.nodes for o in n.output if o and layers.value(o) is not None]
    found: list[Layer] = []

    def layered(chunk: Sequence[str], file: str) -> list[Layer]:
        outputs, _ = run_engine(replace(job, model=str(layers.marked(chunk, file))), layers.feeds, folder)
        outputs = {n: np.asarray(a) for n, a in outputs.items()}
        compared = session.tensors({n: outputs[n] for n in chunk if n in outputs}, job.precision)
        return [_layer(layers, n, compared.get(n)) for n in chunk]

    for number, chunk in enumerate(layers.chunks(names)):
        session.progress(f"{label}: layers, part {number + 1}")
        found += layered(chunk, "engine.onnx")
    first = next((i for i, layer in enumerate(found) if layer.status == "differs"), None)
    if first is not None:
        return Trace(label, HOW, tuple(found), first)

    def fails(index: int) -> bool:
        (found[index],) = layered([names[index]], "prefix.onnx")
        return found[index].status == "differs"

    finals = [i for i, n in enumerate(names) if n in session.outputs]
    if not finals or not fails(finals[-1]):
        return Trace(label, HOW, tuple(found))
    session.progress(f"{label}: only the fused whole differs; bisecting")
    where = smallest(finals[-1] + 1, fails, "bisect")
    return Trace(label, BY_PREFIX, tuple(found), where)


def _layer(layers: Layers, name: str, one: OutputComparison | None) -> Layer:
    index = next(i for i, n in enumerate(layers.nodes) if name in n.output)
    node = layers.nodes[index]
    status = "unmatched" if one is None else "ok" if one.ok else "differs"
    missing = OutputComparison(name, "missing from the result")
    return Layer(index, node_name(node), operator(node), name, status, one or missing, nodes=(node_name(node),))
