"""Assignments where a mask is true, ``y[mask] = value``, as choices between two tensors - for the folding walk.

    at = Transpose(NonZero(mask))
    updates = Reshape(Expand(value, [number of true elements, ...]), [-1])
    y = ScatterND(x, at, updates)                        ->   y = Where(mask, value, x)

So no value decides the size of a tensor. Applies where `value` is

    one element, or as many as the mask is repeated along     y[mask] = 7
    computed element by element from what the same mask       y[mask] = 2*x[mask] + z[mask]
    selects: computed of all elements then
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from tvmopt.dims import Size
from tvmopt.importer.protos import attributes, node_name, words
from tvmopt.importer.walk import Nodes, Walk

BY_ELEMENT = words(
    """Abs Add Ceil Cos Div Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Max Min Mish Mul Neg Pow
    Reciprocal Relu Round Sigmoid Sin Softplus Sqrt Sub Tanh"""
)
"""Operators of floats each of whose results depends on one element of each input, and on its constants."""

REAL = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}


def assigned(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """ScatterND to wherever a mask is true, as a choice."""
    data, at, updates = node.input
    reduction, mask = attributes(node).get("reduction", "none"), _mask_of(walk, at)
    shape = walk.open_shape(data)
    if mask is None or reduction not in ("none", "add") or not shape or walk.open_shape(mask) != shape:
        return None
    value = updates
    for op in ("Slice", "Reshape", "Expand"):
        maker = walk.maker(value)
        if maker is not None and maker.op_type == op and not maker.domain and (op != "Slice" or _is_cut(walk, maker)):
            value = maker.input[0]
    nodes: Nodes = []
    chosen = value if value != updates and _is_spread(walk, mask, value, shape) else None
    chosen = chosen or _everywhere(walk, value, mask, shape, nodes)
    if chosen is None:
        return None
    if reduction == "add":
        more = walk.fresh(f"{node_name(node)}/sum")
        nodes.append(onnx.helper.make_node("Add", [data, chosen], [more], name=more))
        chosen = more
    return [*nodes, onnx.helper.make_node("Where", [mask, chosen, data], [node.output[0]], name=node_name(node))]


def _is_cut(walk: Walk, node: onnx.NodeProto) -> bool:
    """Whether a Slice takes the first elements of a vector: as many as there are places, which PyTorch's older exporter
    makes sure of."""
    if len(node.input) != 4 or len(walk.open_shape(node.input[0]) or ()) != 1:
        return False
    return all(known is not None and not known.any() for known in map(walk.array, (node.input[1], node.input[3])))


def _mask_of(walk: Walk, at: str) -> str | None:
    """The mask whose true elements' places these are, [number, axes]; None where they are none."""
    turned = walk.maker(at)
    if turned is None or turned.op_type != "Transpose" or [*attributes(turned).get("perm", (1, 0))] != [1, 0]:
        return None
    picked = walk.maker(turned.input[0])
    kind = walk.types.get(picked.input[0]) if picked is not None and picked.op_type == "NonZero" else None
    found = kind is not None and kind.tensor_type.elem_type == onnx.TensorProto.BOOL
    return str(picked.input[0]) if picked is not None and found else None


def _is_spread(walk: Walk, mask: str, value: str, shape: Sequence[Size]) -> bool:
    """Whether a value is one element, or the mask is the same along all axes that it has."""
    own = walk.open_shape(value)
    if own is None:
        return False
    own = own[next((i for i, n in enumerate(own) if n != 1), len(own)) :]
    fits = len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own, shape[len(shape) - len(own) :], strict=True))
    return not own or (fits and _repeated(walk, mask, len(own)) is not None)


def _repeated(walk: Walk, mask: str, count: int) -> str | None:
    """What a mask repeats along its last `count` axes, with ones in their place; None where they may differ."""
    maker = walk.maker(mask)
    if maker is None or maker.op_type != "Expand":
        return None
    before = walk.open_shape(maker.input[0])
    alike = before is not None and len(before) >= count and all(n == 1 for n in before[len(before) - count :])
    return str(maker.input[0]) if alike else None


def _everywhere(walk: Walk, value: str, mask: str, shape: Sequence[Size], nodes: Nodes) -> str | None:
    """The tensor that has a value's elements where the mask is true, in their order; what computes it joins `nodes`.
    None where there is none."""
    maker, kind = walk.maker(value), walk.types.get(value)
    if maker is None or maker.domain or kind is None or kind.tensor_type.elem_type not in REAL:
        return None
    if maker.op_type == "GatherND" and not attributes(maker).get("batch_dims", 0):
        own = _mask_of(walk, maker.input[1])
        same = own is not None and walk.open_shape(maker.input[0]) == shape and _is_mask(walk, own, mask)
        return str(maker.input[0]) if same else None
    if maker.op_type not in BY_ELEMENT:
        return None
    inputs = []
    for name in maker.input:
        one = name if walk.open_shape(name) in ((), (1,)) else _everywhere(walk, name, mask, shape, nodes)
        if one is None:
            return None
        inputs.append(one)
    whole = walk.fresh(f"{node_name(maker)}/everywhere")
    nodes.append(onnx.helper.make_node(maker.op_type, inputs, [whole], name=whole, **attributes(maker)))
    return whole


def _is_mask(walk: Walk, own: str, mask: str) -> bool:
    """Whether a mask is another one, or that with further axes along which it is repeated."""
    shapes = [walk.open_shape(name) or () for name in (own, mask)]
    maker = walk.maker(mask)
    if shapes[0] == shapes[1]:
        return own == mask or (maker is not None and maker.op_type == "Expand" and maker.input[0] == own)
    before = _repeated(walk, mask, len(shapes[1]) - len(shapes[0])) if len(shapes[0]) < len(shapes[1]) else None
    raised = walk.maker(before) if before is not None else None
    return raised is not None and raised.op_type in ("Unsqueeze", "Reshape") and raised.input[0] == own
