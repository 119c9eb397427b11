"""A tensor read between its elements, at coordinates that a grid gives, as one Relax operator.

    y = tvmopt.grid_sample(x, grid; mode=, padding=, corners=)      x [n, c, sizes] -> y [n, c, points]

    grid        [n, points, axes], of the type of x; its last axis counts the axes of `sizes` from behind
    mode        "nearest", "linear" or "cubic"
    padding     "zeros", "border" or "reflection": what lies outside
    corners     whether -1 and 1 are the centres of the outermost elements, or their outer borders

As an operator it reaches the family that reads vectors of channels; where no family takes a call, each number of the
result reads its coordinates and gathers its elements. Sizes may be open.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.grid_sample"
CUBIC = -0.75
"""The coefficient of the cubic kernel."""
MARGIN = 4.0
"""So many elements outside an image nothing of it is read."""
FAR = 2.0**40
"""Beyond the last element of every image, and no overflow as an integer."""


@dataclass(frozen=True)
class Sampling:
    """How places between elements are read: the attributes of a GridSample, and the type of its numbers."""

    mode: str
    padding: str
    corners: bool
    dtype: str

    @classmethod
    def of(cls, call: Any) -> Sampling:
        """That of a call."""
        return cls(**json.loads(str(call.attrs["told"])))

    @property
    def count(self) -> int:
        """Elements of an axis that are read for one point."""
        return {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]

    def taps(self, g: Any, size: Any, kind: str = "int64") -> list[tuple[Any, Any, Any]]:
        """(Index, weight, whether it is inside) of the elements of one axis around a normalised coordinate.

        Args:
            kind: the type of the index.
        """
        count = tirx.Cast(self.dtype, size) if isinstance(size, tvm.ir.Expr) else float(size)
        place = self._place(g, size, count)
        beyond = FAR if isinstance(size, tvm.ir.Expr) else count + MARGIN
        near = tirx.floor(self._within(place, -MARGIN, beyond))
        index = tirx.Cast(kind, tirx.Select(near >= -MARGIN, near, tirx.const(-MARGIN, self.dtype)))  # a NaN's, too
        found = []
        for offset, weight in _weights(self.mode, place - tirx.floor(place)):
            at = index + offset
            if self.padding == "reflection":  # one reflection: the coordinate is inside
                last = size - 1
                mirror = (-at, 2 * last - at) if self.corners else (-1 - at, 2 * last + 1 - at)
                at = tirx.Select(at < 0, mirror[0], tirx.Select(at > last, mirror[1], at))
            inside = tirx.all(at >= 0, at < size) if self.padding == "zeros" else tirx.const(True, "bool")
            found.append((tirx.max(tirx.min(at, size - 1), 0), weight, inside))
        return found

    def _place(self, g: Any, size: Any, count: Any) -> Any:
        """Where a normalised coordinate lies, in elements: `count` is the size as a number of the coordinate's type."""
        place = (g + 1.0) * ((count - 1.0) * 0.5) if self.corners else ((g + 1.0) * count - 1.0) * 0.5
        low, high = (0.0, count - 1.0) if self.corners else (-0.5, count - 0.5)
        if self.mode == "nearest":
            place = tirx.nearbyint(place)
        if self.padding == "reflection":
            one = tirx.EQ(size, tirx.const(1, "int64")) if isinstance(size, tvm.ir.Expr) else size == 1
            return _mirrored(place, low, high, self.corners and one)
        if self.padding == "border" and self.mode != "cubic":
            return self._within(place, 0.0, count - 1.0)
        return place

    def _within(self, value: Any, low: float, high: Any) -> Any:
        """`value` cut at the bounds; NaN stays."""
        if isinstance(high, tvm.ir.Expr):
            return tirx.max(tirx.Select(value > high, high, value), tirx.const(low, self.dtype))
        return tirx.max(tirx.min(value, tirx.const(high, self.dtype)), tirx.const(low, self.dtype))


def grid_sample(x: Any, grid: Any, sampling: Sampling) -> Any:
    """The call."""
    _register()
    attrs = tvm.ir.make_node("ir.DictAttrs", told=json.dumps(asdict(sampling)))
    return relax.Call(tvm.ir.Op.get(OP), [x, grid], attrs)


def _mirrored(x: Any, low: Any, high: Any, one: Any) -> Any:
    """`x` reflected at both borders until it lies between them; `one`: whether they are equal."""
    if one is True:
        return x * 0.0 + low
    period = 2.0 * (high - low)
    whole = period if one is False else tirx.Select(one, tirx.const(1.0, x.ty.dtype), period)
    turn = x - low - tirx.floor((x - low) / whole) * whole
    folded = low + tirx.min(turn, period - turn)
    return folded if one is False else tirx.Select(one, x * 0.0 + low, folded)


def _weights(mode: str, t: Any) -> list[tuple[int, Any]]:
    """(Offset, weight) of the elements around a coordinate that lies `t` behind an element."""
    if mode == "nearest":
        return [(0, 1.0)]
    if mode == "linear":
        return [(0, 1.0 - t), (1, t)]
    a = CUBIC
    far = [((a * s - 5 * a) * s + 8 * a) * s - 4 * a for s in (t + 1.0, 2.0 - t)]
    near = [((a + 2) * s - (a + 3)) * s * s + 1.0 for s in (t, 1.0 - t)]
    return list(zip((-1, 0, 1, 2), (far[0], near[0], near[1], far[1]), strict=True))


def _type(call: Any, _bb: Any) -> Any:
    x, grid = (arg.ty for arg in call.args)
    return relax.TensorType([*list(x.shape)[:2], *list(grid.shape)[1:-1]], x.dtype)


def _loops(bb: relax.BlockBuilder, call: Any) -> Any:
    sampling = Sampling.of(call)

    def sample(data: te.Tensor, places: te.Tensor) -> te.Tensor:
        sizes = [int(size) if isinstance(size, int | tirx.IntImm) else size for size in data.shape[2:]]

        def one(n: Any, c: Any, *at: Any) -> Any:
            axes = [sampling.taps(places(n, *at, len(sizes) - 1 - axis), size) for axis, size in enumerate(sizes)]
            total = None
            for chosen in product(*axes):
                value = data(n, c, *(index for index, _, _ in chosen))
                inside = tirx.all(*(i for _, _, i in chosen))
                value = tirx.if_then_else(inside, value, tirx.const(0.0, sampling.dtype))
                for _, weight, _ in chosen:
                    value = value * weight
                total = value if total is None else total + value
            return total

        return te.compute((*data.shape[:2], *places.shape[1:-1]), one, name="grid_sample")

    return bb.call_te(sample, *call.args, primfunc_name_hint="sample")


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, _loops)
