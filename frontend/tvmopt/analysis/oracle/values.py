"""What the oracle computes with: arrays in double precision, their declared types, and the node at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Result: TypeAlias = Any
"""An array, or a list of arrays and values: whatever NumPy's loosely typed functions give."""

ROUNDS = "tvmopt_rounds"
"""The attribute of a node whose rows an engine rounds to 8 bits (`tvmopt.analysis.rounds` sets it)."""

KEPT = "tvmopt_kept"
"""The attribute of a node that makes a decoder's cache: how each of its outputs is stored there, "" where it is none
(`tvmopt.analysis.kept` sets it)."""

DIGITS = 2.0**-29
"""A rounding error of float64, in those of float32."""

WIDE = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float64))
"""Types that stand for real numbers. Narrower ones (float8, float4) and integers are kept as they are, exactly."""


@dataclass(frozen=True)
class Arithmetic:
    """The numbers that a graph is evaluated in.

    Attributes:
        work: NumPy's type of every real number; float64 for the oracle, float32 for a run that rounds as engines do.
        operands: a 16-bit type that operands of products and convolutions are rounded to.
        stores: whether the result of each node is rounded to its declared type.
        edge: by how much of itself, or of what it is the sum of, a number is moved before an operator rounds it to a
            whole one.
        sides: draws for each such number to which side; None: all to one.
        limits: whether a result beyond the largest number of its declared type is infinite.
    """

    work: Any = np.float64
    operands: Any = None
    stores: bool = False
    edge: float = 0.0
    sides: Any = None
    limits: bool = True

    def rounded(self, array: Array) -> Array:
        """An operand of a product."""
        if self.operands is None or array.dtype != self.work:
            return array
        return np.asarray(array.astype(self.operands).astype(self.work))

    def moved(self, array: Array, sizes: Array | None = None) -> Array:
        """Numbers before they are rounded to whole ones; `sizes`: of the terms that they are sums of."""
        ways: Any = 1.0 if self.sides is None else self.sides.choice([-1.0, 1.0], array.shape)
        return np.asarray(array + self.edge * ways * (array if sizes is None else sizes)) if self.edge else array


EXACT = Arithmetic()
UNLIMITED = Arithmetic(limits=False)
"""An engine that keeps a product in a wider register, as a fused multiply-add does, has a number where one that stores
it in its type has an infinity."""


class Value(NamedTuple):
    """A tensor: its numbers, and the type that the model declares for it."""

    array: Any
    kind: np.dtype[Any]


class Unsupported(Exception):
    """The oracle has no definition of an operator, or not of this use of it."""


class Unfit(Unsupported):
    """The operands of a node do not fit its definition: an element beyond a tensor, a shape of another size."""


@dataclass
class Call:
    """One node at work.

    Attributes:
        node: the ONNX node; `version` of its domain.
        attributes: by name, as Python values.
        kinds: the declared types of its inputs; None where an optional one is missing.
        graph: evaluates a subgraph: graph, values of its inputs -> values of its outputs.
        keep: numbers as a cache has them: name, array, how they are stored -> array.
        known: tensors that are known, whatever the node makes of them.
    """

    node: Any
    version: int
    attributes: Mapping[str, Any]
    kinds: Sequence[np.dtype[Any] | None]
    arithmetic: Arithmetic
    graph: Callable[[Any, Mapping[str, Value]], list[Value]]
    keep: Callable[[str, Array, str], Array] = lambda name, array, kind: array
    known: Mapping[str, Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def op(self) -> str:
        name: str = self.node.op_type
        return name

    @property
    def work(self) -> Any:
        return self.arithmetic.work

    @property
    def outputs(self) -> int:
        return len(self.node.output)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def single(self, name: str, default: float) -> float:
        """A float attribute: the file, and the standard's default, mean the nearest float32."""
        return float(np.float32(self.attributes.get(name, default)))

    def ints(self, name: str, given: Array | None = None) -> list[int] | None:
        """A list of integers that newer versions take as an input and older ones as an attribute."""
        if given is not None:
            return [int(v) for v in np.asarray(given).reshape(-1)]
        found = self.attributes.get(name)
        return None if found is None else [int(v) for v in np.atleast_1d(found)]

    def operand(self, array: Array) -> Array:
        return self.arithmetic.rounded(array)

    def kept(self, index: int, array: Array) -> Array:
        """An output as a cache has it, where it is stored in one."""
        kind = dict(enumerate(self.get(KEPT, ()))).get(index, "")
        return self.keep(self.node.output[index], array, kind) if kind else array

    def in_cache(self, index: int, made: Array) -> Array:
        """What the node itself reads of such an output: what the cache is known to hold, else what was made."""
        name = self.node.output[index] if index < self.outputs else ""
        return self.known[name].array if name in self.known else made


Operator: TypeAlias = Callable[..., Result]
"""call, inputs (None where left out) -> one array or several."""


def is_real(dtype: np.dtype[Any]) -> bool:
    return dtype in WIDE


def widened(array: Any, work: Any) -> Array:
    """An array with its real numbers in the working type; double stays double."""
    given: Array = np.asarray(array)
    if not is_real(given.dtype) or given.dtype == np.float64:
        return given
    return np.asarray(given, work)


def limit(array: Array, kind: np.dtype[Any]) -> Array:
    """Infinity where the declared type has no larger number: engines overflow there."""
    if kind in (np.float64, array.dtype) or array.dtype.kind != "f" or not array.size:
        return array
    top = float(ml_dtypes.finfo(kind).max)
    largest = max(float(np.fmax.reduce(array, axis=None)), -float(np.fmin.reduce(array, axis=None)))
    if largest <= top:
        return array
    size = np.abs(array)
    finite = size < np.inf
    if not ((size > top) & finite).any():  # what is infinite already stays
        return array
    over = finite & (size > top * (1 + 2.0 ** -(ml_dtypes.finfo(kind).nmant + 2)))
    return np.where(over, np.copysign(np.inf, array), np.where(finite, np.clip(array, -top, top), array))
