"""What rounding makes of one kernel's result, from what the kernels before it wrote - for the walk.

In 16 bits a kernel may round by more than is allowed without a question, and so may the next one. A walk that took
neither over would measure a model's last kernels from its first ones, and rounding would explain what a wrong kernel
writes. From the numbers right before a kernel, it rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from tvmopt.analysis.comparator import Array
from tvmopt.analysis.oracle.evaluate import reads
from tvmopt.analysis.oracle.rounding import Recorder, Rounded, arithmetic_of, completed, nudges
from tvmopt.analysis.oracle.values import Value

FAR = 32
"""Nodes between a tensor and what is known, at most: behind more than a few kernels rounding explains too much."""


class Local:
    """Runs that only round, each of the few nodes between known tensors and one that is asked for.

    Args:
        model: prepared. feeds: its inputs. allowed: the rms error that needs no explanation, relative to the rms.
    """

    def __init__(self, model: Any, feeds: Mapping[str, Array], precision: str, allowed: float) -> None:
        self.model, self.feeds, self.precision, self.allowed = model, feeds, precision, allowed

    @cached_property
    def _recorder(self) -> Recorder:
        return Recorder(self.model)

    @cached_property
    def _runs(self) -> list[Rounded]:
        model, arithmetic, edges = self.model, arithmetic_of(self.precision), self._recorder.edges
        first = [Rounded(model, arithmetic, edges, sign, self.allowed, "there") for sign in (1, -1)]
        return [*first, *nudges(model, self.precision, edges, self.allowed, "there")]

    def __call__(self, name: str, known: Mapping[str, Value]) -> Iterator[Array]:
        """The tensor in each run; nothing where all that is known is far from it.

        Args:
            known: what the kernels before it wrote.
        """
        between = self._recorder.needed([name], known)
        if len(between) > FAR:
            return
        near = {n: known[n] for node in between for n in reads(node) if n in known}
        self._recorder.run(self.feeds, [name], known=near)
        yield from (made[name] for made in completed(self._runs, lambda run: run.run(self.feeds, [name], known=near)))
