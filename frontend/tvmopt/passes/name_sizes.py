"""Give each open size a variable of its own while kernels are fused - around FuseOps and FuseTIR, which fuse nothing
with a kernel that takes a size as a number.

    Before                                                          After
    relu(x: [n, (h - 1)//2 + 1, 8], h, y: [n, (h - 1)//2 + 1, 8])   relu(x: [n, size0, 8], y: [n, size0, 8])
    R.call_tir(relu, (lv, h), ...)                                  R.call_tir(relu, (lv,), ...)

TVM writes a kernel's sizes in the symbols of `main`; one that no tensor has by itself, `h` above, is handed over. What
a kernel needs of a size is mostly the size itself, and that it reads off its tensors. In `main` the size is a variable
too, until :meth:`SizeNames.take_back` writes the expression again.

Applies when   a size is an expression.
Declines when  1. the number is read in the kernel's arithmetic.
               2. the kernel is a reshape: that it is one is seen by its expressions. Nothing is fused with it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import StructuralKey, structural_map

from tvmopt.passes.limit_fusion import OPAQUE
from tvmopt.scheduling.open_rows import with_size_variables


class SizeNames:
    """The two steps, and what the first leaves for the second.

    Attributes:
        sizes: variable of `main` -> its size.
    """

    def __init__(self) -> None:
        self.sizes: dict[Any, Any] = {}

    def give(self, module: tvm.IRModule) -> tvm.IRModule:
        """See the module's text."""
        main, self.sizes = _with_variables(module["main"])
        if not self.sizes:
            return module
        return _with_kernels(module, main, _named)

    def take_back(self, module: tvm.IRModule) -> tvm.IRModule:
        """The fused module with the expressions in `main`; FuseTIR has handed each size over besides."""
        if not self.sizes:
            return module
        main = structural_map(module["main"], (tirx.Var, lambda v: self.sizes.get(v, v)))
        return _with_kernels(module, main, _without_numbers)


def _with_kernels(module: tvm.IRModule, main: relax.Function, change: Any) -> tvm.IRModule:
    """A module with another `main`, and with what `change` makes of kernels: a kernel, and which arguments it keeps."""
    functions = dict(module.functions_items())
    made: dict[str, tuple[tirx.PrimFunc, list[int]]] = {}
    for gvar, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc) and (found := change(func)) is not None:
            if len(found[1]) < len(func.params):
                made[gvar.name_hint] = found
                del functions[gvar]
            else:
                functions[gvar] = found[0]
    functions[module.get_global_var("main")] = main
    changed = tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
    if not made:
        return changed
    calls = _Calls(changed, made)
    calls.builder_.update_func(changed.get_global_var("main"), calls.visit_expr(main))
    return calls.builder_.get()


def _with_variables(func: relax.Function) -> tuple[relax.Function, dict[Any, Any]]:
    """A Relax function with a variable for each size that is an expression."""
    found: dict[Any, Any] = {}
    sizes: dict[Any, Any] = {}

    def named(shape: Any) -> Any:
        dims = []
        for dim in shape.values:
            if not isinstance(dim, tirx.IntImm | tirx.Var):
                key = StructuralKey(Analyzer().simplify(dim))  # `h - 2` is `h + -2`
                if key not in found:
                    found[key] = tirx.Var(f"size{len(sizes)}", "int64")
                    sizes[found[key]] = dim
                dim = found[key]
            dims.append(dim)
        return relax.ShapeExpr(dims)

    return structural_map(func, (relax.ShapeExpr, named)), sizes


def _named(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]] | None:
    """The function with variables for its sizes, and which of its arguments are left."""
    named, sizes = with_size_variables(func)
    if all(var.same_as(dim) for var, dim in sizes.items()):
        return None
    if _is_reshape(func):  # Decline 2
        return func.with_attr("op_pattern", OPAQUE), list(range(len(func.params)))
    read = undefined_vars(named.body, [])
    return _with_arguments(named, [p for p in named.params if any(p.same_as(v) for v in read)])  # Decline 1


def _is_reshape(func: tirx.PrimFunc) -> bool:
    """Whether TVM sees that a kernel is a reshape; of sizes such as `h - 2` it may raise an error instead."""
    try:
        return bool(relax.analysis.has_reshape_pattern(func))
    except tvm.error.InternalError:
        return False


def _without_numbers(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[int]] | None:
    """The function without numbers that are sizes of its tensors, and which of its arguments are left."""
    sizes = [d for p in func.params for d in getattr(p.ty, "shape", ())]
    return _with_arguments(func, [p for p in func.params if not any(p.same_as(d) for d in sizes)])


def _with_arguments(func: tirx.PrimFunc, numbers: list[Any]) -> tuple[tirx.PrimFunc, list[int]]:
    """The function with these numbers and all tensors as its arguments, and which arguments these are."""
    left = [k for k, p in enumerate(func.params) if hasattr(p.ty, "shape") or any(p.same_as(n) for n in numbers)]
    params = [func.params[k] for k in left]
    return tirx.PrimFunc(params, func.body, func.ret_type, func.attrs, func.span), left


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Calls of kernels with the arguments that are left; the type of a kernel's name says which, so it is a new one."""

    def __init__(self, module: tvm.IRModule, made: dict[str, tuple[tirx.PrimFunc, list[int]]]) -> None:
        super().__init__(module)
        self.made = {name: (self.builder_.add_func(func, name), left) for name, (func, left) in made.items()}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """A call of a kernel that has changed."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir" or call.args[0].name_hint not in self.made:
            return call
        gvar, left = self.made[call.args[0].name_hint]
        fields = call.args[1].fields
        inputs = relax.Tuple([fields[k] for k in left if k < len(fields)])
        return relax.Call(call.op, [gvar, inputs, *call.args[2:]], call.attrs, call.ty_args)
