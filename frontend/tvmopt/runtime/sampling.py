"""Choosing the next token from its scores - for :class:`tvmopt.runtime.decoder.Decoder`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmopt.amounts import check_seed
from tvmopt.errors import InputError

Array = npt.NDArray[Any]
Choice = Callable[[Array], int]
"""From the scores [vocabulary] to a token."""


def choice(*, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int | None = None) -> Choice:
    """How tokens are chosen.

    >>> choice()(np.array([0.1, 2.0, 2.0]))
    1
    >>> choice(temperature=1.0, top_k=1, seed=0)(np.array([0.1, 2.0, 1.0]))
    1

    Args:
        temperature: 0: the token with the highest score, the first of equal ones; else scores are divided by it.
        top_k: only that many of the highest scores; 0: all.
        top_p: only the highest scores whose probabilities add up to this at least; 1: all.
        seed: of the random numbers; None: other tokens in every run.

    Raises:
        InputError: a number that is out of range.
    """
    problems = [
        (not np.isfinite(temperature) or temperature < 0, "temperature", temperature, "0 or more"),
        (int(top_k) != top_k or top_k < 0, "top_k", top_k, "a whole number, 0 or more"),
        (not 0 < top_p <= 1, "top_p", top_p, "more than 0 and at most 1"),
    ]
    for wrong, name, value, fix in problems:
        if wrong:
            raise InputError(f"{name} is {value}.", fix=f"give {fix}")
    if seed is not None:
        check_seed(seed)
    if temperature == 0:
        return lambda scores: int(np.argmax(scores))
    generator = np.random.default_rng(seed)

    def draw(scores: Array) -> int:
        tokens = np.argsort(-scores, kind="stable")[: top_k or None]
        kept = scores[tokens].astype(np.float64) / temperature
        weights = np.exp(kept - kept[0])
        weights /= weights.sum()
        count = 1 + int(np.searchsorted(np.cumsum(weights), top_p)) if top_p < 1 else len(weights)
        weights = weights[:count]
        return int(tokens[generator.choice(len(weights), p=weights / weights.sum())])

    return draw
