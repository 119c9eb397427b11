"""Lift the weights out of `main` into extra parameters, so that the artifact keeps them apart from the code.

    Before                                         After
    def main(x):                                   def main(x, w0, w1):
        a = R.call_tir(conv, (x, const))               a = R.call_tir(conv, (x, w0))
        b = R.call_tir(dense, (a, const_2))            b = R.call_tir(dense, (a, w1))

Applies when   a constant has another number of elements than one (a library with an empty constant cannot be loaded).
               The order is that of first use; one constant used twice is one parameter. Equal bytes do not make two
               constants one: with other weights they would differ.
Declines when  1. the constant is a scalar: kernels have it as an immediate or cost nothing by it
Gain           the library holds code only: weights load aligned into huge pages, can be left out, and be exchanged
               (`tvmopt refit`) without code generation.

It runs last, on the scheduled module: every earlier pass wants to see constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.runtime.tensors import TensorInfo, from_ffi

Weights = list[tuple[TensorInfo, np.ndarray[Any, Any]]]


def lift_constants(module: tvm.IRModule) -> tuple[tvm.IRModule, Weights]:
    """The module with weights as the last parameters of `main`, and those weights in order (views of the
    constants' memory).
    """
    lifter = _Lifter(module)
    body = lifter.visit_expr(module["main"])
    main = relax.Function(
        [*body.params, *lifter.parameters], body.body, body.ret_ty, body.is_pure, body.attrs, body.span
    )
    lifted = module.clone()
    lifted["main"] = main
    return lifted, lifter.weights


@mutator
class _Lifter(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.parameters: list[relax.Var] = []
        self.weights: Weights = []
        self._seen: dict[Any, tuple[Any, relax.Var]] = {}  # constants live as long as this, so that ids stay unique

    def visit_generic_const_(self, op: Any) -> relax.Expr:
        tensor = op.value
        shape = tuple(int(d) for d in tensor.shape)
        if int(np.prod(shape, dtype=np.int64)) == 1:  # Decline 1
            return op
        key = int(tensor.data_ptr()), shape, str(tensor.dtype)  # empty ones have no memory that tells them apart
        if key not in self._seen:
            self._seen[key] = (tensor, self._parameter(tensor, shape))
        return self._seen[key][1]

    def _parameter(self, tensor: Any, shape: tuple[int, ...]) -> relax.Var:
        info = TensorInfo(f"w{len(self.parameters)}", shape, str(tensor.dtype))
        variable = relax.Var(info.name, relax.TensorType(shape, info.dtype))
        self.parameters.append(variable)
        self.weights.append((info, from_ffi(tensor, info)))
        return variable
