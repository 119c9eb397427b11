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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.deviation import SLOPE, deviation, limits_of, slope
from tvmopt.analysis.observe import Seen, bindings, candidates, fitted
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.rounding import HEAVY, Recorder, Rounded, arithmetic_of
from tvmopt.analysis.oracle.values import Arithmetic, Value, is_real

ALIKE = 0.5
"""The relative error of a result that may still be the tensor it is compared with."""
WORSE = 1.01
"""How much larger the next tensors' errors may be with a kernel's own numbers: what is behind a softmax hardly shows
its scores. Numbers that are another tensor's make them much larger."""


@dataclass
class Kernel:
    """One kernel's call, and the tensor it wrote, once that is known.

    Attributes:
        names: tensors that it may have written. products: results of matrix products and convolutions in it.
        shared: those that another kernel may have completed: a bias may be the next kernel's.
        alike: relative errors of the tensors that its result resembles, though it differs from each.
    """

    seen: Seen
    names: set[str]
    products: set[str]
    shared: set[str] = field(default_factory=set)
    tensor: str = ""
    alike: dict[str, float] = field(default_factory=dict)

    @property
    def likeliest(self) -> str:
        """The tensor that it ought to have written, as far as that can be told; empty where it cannot."""
        return min(self.alike, key=self.alike.__getitem__, default="")

    @property
    def title(self) -> str:
        return f"{self.seen.symbol} ({' + '.join(self.seen.nodes)})"


@dataclass
class Walk:
    """One pass of the oracle along the kernels: sees each tensor as it is made."""

    precision: str
    outputs: Mapping[str, Array]
    kernels: Sequence[Kernel]
    taken: dict[str, Array] = field(default_factory=dict)
    wrong: dict[str, OutputComparison] = field(default_factory=dict)
    products: dict[str, Array] = field(default_factory=dict)
    agreed: int = 0

    def __post_init__(self) -> None:
        self.inside = {n for k in self.kernels for n in k.products}

    def __call__(self, name: str, value: Value) -> Value | None:
        if not isinstance(value.array, np.ndarray) or value.array.dtype.kind not in "fiub":
            return None
        if name in self.inside:
            self.products[name] = value.array
        if name in self.outputs:
            return self._output(name, value)
        if value.array.size < 2:
            return None
        for kernel in self.kernels:
            if not kernel.tensor and name in kernel.names and kernel.seen.array.size == value.array.size:
                agreed = self._kernel(kernel, name, value)
                if agreed is not None:
                    return agreed
        return None

    def _output(self, name: str, value: Value) -> Value | None:
        found = self.outputs[name]
        if found.shape != value.array.shape:
            return None  # the comparison of the outputs tells it
        one = deviation(name, value.array, found, limits_of(self.precision, value.kind))
        if not one.ok:
            self.wrong[name] = one
            return None
        self.agreed += 1
        return self._take(name, found, value)

    def _kernel(self, kernel: Kernel, name: str, value: Value) -> Value | None:
        found = kernel.seen.array
        if (found.dtype.kind in "iub") != (value.array.dtype.kind in "iub"):
            return None
        placed, error = fitted(value.array, found)
        sizes = np.abs(value.array.astype(np.float64))
        scale = float(np.mean(np.minimum(sizes, 1e30), where=np.isfinite(sizes))) if sizes.size else 0.0
        if error > ALIKE * scale and error > 0:
            return None
        one = deviation(name, value.array, placed, limits_of(self.precision, value.kind))
        one = along(one, value.array, placed, [self.products.get(p) for p in kernel.products], self.precision)
        if not one.ok:
            kernel.alike[name] = error / (scale or 1.0)
            return None
        kernel.tensor = name
        self.agreed += 1
        for product in kernel.products:
            self.products.pop(product, None)
        return None if name in kernel.shared else self._take(name, placed, value)

    def _take(self, name: str, found: Array, value: Value) -> Value:
        self.taken[name] = found
        return Value(found.astype(value.array.dtype) if is_real(value.kind) else found, value.kind)


def along(
    one: OutputComparison, exact: Array, found: Array, products: Iterable[Array | None], precision: str
) -> OutputComparison:
    """The comparison, failed where the error is a share of a product that the kernel computes."""
    if not one.ok or exact.dtype.kind != "f":
        return one
    for product in products:
        share = slope(exact, found, product) if product is not None else 0.0
        if abs(share) > SLOPE.get(precision, SLOPE["fp32"]):
            return replace(one, problem=f"differs by {share:.2%} of its product")
    return one


@dataclass(frozen=True)
class Found:
    """What the walk says.

    Attributes:
        wrong: tensors with a wrong value, outputs and kernels' results.
        kernel: the first kernel that is wrong, with its nodes.
        compared: how many tensors were.
    """

    wrong: tuple[OutputComparison, ...] = ()
    kernel: str = ""
    compared: int = 0


def check_kernels(
    model: Any, feeds: Mapping[str, Array], outputs: Mapping[str, Array], seen: Sequence[Seen], precision: str
) -> Found:
    """Compare every kernel's result that is a tensor of the model.

    Args:
        model: prepared: the graph whose nodes the kernels name.
        outputs: of the compiled model in the same run.
    """
    kernels = kernels_of(model, seen)
    walk = Walk(precision, outputs, kernels)
    Oracle(model, Arithmetic(np.float32)).run(feeds, observe=walk)
    suspects = {k.likeliest: k for k in kernels if not k.tensor and k.likeliest}
    if not walk.wrong and not suspects:
        return Found(compared=walk.agreed)
    again = _Measured(model, feeds, precision, walk, suspects)
    wrong = [one for one in map(again.compared, walk.wrong) if not one.ok]
    guilty = again.guilty()
    if guilty is not None:
        wrong = [again.compared(guilty, suspects[guilty]), *(w for w in wrong if w.name != guilty)]
        return Found(tuple(wrong), suspects[guilty].title, walk.agreed)
    return Found(tuple(wrong), compared=walk.agreed)


def kernels_of(model: Any, seen: Sequence[Seen]) -> list[Kernel]:
    """The kernels that name nodes of the model, each with what it may have written."""
    nodes = list(model.graph.node)
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
            found += [Kernel(part, set(names), set(products), shared) for part in side_by_side(model, one, inside)]
    return found


def side_by_side(model: Any, seen: Seen, inside: Sequence[int]) -> list[Seen]:
    """A result in its parts, where a kernel computes several products of one input as one (query, key and value)."""
    widths = {t.name: t.dims[-1] for t in model.graph.initializer if len(t.dims) > 1}
    heavy = [n for n in (model.graph.node[i] for i in inside) if n.op_type in HEAVY and len(n.input) > 1]
    sizes = [widths.get(n.input[1], 0) for n in heavy]
    if len(sizes) < 2 or not all(sizes) or seen.array.ndim == 0 or sum(sizes) != seen.array.shape[-1]:
        return [seen]
    return [replace(seen, array=part) for part in np.split(seen.array, np.cumsum(sizes)[:-1], -1)]


class _Measured:
    """The second and third pass: float64, and runs that only round."""

    def __init__(
        self, model: Any, feeds: Mapping[str, Array], precision: str, walk: Walk, suspects: Mapping[str, Kernel]
    ) -> None:
        self.model, self.feeds, self.precision, self.walk, self.suspects = model, feeds, precision, walk, suspects
        self.order = {o: i for i, n in enumerate(model.graph.node) for o in n.output}
        self.frontier = {name: self._behind(name) for name in suspects}
        behind = {n for names in self.frontier.values() for n in names}
        alike = {n for k in suspects.values() for n in k.alike}
        products = {p for k in suspects.values() for p in k.products if p in self.order}
        self.wanted = {*walk.wrong, *alike, *behind, *products}
        self.kinds: dict[str, Any] = {}
        self.found = {**walk.taken, **{n: walk.outputs[n] for n in walk.wrong}}
        self.edges: dict[str, list[Any]] = {}
        self.exact = self._exact(walk.taken, keep=True)
        self.found |= {name: fitted(self.exact[name], k.seen.array)[0] for name, k in suspects.items()}
        self.naturals = [self._rounded(sign) for sign in (1, -1)]

    def _behind(self, name: str) -> list[str]:
        """The next tensors behind this one whose values of the compiled model are known."""
        known = {*self.walk.taken, *self.walk.wrong, *self.suspects}
        front, found = {name}, []
        for node in self.model.graph.node:
            if front & set(node.input):
                for output in node.output:
                    if output in known:
                        found.append(output)
                    else:
                        front.add(output)
        return found

    def _exact(self, taken: Mapping[str, Array], keep: bool = False) -> dict[str, Array]:
        """Tensors in float64 as they are computed, each from the compiled model's numbers before it."""
        made: dict[str, Array] = {}

        def replaced(name: str, value: Value) -> Value | None:
            self.kinds[name] = value.kind
            if name in self.wanted:
                made[name] = value.array
            return Value(taken[name].astype(value.array.dtype), value.kind) if name in taken else None

        recorder = Recorder(self.model)
        recorder.run(self.feeds, observe=replaced)
        if keep:
            self.edges = recorder.edges
        return made

    def _rounded(self, sign: int) -> dict[str, Array]:
        made: dict[str, Array] = {}
        taken = self.walk.taken

        def replaced(name: str, value: Value) -> Value | None:
            if name in self.wanted:
                made[name] = value.array
            return Value(taken[name].astype(value.array.dtype), value.kind) if name in taken else None

        Rounded(self.model, arithmetic_of(self.precision), self.edges, sign).run(self.feeds, observe=replaced)
        return made

    def compared(self, name: str, kernel: Kernel | None = None) -> OutputComparison:
        """An output, or what a kernel would have written if it is this tensor."""
        exact = self.exact[name]
        found = self.found[name] if kernel is None else fitted(exact, kernel.seen.array)[0]
        naturals = [n[name] for n in self.naturals if name in n]
        one = deviation(name, exact, found, limits_of(self.precision, self.kinds[name]), naturals)
        products = [self.exact.get(p) for p in kernel.products] if kernel else []
        return along(one, exact, found, products, self.precision)

    def guilty(self) -> str | None:
        """The first kernel's tensor that is written wrongly, as those behind it show."""
        for name in sorted(self.suspects, key=lambda n: self.order.get(n, -1)):
            kernel = self.suspects[name]
            if not self.frontier[name] or any(self.compared(n, kernel).ok for n in kernel.alike):
                continue
            own = self._exact({**self.walk.taken, name: self.found[name]})
            for next_one in self.frontier[name]:
                ought = _distance(self.exact[next_one], self.found[next_one])
                if 0 < _distance(own[next_one], self.found[next_one]) <= WORSE * ought:
                    return name
        return None


def _distance(exact: Array, found: Array) -> float:
    """The rms of the difference, over elements finite in both."""
    with np.errstate(all="ignore"):
        error = np.square(found.astype(np.float64) - exact.astype(np.float64))
    error = error[np.isfinite(error)]
    return float(np.sqrt(error.mean())) if error.size else 0.0
