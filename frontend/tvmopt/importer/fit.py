"""Does a node fit its inputs: what ONNX's shape functions let pass and every runtime refuses.

:func:`misfit` is asked for each node of the walk. Element types are compared with the operator's schema; shapes and
small constants with the rules of :data:`RULES`, which live beside each other by kind: windows, quantised and scattered
data, recurrences and attention in :mod:`.fit_networks`, axes, counts and copies here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tvmopt.importer import fit_networks
from tvmopt.importer.given import Given, Rule, Texts, broadcasts
from tvmopt.importer.protos import MOST_ELEMENTS, count, dtype_name, normal_domain
from tvmopt.importer.walk import Walk


def misfit(walk: Walk, node: onnx.NodeProto, schema: Any) -> str:
    """Why the node contradicts its inputs, in words, or the empty string.

    Args:
        schema: the operator's OpSchema, None where ONNX has none.
    """
    if schema is not None and (text := _types(walk, node, schema)):
        return text
    rule = RULES.get(node.op_type) if not normal_domain(node.domain) else None
    return next(iter(rule(Given(walk, node))), "") if rule else ""


def _types(walk: Walk, node: onnx.NodeProto, schema: Any) -> str:
    """Each tensor has a type that its operator takes, and inputs of one type variable have the same."""
    bound: dict[str, tuple[str, int]] = {}
    for i, name in enumerate(node.input):
        formal = schema.inputs[min(i, len(schema.inputs) - 1)] if schema.inputs else None
        kind = walk.types.get(name)
        if formal is None or not name or kind is None or not kind.HasField("tensor_type"):
            continue
        elem = kind.tensor_type.elem_type
        if not elem:
            continue
        if f"tensor({TensorProto.DataType.Name(elem).lower()})" not in formal.types:
            return f"its input '{formal.name}' cannot be {_word(elem)}"
        variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        if variadic and not formal.is_homogeneous:
            continue
        first = bound.setdefault(formal.type_str, (name, elem))
        if first[1] != elem:
            return f"'{first[0]}' is {_word(first[1])} and '{name}' {_word(elem)}, which must have one type"
    return ""


def _word(elem: int) -> str:
    return "string" if elem == TensorProto.STRING else dtype_name(elem)


def _axis_of(default: int) -> Rule:
    """The attribute `axis` lies in the first input's rank; a scalar has no axes to be wrong about."""

    def rule(given: Given) -> Texts:
        if rank := given.rank(0):
            yield from given.axes_fit([given.attrs.get("axis", default)], rank)

    return rule


def _axes_of(index: int) -> Rule:
    """Axes, as an attribute or as input `index`, are distinct axes of the first input."""

    def rule(given: Given) -> Texts:
        rank, axes = given.rank(0), given.listed("axes", index)
        if index and (found := given.shape(index)) is not None and len(found) > 1:
            yield f"its axes have shape {list(found)}; they are a list"
        if rank is not None and axes is not None:
            yield from given.axes_fit(axes, rank + (len(axes) if given.node.op_type == "Unsqueeze" else 0))

    return rule


def _reduction(given: Given) -> Texts:
    found = given.shape(1)
    if found is not None and len(found) != 1:
        yield f"its axes have shape {list(found)}; they are a list"
    rank, axes = given.rank(0), given.listed("axes", 1)
    if rank is not None and axes is not None:  # onnxruntime reduces an axis that is named twice once
        yield from given.axes_fit(axes, rank, distinct=False)


def _cumulative(given: Given) -> Texts:
    rank, axis = given.rank(0), given.array(1)
    if axis is not None and axis.size != 1:
        yield f"its axis has {axis.size} values, not one"
    if rank is not None and axis is not None:
        yield from given.axes_fit(axis.ravel(), rank)


def _gemm(given: Given) -> Texts:
    a, b, c = (given.shape(i) for i in range(3))
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return
    result = (a[::-1] if given.attrs.get("transA") else a)[0], (b[::-1] if given.attrs.get("transB") else b)[1]
    if c is not None and not broadcasts(c, result):
        yield f"C is {list(c)}, which does not broadcast to {list(result)}"


def _one_hot(given: Given) -> Texts:
    depth, values, rank = given.array(1), given.shape(2), given.rank(0)
    if depth is not None and (depth.size != 1 or not float(depth.ravel()[0]) >= 1):
        yield f"its depth is {depth.tolist()}; it is one number, 1 or more"
    if values is not None and values != (2,):
        yield f"its values have shape {list(values)}; they are two, for off and on"
    if rank is not None:
        yield from given.axes_fit([given.attrs.get("axis", -1)], rank + 1)


def _trilu(given: Given) -> Texts:
    k, rank = given.shape(1), given.rank(0)
    if k is not None and k not in ((), (1,)):
        yield f"k has shape {list(k)}; it is one number"
    if rank is not None and rank < 2:
        yield f"its input has {rank} dimensions; it needs two or more"


def _range(given: Given) -> Texts:
    for i, what in enumerate(("start", "limit", "delta")):
        shape, value = given.shape(i), given.array(i)
        if shape is not None and shape not in ((), (1,)):
            yield f"its {what} has shape {list(shape)}; it is one number"
        if value is not None and not np.isfinite(value.astype(np.float64)).all():
            yield f"its {what} is {value.item()}"
            return
        if what == "delta" and value is not None and not np.all(value != 0):
            yield "its delta is 0"
            return
    ends = [value.item() for i in range(3) if (value := given.array(i)) is not None and value.size == 1]
    if len(ends) == 3 and (ends[1] - ends[0]) / ends[2] > MOST_ELEMENTS:
        yield f"it goes from {ends[0]} to {ends[1]} by {ends[2]}; an axis has at most {MOST_ELEMENTS:,} elements"


def _slice(given: Given) -> Texts:
    steps, rank = given.array(4), given.rank(0)
    starts, ends, axes = given.listed("starts", 1), given.listed("ends", 2), given.listed("axes", 3)
    if steps is not None and not np.all(steps != 0):
        yield "a step is 0"
    lengths = {
        len(part) for part in (starts, ends, axes, steps if steps is None else steps.ravel()) if part is not None
    }
    if len(lengths) > 1:
        yield f"starts, ends, axes and steps have different lengths: {sorted(lengths)}"
    if rank is not None and axes is not None:
        yield from given.axes_fit(axes, rank)
    elif rank is not None and starts is not None and len(starts) > rank:
        yield f"it has {len(starts)} starts for {rank} dimensions"


def _top_k(given: Given) -> Texts:
    shape, k, axis = given.sizes(0), given.array(1), given.attrs.get("axis", -1)
    if k is not None and (k.size != 1 or k.ndim > 1):
        yield f"K has shape {list(k.shape)}; it is a list of one number"
    if shape is None:
        return
    yield from (problems := list(given.axes_fit([axis], len(shape))))
    size = None if problems else shape[axis]
    if k is not None and size is not None and not 0 <= int(k.ravel()[0]) <= size:
        yield f"K is {int(k.ravel()[0])} and the axis has {size} elements"


def _pad(given: Given) -> Texts:
    shape, pads, axes = given.sizes(0), given.listed("pads", 1), given.listed("axes", 3)
    if shape is None or pads is None:
        return
    if axes is not None:
        yield from given.axes_fit(axes, len(shape))
    over = [int(a) % len(shape) for a in axes] if axes is not None else list(range(len(shape)))
    if len(pads) != 2 * len(over):
        yield f"it has {len(pads)} pads for {len(over)} axes, not two an axis"
        return
    mode = given.attrs.get("mode", "constant")
    for i, axis in enumerate(over):
        before, after, size = int(pads[i]), int(pads[i + len(over)]), shape[axis]
        if size is None:
            continue
        kept = size + min(before, 0) + min(after, 0)
        if kept < 0:
            yield f"its pads cut {-min(before, 0) - min(after, 0)} of the {size} elements of axis {axis}"
        if mode != "constant" and max(before, after) > 0 and kept == 0:
            yield f"axis {axis} is empty, so there is nothing to pad it with in mode '{mode}'"


def _split(given: Given) -> Texts:
    shape, sizes = given.sizes(0), given.listed("split", 1)
    if shape is None:
        return
    axis = given.attrs.get("axis", 0)
    yield from (problems := list(given.axes_fit([axis], len(shape))))
    size = None if problems else shape[axis]
    outputs = len(given.node.output)
    if sizes is not None:
        if len(sizes) != outputs:
            yield f"it has {len(sizes)} sizes for {outputs} outputs"
        if any(int(s) < 0 for s in sizes) or (size is not None and sum(int(s) for s in sizes) != size):
            yield f"its sizes {[int(s) for s in sizes]} do not add up to the {size} elements of axis {axis}"
    elif "num_outputs" in given.attrs and given.attrs["num_outputs"] != outputs:
        yield f"num_outputs is {given.attrs['num_outputs']}, and it has {outputs} outputs"


def _repeated(given: Given) -> Texts:
    rank, repeats = given.rank(0), given.array(1)
    if repeats is None or rank is None:
        return
    if repeats.ndim != 1 or len(repeats) != rank:
        yield f"it has {repeats.size} repeats for {rank} dimensions"
    elif (repeats < 0).any():
        yield f"its repeats are {repeats.tolist()}; none can be negative"


def _block(given: Given) -> Texts:
    shape, k = given.shape(0), int(given.attrs.get("blocksize", 1))
    if shape is None:
        return
    if len(shape) != 4:
        yield f"its input has {len(shape)} dimensions, not 4"
    elif given.node.op_type == "DepthToSpace" and shape[1] % (k * k):
        yield f"{shape[1]} channels do not divide into blocks of {k} x {k}"
    elif given.node.op_type == "SpaceToDepth" and (shape[2] % k or shape[3] % k):
        yield f"{shape[2]} x {shape[3]} does not divide into blocks of {k} x {k}"


def _resize(given: Given) -> Texts:
    rank, axes = given.rank(0), given.listed("axes", 99)
    scales, sizes = given.array(1 if given.node.op_type == "Upsample" or given.opset < 11 else 2), given.array(3)
    if rank is None:
        return
    if axes is not None:
        yield from given.axes_fit(axes, rank)
    count = rank if axes is None else len(axes)
    for what, values in (("scales", scales), ("sizes", sizes)):
        if values is None or not values.size:
            continue
        if len(values.ravel()) != count:
            yield f"it has {values.size} {what} for {count} axes"
        if not (values > 0).all() or not np.isfinite(values.astype(np.float64)).all():
            yield f"its {what} are {values.tolist()}; they must be positive"
    roi = given.array(1) if given.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize" else None
    if roi is not None and roi.size not in (0, 2 * count):
        yield f"its roi has {roi.size} numbers for {count} axes; it has a beginning and an end of each"
    if roi is not None and not np.isfinite(roi.astype(np.float64)).all():
        yield f"its roi is {roi.ravel().tolist()}; a region begins and ends at numbers"


def _vector(index: int, what: str) -> Rule:
    def rule(given: Given) -> Texts:
        shape = given.shape(index)
        if shape is not None and len(shape) != 1:
            yield f"its {what} has shape {list(shape)}; it is a list"

    return rule


def _permutation(given: Given) -> Texts:
    rank, perm = given.rank(0), given.attrs.get("perm")
    if rank is not None and perm is not None and sorted(perm) != list(range(rank)):
        yield f"perm {list(perm)} is not an order of {rank} axes"


def _slope(given: Given) -> Texts:
    shape, slope = given.shape(0), given.shape(1)
    if shape is None or slope is None or broadcasts(slope, shape):
        return
    channels = shape[1] if len(shape) > 1 else 1
    if slope != (channels,) and slope != (channels, *[1] * (len(shape) - 2)):
        yield f"the slope is {list(slope)}, which does not broadcast to {list(shape)}"


def _crop(given: Given) -> Texts:
    rank, wanted, axes = given.rank(0), given.array(1), given.attrs.get("axes")
    if rank is None:
        return
    if axes is not None:
        yield from given.axes_fit(axes, rank)
    count = rank if axes is None else len(axes)
    if wanted is not None and (wanted.size != count or (wanted < 0).any()):
        yield f"its shape {wanted.tolist()} does not fit {count} axes"


def _deciding(*inputs: tuple[int, str]) -> Rule:
    """Inputs that control flow asks, each by its number and what it is, are one number."""

    def rule(given: Given) -> Texts:
        for index, what in inputs:
            shape = given.shape(index)
            if shape is not None and count(shape) != 1:
                yield f"its {what} has shape {list(shape)}, and is one number"

    return rule


_AXIS = {op: _axis_of(default) for op, default in (("ArgMax", 0), ("ArgMin", 0), ("Gather", 0), ("Concat", 0))}
_AXIS |= {op: _axis_of(-1) for op in ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")}
_REDUCTIONS: Sequence[str] = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **_AXIS,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "CenterCropPad": _crop,
    "ConstantOfShape": _vector(0, "shape"),
    "CumProd": _cumulative,
    "CumSum": _cumulative,
    "DepthToSpace": _block,
    "Expand": _vector(1, "shape"),
    "Gemm": _gemm,
    "If": _deciding((0, "condition")),
    "Loop": _deciding((0, "number of trips"), (1, "condition")),
    "OneHot": _one_hot,
    "PRelu": _slope,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _vector(1, "shape"),
    "Resize": _resize,
    "Slice": _slice,
    "SpaceToDepth": _block,
    "Split": _split,
    "Squeeze": _axes_of(1),
    "Tile": _repeated,
    "TopK": _top_k,
    "Transpose": _permutation,
    "Trilu": _trilu,
    "Unsqueeze": _axes_of(1),
    "Upsample": _resize,
    **fit_networks.RULES,
}
"""What each operator of ai.onnx asks of its inputs beyond ONNX's shape functions."""
