"""Where the tokens of a decoder's call stand: what its code is told behind the inputs - for `model.py` and `batch.py`.

Shape([past, scores])                           rows of the caches that are filled, last tokens whose scores are wanted
Shape([past, scores, apart]), places            code whose tokens have places: of each its text, a row of the caches,
                                                and its position there, int64[2, tokens]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmopt.errors import InputError
from tvmopt.runtime.library import ffi
from tvmopt.runtime.roles import Roles
from tvmopt.runtime.tensors import Array, aligned_empty, to_ffi


def places(texts: Any, positions: Any) -> Array:
    """int64[2, tokens], at an address that the code takes; `texts`: one for all tokens, or one for each."""
    made = aligned_empty((2, len(positions)), np.dtype(np.int64))
    made[0], made[1] = texts, positions
    return made


def numbers(
    roles: Roles, past: int, tokens: int, scores: int, where: Array | None = None, apart: bool = False
) -> list[Any]:
    """The arguments behind the inputs.

    Args:
        where: the places; default: those of the first text behind `past`.
        apart: see :meth:`tvmopt.runtime.model.Model.call_in_place`.
    """
    if not roles.placed:
        return [ffi().Shape([past, scores])]
    where = places(0, range(past, past + tokens)) if where is None else where
    return [ffi().Shape([past, scores, apart]), to_ffi(where, "int64")]


def check_text(roles: Roles, given: Mapping[str, Any], past: int, tokens: int, where: str) -> None:
    """Refuse a mask that is not full, or other positions than those behind the past: code whose tokens have places
    computes neither from them.

    Args:
        given: the inputs by name.

    Raises:
        InputError: see above.
    """
    if not roles.placed:
        return
    fix = "use Model.decoder, or compile the model with --without tvmopt.PlaceTokens"
    if roles.mask and not np.all(given[roles.mask]):
        raise InputError("the mask hides tokens.", where=f"{where}, {roles.mask}", fix=fix)
    if roles.positions and not np.all(np.asarray(given[roles.positions]) == np.arange(past, past + tokens)):
        raise InputError(
            f"the positions are not {past} to {past + tokens - 1}, those behind the past.",
            where=f"{where}, {roles.positions}",
            fix=fix,
        )
