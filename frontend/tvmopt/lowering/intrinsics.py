"""Operators of our own that functions in LLVM IR compute, one per number of lanes - for pairs.py and quads.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import _ffi_api as ir_api
from tvm.ir.op import register_op_attr
from tvm.tirx.op import call_intrin

from tvmopt.errors import ScheduleError
from tvmopt.lowering.loops import vector_type

WIDTHS = (*range(1, 17), 24, 32, 48, 64)
"""Lanes that the functions exist for."""

_PURE = 1  # TVM's CallEffectKind


def register(arities: Mapping[str, int], where: str) -> None:
    """Make operators known to TVM: pure, and vectorized by lanes.

    Args:
        arities: operator -> how many arguments it takes. where: the module that says what they are.
    """
    for name, arity in arities.items():
        ir_api.RegisterOp(name, f"see {where}")
        tvm.ir.Op.get(name).set_num_inputs(arity)
        register_op_attr(name, "TScriptPrinterName", name)  # TVM warns where it prints an operator without one
        register_op_attr(name, "TCallEffectKind", _PURE)
        register_op_attr(name, "TVectorizable", True)


def called(node: Any) -> str:
    """The operator that a node calls; empty for any other node."""
    return str(getattr(node.op, "name", "")) if isinstance(node, tvm.ir.Call) else ""


def accumulated(node: Any, product: str, sum_of: str, dtype: str) -> Any:
    """`acc + product(x, w)`, in either order, as `sum_of(acc, x, w)`; any other sum as it is."""
    if called(node.b) == product:
        return call_intrin(dtype, sum_of, node.a, *node.b.args)
    return call_intrin(dtype, sum_of, node.b, *node.a.args) if called(node.a) == product else node


def call_function(name: str, dtype: str, *args: Any) -> Any:
    """A call of the function for the widest argument's lanes; scalars beside it go to every lane.

    Args:
        name: of the functions, without the number of lanes. dtype: of one lane of the result.

    Raises:
        ScheduleError: there is no function for so many lanes; linked, the kernel would end the process that calls it.
    """
    lanes = max(int(a.ty.dtype.lanes) for a in args)
    if lanes not in WIDTHS:
        raise ScheduleError(f"there is no {name} for vectors of {lanes} lanes")
    wide = [tirx.Broadcast(a, lanes) if int(a.ty.dtype.lanes) < lanes else a for a in args]
    return tirx.call_pure_extern(vector_type(dtype, lanes), f"{name}_{lanes}", *wide)


def llvm_type(lanes: int, element: str) -> str:
    """LLVM's type of so many lanes.

    >>> llvm_type(1, "i32"), llvm_type(4, "i32")
    ('i32', '<4 x i32>')
    """
    return element if lanes == 1 else f"<{lanes} x {element}>"


def llvm_constant(lanes: int, element: str, value: int) -> str:
    """The same number in all lanes, as LLVM writes it behind its type.

    >>> llvm_constant(1, "i32", 7), llvm_constant(2, "i32", 7)
    ('7', '<i32 7, i32 7>')
    """
    return str(value) if lanes == 1 else "<" + ", ".join([f"{element} {value}"] * lanes) + ">"
