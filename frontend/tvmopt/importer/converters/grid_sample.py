"""GridSample in any number of axes, and the grids of AffineGrid."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least
from tvmopt.operators import grid_sample as operator


def grid_sample(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """GridSample of x (N, C, spatial) at a grid (N, out, axes), whose last axis counts the spatial ones from behind.

    With cubic interpolation at a border elements are clamped, not coordinates, as in PyTorch and onnxruntime. Sizes may
    be open.
    """
    b = Build(bb, ctx.name)
    x, grid = inputs[0], b.cast(inputs[1], dtype_of(inputs[0]))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(attrs.get("mode", "linear"), attrs.get("mode", "linear"))
    corners = bool(attrs.get("align_corners", 0))
    sampling = operator.Sampling(mode, attrs.get("padding_mode", "zeros"), corners, dtype_of(x))
    for axis, size in enumerate(shape_of(x)[2:], 2):
        grid = at_least(b, ctx, grid, size, 1, f"axis {axis} is empty, so there is nothing to sample")
    return operator.grid_sample(x, grid, sampling)


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
