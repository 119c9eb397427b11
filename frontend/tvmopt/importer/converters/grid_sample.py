"""GridSample in any number of axes: a tensor read between its elements, at coordinates that a grid gives."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvmopt.dims import Dim
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least

CUBIC = -0.75
"""The coefficient of the cubic kernel."""
MARGIN = 4.0
"""So many elements outside an image nothing of it is read."""
FAR = 2.0**40
"""Beyond the last element of every image, and no overflow as an integer."""


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


def grid_sample(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GridSample of x (N, C, spatial) at a grid (N, out, axes), whose last axis counts the spatial ones from behind.

    With cubic interpolation at a border elements are clamped, not coordinates, as in PyTorch and onnxruntime. Sizes may
    be open.
    """
    b = Build(bb, ctx.name)
    x, grid = inputs[0], b.cast(inputs[1], dtype_of(inputs[0]))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attrs.get("mode", "linear"), attrs.get("mode", "linear"))
    dtype = dtype_of(x)
    padding, corners = attrs.get("padding_mode", "zeros"), bool(attrs.get("align_corners", 0))

    for axis, size in enumerate(shape_of(x)[2:], 2):
        grid = at_least(b, ctx, grid, size, 1, f"axis {axis} is empty, so there is nothing to sample")

    def within(value: Any, low: float, high: Any) -> Any:
        """`value` cut at the bounds; NaN stays."""
        if isinstance(high, tvm.ir.Expr):
            return tirx.max(tirx.Select(value > high, high, value), tirx.const(low, dtype))
        return tirx.max(tirx.min(value, tirx.const(high, dtype)), tirx.const(low, dtype))

    def taps(g: Any, size: Any) -> list[tuple[Any, Any, Any]]:
        """(Index, weight, whether it is inside) of the elements of one axis around a normalised coordinate."""
        count = tirx.Cast(dtype, size) if isinstance(size, tvm.ir.Expr) else float(size)
        place = (g + 1.0) * ((count - 1.0) * 0.5) if corners else ((g + 1.0) * count - 1.0) * 0.5
        low, high = (0.0, count - 1.0) if corners else (-0.5, count - 0.5)
        if mode == "nearest":
            place = tirx.nearbyint(place)
        if padding == "reflection":
            one = tirx.EQ(size, tirx.const(1, "int64")) if isinstance(size, tvm.ir.Expr) else size == 1
            place = _mirrored(place, low, high, corners and one)
        elif padding == "border" and mode != "cubic":
            place = within(place, 0.0, count - 1.0)
        beyond = FAR if isinstance(size, tvm.ir.Expr) else count + MARGIN
        near = tirx.floor(within(place, -MARGIN, beyond))
        index = tirx.Cast("int64", tirx.Select(near >= -MARGIN, near, tirx.const(-MARGIN, dtype)))  # a NaN's, too
        found = []
        for offset, weight in _weights(mode, place - tirx.floor(place)):
            at = index + offset
            if padding == "reflection":  # one reflection: the coordinate is inside
                last = size - 1
                mirror = (-at, 2 * last - at) if corners else (-1 - at, 2 * last + 1 - at)
                at = tirx.Select(at < 0, mirror[0], tirx.Select(at > last, mirror[1], at))
            inside = tirx.all(at >= 0, at < size) if padding == "zeros" else tirx.const(True, "bool")
            found.append((tirx.max(tirx.min(at, size - 1), 0), weight, inside))
        return found

    def sample(data: Any, places: Any) -> Any:
        known = zip(shape_of(x)[2:], data.shape[2:], strict=True)
        sizes = [own if isinstance(size, Dim) else int(size) for size, own in known]

        def one(n: Any, c: Any, *at: Any) -> Any:
            axes = [taps(places(n, *at, len(sizes) - 1 - axis), size) for axis, size in enumerate(sizes)]
            total = None
            for chosen in product(*axes):
                value = data(n, c, *(index for index, _, _ in chosen))
                value = tirx.if_then_else(tirx.all(*(i for _, _, i in chosen)), value, tirx.const(0.0, dtype))
                for _, weight, _ in chosen:
                    value = value * weight
                total = value if total is None else total + value
            return total

        return te.compute((*data.shape[:2], *places.shape[1:-1]), one, name="grid_sample")

    return b.te(sample, x, grid)


def affine_grid(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """AffineGrid of a known size: a matrix [axes, axes + 1] times the places of all elements, which are constants, as
    sums of three or four terms: a matrix product would keep 8 binary digits in bf16, and a place needs all. Not for the
    corners of an axis of one element: onnxruntime has it at 1, ONNX's reference at -1."""
    size = ctx.array(inputs[1], "size")
    if attrs.get("align_corners", 0) and size is not None and any(d == 1 for d in np.ravel(size)[2:]):
        told = f"size {[int(d) for d in np.ravel(size)]} has an axis of one element, and its two corners are apart"
        raise ctx.unsupported(told, "export the model with align_corners=0, or without this node")
    if size is None:
        return ctx.stock(inputs, attrs)
    b, theta = Build(bb, ctx.name), inputs[0]
    sizes = [int(n) for n in np.ravel(size)[2:]]
    if attrs.get("align_corners", 0):
        axes = [np.linspace(-1, 1, n) for n in sizes]
    else:
        axes = [(2 * np.arange(n) + 1) / n - 1 for n in sizes]
    places = np.meshgrid(*axes, indexing="ij")[::-1]  # the last axis comes first
    batch, rank = shape_of(theta)[0], len(sizes)

    def column(k: int) -> Any:
        return b.reshape(b.slice(theta, 2, k, k + 1), (batch, *[1] * rank, rank))

    grid = column(rank)
    for k, place in enumerate(places):
        grid = b.add(b.mul(const(place[None, ..., None], dtype_of(theta)), column(k)), grid)
    return grid


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "GridSample"): in_float32(grid_sample),
    ("", "AffineGrid"): in_float32(affine_grid),
}
