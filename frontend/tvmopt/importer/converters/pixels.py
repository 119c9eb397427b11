"""ResampleRows, ResampleColumns and ScalePicture of our own domain (:mod:`tvmopt.importer.pixels`, `pictures`)."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmopt.importer.converters.common import const, dtype_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.own import DOMAIN
from tvmopt.importer.pictures import FILTER_OF
from tvmopt.importer.pixels import COLUMNS, ROWS
from tvmopt.importer.sizes import shape_of
from tvmopt.operators.resample import problem, resample_columns, resample_rows, run_of
from tvmopt.operators.scale_picture import scale_picture

LARGEST = 1 << 15
"""Pixels of a side."""
TABLES = "export the model with `tvmopt compile --preprocess`, whose tables are right"


def _resample(axis: int) -> Converter:
    """The operator of axis 1 (rows) or 2 (columns)."""

    def convert(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        x, shape = inputs[0], shape_of(inputs[0])
        if dtype_of(x) != "uint8" or shape is None or len(shape) != 4:
            raise ctx.unsupported("its picture is no uint8 tensor of four dimensions", "give bytes [N, H, W, C]")
        sizes = list(shape[1:])
        if not all(isinstance(d, int) for d in sizes):
            raise ctx.unsupported("the size of its picture is not known", "bind it with --shape NAME:NxHxWxC")
        places, weights = (ctx.array(inputs[i], what) for i, what in ((1, "places"), (2, "weights")))
        assert places is not None and weights is not None
        if wrong := problem(places, weights, sizes[axis - 1]):
            raise ctx.unsupported(f"it has {wrong}", TABLES)
        taps = const(places, "int64"), const(weights, "int32")
        if axis == 1:
            return resample_rows(x, *taps)
        rows, channels = (ctx.array(inputs[i], what) for i, what in ((3, "rows"), (4, "channels")))
        assert rows is not None and channels is not None
        if not run_of(rows, sizes[0]):
            raise ctx.unsupported("its rows do not follow each other inside of the picture", TABLES)
        if channels.ndim != 1 or not len(channels) or channels.min() < 0 or channels.max() >= sizes[2]:
            raise ctx.unsupported("it reads channels that the picture does not have", TABLES)
        return resample_columns(x, *taps, const(rows, "int64"), const(channels, "int64"))

    return convert


def _scale(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """A picture of any size, by a filter of the operator's name."""
    x, shape, geometry = inputs[0], shape_of(inputs[0]), inputs[1]
    if dtype_of(x) != "uint8" or shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        raise ctx.unsupported("its picture is no uint8 tensor of four dimensions", "give bytes [N, H, W, C]")
    size, fill = ctx.array(inputs[2], "size"), ctx.array(inputs[3], "fill")
    assert size is not None and fill is not None
    if shape_of(geometry) != (4, 2) or dtype_of(geometry) != "int64" or size.shape != (3,) or fill.size != 1:
        raise ctx.unsupported("its geometry is not int64 [4, 2], its size not [3], or its fill not one byte", TABLES)
    if size.min() < 1 or size.max() > LARGEST or not 0 <= fill.item() <= 255:
        raise ctx.unsupported(f"its size is {size.tolist()} and its fill {fill.item()}", TABLES)
    high, wide, least = map(int, size)
    return scale_picture(x, geometry, (high, wide), FILTER_OF[ctx.node.op_type], int(fill.item()), least)


CONVERTERS: dict[tuple[str, str], Converter] = {
    (DOMAIN, ROWS): _resample(1),
    (DOMAIN, COLUMNS): _resample(2),
    **dict.fromkeys(((DOMAIN, name) for name in FILTER_OF), _scale),
}
