"""GridSample in any number of axes: a tensor read between its elements, at coordinates that a grid gives."""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import relax, te, tirx

from tvmopt.importer.converters.common import Build, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

CUBIC = -0.75
"""The coefficient of the cubic kernel."""
MARGIN = 4.0
"""So many elements outside an image nothing of it is read."""


def _mirrored(x: Any, low: float, high: float) -> Any:
    """`x` reflected at both borders until it lies between them."""
    period = 2 * (high - low)
    if not period:
        return x * 0.0 + low
    turn = x - low - tirx.floor((x - low) / period) * period
    return low + tirx.min(turn, period - turn)


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

    With cubic interpolation at a border elements are clamped, not coordinates, as in PyTorch and onnxruntime.
    """
    b = Build(bb, ctx.name)
    x, grid = inputs[0], b.cast(inputs[1], dtype_of(inputs[0]))
    sizes = [int(size) for size in shape_of(x)[2:]]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attrs.get("mode", "linear"), attrs.get("mode", "linear"))
    dtype = dtype_of(x)
    padding, corners = attrs.get("padding_mode", "zeros"), bool(attrs.get("align_corners", 0))

    def within(value: Any, low: float, high: float) -> Any:
        return tirx.max(tirx.min(value, tirx.const(high, dtype)), tirx.const(low, dtype))

    def taps(g: Any, size: int) -> list[tuple[Any, Any, Any]]:
        """(Index, weight, whether it is inside) of the elements of one axis around a normalised coordinate."""
        place = (g + 1.0) * (0.5 * (size - 1)) if corners else ((g + 1.0) * float(size) - 1.0) * 0.5
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if mode == "nearest":
            place = tirx.nearbyint(place)
        if padding == "reflection":
            place = _mirrored(place, low, high)
        elif padding == "border" and mode != "cubic":
            place = within(place, 0.0, size - 1.0)
        near = tirx.floor(within(place, -MARGIN, size + MARGIN))  # not beyond every integer
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


CONVERTERS: dict[tuple[str, str], Converter] = {("", "GridSample"): in_float32(grid_sample)}
