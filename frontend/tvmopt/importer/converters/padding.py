"""Padding whose amounts only a run tells: SAME_UPPER of an open size, a signal that is filled up to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tvm import te, tirx

from tvmopt.dims import Size, is_open
from tvmopt.importer.converters.common import Build, shape_of
from tvmopt.importer.sizes import shape_to_tvm, to_tvm

Mode = Literal["reflect", "edge", "wrap"]


def pad_open(b: Build, x: Any, before: Sequence[Size], after: Sequence[Size], fill: Any = 0.0) -> Any:
    """`x` with `before` and `after` elements of `fill` along each axis; a negative amount cuts.

    Args:
        fill: a number, or a tensor [] of x's dtype.
    """
    if not any(is_open((d,)) or d for d in (*before, *after)):
        return x
    shape = [low + size + high for low, size, high in zip(before, shape_of(x), after, strict=True)]
    moved = [axis for axis, pads in enumerate(zip(before, after, strict=True)) if is_open(pads) or any(pads)]
    given = [] if isinstance(fill, int | float) else [fill]

    def pad(data: Any, sizes: Sequence[Any], lows: Sequence[Any], *value: Any) -> Any:
        outside = value[0]() if value else tirx.const(fill, data.dtype)

        def one(*at: Any) -> Any:
            place = [i - low for i, low in zip(at, lows, strict=True)]
            inside = [c for a in moved for c in (place[a] >= 0, place[a] < data.shape[a])]
            return tirx.if_then_else(tirx.all(*inside), data(*place), outside)

        return te.compute(list(sizes), one, name="pad")

    return b.te(pad, x, shape_to_tvm(shape), shape_to_tvm(before), *given)


def positions(b: Build, mode: Mode, before: Size, size: Size, after: Size) -> Any:
    """Which element of an open axis each element of the padded one is, int64, as `numpy.pad` has it. Of an axis without
    elements it is none: see `indices.at_least`."""

    def places(n: Any, padded: Any, low: Any) -> Any:
        def one(i: Any) -> Any:
            at = i - low
            if mode == "edge":
                return tirx.max(tirx.min(at, n - 1), 0)
            if mode == "wrap":
                return tirx.floormod(at, tirx.max(n, 1))
            turned = tirx.floormod(at, tirx.max(2 * (n - 1), 1))  # there and back, neither end twice
            return tirx.min(turned, 2 * (n - 1) - turned)

        return te.compute((padded,), one, name="places")

    return b.te(places, to_tvm(size), to_tvm(before + size + after), to_tvm(before))
