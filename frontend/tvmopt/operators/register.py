"""Making a Relax operator of our own known to TVM - for the other files of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm
from tvm import relax, te
from tvm.ir import _ffi_api as ir_api
from tvm.ir.op import register_op_attr
from tvm_ffi import structural_map

Form = Callable[[Any, Any], Any]
"""`form(bb, call) -> Expr`."""


def register(name: str, inferred: Form, where: str) -> None:
    """A pure operator.

    Args:
        inferred: `inferred(call, bb)`: the type of a call. where: the module that says what it computes.
    """
    ir_api.RegisterOp(name, f"see {where}")
    register_op_attr(name, "FPurity", True)
    register_op_attr(name, "FInferType", inferred)


def legalize_by(name: str, form: Form, instead: bool = False) -> None:
    """Make a form what LegalizeOps puts in place of a call that no machine's own form took; `instead`: of TVM's own."""
    register_op_attr(name, "FLegalize", form, 11 if instead else 10)


def rewrite_stock(name: str, rules: Callable[[Any], Sequence[Any]]) -> None:
    """Make TVM's own form of an operator, its loops rewritten, what LegalizeOps puts in place of a call.

    TVM's own loops stay beside them until the pass is over: it finds them again for the next call like this one, and
    their rewritten form, too, so that both calls share one kernel.

    Args:
        rules: `rules(call)`: those of `structural_map`; none of a call whose form stays as it is.
    """
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")

    def form(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        made, wanted = stock(bb, call), rules(call)
        if not wanted or not isinstance(made, relax.Call) or made.same_as(call):
            return made
        gvar, *rest = made.args
        func = bb.get()[gvar]
        shared = bb.add_func(func.with_body(structural_map(func.body, tuple(wanted))), gvar.name_hint)
        return relax.Call(made.op, [shared, *rest], made.attrs, made.ty_args)

    legalize_by(name, form, instead=True)


ON_CPUS = "tvmopt.on_cpus"
"""The attribute of a kernel that is for CPUs only: what is computed there, for the refusal elsewhere."""


@dataclass(frozen=True)
class Loops:
    """An operator that is one kernel, whose loops are written by hand, for CPUs; what is known at compile time is a
    dictionary that JSON can hold.

    Attributes:
        name: "tvmopt.x". where: the module that says what it computes.
        does: what is refused on a GPU: "trees are summed up".
        result: `result(shapes, told)`: shape and type of its result, from the shapes of its inputs.
        write: `write(ins, out, told)`: the loops.
    """

    name: str
    where: str
    does: str
    result: Callable[[Sequence[Any], dict[str, Any]], tuple[Sequence[Any], str]]
    write: Callable[[Sequence[Any], Any, dict[str, Any]], Any]

    def call(self, args: Sequence[Any], **told: Any) -> relax.Call:
        """The call."""
        attrs = tvm.ir.make_node("ir.DictAttrs", told=json.dumps(told))
        return relax.Call(self._op, list(args), attrs)

    @cached_property
    def _op(self) -> Any:
        register(self.name, self._type, self.where)
        legalize_by(self.name, self._lowered)
        return tvm.ir.Op.get(self.name)

    def _type(self, call: Any, _bb: Any) -> Any:
        shape, dtype = self.result([arg.ty.shape for arg in call.args], json.loads(str(call.attrs["told"])))
        return relax.TensorType(list(shape), dtype)

    def _lowered(self, bb: relax.BlockBuilder, call: Any) -> Any:
        told, name = json.loads(str(call.attrs["told"])), self.name.rpartition(".")[2]

        def compute(*args: te.Tensor) -> te.Tensor:
            shape, dtype = self.result([arg.shape for arg in args], told)

            def loops(ins: Any, outs: Any) -> Any:
                return self.write(ins, outs[0], told)

            return te.extern([tuple(shape)], list(args), loops, dtype=dtype, name=name)

        return bb.call_te(compute, *call.args, primfunc_name_hint=name, primfunc_attrs={ON_CPUS: self.does})
