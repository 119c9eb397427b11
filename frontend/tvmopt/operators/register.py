"""Making a Relax operator of our own known to TVM - for the other files of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.ir import _ffi_api as ir_api
from tvm.ir.op import register_op_attr

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


def legalize_by(name: str, form: Form) -> None:
    """Make a form what LegalizeOps puts in place of a call that no machine's own form took."""
    register_op_attr(name, "FLegalize", form)
