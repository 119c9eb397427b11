"""Values of a store in local buffers, one function call each - the step between scheduling and code generation.

    for lane in vectorized(16):                              for lane in vectorized(16): t[lane] = exp(x[lane])
      y[lane] = let t = exp(x[lane]) in t * tanh(t + 1)      for lane in vectorized(16): u[lane] = tanh(t[lane] + 1)
                                                             for lane in vectorized(16): y[lane] = t[lane] * u[lane]

TVM's analyzer simplifies the value of a let where it binds it and again where it is read, and math.py's expansions are
lets, as are remainders of float32: a function in another's argument, in another's, costs time exponential in the depth
(23 s for a Softplus behind an ELU). Buffers do not nest, and LLVM keeps these in registers. Each value has a vectorized
loop of its own, because TVM's vectorizer does not widen a buffer that is allocated inside one: it stores all lanes into
one element.

A bfloat16 that all lanes take (the Expand of a column, a picture of one pixel) is stored by a plain loop, which LLVM
makes vectors of: TVM 0.27 makes 16-bit integers of bfloat16 behind its vectorizer, and leaves the type of a broadcast
as it was: "dtype mismatch on BufferStore". A boolean is kept as a byte: TVM makes bytes of its buffer in any case, and
its vectorizer then reads vectors of bytes where a condition is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal, structural_map, structural_mutate

from tvmopt.lowering import math
from tvmopt.lowering.lower_remainders import is_remainder
from tvmopt.scheduling.blocks import with_root


def name_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with every let, and every function call inside a larger value, in a local buffer."""
    names: list[Any] = []

    def loop(node: Any, mutator: Any) -> Any:
        inner = node.body
        if int(node.kind) != int(tirx.ForKind.VECTORIZED) or not isinstance(inner, SBlockRealize):
            return mutator.default_mutate(node)
        if not isinstance(inner.block.body, tirx.BufferStore) or inner.block.init is not None:
            return node
        return _split_loop(node, inner, names)

    def block(node: Any, mutator: Any) -> Any:
        return _in_place(node, names) if isinstance(node.body, tirx.BufferStore) else mutator.default_mutate(node)

    body = structural_mutate(func.body, ((tirx.For, loop), (SBlock, block)))
    if body.same_as(func.body):
        return func
    return with_root(func, body, body.block.body, [*body.block.alloc_buffers, *names])


def _local(names: list[Any], dtype: str, extent: Any) -> Any:
    buffer = tirx.decl_buffer((extent,), dtype, f"value{len(names)}", scope="local")
    names.append(buffer)
    return buffer


def _in_place(block: Any, names: list[Any]) -> Any:
    """A block outside a vectorized loop: its values one after the other, in buffers of one element."""
    steps: list[Any] = []
    own: list[Any] = []

    def local(bound: Any) -> Any:
        buffer = tirx.decl_buffer((1,), str(bound.ty.dtype), f"value{len(names) + len(own)}", scope="local")
        own.append(buffer)
        steps.append(tirx.BufferStore(buffer, bound, [0]))
        return tirx.BufferLoad(buffer, [0])

    value = _flat(block.body.value, local, outermost=True)
    if not steps:
        return block
    body = tirx.SeqStmt([*steps, _store_again(block.body, value)])
    return SBlock(  # the buffers are the block's own: an enclosing block need not know of them
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
        [*block.alloc_buffers, *own], block.match_buffers, block.annotations,
    )  # fmt: skip


def _split_loop(loop: Any, realize: Any, names: list[Any]) -> Any:
    """A vectorized loop over one block: a loop a value, the last one storing the result."""
    steps: list[tuple[Any, Any]] = []

    def local(bound: Any) -> Any:
        buffer = _local(names, str(bound.ty.dtype), loop.extent)
        steps.append((buffer, bound))
        return tirx.BufferLoad(buffer, [loop.loop_var])

    block = realize.block
    value = _flat(block.body.value, local, outermost=True)
    if steps and isinstance(value, TensorLoad) and value.source.same_as(steps[-1][0]):
        value = steps.pop()[1]  # a plain copy: of booleans TVM would make bytes, which it then cannot store
    same = str(value.ty.dtype) == "bfloat16" and not _varies(value, loop, realize)
    if not steps:
        return loop if value.same_as(block.body.value) and not same else _fresh_loop(
            loop, realize, _with_body(block, _store_again(block.body, value)), 0, same
        )  # fmt: skip
    stores = [tirx.BufferStore(buffer, bound, [loop.loop_var]) for buffer, bound in steps]
    stores.append(_store_again(block.body, value))
    return tirx.SeqStmt([_fresh_loop(loop, realize, _with_body(block, store), k) for k, store in enumerate(stores)])


def _varies(value: Any, loop: Any, realize: Any) -> bool:
    """Whether a value is not the same in all lanes."""
    moving = [loop.loop_var]
    for axis, place in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        if any(var.same_as(loop.loop_var) for var in undefined_vars(place, [])):
            moving.append(axis.var)
    return any(var.same_as(one) for var in undefined_vars(value, []) for one in moving)


def _fresh_loop(loop: Any, realize: Any, block: Any, number: int, plain: bool = False) -> Any:
    """A copy of the loop around `block`, with variables of its own; a `plain` one is no loop of vectors."""
    fresh = {loop.loop_var: tirx.Var(f"{loop.loop_var.name}_{number}", loop.loop_var.ty)}
    axes = []
    for axis in block.iter_vars:
        fresh[axis.var] = tirx.Var(axis.var.name, axis.var.ty)
        axes.append(tirx.IterVar(axis.dom, fresh[axis.var], axis.iter_type))

    def rename(node: Any) -> Any:
        return structural_map(node, (tirx.Var, lambda var: fresh.get(var, var)))

    copy = SBlock(
        axes, [rename(r) for r in block.reads], [rename(w) for w in block.writes], f"{block.name_hint}_{number}",
        rename(block.body), None, block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip
    inner = SBlockRealize([rename(v) for v in realize.iter_values], rename(realize.predicate), copy)
    kind = tirx.ForKind.SERIAL if plain else loop.kind
    return tirx.For(fresh[loop.loop_var], loop.min, loop.extent, kind, inner, None, loop.annotations)


def _store_again(store: Any, value: Any) -> Any:
    return tirx.BufferStore(store.buffer, value, store.indices)


def _with_body(block: Any, body: Any) -> Any:
    return SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def _flat(value: Any, local: Callable[[Any], Any], outermost: bool = False, guard: Any = None) -> Any:
    """`value` without lets and with plain arguments; `local` stores what it names and returns how to read it.

    Args:
        guard: the condition under which `value` is evaluated where it stands; None: always.
    """

    def named(bound: Any) -> Any:
        if str(bound.ty.dtype) == "bool":
            byte = named(tirx.Select(bound, tirx.const(1, "uint8"), tirx.const(0, "uint8")))
            return byte != tirx.const(0, "uint8")
        return local(bound if guard is None else tirx.if_then_else(guard, bound, tirx.const(0, str(bound.ty.dtype))))

    def let(node: Any, _mutator: Any) -> Any:
        load = named(_flat(node.value, local, guard=guard))
        body = structural_map(node.body, (tirx.Var, lambda v: load if v.same_as(node.var) else v))
        return _flat(body, local, guard=guard)

    def call(node: Any, mutator: Any) -> Any:
        if getattr(node.op, "name", "").endswith("if_then_else"):
            return chosen(node)
        return mutator.default_mutate(node) if math.expansion(node) is None else named(plain(node))

    def chosen(node: Any) -> Any:
        """Only the branch that is taken may be evaluated: the other one may read outside its tensor."""
        condition = _flat(node.args[0], local, guard=guard)
        branches = [
            _flat(branch, local, guard=test if guard is None else tirx.And(guard, test))
            for branch, test in zip(node.args[1:], (condition, tirx.Not(condition)), strict=True)
        ]
        return Call(node.op, [condition, *branches], attrs=node.attrs, ret_ty=node.ty)

    def select(node: Any, mutator: Any) -> Any:
        made = mutator.default_mutate(node)
        return made.true_value if structural_equal(made.true_value, made.false_value) else made

    def plain(node: Any) -> Any:
        if is_remainder(node):
            return tirx.Mod(*(_flat(side, local, guard=guard) for side in (node.a, node.b)))
        return Call(node.op, [_flat(node.args[0], local, guard=guard)], attrs=node.attrs, ret_ty=node.ty)

    def remainder(node: Any, mutator: Any) -> Any:
        return named(plain(node)) if is_remainder(node) else mutator.default_mutate(node)

    if outermost and (is_remainder(value) or (isinstance(value, Call) and math.expansion(value) is not None)):
        return plain(value)
    rules = ((tirx.Let, let), (Call, call), (tirx.Mod, remainder), (tirx.Select, select))
    return structural_mutate(value, rules)
