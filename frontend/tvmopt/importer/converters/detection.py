"""What detection networks need: NonMaxSuppression, RoiAlign by maximum, MaxPool with indices, TopK of
unsigned integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.importer.converters.common import Build, const, dtype_of, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.convolution import paddings


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


def roi_align(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """RoiAlign; mode "max" takes the largest weighted corner of all samples of a bin, as onnxruntime does."""
    if attrs.get("mode", "avg") != "max":
        return ctx.stock(inputs, attrs)
    b = Build(bb, ctx.name)
    x, rois, batch = inputs[0], inputs[1], b.cast(inputs[2], "int32")
    ratio = attrs.get("sampling_ratio", 0)
    if ratio <= 0:
        raise ctx.unsupported("mode='max' with an adaptive sampling_ratio", "export with sampling_ratio > 0")
    _, channels, height, width = shape_of(x)
    rows, columns = attrs.get("output_height", 1), attrs.get("output_width", 1)
    scale = attrs.get("spatial_scale", 1.0)
    half = ctx.opset >= 16 and attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    shift = 0.5 if half else 0.0

    def roi_align_max(data: Any, regions: Any, owner: Any) -> Any:
        dtype = data.dtype

        def number(value: Any) -> Any:
            return tirx.const(value, dtype) if isinstance(value, int | float) else tirx.Cast(dtype, value)

        def axis(region: Any, column: int, bins: int, place: Any, sample: Any, size: int) -> tuple[Any, ...]:
            begin = regions(region, column) * number(scale) - number(shift)
            end = regions(region, column + 2) * number(scale) - number(shift)
            extent = end - begin if half else te.max(end - begin, number(1.0))
            step = extent / number(float(bins))
            at = begin + number(place) * step + (number(sample) + number(0.5)) * step / number(float(ratio))
            outside = tirx.any(at < number(-1.0), at > number(float(size)))
            at = te.max(at, number(0.0))
            low = te.min(tirx.Cast("int32", at), size - 1)
            high = te.min(low + 1, size - 1)
            part = tirx.Select(low >= size - 1, number(0.0), at - number(low))
            return outside, low, high, part

        iy, ix = te.reduce_axis((0, ratio), "iy"), te.reduce_axis((0, ratio), "ix")

        def one(r: Any, c: Any, i: Any, j: Any) -> Any:
            out_y, y0, y1, fy = axis(r, 1, rows, i, iy, height)
            out_x, x0, x1, fx = axis(r, 0, columns, j, ix, width)
            n, gy, gx = owner(r), number(1.0) - fy, number(1.0) - fx
            best = te.max(
                te.max(data(n, c, y0, x0) * gy * gx, data(n, c, y0, x1) * gy * fx),
                te.max(data(n, c, y1, x0) * fy * gx, data(n, c, y1, x1) * fy * fx),
            )
            return te.max(tirx.Select(tirx.any(out_y, out_x), number(0.0), best), axis=[iy, ix])

        return te.compute((shape_of(rois)[0], channels, rows, columns), one, name="roi_align")

    return b.te(roi_align_max, x, rois, batch)


def max_pool(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """MaxPool; the flat index of each maximum is computed only where somebody reads it."""
    value = ctx.stock(inputs, attrs)
    if not ctx.wants(1):
        return value
    b = Build(bb, ctx.name)
    value = b.emit(value)
    x = inputs[0]
    shape, out = shape_of(x), shape_of(value)
    n = len(shape) - 2
    kernel = attrs["kernel_shape"]
    strides, dilations = attrs.get("strides", [1] * n), attrs.get("dilations", [1] * n)
    pads = paddings(ctx, attrs, shape[2:], kernel, strides, dilations)
    column_major = bool(attrs.get("storage_order", 0))

    def max_pool_index(data: Any) -> Any:
        axes = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(kernel)]

        def pick(a: Any, c: Any) -> Any:
            first = tirx.any(a[1] > c[1], tirx.all(a[1] == c[1], a[0] < c[0]))
            return tirx.Select(first, a[0], c[0]), tirx.Select(first, a[1], c[1])

        def nothing(index: Any, element: Any) -> Any:
            return tirx.const(2**62, index), te.min_value(element)

        best = te.comm_reducer(pick, nothing, name="argmax")

        def one(*place: Any) -> Any:
            where = [
                p * s + k * d - pad for p, s, k, d, pad in zip(place[2:], strides, axes, dilations, pads, strict=False)
            ]
            inside = tirx.all(*[c for w, size in zip(where, shape[2:], strict=True) for c in (w >= 0, w < size)])
            order = range(n - 1, -1, -1) if column_major else range(n)
            flat = place[0] * shape[1] + place[1]
            for i in order:
                flat = flat * shape[2 + i] + where[i]
            index = tirx.if_then_else(inside, tirx.Cast("int64", flat), tirx.const(2**62, "int64"))
            element = tirx.if_then_else(inside, data(*place[:2], *where), te.min_value(data.dtype))
            return best((index, element), axis=axes)

        return te.compute(out, one, name="max_pool_index")

    found = b.te(max_pool_index, x)
    return value, relax.TupleGetItem(found, 0)


def top_k(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TopK; uint64, which TVM does not sort, as int64 with the sign bit turned round."""
    x = inputs[0]
    if dtype_of(x) != "uint64":
        return ctx.stock(inputs, attrs)
    b = Build(bb, ctx.name)
    k = ctx.array(inputs[1], "k")
    assert k is not None

    def reordered(target: str) -> Any:
        def reorder(data: Any) -> Any:
            half = tirx.const(-(2**63), "int64")

            def one(*i: Any) -> Any:
                turned = tirx.reinterpret("int64", data(*i)) ^ half
                return tirx.reinterpret(target, turned)

            return te.compute(data.shape, one, name="reorder")

        return reorder

    axis = attrs.get("axis", -1)
    signed = b.te(reordered("int64"), x)
    found = b.emit(relax.op.topk(signed, int(np.ravel(k)[0]), axis, "both", bool(attrs.get("largest", 1)), "int64"))
    values = b.te(reordered("uint64"), b.emit(relax.TupleGetItem(found, 0)))
    return values, relax.TupleGetItem(found, 1)


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "NonMaxSuppression"): non_max_suppression,
    ("", "RoiAlign"): roi_align,
    ("", "MaxPool"): max_pool,
    ("", "TopK"): top_k,
}
