"""A product of rows and a constant matrix of 2, 4 or 8 bits as one Relax operator - for weights quantised by groups.

    y = tvmopt.packed_product(x, codes, scales[, zeros])          y[..., n] = sum_k x[..., k] * w[k, n]

    x       [..., K] float32
    codes   [N, G, group * bits / 8] uint8, the lowest bits of a byte first, G = ceil(K / group)
    scales  [N, G] float32
    zeros   [N, G] float32; 2^(bits-1) if left out
    w[k, n] (code[n, k] - zeros[n, k // group]) * scales[n, k // group]

Where a file allows it (`level` 4 of MatMulNBits), a machine may round the numbers of a row to 8 bits, each group with a
step of its own (:func:`tvmopt.operators.codes.round_groups`). The operator that does is another one::

    y = tvmopt.rounded_product(x, codes, scales[, zeros])         y[..., n] = sum_k rounded(x)[..., k] * w[k, n]

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

OP, ROUNDED = "tvmopt.packed_product", "tvmopt.rounded_product"
ROUNDS = 4
"""The `accuracy_level` of MatMulNBits that allows activations of 8 bits."""


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


def packed_product(
    x: Any, packing: Packing, codes: Any, scales: Any, zeros: Any = None, level: int = 0, op: str = OP
) -> Any:
    """The call.

    Args:
        level: 4 where the numbers of `x` may be rounded to 8 bits. op: :data:`OP`, or :data:`ROUNDED`, which rounds.
    """
    _register()
    fields = {name: int(value) for name, value in vars(packing).items()}
    args = [x, codes, scales, *([] if zeros is None else [zeros])]
    return relax.Call(tvm.ir.Op.get(op), args, tvm.ir.make_node("ir.DictAttrs", level=int(level), **fields))


def rounded(call: Any) -> Any:
    """The same product of `x` rounded to 8 bits."""
    x, codes, scales, *zeros = call.args
    return packed_product(x, packing_of(call), codes, scales, zeros[0] if zeros else None, level=ROUNDS, op=ROUNDED)


def packing_of(call: Any) -> Packing:
    """How the matrix of a call of :data:`OP` or :data:`ROUNDED` is packed."""
    return Packing(*(int(call.attrs[name]) for name in ("k", "n", "bits", "group")))


def may_round(call: Any) -> bool:
    """Whether the file allows that the numbers of `x` are rounded to 8 bits."""
    return int(call.attrs["level"]) == ROUNDS


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
    for op in (OP, ROUNDED):
        register(op, _type, __name__)
        legalize_by(op, unpacked)
