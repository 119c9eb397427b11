"""Let kernels that read an input of the model take it at any address that its elements allow.

    Before                                           After
    def sqrt(x: Buffer((1024,), "float32"), y):      def sqrt(x: Buffer((1024,), "float32", align=4), y):

Applies when   a kernel's argument is an input of the model, or a view of one.
Declines when  1. the argument is a weight or another kernel's output: the runtime places these at 64 bytes
Gain           2 * |x| bytes of copying a call: NumPy promises arrays at 16 bytes, and views of them begin anywhere.
               x86-64 and AArch64 load whole vectors from any address; one that straddles two cache lines takes two
               accesses of the first-level cache, which is less than a copy.

It runs before memory is planned, where a view of an input is still a reshape. Kernels keep their loops: code generation
derives the vector loads' alignment from the buffer's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm_ffi import structural_map

from tvmopt.passes.graph import inputs_of


def relax_alignment(module: tvm.IRModule) -> tvm.IRModule:
    """The module with the parameters that may be an input of `main` aligned to one element."""
    found = places_of_inputs(module)
    functions = {
        gvar: _any_address(func, found[gvar.name_hint]) if gvar.name_hint in found else func
        for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def places_of_inputs(module: tvm.IRModule) -> dict[str, set[int]]:
    """Which arguments of which kernels may be an input of `main` or of the body of a loop, or a view of one."""
    found: dict[str, set[int]] = {}
    for _, func in module.functions_items():
        if isinstance(func, relax.Function):
            found |= _Uses(func).arguments
    return found


def _any_address(func: tirx.PrimFunc, places: set[int]) -> tirx.PrimFunc:
    new = {}
    for place in places:
        old = func.params[place]
        size = -(-tvm.DataType(old.dtype).bits // 8)
        new[place] = tirx.decl_buffer(old.ty.shape, old.dtype, str(old.name), data_alignment=size)

    def replaced(node: Any) -> Any:
        return next((new[place] for place in places if node.same_as(func.params[place])), node)

    params = [new.get(place, param) for place, param in enumerate(func.params)]
    return tirx.PrimFunc(params, structural_map(func.body, ((ir.Var, replaced),)), func.ret_type, func.attrs, func.span)


class _Uses:
    """Which arguments of which kernels may be an input of the function."""

    def __init__(self, main: relax.Function) -> None:
        self.inputs = set(inputs_of(main))  # and what may lie in their memory
        self.arguments: dict[str, set[int]] = defaultdict(set)
        self._follow(main.body)

    def _follow(self, body: Any) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    for branch in (value.true_branch, value.false_branch):
                        self._follow(branch)
                if self._call_of_kernel(value):
                    continue
                if any(leaf in self.inputs for leaf in _leaves(value)):
                    self.inputs.add(binding.var)

    def _call_of_kernel(self, value: Any) -> bool:
        if not isinstance(value, relax.Call) or not getattr(value.op, "name", "").startswith("relax.call_tir"):
            return False
        callee, arguments = value.args[0], value.args[1].fields
        self.arguments[callee.name_hint] |= {place for place, a in enumerate(arguments) if a in self.inputs}
        if not self.arguments[callee.name_hint]:
            del self.arguments[callee.name_hint]
        return True


def _leaves(value: Any) -> Iterator[Any]:
    """The variables that an expression is made of."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.Tuple):
        for field in value.fields:
            yield from _leaves(field)
    elif isinstance(value, relax.TupleGetItem):
        yield from _leaves(value.tuple_value)
    elif isinstance(value, relax.Call):
        for argument in value.args:
            yield from _leaves(argument)
    elif isinstance(value, relax.If):
        yield from _leaves(value.true_branch.body)
        yield from _leaves(value.false_branch.body)
    elif isinstance(value, relax.SeqExpr):
        yield from _leaves(value.body)
