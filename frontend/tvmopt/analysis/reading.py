"""What each kernel of a run read, as tensors of the model - for `measured`.

The oracle computes a tensor from whatever kernels wrote before it. A kernel may have computed some of that for itself:
where a model's norm is one kernel, and its mean an output that another kernel writes, there are two means, each with a
rounding of its own. Which one went into a result is told by the memory that its kernel read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tvmopt.analysis.oracle.values import Value
from tvmopt.analysis.walk import Kernel, Walk


@dataclass
class Read:
    """What a kernel read besides the model's inputs and weights.

    Attributes:
        known: tensors of the model that are right, with the numbers that were read.
        directly: no other result was read. In place of one that is no known tensor stands what its own kernel read.
    """

    known: dict[str, Value] = field(default_factory=dict)
    directly: bool = True


class Reading:
    """Which tensors the kernels of one run read.

    Args:
        walk: along them; it is over.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.writers: dict[int, list[Kernel]] = defaultdict(list)
        for kernel in walk.kernels:
            self.writers[kernel.seen.number].append(kernel)

    def of(self, kernel: Kernel) -> Read | None:
        """What a kernel read; None where that cannot be told."""
        found = Read()
        todo, done = list[Kernel]([kernel]), set[int]()
        while todo:
            reads = todo.pop().seen.reads
            if reads is None or not all(self.writers.get(number) for number in reads):
                return None
            for number in set(reads) - done:
                done.add(number)
                for writer in self.writers[number]:
                    if (value := self.wrote(writer)) is not None:
                        found.known[writer.tensor] = value
                    else:
                        found.directly = False
                        todo.append(writer)
        return found

    def wrote(self, kernel: Kernel) -> Value | None:
        """The tensor that a kernel wrote, if it is known to be right: of several kernels that compute one tensor each
        has numbers of its own. None where its numbers are not the tensor's."""
        taken = self.walk.taken.get(kernel.tensor)
        if taken is None or taken.array.size != kernel.seen.array.size:
            return None
        for form, exact in kernel.forms(kernel.tensor, taken.array).items():
            placed, _ = kernel.placed(exact)
            own = kernel.tensor_of(form, placed)
            if np.array_equal(own, taken.array, equal_nan=own.dtype.kind == "f"):
                return taken
            if self.walk.compared(form, exact, placed, taken.kind).ok:
                return Value(own, taken.kind)
        return None
