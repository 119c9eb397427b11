"""Values of a store in local variables, one function call each - the step between scheduling and code generation.

    y[i] = let t = exp(x[i]) in t * tanh(t + 1)          t[0] = exp(x[i])
                                                         u[0] = tanh(t[0] + 1)
                                                         y[i] = t[0] * u[0]

TVM's analyzer simplifies the value of a let where it binds it and again where it is read, and math.py's expansions are
lets: a function in another's argument, in another's, costs time exponential in the depth (23 s for a Softplus behind an
ELU). Local buffers of one element do not nest; the vectorizer widens them, LLVM keeps them in registers.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call
from tvm.s_tir.stmt import SBlock
from tvm_ffi import structural_map, structural_mutate

from tvmopt.legalize import math


def name_module(module: tvm.IRModule) -> tvm.IRModule:
    """Every PrimFunc of the module, its values named."""
    functions = {
        gvar: name_values(func) if isinstance(func, tirx.PrimFunc) else func for gvar, func in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def name_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every let, and every function call inside a larger value, in a local variable."""
    return func.with_body(structural_map(func.body, (SBlock, _block)))


def _block(block: Any) -> Any:
    if not isinstance(block.body, tirx.BufferStore):
        return block
    store, names, steps = block.body, [], []
    value = _flat(store.value, names, steps, outermost=True)
    if not names:
        return block
    body = tirx.SeqStmt([*steps, tirx.BufferStore(store.buffer, value, store.indices)])
    return SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
        [*block.alloc_buffers, *names], block.match_buffers, block.annotations,
    )  # fmt: skip


def _flat(value: Any, names: list[Any], steps: list[Any], outermost: bool = False) -> Any:
    """`value` without lets and with plain arguments; the steps that compute what it names are appended."""

    def local(bound: Any) -> Any:
        buffer = tirx.decl_buffer((1,), str(bound.ty.dtype), f"v{len(names)}", scope="local")
        names.append(buffer)
        steps.append(tirx.BufferStore(buffer, bound, [0]))
        return tirx.BufferLoad(buffer, [0])

    def let(node: Any, _mutator: Any) -> Any:
        load = local(_flat(node.value, names, steps))
        return _flat(structural_map(node.body, (tirx.Var, lambda v: load if v.same_as(node.var) else v)), names, steps)

    def call(node: Any, mutator: Any) -> Any:
        if math.expansion(node) is None:
            return mutator.default_mutate(node)
        return local(plain(node))

    def plain(node: Any) -> Any:
        return Call(node.op, [_flat(node.args[0], names, steps)], attrs=node.attrs, ret_ty=node.ty)

    if outermost and isinstance(value, Call) and math.expansion(value) is not None:
        return plain(value)
    return structural_mutate(value, ((tirx.Let, let), (Call, call)))
