"""Leave out the checks of arguments that TVM writes at the entry of a kernel - behind its own passes of loops.

    Before                                                    After
    assert num_args == 4, ...
    assert type_index(args, 0) in (0, 4, 7) or >= 64, ...
    x = tensor(args, 0)                                       x = tensor(args, 0)
    assert ndim(x) == 4, ...
    assert dtype(x) == float32, ...
    if strides(x) is not null: assert strides(x)[0] == 1 ...
    with attr("compute_scope"): loops                         with attr("compute_scope"): loops

A kernel that only `main` calls gets what it was made for at each call, but for the model's inputs: kinds, known sizes
and places of tensors of the memory plan and of weights were fixed when the model was compiled. Three sorts stay::

    assert ndim(x) == 4             of an input of the model, which a caller has made
    assert size == shape(y)[0]      of sizes that a call decides: a formula of sizes that is wrong ends as an error here
                                    and not in foreign memory. Its message no longer tells the kernel's whole signature
    assert 0 <= i < 40              of data, such as of an index: they stand inside the loops

Applies when   MarkPlanned has said which arguments of the kernel are inputs of the model.
Gain           PP-OCRv6's detector, 77 kernels, processor time of LLVM's passes 4.8 -> 4.0 s, of its code generation
               3.8 -> 2.2 s; object files 3.0 -> 1.2 MB. Each check is a branch with a message; a tensor has ten.
               BERT-base of open batch and length: library 306 -> 207 KB (76 where both are known). Of 30 random graphs
               most kernels read an input: with checks of that alone a library has 30.6 KB, with all 34.1.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_visit

from tvmopt.lowering.loops import with_body

SHAPE = 17
"""What TVM's `tvm_struct_get` calls a number of a shape or of strides (tvm.tirx, TVMStructFieldKind)."""

LONGEST = 80
"""Characters of a part of a message; a signature has more."""

OUTSIDE = "tvmopt.outside"
"""Attribute of a kernel that MarkPlanned gives it: the places of arguments that may be inputs of the model."""

_GET = ir.Op.get("tirx.tvm_struct_get")

LOOPS = "compute_scope"
"""What TVM's MakePackedAPI puts around a kernel's loops, behind its checks."""


def drop_argument_checks(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    outside = func.attrs.get(OUTSIDE, None)
    if outside is None:
        return func
    body = _Checks(func, {int(place) for place in outside}).dropped(func.body)
    assert body is not None
    return with_body(func, body)


DropArgumentChecks = tirx.transform.prim_func_pass(drop_argument_checks, opt_level=0, name="tvmopt.DropArgumentChecks")


class _Checks:
    """The checks at a kernel's entry.

    Attributes:
        outside: the places of arguments that may be inputs of the model.
        sizes: the variables that are read from the shapes of its tensors.
        places: of the arguments that a variable or a check is made of.
    """

    def __init__(self, func: tirx.PrimFunc, outside: set[int]) -> None:
        self.packed, self.outside = func.params[1], outside
        self.sizes: list[Any] = []
        self.places: dict[Any, set[int]] = {}
        self._found = set[int]()  # of the statement that is looked at
        handlers = ((tirx.Bind, self._bind), (tirx.AssertStmt, self._assert), (tirx.AttrStmt, self._around))
        structural_visit(func.body, (*handlers, (ir.Call, self._reads), (ir.Var, self._knows)))

    def _bind(self, node: Any, visitor: Any) -> None:
        if _reads_shape(node.value):
            self.sizes.append(node.var)
        self.places[node.var] = self._made_of(node, visitor)

    def _assert(self, node: Any, visitor: Any) -> None:
        self.places[node] = self._made_of(node, visitor)

    def _made_of(self, node: Any, visitor: Any) -> set[int]:
        """The places of the arguments that a statement looks at."""
        self._found = set()
        visitor.default_visit(node)
        return self._found

    def _reads(self, node: Any, visitor: Any) -> None:
        if node.op.same_as(_GET) and node.args[0].same_as(self.packed):
            self._found.add(int(node.args[1]))
        visitor.default_visit(node)

    def _knows(self, node: Any, visitor: Any) -> None:
        self._found.update(self.places.get(node, ()))

    def _around(self, node: Any, visitor: Any) -> None:
        """The loops are not looked through: they are nearly all of a kernel, and read no shapes."""
        if node.attr_key != LOOPS:
            visitor.default_visit(node)

    def dropped(self, stmt: Any) -> Any:
        """A statement without the assertions in front of the loops; None where nothing is left."""
        if isinstance(stmt, tirx.AssertStmt):
            places = self.places[stmt]
            return stmt if places and places <= self.outside else self._of_size(stmt)
        if isinstance(stmt, tirx.SeqStmt):
            kept = [left for left in map(self.dropped, stmt.seq) if left is not None]
            return tirx.SeqStmt(kept) if len(kept) > 1 else next(iter(kept), None)
        if isinstance(stmt, tirx.IfThenElse):  # a check for tensors with strides
            return stmt if self.dropped(stmt.then_case) is not None else None
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key != LOOPS:
            body = self.dropped(stmt.body)
            return None if body is None else tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
        return stmt

    def _of_size(self, check: Any) -> Any | None:
        """The check if it compares a number of a shape with sizes of the call, its message without the signature."""
        if not isinstance(check.condition, tirx.EQ) or not any(
            map(_reads_shape, (check.condition.a, check.condition.b))
        ):
            return None
        if not any(var.same_as(size) for var in undefined_vars(check.condition, []) for size in self.sizes):
            return None
        parts = [part for part in check.message_parts if len(part.value) <= LONGEST]
        return tirx.AssertStmt(check.condition, check.error_kind, parts, check.span)


def _reads_shape(value: Any) -> bool:
    """Whether an expression is one number of a shape."""
    return isinstance(value, ir.Call) and value.op.same_as(_GET) and int(value.args[2]) == SHAPE
