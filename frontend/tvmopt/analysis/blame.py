"""Which kernel that differs in a walk wrote its tensor wrongly, as the tensors behind it show - for `kernels`.

A kernel's result that resembles a tensor and differs may be wrong; or it is another tensor, as sizes resemble numbers
most of which are positive. The next kernel tells: it read what was written. So the next tensor is computed from that
and, in turn, from what ought to have been written; the kernel is wrong if the compiled model's fits the former.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tvmopt.analysis.comparator import Array, OutputComparison
from tvmopt.analysis.measured import Measured, distance, mostly
from tvmopt.analysis.oracle.values import Value
from tvmopt.analysis.walk import LEANING, PLAIN, Kernel

WORSE = 1.01
"""How much larger the next tensors' errors may be with a kernel's own numbers: what is behind a softmax hardly shows
its scores. Numbers that are another tensor's make them much larger."""
GUESSED = 0.8
"""Where it is a guess which tensor the next kernel wrote: by how much nearer its result must come, in squares of
distances, as a share of what a kernel's own numbers change there. It is 1 where that change is part of what is wrong,
and 0 on average where neither is the tensor that it resembles: inputs around 1000 all resemble each other."""
SHOWN = 0.05
"""The least that a kernel's own numbers must change the next tensors by, in units of what is unexplained there."""
CLEARLY = 8.0
"""How much larger than rounding a change of a few elements must be, as norms over them, to tell what a kernel read."""
MOST = 0.75
"""The share of such a change that the next tensor must have. It is 1 where its kernel read what was written, and 0 on
average where it did not, each with a deviation of 1 / :data:`CLEARLY` at most."""


class Blame:
    """Looks for the first kernel that is wrong.

    Args:
        measured: the tensors of a run, and runs that only round.
    """

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.right: dict[str, Value] = {}  # what suspects wrote that turned out to be right

    def output(self, name: str) -> OutputComparison:
        """An output, from what the kernels before it wrote, once :meth:`guilty` knows which of them are right."""
        one = self.measured.compared(name)
        if one.ok or not self.right:
            return one
        exact, naturals = self._behind_right([name])
        behind = self.measured.compared_with(name, exact, naturals)
        return behind if behind.ok else one

    def guilty(self, accused: Collection[str]) -> str | None:
        """The first of these suspects that is written wrongly, as the tensors behind it show."""
        measured = self.measured
        for name in sorted(accused, key=lambda n: measured.order.get(n, -1)):
            kernel = measured.suspects[name]
            if self._wrote_an_output(kernel):
                continue
            tried = self._tried(kernel)
            right = next((form for form, one in tried.items() if one.ok), "")
            if right:
                kernel.tensor, kernel.comparison = right.removesuffix(PLAIN), tried[right]
                self.right[kernel.tensor] = measured.whole(right, kernel)
            elif self._shown(name, kernel):
                return name
        return None

    def _shown(self, name: str, kernel: Kernel) -> bool:
        """Whether a tensor behind a suspect's is what the suspect's numbers make of it."""
        measured, behind = self.measured, self.measured.frontier[name]
        if not behind:
            return False
        guessed = {name: Value(measured.found[name], measured.kinds[name])}
        own = measured.exactly({**measured.walk.taken, **guessed}, names=behind)
        for following in behind:
            if self._by_range(following):
                continue
            next_kernel = measured.suspects.get(following)
            if next_kernel is not None and self._wrote_an_output(next_kernel):
                continue  # which is right: the tensor that it resembles it did not write
            exact, found = measured.exact[following], measured.found[following]
            ought = distance(exact, found)
            changed, rest = (distance(own[following], tensor) for tensor in (exact, found))
            # what shows nothing of it (a saturated softmax, an element that a pool drops, numbers whose sizes alone
            # are added up) says nothing of a guess
            least = max(SHOWN * ought, LEANING * self._rounding(following))
            if changed <= least and not self._certainly(name, kernel):
                if self._in_few_elements(following, own[following]):
                    return True
                continue
            # integers fit exactly
            fits = rest <= WORSE * ought if next_kernel is None else rest**2 <= ought**2 - GUESSED * changed**2
            if fits and ought > 0:
                return True
        return False

    def _in_few_elements(self, name: str, own: Array) -> bool:
        """Whether a tensor has what a suspect's numbers make of it where these change it by more than rounding does:
        one wrong row changes little of a tensor, but that clearly.

        Args:
            own: the tensor from the suspect's numbers on.
        """
        exact, found = self.measured.exact[name], self.measured.found[name]
        naturals = [n[name] for n in self.measured.naturals if name in n and n[name].shape == exact.shape]
        if exact.dtype.kind != "f" or not naturals:
            return False
        with np.errstate(all="ignore"):
            rounding = np.max([np.abs(natural - exact) for natural in naturals], 0)
            rounding = np.maximum(rounding, self._rounding(name))
            change, error = own - exact, found - exact
            there = (np.abs(change) > LEANING * rounding) & np.isfinite(change) & np.isfinite(error)
        change, error, rounding = change[there], error[there], rounding[there]
        power = float(np.dot(change, change))
        clearly = power > CLEARLY**2 * float(np.square(rounding).sum()) / max(1, rounding.size)
        return clearly and float(np.dot(error, change)) > MOST * power

    def _behind_right(self, names: Collection[str]) -> tuple[Mapping[str, Array], list[dict[str, Array]]]:
        """(These tensors in float64, runs that only round) from what the kernels before them wrote - those too that are
        right only as runs which round are: behind twenty layers in 16 bits a few runs do not show all that the last
        ones may make of the errors of the first ones."""
        return self.measured.behind({**self.measured.walk.taken, **self.right}, names)

    def _tried(self, kernel: Kernel) -> dict[str, OutputComparison]:
        """What a kernel wrote, as each form of a tensor that it may be."""
        tried = {form: self.measured.written(form, kernel) for form in kernel.alike}
        if self.right and tried and not any(one.ok for one in tried.values()):
            names = {*(form.removesuffix(PLAIN) for form in tried), *kernel.products}
            exact, naturals = self._behind_right(names)
            tried = {form: self.measured.as_form(form, kernel, exact, naturals) for form in tried}
        return tried

    def _rounding(self, name: str) -> float:
        """What runs that only round change of a tensor of floats, at most; nothing of integers, which fit exactly."""
        exact = self.measured.exact[name]
        if exact.dtype.kind != "f":
            return 0.0
        return max((distance(exact, n[name]) for n in self.measured.naturals if name in n), default=0.0)

    def _by_range(self, name: str) -> bool:
        """Whether these are integers that are right by the range of a type alone: of what is before them they say that
        it was not infinite where it is in the model."""
        measured = self.measured
        whole = measured.exact[name].dtype.kind in "iub" and name in measured.walk.outputs
        return whole and measured.limited and measured.compared(name).ok

    def _wrote_an_output(self, kernel: Kernel) -> bool:
        """Whether what a kernel wrote is an output, and right."""
        return bool(kernel.output) and self.measured.compared(kernel.output).ok

    def _certainly(self, name: str, kernel: Kernel) -> bool:
        """Whether a kernel wrote this tensor for certain, with some wrong elements: most are right, and it does not
        begin a node that reads the tensor and that another kernel ends (the sizes of numbers, which a norm adds up)."""
        nodes = self.measured.model.graph.node
        begun = any(name in node.input and kernel.shared & set(node.output) for node in nodes)
        return not begun and mostly(self.measured.exact[name], self.measured.found[name])
