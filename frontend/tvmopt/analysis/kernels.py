"""Each kernel of a compiled model against the oracle, given what the kernels before it really wrote - for the judge.

Behind many layers rounding hides a small error, and a model that amplifies errors hides a large one. So the oracle
walks through the model and, wherever a kernel's result is one of its tensors, compares, and goes on with the kernel's
own numbers: what is compared next has only the rounding of the kernels since then.

    first     in float32, with a few eps of tolerance: nearly all there is to do for a right model
    second    what differed: against float64, with runs that only round as the measure
    third     a kernel that still differs wrote its tensor wrongly if what follows fits with what it wrote no worse than
              with what it ought to have written; else its result is not that tensor (its bias is the next kernel's)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmopt.analysis.blame import Blame
from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.deviation import limits_of, spreading
from tvmopt.analysis.doubles import Doubles
from tvmopt.analysis.grids import Grids
from tvmopt.analysis.kept import as_found, kept
from tvmopt.analysis.local import Local
from tvmopt.analysis.measured import Measured
from tvmopt.analysis.observe import Seen, bindings, candidates
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.rounding import HEAVY, Recorder
from tvmopt.analysis.oracle.values import Arithmetic, is_real
from tvmopt.analysis.ties import choices
from tvmopt.analysis.walk import PLAIN, Kernel, Walk
from tvmopt.importer.protos import node_name

FLIPS = ("select_last_index", "reverse")
"""Attributes by which an operator reads its input from the end: the last of equal scores, a sum from behind."""

VIEWS = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
"""Operators whose result has the numbers of their first input."""


@dataclass(frozen=True)
class Written:
    """One kernel's call and what it wrote.

    Attributes:
        symbol: of the kernel; `nodes` that it computes; `weights` that it reads, by their indices.
        comparison: of its result with a tensor of the model; None: it is none.
    """

    symbol: str
    nodes: tuple[str, ...]
    weights: tuple[int, ...]
    tensor: str = ""
    comparison: OutputComparison | None = None


@dataclass(frozen=True)
class Found:
    """What the walk says.

    Attributes:
        kernels: in the order of their calls.
        wrong: tensors with a wrong value, outputs and kernels' results.
        kernel: the first kernel that is wrong, with its nodes.
        compared: how many tensors were.
    """

    wrong: tuple[OutputComparison, ...] = ()
    kernel: str = ""
    compared: int = 0
    kernels: tuple[Written, ...] = ()


def check_kernels(
    model: Any, feeds: Mapping[str, Array], outputs: Mapping[str, Array], seen: Sequence[Seen], precision: str,
    brief: bool = False,
) -> Found:  # fmt: skip
    """Compare every kernel's result that is a tensor of the model.

    Args:
        model: prepared: the graph whose nodes the kernels name.
        outputs: of the compiled model in the same run.
        brief: see :class:`Walk`.
    """
    kernels = kernels_of(model, seen, feeds)
    grids = Grids.of(model, limits_of(precision, np.dtype(np.float32)))
    chosen = choices(model)  # the judge of the outputs asks their scores
    has_nan = any(is_real(a.dtype) and np.isnan(a).any() for a in outputs.values())
    oracle = Oracle(model, Arithmetic(np.float32))
    caches = kept(model)  # it judges these, too; here attention reads what they hold
    held = as_found(caches, outputs)
    spreads = frozenset[str]()
    if has_nan:
        recorder = Recorder(model)
        recorder.run(feeds, known=held or None)
        spreads = spreading(model, recorder.hurt)
    told = {n: a for n, a in outputs.items() if n not in chosen and n not in caches}
    local = Local(model, feeds, precision, limits_of(precision, np.dtype(np.float32)).rms)
    walk = Walk(
        precision, told, kernels, grids, Doubles(oracle.graph), local, {*chosen, *caches, *held}, spreads, brief
    )
    walk.begin(feeds)
    walk.taken.update(held)
    oracle.run(feeds, observe=walk, known=held or None)
    known = {id(kernel) for kernel in kernels if kernel.alike}
    if walk.wrong:  # some kernel may be wrong beyond recognition
        for kernel in kernels:
            kernel.alike = kernel.alike or kernel.unlike
    right = with_views(model, kernels, {k.tensor for k in kernels} - {*walk.wrong, ""})
    # who resembles these wrote something on the way to them
    for kernel in kernels:
        kernel.alike = {form: e for form, e in kernel.alike.items() if form.removesuffix(PLAIN) not in right}
    suspects = {k.likeliest.removesuffix(PLAIN): k for k in kernels if not k.tensor and k.likeliest}
    wrong: list[OutputComparison] = []
    title = ""
    if walk.wrong or suspects:
        again = Measured(model, feeds, precision, walk, suspects)
        outputs_again = {name: again.compared(name) for name in walk.wrong}
        for kernel in kernels:
            kernel.comparison = outputs_again.get(kernel.tensor, kernel.comparison)
        wrong = [one for one in outputs_again.values() if not one.ok]
        blame = Blame(again)
        guilty = blame.guilty({name for name, kernel in suspects.items() if wrong or id(kernel) in known})
        wrong = [blame.output(w.name) for w in wrong]
        wrong = [one for one in wrong if not one.ok]
        if guilty is not None:
            kernel, title = suspects[guilty], suspects[guilty].title
            kernel.tensor, kernel.comparison = guilty, again.written(kernel.likeliest, kernel)
            wrong = [kernel.comparison, *(w for w in wrong if w.name != guilty)]
    calls = [Written(k.seen.symbol, k.seen.nodes, k.seen.weights, k.tensor, k.comparison) for k in kernels]
    return Found(tuple(wrong), title, walk.agreed, tuple(calls))


def kernels_of(model: Any, seen: Sequence[Seen], feeds: Mapping[str, Array]) -> list[Kernel]:
    """The kernels that name nodes of the model, each with what it may have written in a run of these inputs."""
    nodes = list(model.graph.node)
    known = {t.name: t for t in model.graph.initializer} | dict(feeds)
    index = bindings(nodes)
    mine = [sorted({index[n] for n in s.nodes if n in index}) for s in seen]
    times = Counter(i for inside in mine for i in inside)
    readers: dict[str, set[int]] = {o.name: {-1} for o in model.graph.output}
    for i, node in enumerate(nodes):
        for name in node.input:
            readers.setdefault(name, set()).add(i)
    found = []
    for one, inside in zip(seen, mine, strict=True):
        if inside and one.array is not None:
            group = {i for i in inside if times[i] == 1}  # another kernel may be the one that computes a node of both
            inner = {o for i in inside for o in nodes[i].output if readers.get(o, {-1}) <= group}
            products = {nodes[i].output[0] for i in inside if nodes[i].op_type in HEAVY}
            names = set(candidates(nodes, inside, times)) - inner
            shared = {o for i in inside if times[i] > 1 for o in nodes[i].output}
            biases = {
                n: b
                for i in inside
                if (n := nodes[i].output[0]) in names and (b := bias_of(nodes[i], known)) is not None
            }
            flips = any(attribute.name in FLIPS and attribute.i for i in inside for attribute in nodes[i].attribute)
            strides = {s for i in inside if (s := strides_of(nodes[i]))}
            found += [
                Kernel(part, set(names), set(products), biases, shared, flips=flips, strides=strides)
                for part in side_by_side(model, one, inside)
            ]
    return found


def strides_of(node: Any) -> tuple[int, ...]:
    """Those of a transposed convolution; () where all are 1, and for other nodes."""
    found = next((tuple(a.ints) for a in node.attribute if a.name == "strides"), ())
    return found if node.op_type == "ConvTranspose" and any(stride > 1 for stride in found) else ()


def with_views(model: Any, kernels: Sequence[Kernel], right: set[str]) -> set[str]:
    """These tensors, and those that have the same numbers in another shape or order: what no kernel computes."""
    named, found = {name for k in kernels for name in k.seen.nodes}, set(right)
    for node in model.graph.node:
        if node.op_type in VIEWS and node.input[0] in found and node_name(node) not in named:
            found.add(node.output[0])
    return found


def bias_of(node: Any, known: Mapping[str, Any]) -> Array | None:
    """What a convolution or Gemm adds to its product, in a shape that broadcasts; None where it is computed.

    Args:
        known: weights of the model, as tensors, and its inputs, as arrays.
    """
    from tvmopt.importer.external import array_of

    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 3 or node.input[2] not in known:
        return None
    given = known[node.input[2]]
    bias: Array = np.asarray(array_of(given) if hasattr(given, "dims") else given).astype(np.float64)
    if node.op_type == "Gemm":
        return bias * next((a.f for a in node.attribute if a.name == "beta"), 1.0)
    kernel = known.get(node.input[1])
    rank = 0 if kernel is None else kernel.ndim if isinstance(kernel, np.ndarray) else len(kernel.dims)
    return bias.reshape(1, -1, *(1,) * (rank - 2)) if rank > 2 else None


def side_by_side(model: Any, seen: Seen, inside: Sequence[int]) -> list[Seen]:
    """A result in its parts, where a kernel computes several products of one input as one (query, key and value)."""
    widths = {t.name: t.dims[-1] for t in model.graph.initializer if len(t.dims) > 1}
    heavy = [n for n in (model.graph.node[i] for i in inside) if n.op_type in HEAVY and len(n.input) > 1]
    sizes = [widths.get(n.input[1], 0) for n in heavy]
    if len(sizes) < 2 or not all(sizes) or seen.array.ndim == 0 or sum(sizes) != seen.array.shape[-1]:
        return [seen]
    return [replace(seen, array=part) for part in np.split(seen.array, np.cumsum(sizes)[:-1], -1)]
