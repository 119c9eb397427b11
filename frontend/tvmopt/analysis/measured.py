"""What differed in a walk, measured in float64 and by runs that only round - for `kernels` and `blame`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from onnx import TensorProto

from tvmopt.analysis.comparator import Array, OutputComparison, largest
from tvmopt.analysis.deviation import decided, jumped, limits_of, misplaced, nearly, ranged
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.overflow import Undecided
from tvmopt.analysis.oracle.rounding import Recorder, Rounded, arithmetic_of, completed, nudges, roundings, scattered
from tvmopt.analysis.oracle.values import UNLIMITED, Arithmetic, Value, is_real, limit
from tvmopt.analysis.reading import Reading
from tvmopt.analysis.walk import PLAIN, Kernel, Walk, along
from tvmopt.importer.external import array_of

MOSTLY = 0.9
"""The share of a tensor's elements that are right where a kernel wrote it for certain."""
SMALL = 1e6
"""Where no tensor that is known has larger numbers, no sum between them leaves its type."""
WANDERING = 0.5
"""The share of how far a tensor's numbers lie from their mean by which runs that only round may change them."""


def in_range(taken: Mapping[str, Value]) -> dict[str, Value]:
    """Those tensors that nothing overflowed in: what a kernel stores as infinite another may read from a register."""
    return {n: v for n, v in taken.items() if not is_real(v.kind) or bool(np.isfinite(v.array).all())}


class Measured:
    """The second and third pass: float64, and runs that only round."""

    def __init__(
        self, model: Any, feeds: Mapping[str, Array], precision: str, walk: Walk, suspects: Mapping[str, Kernel]
    ) -> None:
        self.model, self.feeds, self.precision, self.walk, self.suspects = model, feeds, precision, walk, suspects
        self.order = {o: i for i, n in enumerate(model.graph.node) for o in n.output}
        self.frontier = {name: self._behind(name) for name in suspects}
        behind = {n for names in self.frontier.values() for n in names}
        alike = {form.removesuffix(PLAIN) for k in suspects.values() for form in k.alike}
        accused = [*suspects.values(), *(k for k in walk.kernels if k.tensor in walk.wrong)]
        products = {p for k in accused for p in k.products if p in self.order}
        self.wanted = {*walk.wrong, *alike, *behind, *products}
        self.kinds: dict[str, Any] = {}
        self.found = {n: v.array for n, v in walk.taken.items()} | {n: walk.outputs[n] for n in walk.wrong}
        self.edges: dict[str, list[Any]] = {}
        self.exact = self.exactly(walk.taken, keep=True)
        self.found |= {name: self.whole(kernel.likeliest, kernel).array for name, kernel in suspects.items()}
        self.reading = Reading(walk)
        self._behind_read: dict[tuple[int, str], tuple[dict[str, Array], list[dict[str, Array]]] | None] = {}
        # runs that round read the integers of suspects as they ought to be: a step at an edge of theirs is no rounding
        # of what is behind, and quantised again and again it becomes any number of steps. What merely resembles such a
        # tensor was not written: a tie in it is one of the tensor that the kernel did write
        mine = [n for n in suspects if self.exact[n].dtype.kind in "iu" and mostly(self.exact[n], self.found[n])]
        whole = {n: Value(self.exact[n], self.kinds[n]) for n in mine}
        self.known = {**walk.taken, **whole}
        self.naturals = self._rounded()
        self._all = self._scattered = False

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

    def exactly(self, taken: Mapping[str, Value], keep: bool = False, names: Collection[str] = ()) -> dict[str, Array]:
        """Tensors in float64, each from the compiled model's numbers before it; all of them where none is named."""
        recorder = Recorder(self.model)
        made = self._run(recorder, taken, names)
        if keep:
            self.edges = recorder.edges
            self.kinds = {n: v.kind for n, v in made.items()}
        return {n: v.array for n, v in made.items()}

    def _rounded(self) -> list[dict[str, Array]]:
        """The same in runs that only round."""
        return self._through(roundings(self.model, arithmetic_of(self.precision), self.edges, self._allowed, "there"))

    @property
    def _allowed(self) -> float:
        return limits_of(self.precision, np.dtype(np.float32)).rms

    def _through(
        self, runs: Sequence[Rounded], known: Mapping[str, Value] | None = None, names: Collection[str] = ()
    ) -> list[dict[str, Array]]:
        taken = self.known if known is None else known
        return completed(runs, lambda run: {n: v.array for n, v in self._run(run, taken, names).items()})

    def _more(self) -> bool:
        """Ask further runs that round, once; False where they were asked."""
        if self._all:
            return False
        self.naturals += self._through(nudges(self.model, self.precision, self.edges, self._allowed, "there"))
        if self.limited:
            arithmetic = arithmetic_of(self.precision, wider=True)
            runs = roundings(self.model, arithmetic, self.edges, self._allowed, "there")
            self.naturals += self._through(runs, in_range(self.known))
        self._all = True
        return True

    def _sides(self) -> bool:
        """Ask runs that move each input of an edge by itself, once; False where they were asked."""
        if self._scattered:
            return False
        self.naturals += self._through(scattered(self.model, self.precision, self.edges, self._allowed, "there"))
        self._scattered = True
        return True

    def _run(self, oracle: Oracle, taken: Mapping[str, Value], names: Collection[str] = ()) -> dict[str, Value]:
        """These of the wanted tensors, all where none is named, as they are computed; what reads one of `taken` gets
        the compiled model's."""
        made: dict[str, Value] = {}
        wanted = self.wanted.intersection(names) if names else self.wanted

        def seen(name: str, value: Value) -> None:
            if name in wanted:
                made[name] = value

        oracle.run(self.feeds, wanted, seen, taken)
        return made

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
    def limited(self) -> bool:
        """Whether one of them is another one then."""
        return any(not np.array_equal(a, self.unlimited[n], equal_nan=True) for n, a in self.exact.items())

    @cached_property
    def undecided(self) -> dict[str, Array]:
        """The wanted tensors with NaN where the order of a sum that leaves its type decides; as they are, where no
        tensor that is known has numbers that products, of what is not seen between, might make as large."""
        weights = (array_of(t) for t in self.model.graph.initializer if t.data_type == TensorProto.FLOAT)
        tensors = map(np.asarray, chain(self.feeds.values(), self.exact.values(), self.found.values(), weights))
        if not any(largest(a) > SMALL or np.isinf(a).any() for a in tensors if a.dtype.kind == "f"):
            return self.exact
        return {n: v.array for n, v in self._run(Undecided(self.model), self.walk.taken).items()}

    def compared(self, name: str) -> OutputComparison:
        """An output."""
        one = self.compared_with(name, self.exact, self.naturals)
        if not one.ok:
            exact = decided(self.exact[name], self.undecided[name], self.found[name])
            exact = ranged(exact, self.unlimited[name], self.found[name])
            one = self.compared_with(name, {name: exact}, self.naturals)
        # it is this tensor for certain, however large the difference
        if (one.problem == "differs" or misplaced(one) or jumped(one)) and self._more():
            return self.compared(name)
        if jumped(one) and self._sides():
            return self.compared(name)
        alone = one if one.ok else self._apart(name, name, self.found[name])
        alone = alone if alone.ok else self._from_inputs(name, name, self.found[name])
        if not alone.ok and (writer := self._writer(name)) is not None:
            alone = self._as_read(name, writer, self.found[name]) or alone
        if alone.ok or name not in self.behind_settled:
            return alone if alone.ok else one
        behind = self.compared_with(name, self.behind_settled, self.naturals)
        return behind if behind.ok else one

    @cached_property
    def behind_settled(self) -> dict[str, Array]:
        """Tensors in float64 from integers that are right only as runs which round are: on the compiled model's side of
        an edge, from where a comparison of bytes goes on without one."""
        settled = {}
        for name, kernel in self.suspects.items():
            if self.exact[name].dtype.kind in "iu" and self.written(kernel.likeliest, kernel).ok:
                settled[name] = Value(self.found[name], self.kinds[name])
        return self.exactly({**self.walk.taken, **settled}) if settled else {}

    @cached_property
    def written_once(self) -> dict[str, Value]:
        """What is known but for the tensors that several kernels compute, each with its own rounding: the kernel behind
        them need not have read the one that was seen."""
        shared = {name for kernel in self.walk.kernels for name in kernel.shared}
        return {n: v for n, v in self.walk.taken.items() if n not in shared}

    @cached_property
    def behind_written_once(self) -> tuple[dict[str, Array], list[dict[str, Array]]]:
        """(Tensors in float64, runs that only round) from those."""
        return self.behind(self.written_once)

    @cached_property
    def without_outputs(self) -> dict[str, Array]:
        """Tensors in float64, from what is known but for outputs that other nodes read: a norm computes for itself what
        it takes off. Empty where there are none."""
        read = {n for node in self.model.graph.node for n in node.input}
        inner = read & self.walk.outputs.keys() & self.walk.taken.keys()
        return self.exactly({n: v for n, v in self.walk.taken.items() if n not in inner}) if inner else {}

    def _apart(
        self, name: str, form: str, found: Array, forms: Callable[[Array], Array] = lambda a: a
    ) -> OutputComparison:
        """A tensor compared with what it is if none of the kernels that compute a tensor together wrote it alone, or,
        without allowance for rounding, if this one read no output."""
        if self.without_outputs:
            one = self.walk.compared(form, forms(self.without_outputs[name]), found, self.kinds[name])
            if one.ok:
                return one
        if len(self.written_once) == len(self.walk.taken):
            return self.walk.compared(form, forms(self.exact[name]), found, self.kinds[name])
        exact, naturals = self.behind_written_once
        samples = [forms(n[name]) for n in naturals if name in n]
        return self.walk.compared(form, forms(exact[name]), found, self.kinds[name], samples)

    def _wanders(self, name: str) -> bool:
        """Whether runs that only round give another tensor, from what one kernel alone wrote: behind several layers of
        quantisation they differ by as much as its numbers do, and would allow any tensor of its size."""
        if len(self.written_once) == len(self.walk.taken) or self.exact[name].dtype.kind != "f":
            return False
        exact, naturals = self.behind_written_once
        return _wander(exact[name], [n[name] for n in naturals if name in n])

    @cached_property
    def alone(self) -> dict[str, Array]:
        """Tensors in float64, from the model's inputs and nothing that a kernel wrote."""
        return self.exactly({})

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
        that are an output in 16 bits, and a comparison read numbers that are 0 in 16 bits."""
        kind = self.kinds[name]
        one = self.walk.compared(form, forms(self.alone[name]), found, kind)
        if not one.ok and (kind.itemsize < 4 if is_real(kind) else self.narrow):
            exact = ranged(forms(self.alone[name]), forms(self.alone_unlimited[name]), found)
            naturals = [forms(n[name]) for n in self.registers if name in n]
            one = self.walk.compared(form, exact, found, kind, naturals)
        return one

    @cached_property
    def narrow(self) -> bool:
        """Whether the model has floats of 16 bits, or fewer."""
        kinds = [*self.kinds.values(), *(np.asarray(a).dtype for a in self.feeds.values())]
        return any(is_real(kind) and kind.itemsize < 4 for kind in kinds)

    @cached_property
    def registers(self) -> list[dict[str, Array]]:
        """Runs from the model's inputs on that round to float32 and never to 16 bits."""
        arithmetic = Arithmetic(np.float32, limits=False)
        return self._through(roundings(self.model, arithmetic, self.edges, self._allowed), {})

    def _as_read(
        self, form: str, kernel: Kernel, found: Array, forms: Callable[[Array], Array] = lambda a: a
    ) -> OutputComparison | None:
        """What a kernel wrote, compared with the oracle from the very numbers that it read, and with runs that only
        round from there; its direction is measured from there, too. None where it is not known what it read, or where
        the results between that and what is known may hide any error."""
        name = form.removesuffix(PLAIN)
        if (key := (id(kernel), name)) not in self._behind_read:
            self._behind_read[key] = self._from_read(name, kernel)
        if (behind := self._behind_read[key]) is None:
            return None
        exact, naturals = behind
        samples = [forms(n[name]) for n in naturals if name in n]
        one = self.walk.compared(form, forms(exact[name]), found, self.kinds[name], samples)
        return self._leaning(form, kernel, one, exact, naturals)

    def _from_read(self, name: str, kernel: Kernel) -> tuple[dict[str, Array], list[dict[str, Array]]] | None:
        """(A tensor in float64, runs that only round) from what a kernel read, or None."""
        read = self.reading.of(kernel)
        real = self.exact[name].dtype.kind == "f" and name not in self.walk.grids
        if read is None or not (read.directly or real):
            return None
        exact, naturals = self.behind(read.known, {name, *kernel.products})
        lost = not read.directly and _wander(exact[name], [n[name] for n in naturals if name in n])
        return None if lost else (exact, naturals)

    def _writer(self, name: str) -> Kernel | None:
        """The kernel that wrote an output's very numbers."""
        output = self.walk.outputs[name]
        for kernel in self.walk.kernels:
            if kernel.tensor == name and kernel.seen.array.size == output.size:
                found = output.astype(kernel.seen.array.dtype)
                if np.array_equal(kernel.placed(found)[0], found, equal_nan=found.dtype.kind == "f"):
                    return kernel
        return None

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
        if (nearly(one) or misplaced(one) or (jumped(one) and self.limited)) and self._more():
            return self.written(form, kernel)
        if name in self.walk.grids:
            return one
        leaning = self._from_elsewhere(form, kernel, found) if not one.ok else None
        leaning = leaning or self._leaning(form, kernel, one, self.exact, self.naturals)
        return self.written(form, kernel) if leaning.ok < one.ok and self._more() else leaning

    def _from_elsewhere(self, form: str, kernel: Kernel, found: Array) -> OutputComparison | None:
        """What a kernel wrote, where it is right from other numbers than those that were seen before it; its direction
        is measured from there, too. None where it is not."""
        name = form.removesuffix(PLAIN)

        def forms(array: Array) -> Array:
            return kernel.forms(name, array)[form]

        if not self._wanders(name) and (one := self._apart(name, form, found, forms)).ok:
            return self._leaning(form, kernel, one, *self.behind_written_once)
        if (one := self._from_inputs(name, form, found, forms)).ok:
            return self._leaning(form, kernel, one, self.alone, self.registers)
        read = self._as_read(form, kernel, found, forms)
        return read if read is not None and read.ok else None

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

    def as_form(
        self, form: str, kernel: Kernel, exact: Mapping[str, Array], naturals: Sequence[Mapping[str, Array]]
    ) -> OutputComparison:
        """What a kernel wrote, compared with a form of a tensor from other numbers than those that were seen before it,
        and with runs that only round from there."""
        return self._leaning(form, kernel, self._one(form, kernel, exact, naturals), exact, naturals)

    def whole(self, form: str, kernel: Kernel) -> Value:
        """The tensor that a kernel wrote a form of."""
        name = form.removesuffix(PLAIN)
        placed = kernel.placed(kernel.forms(name, self.exact[name])[form])[0]
        return Value(kernel.tensor_of(form, placed), self.kinds[name])

    def compared_with(
        self, name: str, exact: Mapping[str, Array], naturals: Sequence[Mapping[str, Array]]
    ) -> OutputComparison:
        """A tensor that was found, compared with what it ought to be."""
        samples = [n[name] for n in naturals if name in n]
        return self.walk.compared(name, exact[name], self.found[name], self.kinds[name], samples)

    def behind(
        self, known: Mapping[str, Value], names: Collection[str] = ()
    ) -> tuple[dict[str, Array], list[dict[str, Array]]]:
        """(Tensors in float64, runs that only round) from these tensors of the compiled model."""
        recorder = Recorder(self.model)
        exact = {n: v.array for n, v in self._run(recorder, known, names).items()}
        runs = roundings(self.model, arithmetic_of(self.precision), recorder.edges, self._allowed, "there")
        return exact, self._through(runs, known, names)


def mostly(exact: Array, found: Array) -> bool:
    """Whether nine in ten elements are the tensor's: then it is that tensor, with a few wrong elements."""
    a, b = exact.astype(np.float64), found.astype(np.float64)
    scale = float(np.sqrt(np.mean(np.square(a[np.isfinite(a)])))) if np.isfinite(a).any() else 0.0
    return bool(np.isclose(b, a, rtol=1e-4, atol=1e-6 * scale, equal_nan=True).mean() > MOSTLY)


def _wander(exact: Array, naturals: Sequence[Array]) -> bool:
    """Whether runs that only round change a tensor by more than a share of how far its numbers lie from their mean."""
    with np.errstate(all="ignore"):
        usual = WANDERING * distance(exact, np.full_like(exact, np.mean(exact)))
    return any(distance(exact, natural) > usual for natural in naturals)


def distance(exact: Array, found: Array) -> float:
    """The rms of the difference, over elements finite in both."""
    with np.errstate(all="ignore"):
        error = np.square(found.astype(np.float64) - exact.astype(np.float64))
    error = error[np.isfinite(error)]
    return float(np.sqrt(error.mean())) if error.size else 0.0
