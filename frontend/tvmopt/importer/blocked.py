"""Products of weights that a DequantizeLinear by blocks makes, as MatMulNBits - for the folding walk.

    w = DequantizeLinear(codes, scales, zeros, axis=0, block_size=g)       codes [K, N] of 4 or 8 bits, constant
    y = MatMul(x, w)                                                  ->   y = MatMulNBits(x, packed codes, ...)

or of codes [N, K] with axis=1 and a Transpose between. Folded, the matrix would take 8 or 4 times as much memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvmopt.importer.protos import attributes, node_name
from tvmopt.importer.walk import Array, Nodes, Rule, Walk
from tvmopt.operators.codes import is_group, pack

BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
"""Types of codes, with their bits."""


def _dequantized(walk: Walk, node: onnx.NodeProto) -> None:
    """Remember a DequantizeLinear by blocks of a constant matrix; it is folded, or stays, as any other."""
    given = attributes(node)
    arrays = [walk.array(name) if name else None for name in (*node.input, "")[:3]]
    codes, scales = arrays[0], arrays[1]
    block = given.get("block_size", 0)
    if codes is None or scales is None or codes.ndim != 2 or scales.dtype != np.float32 or scales.ndim != 2:
        return
    if not is_group(block) or codes.dtype.name not in BITS or given.get("output_dtype", 0) not in (0, 1):
        return
    if len(node.input) > 2 and node.input[2] and arrays[2] is None:
        return
    walk.blocked[node.output[0]] = (node, given.get("axis", 1) % 2 == 0)


def _transposed(walk: Walk, node: onnx.NodeProto) -> None:
    """Remember a transpose of such a matrix."""
    source = walk.blocked.get(node.input[0])
    if source is not None and list(attributes(node).get("perm", (1, 0))) == [1, 0]:
        walk.blocked[node.output[0]] = (source[0], not source[1])


def _product(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
    """A product by such a matrix, whose blocks lie along K."""
    made, along = walk.blocked.get(node.input[1], (None, False))
    kind = walk.types.get(node.input[0])
    if made is None or not along or kind is None or kind.tensor_type.elem_type != TensorProto.FLOAT:
        return None
    codes, scales = (walk.array(name) for name in made.input[:2])
    zeros = walk.array(made.input[2]) if len(made.input) > 2 and made.input[2] else None
    assert codes is not None and scales is not None
    block, by_rows = attributes(made)["block_size"], attributes(made).get("axis", 1) % 2 == 0
    bits = BITS[codes.dtype.name]
    middle = 2 ** (bits - 1)
    signed = codes.dtype.name.startswith("int")

    def columns(array: Array) -> Array:
        """[N, K] or [N, groups] of codes from 0 on."""
        wide = array.astype(np.int64) + (middle if signed else 0)
        return np.ascontiguousarray(wide.T if by_rows else wide).astype(np.uint8)

    values = columns(codes)
    n, k = values.shape
    groups = -(-k // block)
    points = columns(np.zeros_like(scales, codes.dtype) if zeros is None else zeros)
    parts = [
        pack(np.pad(values, ((0, 0), (0, groups * block - k))), bits).reshape(n, groups, -1),
        np.ascontiguousarray(scales.T if by_rows else scales),
    ]
    if (points != middle).any():
        parts.append(pack(points, bits))
    names = [walk.fresh(f"{node_name(node)}/{part}") for part in ("codes", "scales", "zeros")[: len(parts)]]
    for name, array in zip(names, parts, strict=True):
        walk.set_constant(name, array)
    walk.opsets.setdefault("com.microsoft", 1)
    fields = {"K": k, "N": n, "bits": bits, "block_size": block}
    inputs = [node.input[0], *names]
    return [
        helper.make_node("MatMulNBits", inputs, node.output, name=node_name(node), domain="com.microsoft", **fields)
    ]


def _noted(look: Callable[[Walk, onnx.NodeProto], None]) -> Rule:
    """A rule that only looks at its node."""

    def rule(walk: Walk, node: onnx.NodeProto) -> Nodes | None:
        look(walk, node)
        return None

    return rule


HANDLERS: dict[tuple[str, str], Rule] = {
    ("", "DequantizeLinear"): _noted(_dequantized),
    ("", "Transpose"): _noted(_transposed),
    ("", "MatMul"): _product,
}
