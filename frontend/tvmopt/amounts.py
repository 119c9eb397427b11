"""Numbers from outside that every room takes: a seed, a tolerance, a time. What is none is refused in the same
words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import index
from typing import Any

from tvmopt.errors import InputError

DAY = 86400.0
"""Seconds; nobody times a model for longer."""


def check_seed(seed: Any) -> int:
    """The seed of random numbers, as a whole number of Python.

    >>> check_seed(3)
    3

    Raises:
        InputError: it is negative, or no whole number.
    """
    try:
        number = index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError(f"the seed is {seed!r}.", where="--seed", fix="give a whole number, 0 or more")
    return number


def check_tolerance(tolerance: Any, flag: str = "--tolerance") -> None:
    """Refuse a tolerance that judges nothing: an infinite one allows whatever comes out, and so does NaN.

    Args:
        tolerance: a number, None, or one of them for each output by its name.

    Raises:
        InputError: it is negative, infinite, NaN or no number.
    """
    for one in tolerance.values() if isinstance(tolerance, Mapping) else (tolerance,):
        if one is None:
            continue
        try:
            good = not isinstance(one, bool | str) and 0 <= float(one) < math.inf
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise InputError(f"{one!r} is not a tolerance.", where=flag, fix="give a number, 0 or more: 1e-3")


def check_seconds(seconds: Any, flag: str = "--duration") -> None:
    """Refuse a time to measure for that is none, or longer than a day: it would not end.

    Raises:
        InputError: it is negative, NaN, no number, or more than :data:`DAY`.
    """
    try:
        good = 0 <= float(seconds) <= DAY
    except (TypeError, ValueError, OverflowError):
        good = False
    if not good:
        raise InputError(f"{seconds!r} is no time to measure for.", where=flag, fix=f"give seconds, 0 to {DAY:.0f}")
