"""A product of rows and a constant matrix of 2, 4 or 8 bits as one Relax operator - for weights quantised by groups.

    y = tvmopt.packed_product(x, codes, scales[, zeros])          y[..., n] = sum_k x[..., k] * w[k, n]

    x       [..., K] float32
    codes   [N, G, group * bits / 8] uint8, the lowest bits of a byte first, G = ceil(K / group)
    scales  [N, G] float32
    zeros   [N, G] float32; 2^(bits-1) if left out
    w[k, n] (code[n, k] - zeros[n, k // group]) * scales[n, k // group]

As one operator the codes reach the family that multiplies by them as they are. Where no family takes a call, the matrix
is unpacked to float32 when the model is compiled (:mod:`tvmopt.passes.unpack_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.operators.codes import Array, unpack
from tvmopt.operators.register import legalize_by, register

OP = "tvmopt.packed_product"


@dataclass(frozen=True)
class Packing:
    """How a matrix [k, n] is packed: codes of `bits` bits, `group` rows of a column sharing a scale."""

    k: int
    n: int
    bits: int
    group: int

    @property
    def groups(self) -> int:
        """Groups of a column."""
        return -(-self.k // self.group)


def packed_product(x: Any, packing: Packing, codes: Any, scales: Any, zeros: Any = None) -> Any:
    """The call."""
    _register()
    fields = {name: int(value) for name, value in vars(packing).items()}
    args = [x, codes, scales, *([] if zeros is None else [zeros])]
    return relax.Call(tvm.ir.Op.get(OP), args, tvm.ir.make_node("ir.DictAttrs", **fields))


def packing_of(call: Any) -> Packing:
    """How the matrix of a call of :data:`OP` is packed."""
    return Packing(*(int(call.attrs[name]) for name in ("k", "n", "bits", "group")))


def matrix(packing: Packing, codes: Array, scales: Array, zeros: Array | None) -> Array:
    """The matrix [k, n] in float32, each number rounded once."""
    wide = unpack(codes.reshape(packing.n, -1), packing.bits, packing.groups * packing.group)
    wide = wide.reshape(packing.n, packing.groups, packing.group).astype(np.float32)
    wide -= np.float32(2 ** (packing.bits - 1)) if zeros is None else zeros[..., None]
    wide *= scales[..., None]
    return np.ascontiguousarray(wide.reshape(packing.n, -1)[:, : packing.k].T)


def unpacked(bb: Any, call: Any) -> Any:
    """The product with the matrix in float32; the operands of the matrix are constants."""
    x, *weights = call.args
    arrays = [w.value.numpy() for w in weights]
    value = matrix(packing_of(call), arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None)
    return relax.op.matmul(x, relax.const(value, "float32"))


def _type(call: Any, _bb: Any) -> Any:
    x = call.args[0].ty
    return relax.TensorType([*list(x.shape)[:-1], packing_of(call).n], x.dtype)


@lru_cache(maxsize=1)
def _register() -> None:
    register(OP, _type, __name__)
    legalize_by(OP, unpacked)
