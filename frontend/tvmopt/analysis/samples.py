"""Seeded inputs that a model can digest - for verification, `tvmopt run --fill random` and benchmarks.

Token ids must stay inside the embedding table, masks are zero or one: bounds of integer inputs are read off
the graph. The same seed gives the same arrays on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from tvmopt.amounts import check_seed
from tvmopt.runtime.tensors import Array, numpy_dtype

FULL = (1, 2)  # the bounds of a decoder's mask
SMALL = 2  # bound of an integer input of which nothing is known: 0 and 1 are valid for masks, types, flags


class Info(Protocol):
    """Anything with name, shape and dtype."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


def sample_inputs(
    inputs: Sequence[Info],
    *,
    seed: int = 0,
    fill: str = "random",
    bounds: Mapping[str, int | Sequence[Any]] | None = None,
) -> dict[str, Array]:
    """Arrays by input name.

    Floats are standard normal, booleans fair coins, integers uniform within their bounds; a decoder's positions are
    those behind its past.

    Args:
        fill: "random", "zeros" or "ones".
        bounds: of integer inputs the lowest value and the first that is too large, from
            :func:`tvmopt.analysis.bounds.integer_bounds` (older artifacts: only the latter); default 0 and 2.

    Raises:
        InputError: the seed is negative, or no whole number.
    """
    generator = np.random.default_rng(check_seed(seed))
    arrays = {}
    for info in inputs:
        dtype, bound = numpy_dtype(info.dtype), (bounds or {}).get(info.name, SMALL)
        if not isinstance(bound, int) and len(bound) > 2:
            past = next((i.shape[2] for i in inputs if i.name == bound[2]), 0)
            arrays[info.name] = np.broadcast_to(np.arange(past, past + info.shape[-1]), info.shape).astype(dtype)
        elif fill in ("zeros", "ones") and not (isinstance(bound, Sequence) and tuple(bound) == FULL):
            arrays[info.name] = np.full(info.shape, fill == "ones", dtype)
        elif dtype.kind in "iu":
            low, high = (0, bound) if isinstance(bound, int) else bound
            high = min(high, int(np.iinfo(dtype).max) + (dtype.itemsize < 8))
            arrays[info.name] = generator.integers(low, max(low + 1, high), info.shape).astype(dtype)
        elif dtype.kind == "b":
            arrays[info.name] = generator.integers(0, 2, info.shape).astype(dtype)
        else:
            arrays[info.name] = generator.standard_normal(info.shape).astype(dtype)
    return arrays


FLAGS = 3
"""Truth values of which the first eight seeds try all combinations; further ones go with these."""
KINDS = ("random", "random", "around 1000", "times 1000", "zeros", "one Inf", "one NaN")
"""What the first seeds stand for, in every word of tvmopt: two random inputs, then floats that are random around 1000,
a thousand times larger, zero, and random with one infinite or undefined value. Later seeds are random."""


def described(seed: int) -> str:
    """A seed in words.

    >>> described(6)
    'seed 6 (one NaN)'
    """
    kind = KINDS[seed] if seed < len(KINDS) else "random"
    return f"seed {seed} ({kind})"


def is_hostile(seed: int) -> bool:
    """Whether one of a seed's values is no finite number."""
    return KINDS[seed : seed + 1] in (("one Inf",), ("one NaN",))


def trial_inputs(
    inputs: Sequence[Info], seed: int, bounds: Mapping[str, int | Sequence[Any]] | None = None
) -> dict[str, Array]:
    """The inputs of a seed. Single truth values, and single integers of which nothing is known, take turns: they choose
    between branches, and each has to be looked at.

    >>> from tvmopt.runtime.tensors import TensorInfo
    >>> [bool(trial_inputs([TensorInfo("c", (), "bool")], seed)["c"]) for seed in range(3)]
    [True, False, True]
    >>> trial_inputs([TensorInfo("x", (2,), "float32")], 6)["x"]
    array([0.12573022,        nan], dtype=float32)
    """
    kind = KINDS[seed] if seed < len(KINDS) else "random"
    arrays = sample_inputs(inputs, seed=0 if kind != "random" else seed, bounds=bounds)
    for place, name in enumerate(_flags(inputs, bounds or {})):
        arrays[name] = np.full_like(arrays[name], not seed >> place % FLAGS & 1)
    floats = {n: a for n, a in arrays.items() if a.dtype.kind not in "iub"}
    for name, array in floats.items():
        if kind == "around 1000":
            arrays[name] = (array.astype(np.float32) + 1000).astype(array.dtype)
        elif kind == "times 1000":
            arrays[name] = (array.astype(np.float32) * 1000).astype(array.dtype)
        elif kind == "zeros":
            arrays[name] = np.zeros_like(array)
    first = next((a for a in floats.values() if a.size), None)
    if kind.startswith("one") and first is not None:
        first.reshape(-1)[first.size // 2] = np.inf if kind == "one Inf" else np.nan
    return arrays


UNITS = 16
"""How far a nudge moves a number, in units of its last place: about what the rounding of a sum of 256 terms does."""


def nudged(feeds: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The same inputs, each floating-point number moved up or down by :data:`UNITS`.

    >>> nudged({"x": np.ones(2, np.float32), "n": np.ones(1, np.int64)}, 0)
    {'x': array([1.0000019, 1.0000019], dtype=float32), 'n': array([1])}
    """
    generator = np.random.default_rng(seed)

    def moved(array: Array) -> Array:
        steps = np.where(generator.integers(0, 2, array.shape) > 0, UNITS, -UNITS) * np.spacing(array)
        return np.asarray((array + steps).astype(array.dtype))

    return {name: moved(array) if array.dtype.kind == "f" else array for name, array in feeds.items()}


def _single(inputs: Sequence[Info]) -> dict[str, str]:
    """The kinds of the inputs of one element, by name."""
    return {i.name: numpy_dtype(i.dtype).kind for i in inputs if prod(i.shape) == 1}


def _flags(inputs: Sequence[Info], bounds: Mapping[str, Any]) -> list[str]:
    """Inputs of one element that may choose a branch."""
    single = _single(inputs).items()
    return [name for name, kind in single if kind == "b" or (kind in "iu" and name not in bounds)]


def trials(inputs: Sequence[Info]) -> tuple[int, ...]:
    """The seeds that verification tries; models without float inputs have only the random ones, and as many as their
    flags ask for."""
    known = any(numpy_dtype(i.dtype).kind not in "iub" for i in inputs)
    flags = [*_single(inputs).values()].count("b")
    return tuple(range(len(KINDS) if known else 2 ** min(max(flags, 1), FLAGS)))
