"""What detection networks need: NonMaxSuppression and SelectBoxes, RoiAlign, MaxRoiPool, TopK of unsigned integers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.dims import OpenSize, is_open
from tvmopt.importer.boxes import ANY, SELECT
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within
from tvmopt.importer.own import DOMAIN
from tvmopt.operators.select_boxes import select_boxes

SAMPLES = 1 << 12
"""The most samples of a bin along an axis, where their number follows from the region's size."""


def _scalar(ctx: Context, expr: Any, what: str, default: float) -> float:
    value = ctx.array(expr, what)
    return default if value is None or not value.size else float(np.ravel(value)[0])


def non_max_suppression(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """NonMaxSuppression; the limits are known at compile time, how many boxes remain only at run time."""
    b = Build(bb, ctx.name)
    boxes, scores = inputs[0], inputs[1]
    limit = int(_scalar(ctx, inputs[2], "max_output_boxes_per_class", 0))
    iou = _scalar(ctx, inputs[3], "iou_threshold", 0.0)
    threshold = _scalar(ctx, inputs[4], "score_threshold", -3.0e38)
    if limit <= 0:
        return const(np.zeros((0, 3)), "int64")
    limit = min(limit, shape_of(boxes)[1])
    scores = b.where(b.emit(relax.op.isnan(scores)), -np.inf, scores)  # NaN is above no threshold, and breaks an order
    if attrs.get("center_point_box", 0):
        centre, size = b.slice(boxes, 2, 0, 2), b.slice(boxes, 2, 2, 4)
        half = b.mul(size, 0.5)
        low, high = b.sub(centre, half), b.add(centre, half)
    else:  # two opposite corners, in any order
        first, second = b.slice(boxes, 2, 0, 2), b.slice(boxes, 2, 2, 4)
        low, high = b.minimum(first, second), b.maximum(first, second)
    found = b.emit(
        relax.op.vision.all_class_non_max_suppression(
            b.concat([low, high], 2),
            scores,
            const(limit, "int64"),
            const(np.nextafter(np.float32(iou), np.float32(2)), "float32"),  # TVM drops at the threshold too
            const(threshold, "float32"),
            output_format="onnx",
        )
    )
    indices, count = b.emit(relax.TupleGetItem(found, 0)), b.emit(relax.TupleGetItem(found, 1))
    if len(indices.ty.shape) == 2 and not isinstance(indices.ty.shape[0], tirx.IntImm):
        return indices
    end = b.concat([b.reshape(b.cast(count, "int64"), (1,)), const([3], "int64")], 0)
    cut = relax.op.dynamic_strided_slice(indices, const([0, 0], "int64"), end, const([1, 1], "int64"))
    return bb.match_cast(b.emit(cut), relax.TensorType((tirx.Var("selected", "int64"), 3), "int64"))


def best_boxes(
    bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context, any_class: bool = False
) -> Result:
    """SelectBoxes of our own domain (:mod:`tvmopt.importer.boxes`)."""
    limits = [ctx.array(inputs[i], what) for i, what in ((2, "most"), (3, "iou"), (4, "score"))]
    most, iou, score = (np.ravel(limit)[0] for limit in limits if limit is not None)
    if dtype_of(inputs[0]) != "float32" or dtype_of(inputs[1]) != "float32" or most < 1:
        raise ctx.unsupported("its boxes and scores are no float32, or it has no places", "use --postprocess boxes:...")
    return select_boxes(inputs[0], inputs[1], int(most), float(iou), float(score), any_class)


def roi_align(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """RoiAlign; mode "max" takes the largest weighted corner of all samples of a bin, as onnxruntime does.

    TVM's own converter moves a region by half a pixel before it scales it; ONNX scales first.
    """
    b = Build(bb, ctx.name)
    x, rois, batch = inputs[0], inputs[1], within(b, ctx, 2, "the number of a picture", 0, shape_of(inputs[0])[0] - 1)
    batch = b.cast(batch, "int32")
    ratio, most = attrs.get("sampling_ratio", 0), attrs.get("mode", "avg") == "max"
    _, channels, height, width = shape_of(x)
    rows, columns = attrs.get("output_height", 1), attrs.get("output_width", 1)
    scale = attrs.get("spatial_scale", 1.0)
    half = ctx.opset >= 16 and attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    shift = 0.5 if half else 0.0

    def sampled(data: Any, regions: Any, owner: Any) -> Any:
        dtype = data.dtype

        def number(value: Any) -> Any:
            return tirx.const(value, dtype) if isinstance(value, int | float) else tirx.Cast(dtype, value)

        def line(region: Any, column: int, bins: int) -> tuple[Any, Any, Any]:
            """Where a region begins along an axis, the width of a bin, and how many samples a bin has."""
            begin = regions(region, column) * number(scale) - number(shift)
            end = regions(region, column + 2) * number(scale) - number(shift)
            extent = end - begin if half else te.max(end - begin, number(1.0))
            step = extent / number(float(bins))
            if ratio > 0:
                return begin, step, tirx.const(ratio, "int32")
            few = te.max(te.min(tirx.ceil(step), number(float(SAMPLES))), number(1.0))
            return begin, step, tirx.Cast("int32", tirx.Select(step > number(0.0), few, number(1.0)))

        def axis(region: Any, column: int, bins: int, place: Any, sample: Any, size: int) -> tuple[Any, ...]:
            begin, step, samples = line(region, column, bins)
            at = begin + number(place) * step + (number(sample) + number(0.5)) * step / number(samples)
            outside = tirx.any(at < number(-1.0), at > number(float(size)))
            if ratio <= 0:  # a region without extent has no samples; a loop of no steps would leave its result unset
                outside = tirx.any(outside, step <= number(0.0))
            inside = tirx.Select(tirx.all(at > number(0.0), at < number(float(size))), at, number(0.0))
            low = te.min(tirx.Cast("int32", inside), size - 1)
            high = te.min(low + 1, size - 1)
            part = tirx.Select(low >= size - 1, number(0.0), te.max(at, number(0.0)) - number(low))
            return outside, low, high, part

        def one(r: Any, c: Any, i: Any, j: Any) -> Any:
            down, across = line(r, 1, rows)[2], line(r, 0, columns)[2]
            iy, ix = te.reduce_axis((0, down), "iy"), te.reduce_axis((0, across), "ix")
            out_y, y0, y1, fy = axis(r, 1, rows, i, iy, height)
            out_x, x0, x1, fx = axis(r, 0, columns, j, ix, width)
            n, gy, gx = owner(r), number(1.0) - fy, number(1.0) - fx
            corners = [
                data(n, c, y0, x0) * gy * gx, data(n, c, y0, x1) * gy * fx,
                data(n, c, y1, x0) * fy * gx, data(n, c, y1, x1) * fy * fx,
            ]  # fmt: skip
            value = te.max(te.max(corners[0], corners[1]), te.max(corners[2], corners[3])) if most else sum(corners)
            value = tirx.Select(tirx.any(out_y, out_x), number(0.0), value)
            if most:
                return te.max(value, axis=[iy, ix])
            return te.sum(value / number(down * across), axis=[iy, ix])

        return te.compute((shape_of(rois)[0], channels, rows, columns), one, name="roi_align")

    sampled.__name__ = f"roi_align_{'max' if most else 'avg'}"
    return b.te(sampled, x, rois, batch)


EVERY = -1
"""For TVM's topk: as many as there are."""


def top_k(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TopK; uint64, which TVM does not sort, as int64 with the sign bit turned round; of an open axis all or few."""
    x, b = inputs[0], Build(bb, ctx.name)
    axis, k = attrs.get("axis", -1), ctx.array(inputs[1], "k")
    assert k is not None
    count = np.ravel(k)[0]
    if is_open((count,)):
        if count != shape_of(x)[axis]:
            raise OpenSize(f"the number {count} is open, and not the size of the axis")
        count = EVERY
    unsigned = dtype_of(x) == "uint64"
    if not unsigned and count != EVERY:
        return ctx.stock(inputs, attrs)

    def reordered(target: str) -> Any:
        def reorder(data: Any) -> Any:
            half = tirx.const(-(2**63), "int64")

            def one(*i: Any) -> Any:
                turned = tirx.reinterpret("int64", data(*i)) ^ half
                return tirx.reinterpret(target, turned)

            return te.compute(data.shape, one, name="reorder")

        return reorder

    data = b.te(reordered("int64"), x) if unsigned else x
    found = b.emit(relax.op.topk(data, int(count), axis, "both", bool(attrs.get("largest", 1)), "int64"))
    values, places = (b.emit(relax.TupleGetItem(found, i)) for i in range(2))
    return b.te(reordered("uint64"), values) if unsigned else values, places


def max_roi_pool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MaxRoiPool; the first number of a region says in which picture it lies."""
    b = Build(bb, ctx.name)
    pictures, dtype = shape_of(inputs[0])[0], dtype_of(inputs[1])
    picture = b.cast(b.slice(inputs[1], 1, 0, 1), "int64")
    picture = within(b, ctx, 1, "the number of a picture", 0, pictures - 1, picture)
    regions = b.concat([b.cast(picture, dtype), b.slice(inputs[1], 1, 1, 5)], 1)
    return ctx.stock([inputs[0], regions], attrs)


CONVERTERS: dict[tuple[str, str], Converter] = {
    (DOMAIN, SELECT): best_boxes,
    (DOMAIN, ANY): partial(best_boxes, any_class=True),
    ("", "NonMaxSuppression"): non_max_suppression,
    ("", "RoiAlign"): in_float32(roi_align),
    ("", "MaxRoiPool"): max_roi_pool,
    ("", "TopK"): top_k,
}
