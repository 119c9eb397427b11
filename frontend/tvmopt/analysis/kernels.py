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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.deviation import (
    SLOPE,
    decided,
    deviation,
    has_nan,
    largest,
    limits_of,
    misplaced,
    nearly,
    ranged,
    slope,
    spread,
)
from tvmopt.analysis.doubles import Doubles
from tvmopt.analysis.grids import Grids
from tvmopt.analysis.observe import Seen, bindings, candidates, fitted
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.overflow import LARGEST, Undecided
from tvmopt.analysis.oracle.rounding import HEAVY, Recorder, Rounded, arithmetic_of, completed, nudges, roundings
from tvmopt.analysis.oracle.values import UNLIMITED, Arithmetic, Value, is_real, limit
from tvmopt.analysis.ties import choices

ALIKE = 0.5
"""The relative error of a result that may still be the tensor it is compared with."""
WORSE = 1.01
"""How much larger the next tensors' errors may be with a kernel's own numbers: what is behind a softmax hardly shows
its scores. Numbers that are another tensor's make them much larger."""

GUESSED = 0.8
"""Where it is a guess which tensor the next kernel wrote: by how much nearer its result must come, in squares of
distances, as a share of what a kernel's own numbers change there. It is 1 where that change is part of what is wrong,
and 0 on average where neither is the tensor that it resembles: inputs around 1000 all resemble each other."""
MOSTLY = 0.9
"""The share of a tensor's elements that are right where a kernel wrote it for certain."""
SHOWN = 0.05
"""The least that a kernel's own numbers must change the next tensors by, in units of what is unexplained there."""
LEANING = 2.0
"""How many times the share of a product may be that runs which only round are off by."""

FLIPS = ("select_last_index", "reverse")
"""Attributes by which an operator reads its input from the end: the last of equal scores, a sum from behind."""
PLAIN = " before its bias"
"""Marks a product without the bias that its node adds to it: that may be the next kernel's."""


@dataclass
class Kernel:
    """One kernel's call, and the tensor it wrote, once that is known.

    Attributes:
        biases: of products among `names`, in a shape that broadcasts.
        names: tensors that it may have written. products: results of matrix products and convolutions in it.
        shared: those that another kernel may have completed: a bias may be the next kernel's.
        comparison: of what it wrote with that tensor.
        output: one that has these numbers, right or not, in another layout or type.
        flips: it may have written a tensor from its end to its beginning along an axis, for the next kernel.
        alike: relative errors of the tensors that its result resembles, though it differs from each; `unlike` of those
            that it does not resemble.
    """

    seen: Seen
    names: set[str]
    products: set[str]
    biases: Mapping[str, Array] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    tensor: str = ""
    comparison: OutputComparison | None = None
    output: str = ""
    alike: dict[str, float] = field(default_factory=dict)
    unlike: dict[str, float] = field(default_factory=dict)
    flips: bool = False

    @property
    def likeliest(self) -> str:
        """The tensor that it ought to have written, as far as that can be told; empty where it cannot."""
        return min(self.alike, key=self.alike.__getitem__, default="")

    def placed(self, exact: Array) -> tuple[Array, float]:
        """(Its result in the layout of a tensor, the mean error of a sample). Kernels that multiply bytes keep int8 as
        uint8, 128 higher, and the second operand's uint8 as int8, 128 lower.
        """
        found = self.seen.array
        if {found.dtype, exact.dtype} == {np.dtype(np.uint8), np.dtype(np.int8)}:
            found = (found.view(np.uint8) ^ np.uint8(128)).view(exact.dtype)
        placed, error = fitted(exact, found)
        for axis in (a for a, size in enumerate(exact.shape) if self.flips and size > 1):
            turned, other = fitted(np.flip(exact, axis), found)
            placed, error = (np.flip(turned, axis), other) if other < error else (placed, error)
        return np.ascontiguousarray(placed).reshape(placed.shape), error  # it is read a dozen times

    def forms(self, name: str, array: Array) -> dict[str, Array]:
        """What it may have written of a tensor: the tensor, or a product before its bias."""
        if name not in self.biases:
            return {name: array}
        return {name: array, name + PLAIN: array - self.biases[name].astype(array.dtype)}

    def tensor_of(self, form: str, found: Array) -> Array:
        """The whole tensor, where `found` is a form of it."""
        name = form.removesuffix(PLAIN)
        return found if form == name else found + self.biases[name].astype(found.dtype)

    @property
    def title(self) -> str:
        return f"{self.seen.symbol} ({' + '.join(self.seen.nodes)})"


@dataclass
class Walk:
    """One pass of the oracle along the kernels: sees each tensor as it is made."""

    precision: str
    outputs: Mapping[str, Array]
    kernels: Sequence[Kernel]
    grids: Grids
    doubles: Doubles
    skipped: Collection[str] = ()
    spreads: bool = False
    taken: dict[str, Value] = field(default_factory=dict)
    wrong: dict[str, OutputComparison] = field(default_factory=dict)
    products: dict[str, Array] = field(default_factory=dict)
    agreed: int = 0

    def __post_init__(self) -> None:
        self.inside = {n for k in self.kernels for n in k.products}

    def __call__(self, name: str, value: Value) -> Value | None:
        self.doubles.see(name, value)
        if not isinstance(value.array, np.ndarray) or value.array.dtype.kind not in "fiub":
            return None
        if name in self.inside:
            self.products[name] = value.array
        replaced = self._agreed(name, value)
        self.grids.see(name, value.array if replaced is None else replaced.array, self.taken)
        return replaced

    def begin(self, feeds: Mapping[str, Array]) -> None:
        """Find the kernels that only bring an input into another layout."""
        for name, array in feeds.items():
            for kernel in self.kernels:
                if not kernel.tensor and name in kernel.names and kernel.seen.array.size == array.size > 1:
                    self._kernel(kernel, name, Value(array, array.dtype))
                    kernel.alike.clear()
                    kernel.unlike.clear()

    def _agreed(self, name: str, value: Value) -> Value | None:
        if name in self.outputs:
            self._recognise(name, value)
            return self._output(name, value)
        if value.array.size < 2 or name in self.skipped:
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
        one = self.compared(name, value.array, found, value.kind)
        writers = [k for k in self.kernels if not k.tensor and name in k.names and k.seen.array.size == found.size]
        for kernel in writers[-1:]:
            kernel.tensor, kernel.comparison = name, one
        if not one.ok:
            self.wrong[name] = one
            return None
        self.agreed += 1
        return self._take(name, found, value)

    def _recognise(self, name: str, value: Value) -> None:
        """Kernels that wrote this output in another layout: they wrote no tensor before it."""
        for kernel in self.kernels:
            found = kernel.seen.array
            if kernel.tensor or name not in kernel.names or found.size != value.array.size:
                continue
            if (found.dtype.kind in "iub") == (value.array.dtype.kind in "iub"):
                placed, _ = fitted(value.array, found)
                one = self.compared(name, value.array, placed, value.kind)
                if one.ok:
                    kernel.tensor, kernel.comparison = name, one
                elif self.compared(name, self.outputs[name].astype(value.array.dtype), placed, value.kind).ok:
                    kernel.output = name

    def _kernel(self, kernel: Kernel, name: str, value: Value) -> Value | None:
        found = kernel.seen.array
        if (found.dtype.kind in "iub") != (value.array.dtype.kind in "iub"):
            return None
        agreeing: dict[str, tuple[float, Array, OutputComparison]] = {}
        for form, exact in kernel.forms(name, value.array).items():
            if agreeing and not self._completed(kernel, name):
                break
            placed, error = kernel.placed(exact)
            scale = mean_size(exact)
            if error > ALIKE * scale and error > 0:
                kernel.unlike[form] = error / (scale or 1.0)
                continue
            one = self.compared(form, exact, placed, value.kind)
            if name not in self.grids:  # steps are exact, or free
                one = along(
                    one, exact, placed, [self.products.get(p) for p in kernel.products], self.precision, value.kind
                )
            if one.ok:
                agreeing[form] = error, placed, one
            else:
                kernel.alike[form] = error / (scale or 1.0)
        if not agreeing:
            return None
        form = min(agreeing, key=lambda f: agreeing[f][0])
        kernel.tensor, kernel.comparison = name, agreeing[form][2]
        self.agreed += 1
        for product in kernel.products:
            self.products.pop(product, None)
        # integers are what they are, whoever wrote them; numbers may yet get a bias that is within their tolerance
        if form == name and value.array.dtype.kind == "f" and self._completed(kernel, name):
            return None
        return self._take(name, kernel.tensor_of(form, agreeing[form][1]), value)

    def _completed(self, kernel: Kernel, name: str) -> bool:
        """Whether another kernel may have written this tensor of both, or be the one that completes it."""
        return name in kernel.shared and any(
            k is not kernel and name in k.shared and k.tensor in ("", name) for k in self.kernels
        )

    def compared(
        self, name: str, exact: Array, found: Array, kind: Any, naturals: Sequence[Array] = ()
    ) -> OutputComparison:
        """A tensor in steps, where it is on a grid, else within the limits of the precision."""
        if name in self.grids and (name not in self.grids.source or self.precision == "fp32"):
            return self.grids.compared(name, exact, found, naturals)
        found = spread(exact, found) if self.spreads else found
        kind = self.doubles.kind(name.removesuffix(PLAIN), kind)
        return deviation(name, exact, found, limits_of(self.precision, kind), naturals)

    def _take(self, name: str, found: Array, value: Value) -> Value:
        self.taken[name] = Value(found, value.kind)
        return Value(found.astype(value.array.dtype) if is_real(value.kind) else found, value.kind)


def in_range(taken: Mapping[str, Value]) -> dict[str, Value]:
    """Those tensors that nothing overflowed in: what a kernel stores as infinite another may read from a register."""
    return {n: v for n, v in taken.items() if not is_real(v.kind) or bool(np.isfinite(v.array).all())}


def mean_size(array: Array) -> float:
    """The mean of the finite numbers' sizes, each at most 1e30.

    >>> mean_size(np.array([-3, 1, np.inf])), mean_size(np.array([1e38, 1], np.float32)) == 5e29
    (2.0, True)
    """
    if not array.size:
        return 0.0
    with np.errstate(all="ignore"):
        total = float(np.abs(array).sum(dtype=np.float64)) if array.dtype.kind == "f" else np.inf
    if total < 1e30:  # all of them are finite, and smaller
        return total / array.size
    sizes = np.abs(array.astype(np.float64))
    return float(np.mean(np.minimum(sizes, 1e30), where=np.isfinite(sizes)))


def along(
    one: OutputComparison, exact: Array, found: Array, products: Iterable[Array | None], precision: str, kind: Any,
    naturals: Sequence[Array] = (),
) -> OutputComparison:  # fmt: skip
    """The comparison, failed where the error is a share of a product that the kernel computes.

    Args:
        kind: the type that the result is stored in.
        naturals: of runs that only round: where a few large numbers make most of a product, or a bias most of the
            result, rounding has a direction, too.
    """
    if not one.ok or exact.dtype.kind != "f":
        return one
    epsilon = float(ml_dtypes.finfo(kind).eps) if is_real(kind) and kind.itemsize < 4 else 0.0
    for product in products:
        share = slope(exact, found, product, epsilon) if product is not None else 0.0
        if product is None or abs(share) <= SLOPE.get(precision, SLOPE["fp32"]):
            continue
        usual = max((abs(slope(exact, n, product, epsilon)) for n in naturals), default=0.0)
        if abs(share) > LEANING * usual:
            return replace(one, problem=f"differs by {share:.2%} of its product")
    return one


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
    model: Any, feeds: Mapping[str, Array], outputs: Mapping[str, Array], seen: Sequence[Seen], precision: str
) -> Found:
    """Compare every kernel's result that is a tensor of the model.

    Args:
        model: prepared: the graph whose nodes the kernels name.
        outputs: of the compiled model in the same run.
    """
    kernels = kernels_of(model, seen)
    grids = Grids.of(model, limits_of(precision, np.dtype(np.float32)))
    chosen = choices(model)  # the judge of the outputs asks their scores
    spreads = any(is_real(a.dtype) and np.isnan(a).any() for a in outputs.values()) and has_nan(model)
    oracle = Oracle(model, Arithmetic(np.float32))
    told = {n: a for n, a in outputs.items() if n not in chosen}
    walk = Walk(precision, told, kernels, grids, Doubles(oracle.graph), set(chosen), spreads)
    walk.begin(feeds)
    oracle.run(feeds, observe=walk)
    if walk.wrong:  # some kernel may be wrong beyond recognition
        for kernel in kernels:
            kernel.alike = kernel.alike or kernel.unlike
    right = {k.tensor for k in kernels} - {*walk.wrong, ""}  # who resembles these wrote something on the way to them
    for kernel in kernels:
        kernel.alike = {form: e for form, e in kernel.alike.items() if form.removesuffix(PLAIN) not in right}
    suspects = {k.likeliest.removesuffix(PLAIN): k for k in kernels if not k.tensor and k.likeliest}
    wrong: list[OutputComparison] = []
    title = ""
    if walk.wrong or suspects:
        again = _Measured(model, feeds, precision, walk, suspects)
        outputs_again = {name: again.compared(name) for name in walk.wrong}
        for kernel in kernels:
            kernel.comparison = outputs_again.get(kernel.tensor, kernel.comparison)
        wrong = [one for one in outputs_again.values() if not one.ok]
        guilty = again.guilty()
        wrong = [again.output(w.name) for w in wrong]
        wrong = [one for one in wrong if not one.ok]
        if guilty is not None:
            kernel, title = suspects[guilty], suspects[guilty].title
            kernel.tensor, kernel.comparison = guilty, again.written(kernel.likeliest, kernel)
            wrong = [kernel.comparison, *(w for w in wrong if w.name != guilty)]
    calls = [Written(k.seen.symbol, k.seen.nodes, k.seen.weights, k.tensor, k.comparison) for k in kernels]
    return Found(tuple(wrong), title, walk.agreed, tuple(calls))


def kernels_of(model: Any, seen: Sequence[Seen]) -> list[Kernel]:
    """The kernels that name nodes of the model, each with what it may have written."""
    nodes = list(model.graph.node)
    constants = {t.name: t for t in model.graph.initializer}
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
                if (n := nodes[i].output[0]) in names and (b := bias_of(nodes[i], constants)) is not None
            }
            flips = any(attribute.name in FLIPS and attribute.i for i in inside for attribute in nodes[i].attribute)
            found += [
                Kernel(part, set(names), set(products), biases, shared, flips=flips)
                for part in side_by_side(model, one, inside)
            ]
    return found


def bias_of(node: Any, constants: Mapping[str, Any]) -> Array | None:
    """What a convolution or Gemm adds to its product, in a shape that broadcasts; None where it is no constant."""
    from tvmopt.importer.external import array_of

    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 3 or node.input[2] not in constants:
        return None
    bias: Array = array_of(constants[node.input[2]]).astype(np.float64)
    if node.op_type == "Gemm":
        return bias * next((a.f for a in node.attribute if a.name == "beta"), 1.0)
    rank = len(constants[node.input[1]].dims) if node.input[1] in constants else 0
    return bias.reshape(1, -1, *(1,) * (rank - 2)) if rank > 2 else None


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
        alike = {form.removesuffix(PLAIN) for k in suspects.values() for form in k.alike}
        products = {p for k in suspects.values() for p in k.products if p in self.order}
        self.wanted = {*walk.wrong, *alike, *behind, *products}
        self.kinds: dict[str, Any] = {}
        self.found = {n: v.array for n, v in walk.taken.items()} | {n: walk.outputs[n] for n in walk.wrong}
        self.edges: dict[str, list[Any]] = {}
        self.exact = self._exact(walk.taken, keep=True)
        self.found |= {name: self._written(name, kernel) for name, kernel in suspects.items()}
        # runs that round read the integers of suspects as they ought to be: a step at an edge of theirs is no rounding
        # of what is behind, and quantised again and again it becomes any number of steps
        whole = {n: Value(self.exact[n], self.kinds[n]) for n in suspects if self.exact[n].dtype.kind in "iu"}
        self.known = {**walk.taken, **whole}
        self.naturals = self._rounded()
        self._all = False
        self.right: dict[str, Value] = {}  # what suspects wrote that turned out to be right

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

    def _exact(self, taken: Mapping[str, Value], keep: bool = False) -> dict[str, Array]:
        """Tensors in float64, each from the compiled model's numbers before it."""
        recorder = Recorder(self.model)
        made = self._run(recorder, taken)
        if keep:
            self.edges = recorder.edges
            self.kinds = {n: v.kind for n, v in made.items()}
        return {n: v.array for n, v in made.items()}

    def _rounded(self) -> list[dict[str, Array]]:
        """The same in runs that only round."""
        return self._through(roundings(self.model, arithmetic_of(self.precision), self.edges, self._allowed))

    @property
    def _allowed(self) -> float:
        return limits_of(self.precision, np.dtype(np.float32)).rms

    def _through(self, runs: Sequence[Rounded], known: Mapping[str, Value] | None = None) -> list[dict[str, Array]]:
        taken = self.known if known is None else known
        return completed(runs, lambda run: {n: v.array for n, v in self._run(run, taken).items()})

    def _more(self) -> bool:
        """Ask further runs that round, once; False where they were asked."""
        if self._all:
            return False
        self.naturals += self._through(nudges(self.model, self.precision, self.edges, self._allowed))
        if any(not np.array_equal(a, self.unlimited[n], equal_nan=True) for n, a in self.exact.items()):
            arithmetic = arithmetic_of(self.precision, wider=True)
            runs = roundings(self.model, arithmetic, self.edges, self._allowed)
            self.naturals += self._through(runs, in_range(self.known))
        self._all = True
        return True

    def _run(self, oracle: Oracle, taken: Mapping[str, Value]) -> dict[str, Value]:
        """The wanted tensors as they are computed; what reads one of `taken` gets the compiled model's."""
        made: dict[str, Value] = {}

        def seen(name: str, value: Value) -> None:
            if name in self.wanted:
                made[name] = value

        oracle.run(self.feeds, self.wanted, seen, taken)
        return made

    def _written(self, name: str, kernel: Kernel) -> Array:
        """The tensor that a kernel likeliest wrote, its bias added where it is the next kernel's."""
        form = kernel.likeliest
        return kernel.tensor_of(form, kernel.placed(kernel.forms(name, self.exact[name])[form])[0])

    @cached_property
    def unlimited(self) -> dict[str, Array]:
        """The wanted tensors as if what lies between had no largest number; that of their own is the one of the type in
        which the compiled model has them."""
        return self._unlimited(in_range(self.walk.taken))

    def _unlimited(self, taken: Mapping[str, Value]) -> dict[str, Array]:
        made = self._run(Oracle(self.model, UNLIMITED), taken)
        kinds = {n: self.found[n].dtype if n in self.found else v.kind for n, v in made.items()}
        return {n: limit(v.array, kinds[n]) if is_real(v.kind) else v.array for n, v in made.items()}

    @cached_property
    def undecided(self) -> dict[str, Array]:
        """The wanted tensors with NaN where the order of a sum that leaves its type decides; as they are, where no
        tensor that is known has numbers of that size."""
        tensors = map(np.asarray, [*self.feeds.values(), *self.exact.values(), *self.found.values()])
        if not any(largest(a) > LARGEST or np.isinf(a).any() for a in tensors if a.dtype.kind == "f"):
            return self.exact
        return {n: v.array for n, v in self._run(Undecided(self.model), self.walk.taken).items()}

    def compared(self, name: str) -> OutputComparison:
        """An output."""
        naturals = [n[name] for n in self.naturals if name in n]
        one = self.walk.compared(name, self.exact[name], self.found[name], self.kinds[name], naturals)
        if not one.ok:
            exact = decided(self.exact[name], self.undecided[name], self.found[name])
            exact = ranged(exact, self.unlimited[name], self.found[name])
            one = self.walk.compared(name, exact, self.found[name], self.kinds[name], naturals)
        if (
            one.problem == "differs" or misplaced(one)
        ) and self._more():  # it is this tensor for certain, however large the difference
            return self.compared(name)
        alone = one if one.ok else self._from_inputs(name, name, self.found[name])
        if alone.ok or name not in self.behind_settled:
            return alone if alone.ok else one
        behind = self.walk.compared(name, self.behind_settled[name], self.found[name], self.kinds[name], naturals)
        return behind if behind.ok else one

    @cached_property
    def behind_settled(self) -> dict[str, Array]:
        """Tensors in float64 from integers that are right only as runs which round are: on the compiled model's side of
        an edge, from where a comparison of bytes goes on without one."""
        settled = {}
        for name, kernel in self.suspects.items():
            if self.exact[name].dtype.kind in "iu" and self.written(kernel.likeliest, kernel).ok:
                settled[name] = Value(self.found[name], self.kinds[name])
        return self._exact({**self.walk.taken, **settled}) if settled else {}

    @cached_property
    def alone(self) -> dict[str, Array]:
        """Tensors in float64, from the model's inputs and nothing that a kernel wrote."""
        return self._exact({})

    @cached_property
    def alone_unlimited(self) -> dict[str, Array]:
        """The same as if what lies between had no largest number."""
        return self._unlimited({})

    def _from_inputs(
        self, name: str, form: str, found: Array, forms: Callable[[Array], Array] = lambda a: a
    ) -> OutputComparison:
        """A tensor compared with the oracle from the model's inputs on, without allowance for rounding but that of
        registers where the model has 16 bits: what a kernel wrote need not be what the next one read. A norm may
        compute for itself the mean that another kernel writes, and keep more digits of it; so may attention the scores
        that are an output in 16 bits."""
        kind = self.kinds[name]
        one = self.walk.compared(form, forms(self.alone[name]), found, kind)
        if not one.ok and is_real(kind) and kind.itemsize < 4:
            exact = ranged(forms(self.alone[name]), forms(self.alone_unlimited[name]), found)
            naturals = [forms(n[name]) for n in self.registers if name in n]
            one = self.walk.compared(form, exact, found, kind, naturals)
        return one

    @cached_property
    def registers(self) -> list[dict[str, Array]]:
        """Runs from the model's inputs on that round to float32 and never to 16 bits."""
        arithmetic = Arithmetic(np.float32, limits=False)
        return self._through(roundings(self.model, arithmetic, self.edges, self._allowed), {})

    def written(self, form: str, kernel: Kernel) -> OutputComparison:
        """What a kernel wrote, if that is this form of a tensor."""
        name = form.removesuffix(PLAIN)
        found = kernel.placed(kernel.forms(name, self.exact[name])[form])[0]
        one = self._one(form, kernel, self.exact, self.naturals)
        if not one.ok:
            ought, free, open_ = (
                kernel.forms(name, a[name])[form] for a in (self.exact, self.unlimited, self.undecided)
            )
            ought = ranged(decided(ought, open_, found), free, found)
            naturals = [kernel.forms(name, n[name])[form] for n in self.naturals if name in n]
            one = self.walk.compared(form, ought, found, self.kinds[name], naturals)
        if (nearly(one) or misplaced(one)) and self._more():
            return self.written(form, kernel)
        if name in self.walk.grids:
            return one
        alone = one if one.ok else self._from_inputs(name, form, found, lambda a: kernel.forms(name, a)[form])
        leaning = self._leaning(form, kernel, alone if alone.ok else one, self.exact, self.naturals)
        return self.written(form, kernel) if leaning.ok < one.ok and self._more() else leaning

    def _one(
        self, form: str, kernel: Kernel, exact: Mapping[str, Array], naturals: Sequence[Mapping[str, Array]]
    ) -> OutputComparison:
        name = form.removesuffix(PLAIN)
        ought = kernel.forms(name, exact[name])[form]
        samples = [kernel.forms(name, n[name])[form] for n in naturals if name in n]
        return self.walk.compared(form, ought, kernel.placed(ought)[0], self.kinds[name], samples)

    def _leaning(
        self, form: str, kernel: Kernel, one: OutputComparison, exact: Mapping[str, Array],
        naturals: Sequence[Mapping[str, Array]],
    ) -> OutputComparison:  # fmt: skip
        name = form.removesuffix(PLAIN)
        ought = kernel.forms(name, exact[name])[form]
        samples = [kernel.forms(name, n[name])[form] for n in naturals if name in n]
        products = [exact.get(p) for p in kernel.products]
        return along(one, ought, kernel.placed(ought)[0], products, self.precision, self.kinds[name], samples)

    def _behind_right(self) -> tuple[dict[str, Array], list[dict[str, Array]]]:
        """(Tensors in float64, runs that only round) from what the kernels before them wrote - those too that are right
        only as runs which round are: behind twenty layers in 16 bits a few runs do not show all that the last ones may
        make of the errors of the first ones."""
        known, recorder = {**self.walk.taken, **self.right}, Recorder(self.model)
        exact = {n: v.array for n, v in self._run(recorder, known).items()}
        runs = roundings(self.model, arithmetic_of(self.precision), recorder.edges, self._allowed)
        return exact, self._through(runs, known)

    def output(self, name: str) -> OutputComparison:
        """An output, from what the kernels before it wrote, once :meth:`guilty` knows which of them are right."""
        one = self.compared(name)
        if one.ok or not self.right:
            return one
        exact, naturals = self._behind_right()
        samples = [n[name] for n in naturals if name in n]
        behind = self.walk.compared(name, exact[name], self.found[name], self.kinds[name], samples)
        return behind if behind.ok else one

    def _tried(self, kernel: Kernel) -> dict[str, OutputComparison]:
        """What a kernel wrote, as each form of a tensor that it may be."""
        tried = {form: self.written(form, kernel) for form in kernel.alike}
        if self.right and tried and not any(one.ok for one in tried.values()):
            exact, naturals = self._behind_right()
            for form in tried:
                tried[form] = self._leaning(form, kernel, self._one(form, kernel, exact, naturals), exact, naturals)
        return tried

    def _rounding(self, name: str) -> float:
        """What runs that only round change of a tensor of floats, at most; nothing of integers, which fit exactly."""
        if self.exact[name].dtype.kind != "f":
            return 0.0
        return max((_distance(self.exact[name], n[name]) for n in self.naturals if name in n), default=0.0)

    def guilty(self) -> str | None:
        """The first kernel's tensor that is written wrongly, as those behind it show."""
        for name in sorted(self.suspects, key=lambda n: self.order.get(n, -1)):
            kernel = self.suspects[name]
            if kernel.output and self.compared(kernel.output).ok:
                continue
            tried = self._tried(kernel)
            right = next((form for form, one in tried.items() if one.ok), "")
            if right:
                kernel.tensor, kernel.comparison = right.removesuffix(PLAIN), tried[right]
                placed = kernel.placed(kernel.forms(kernel.tensor, self.exact[kernel.tensor])[right])[0]
                self.right[kernel.tensor] = Value(kernel.tensor_of(right, placed), self.kinds[kernel.tensor])
            if right or not self.frontier[name]:
                continue
            own = self._exact({**self.walk.taken, name: Value(self.found[name], self.kinds[name])})
            for next_one in self.frontier[name]:
                ought = _distance(self.exact[next_one], self.found[next_one])
                changed, rest = (_distance(own[next_one], t[next_one]) for t in (self.exact, self.found))
                # what shows nothing of it (a saturated softmax, an element that a pool drops, numbers whose sizes alone
                # are added up) says nothing of a guess
                least = max(SHOWN * ought, LEANING * self._rounding(next_one))
                if changed <= least and not _mostly(self.exact[name], self.found[name]):
                    continue
                if next_one in self.suspects:
                    fits = rest**2 <= ought**2 - GUESSED * changed**2
                else:
                    fits = rest <= WORSE * ought  # integers fit exactly
                if fits and ought > 0:
                    return name
        return None


def _mostly(exact: Array, found: Array) -> bool:
    """Whether nine in ten elements are the tensor's: then it is that tensor, with a few wrong elements."""
    a, b = exact.astype(np.float64), found.astype(np.float64)
    scale = float(np.sqrt(np.mean(np.square(a[np.isfinite(a)])))) if np.isfinite(a).any() else 0.0
    return bool(np.isclose(b, a, rtol=1e-4, atol=1e-6 * scale, equal_nan=True).mean() > MOSTLY)


def _distance(exact: Array, found: Array) -> float:
    """The rms of the difference, over elements finite in both."""
    with np.errstate(all="ignore"):
        error = np.square(found.astype(np.float64) - exact.astype(np.float64))
    error = error[np.isfinite(error)]
    return float(np.sqrt(error.mean())) if error.size else 0.0
