"""Every kernel of a compiled model, observed in a real run: layer by layer without changing what is fused.

Marking inner tensors as outputs changes the fusion that one wants to look at. Here the module runs as it is, and the
judge compares what each kernel wrote with what it ought to have written, given what the kernels before it did write.
"""

from __future__ import annotations

from tvmopt.analysis.comparator import OutputComparison
from tvmopt.analysis.examine import Examined
from tvmopt.analysis.kernels import Written
from tvmopt.debug.layers import Layers
from tvmopt.debug.records import Layer, Trace
from tvmopt.importer.protos import node_name, operator

HOW = "every kernel of the compiled model, given what the kernels before it wrote"


def trace(layers: Layers, examined: Examined, label: str) -> Trace:
    """What the judge says of the kernels, in graph order; the first that it found wrong."""
    wrong = {o.name for o in examined.comparison.outputs if not o.ok}
    index = positions(layers)
    found = [one for one in (_layer(layers, index, kernel, wrong) for kernel in examined.kernels) if one is not None]
    found.sort(key=lambda one: one.index)
    first = next((i for i, one in enumerate(found) if one.status == "differs"), None)
    return Trace(label, HOW, tuple(found), first)


def positions(layers: Layers) -> dict[str, int]:
    """Name of a node -> its index."""
    return {node_name(node): i for i, node in enumerate(layers.nodes)}


def _layer(layers: Layers, index: dict[str, int], kernel: Written, wrong: set[str]) -> Layer | None:
    inside = sorted({index[n] for n in kernel.nodes if n in index})
    if not inside:
        return None
    at = next((i for i in inside if kernel.tensor in layers.nodes[i].output), inside[-1])
    node, one = layers.nodes[at], kernel.comparison
    status = "unmatched" if one is None else "differs" if not one.ok and one.name in wrong else "ok"
    nothing = OutputComparison(kernel.symbol, "what it wrote is no tensor of the model")
    names = tuple(node_name(layers.nodes[i]) for i in inside)
    return Layer(
        at, node_name(node), operator(node), kernel.tensor, status, one or nothing, kernel.symbol, kernel.weights, names
    )
