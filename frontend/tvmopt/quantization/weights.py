"""Weights alone in 4 or 8 bits: products of constant matrices become MatMulNBits, rounded to nearest by groups."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.errors import InputError
from tvmopt.importer.protos import attributes, drop_unused_weights
from tvmopt.operators.codes import is_group, pack
from tvmopt.quantization.data import Array

BITS = {"int4": 4, "int8": 8}


def rounded(weight: Array, bits: int, group: int) -> tuple[Array, Array]:
    """A matrix [K, N] as codes uint8 [N, groups, group * bits / 8] and scales float32 [N, groups].

    A code c stands for ``(c - 2^(bits-1)) * scale``; the scale maps a group's largest magnitude to the largest code.
    Rows beyond K are zeros.
    """
    k, n = weight.shape
    groups, half = -(-k // group), 2 ** (bits - 1)
    padded = np.zeros((n, groups * group), np.float32)
    padded[:, :k] = weight.T
    blocks = padded.reshape(n, groups, group)
    scales = np.abs(blocks).max(-1) / np.float32(half - 1)
    safe = np.where(scales == 0, np.float32(1), scales)[..., None]
    codes = (np.clip(np.rint(blocks / safe), -half, half - 1) + half).astype(np.uint8)
    return pack(codes, bits), scales.astype(np.float32)


def quantise_weights(model: onnx.ModelProto, kind: str, group: int, exclude: Collection[str]) -> list[str]:
    """Quantise the weights of a model's products, in place; the names of the nodes that changed.

    Raises:
        InputError: a group that is no power of two from 16 on; no product to quantise.
    """
    if not is_group(group):
        raise InputError(f"A group of {group} is not possible.", where="--group", fix="16, 32, 64 or 128")
    initial = {t.name: t for t in model.graph.initializer}
    changed = []
    for node in model.graph.node:
        if node.name in exclude or node.domain or node.op_type not in ("MatMul", "Gemm"):
            continue
        found = _weight(node, initial)
        if found is None:
            continue
        weight, bias = found
        codes, scales = rounded(weight, BITS[kind], group)
        names = [f"{node.output[0]}/{part}" for part in ("codes", "scales")]
        model.graph.initializer.extend(
            numpy_helper.from_array(a, n) for a, n in zip((codes, scales), names, strict=True)
        )
        k, n = weight.shape
        inputs = [node.input[0], *names, *(["", "", bias] if bias else [])]
        made = helper.make_node(
            "MatMulNBits", inputs, list(node.output), name=node.name, domain="com.microsoft",
            K=k, N=n, bits=BITS[kind], block_size=group,
        )  # fmt: skip
        node.CopyFrom(made)
        changed.append(node.name)
    if not changed:
        raise InputError(
            "The model has no product by a constant matrix of float32.",
            where=f"--weights {kind}",
            fix="leave --weights out and give --data",
        )
    drop_unused_weights(model)
    if not any(o.domain == "com.microsoft" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return changed


def _weight(node: onnx.NodeProto, initial: dict[str, onnx.TensorProto]) -> tuple[Array, str] | None:
    """The constant float32 matrix [K, N] of a plain product, and the name of its bias."""
    given: dict[str, Any] = attributes(node)
    tensor = initial.get(node.input[1])
    if tensor is None or tensor.data_type != tensor.FLOAT or len(tensor.dims) != 2:
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    if given.get("transA", 0) or given.get("alpha", 1.0) != 1 or given.get("beta", 1.0) != 1:
        return None
    weight = numpy_helper.to_array(tensor)
    weight = weight.T if given.get("transB", 0) else weight
    if bias and (bias not in initial or list(initial[bias].dims) != [weight.shape[1]]):
        return None
    return weight, bias
