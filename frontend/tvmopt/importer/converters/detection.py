"""What detection networks need: NonMaxSuppression and SelectBoxes, RoiAlign, MaxRoiPool, TopK of unsigned integers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvmopt.dims import Dim, is_open
from tvmopt.importer.boxes import ANY, SELECT
from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import at_least, index, within
from tvmopt.importer.own import DOMAIN
from tvmopt.operators.select_boxes import select_boxes
from tvmopt.operators.suppress_boxes import MOST, suppress_boxes

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
    if limit <= 0 or 0 in shape_of(boxes) or 0 in shape_of(scores):
        return const(np.zeros((0, 3)), "int64")
    if attrs.get("center_point_box", 0):
        centre, size = b.slice(boxes, 2, 0, 2), b.slice(boxes, 2, 2, 4)
        half = b.mul(b.maximum(size, 0.0), 0.5)  # one of a negative size overlaps none, as in onnxruntime
        boxes = b.concat([b.sub(centre, half), b.add(centre, half)], 2)
    found = b.emit(
        suppress_boxes(b.cast(boxes, "float32"), b.cast(scores, "float32"), min(limit, MOST), iou, threshold)
    )
    count = b.reshape(b.slice(b.slice(found, 0, 0, 1), 1, 0, 1), (1,))
    return b.cut(found, 0, 1, count, ctx.decided(0))


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

    A corner that is not a number counts there only where it is the first of its sample, and such a sample only where it
    is the first of its bin: that is what the comparisons of ONNX's reference and of onnxruntime leave. TVM's own
    converter moves a region by half a pixel before it scales it; ONNX scales first.
    """
    b = Build(bb, ctx.name)
    x, rois, pictures = inputs[0], inputs[1], shape_of(inputs[0])[0]
    if isinstance(pictures, Dim):
        batch = index(b, ctx, 2, (pictures,), wrap=False)
    else:
        batch = within(b, ctx, 2, "the number of a picture", 0, pictures - 1)
    batch = b.cast(batch, "int32")
    ratio, most = attrs.get("sampling_ratio", 0), attrs.get("mode", "avg") == "max"
    rows, columns = attrs.get("output_height", 1), attrs.get("output_width", 1)
    scale = attrs.get("spatial_scale", 1.0)
    if not np.isfinite(scale):
        raise ctx.unsupported(f"its spatial_scale is {scale}", "regions are scaled by a finite number")
    half = ctx.opset >= 16 and attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    shift = 0.5 if half else 0.0

    def sampled(data: Any, regions: Any, owner: Any) -> Any:
        dtype = data.dtype
        _, channels, height, width = (d if isinstance(d, tirx.Var) else int(d) for d in data.shape)

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

        def axis(region: Any, column: int, bins: int, place: Any, sample: Any, size: Any) -> tuple[Any, ...]:
            begin, step, samples = line(region, column, bins)
            at = begin + number(place) * step + (number(sample) + number(0.5)) * step / number(samples)
            size = tirx.Cast("int32", size) if isinstance(size, tirx.Var) else tirx.const(size, "int32")
            outside = tirx.any(at < number(-1.0), at > number(size))
            inside = tirx.Select(tirx.all(at > number(0.0), at <= number(size)), at, number(0.0))  # fits an int32
            low = te.min(tirx.Cast("int32", inside), size - 1)
            high = te.min(low + 1, size - 1)
            part = tirx.Select(low >= size - 1, number(0.0), te.max(at, number(0.0)) - number(low))
            return outside, low, high, part

        def corners(r: Any, c: Any, i: Any, j: Any, iy: Any, ix: Any) -> tuple[Any, list[Any], Any]:
            """Whether a sample is outside, its four weighted corners, and what it is outside: the picture's first
            number by 0, which is no number where that is infinite."""
            out_y, y0, y1, fy = axis(r, 1, rows, i, iy, height)
            out_x, x0, x1, fx = axis(r, 0, columns, j, ix, width)
            n, gy, gx = owner(r), number(1.0) - fy, number(1.0) - fx
            finite = tirx.abs(data(n, c, 0, 0)) < number(float("inf"))
            return tirx.any(out_y, out_x), [
                data(n, c, y0, x0) * gy * gx, data(n, c, y0, x1) * gy * fx,
                data(n, c, y1, x0) * fy * gx, data(n, c, y1, x1) * fy * fx,
            ], tirx.Select(finite, number(0.0), number(float("nan")))  # fmt: skip

        def sampled_at_all(r: Any, value: Any) -> Any:
            """A region without extent has no samples; a loop of no steps would leave its result unset."""
            steps = [line(r, column, bins)[1] for column, bins in ((1, rows), (0, columns))]
            return value if ratio > 0 else tirx.Select(tirx.all(*(s > number(0.0) for s in steps)), value, number(0.0))

        def one(r: Any, c: Any, i: Any, j: Any) -> Any:
            down, across = line(r, 1, rows)[2], line(r, 0, columns)[2]
            iy, ix = te.reduce_axis((0, down), "iy"), te.reduce_axis((0, across), "ix")
            outside, weighted, beyond = corners(r, c, i, j, iy, ix)
            if not most:
                value = tirx.Select(outside, beyond, sum(weighted))
                return te.sum(sampled_at_all(r, value / number(down * across)), axis=[iy, ix])
            first, second, third, fourth = (tirx.Select(tirx.isnan(v), lowest, v) for v in weighted)
            value = te.max(te.max(first, second), te.max(third, fourth))
            lost = tirx.Select(tirx.isnan(weighted[0]), lowest, value)
            beyond = tirx.Select(tirx.isnan(beyond), lowest, beyond)
            lost = tirx.Select(outside, beyond, lost)
            return largest(sampled_at_all(r, lost), axis=[iy, ix])

        lowest = number(float("-inf"))
        # te.max begins with a finite number
        largest = te.comm_reducer(lambda a, b: te.max(a, b), lambda kind: lowest, name="largest")
        found = te.compute((regions.shape[0], channels, rows, columns), one, name="roi_align")
        if not most:
            return found

        def or_lost(r: Any, c: Any, i: Any, j: Any) -> Any:
            outside, (corner, *_), beyond = corners(r, c, i, j, tirx.const(0, "int32"), tirx.const(0, "int32"))
            lost = tirx.isnan(tirx.Select(outside, beyond, corner))
            value = tirx.Select(lost, number(float("nan")), found(r, c, i, j))
            return sampled_at_all(r, value)

        return te.compute(found.shape, or_lost, name="roi_align_max")

    sampled.__name__ = f"roi_align_{'max' if most else 'avg'}"
    return b.te(sampled, x, rois, batch)


EVERY = -1
"""For TVM's topk: as many as there are."""

WIDER = {"bfloat16": "float32", "float16": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
"""Types that TVM sorts no numbers of, and those that they are sorted as."""

SORTED_AS = {"float32": "int32", "float64": "int64", "uint64": "int64"}
"""Types that are sorted by integers whose order is theirs: TVM sorts no uint64, and floats without regard to NaN."""


def _ordered(data: Any) -> Any:
    """Integers in the order of the numbers: NaN above all, -0 as 0.

    float    bits                      integer
    >= 0     0 ...                     the same
    < 0      1 ..., the larger         the bits behind the sign turned round
             the smaller the number
    """
    dtype = str(data.dtype)
    kind = SORTED_AS[dtype]
    bits = tirx.const(1 << (int(kind[3:]) - 1), "uint64")
    rest = tirx.const(((1 << (int(kind[3:]) - 1)) - 1), kind)

    def one(*i: Any) -> Any:
        x = data(*i)
        if dtype == "uint64":
            return tirx.reinterpret(kind, x ^ bits)
        plain = tirx.reinterpret(kind, tirx.Select(x.equal(tirx.const(0, dtype)), tirx.const(0, dtype), x))
        turned = tirx.Select(plain < tirx.const(0, kind), plain ^ rest, plain)
        return tirx.Select(tirx.isnan(x), rest, turned)

    return te.compute(data.shape, one, name="ordered")


def top_k(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """TopK; along an open axis, or of an open number, all are sorted, and the first of them taken. Open shapes get
    TVM's kernel, which sorts integers alone as it should."""
    x, b = inputs[0], Build(bb, ctx.name)
    axis, k = attrs.get("axis", -1) % len(shape_of(x)), ctx.array(inputs[1], "k")
    assert k is not None
    wanted = np.ravel(k)[0]
    if not is_open((wanted,)) and not wanted:  # TVM's k of 0 is all
        nothing = b.slice(x, axis, 0, 0)
        return nothing, b.cast(nothing, "int64")
    whole = is_open((wanted, shape_of(x)[axis]))
    known = not is_open((wanted, *shape_of(x))) and dtype_of(x) != "uint64"
    if known or (not whole and dtype_of(x) not in {*WIDER, *SORTED_AS}):
        return ctx.stock(inputs, attrs)
    data = b.cast(x, WIDER[dtype_of(x)]) if dtype_of(x) in WIDER else x
    key = b.te(_ordered, data) if dtype_of(data) in SORTED_AS else data
    count = EVERY if whole else int(wanted)
    places = b.emit(relax.op.topk(key, count, axis, "indices", bool(attrs.get("largest", 1)), "int64"))
    if whole:
        size = shape_of(x)[axis]
        told = f"k is {wanted}, and axis {axis} has fewer elements"
        places = at_least(b, ctx, places, size, wanted, told)
        places = b.slice(places, axis, 0, wanted)

    def chosen(data: Any, index: Any) -> Any:
        def one(*i: Any) -> Any:
            return data(*i[:axis], index(*i), *i[axis + 1 :])

        return te.compute(index.shape, one, name="chosen")

    return b.te(chosen, x, places), places


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
