"""Notes in the report: what sizes a model takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tvmopt.compiler.results import range_notes
from tvmopt.dims import Range


def imported(conditions: tuple[str, ...] = (), **ranges: Range) -> Any:
    return SimpleNamespace(ranges=ranges, conditions=conditions)


def test_a_size_of_one_value_is_fixed() -> None:
    fixed = "the size b is fixed to 222"
    assert range_notes(imported(b=Range(222, 222, 222))) == (fixed,)
    told = range_notes(imported(("a <= 9",), a=Range(1, 9, 4), b=Range(222, 222, 222)))
    assert told == ("open sizes: a 1..9@4; only where a <= 9 (--shape NAME:MIN..MAX@BEST sets others)", fixed)
    assert range_notes(imported()) == ()
