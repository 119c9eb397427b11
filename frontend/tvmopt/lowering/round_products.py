"""A product whose largest value is subtracted from it is rounded first, on a GPU - before TVM's passes of loops.

    Before                                  After
    T.exp(x[i] * 0.01 - largest)            T.exp(__fmul_rn(x[i], 0.01) - largest)

nvcc makes one operation of a product and a difference, which is rounded once. `largest` is the greatest of these
products, each of them rounded: of scores of 1e36 the difference was 1e28 where it is 0, and its exponential infinite.

Applies when   the argument of an exponential is a product less something, in float32 or float64.
Gain           none; a softmax of huge scores was NaN.
Cost           such a loop is not vectorized.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmopt.lowering.loops import gpu_pass

ROUNDED = {"float32": "__fmul_rn", "float64": "__dmul_rn"}
"""CUDA's products that are never part of another operation."""


def _exponential(call: Any) -> Any:
    if getattr(call.op, "name", "") not in ("tirx.exp", "tirx.exp2") or not isinstance(call.args[0], tirx.Sub):
        return call
    product, other = call.args[0].a, call.args[0].b
    dtype = str(call.ty.dtype)
    if not isinstance(product, tirx.Mul) or dtype not in ROUNDED:
        return call
    rounded = tirx.call_pure_extern(dtype, ROUNDED[dtype], product.a, product.b)
    return ir.Call(call.op, [tirx.Sub(rounded, other)], call.attrs, ret_ty=call.ty)


RoundProducts = gpu_pass("tvmopt.RoundProducts", ir.Call, _exponential)
