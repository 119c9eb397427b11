"""Leave out marks that say that loops run in order: TVM's code generator does not know them and warns of each.

    Before                                       After
    with attr("pragma_scope", "seq"): loops      loops

TVM writes them into its own forms of ScatterElements, ScatterND and their kin, for schedulers that no longer exist. The
loops are serial with or without the mark.

Applies when   a kernel has such a mark.
Gain           no warning about TVM's source code on the user's terminal; a graph network of two layers had three.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvmopt.lowering.loops import with_body

MARK = ("pragma_scope", "seq")


def drop_sequence_marks(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    body = structural_map(func.body, ((tirx.AttrStmt, _without_mark),))
    return func if body.same_as(func.body) else with_body(func, body)


DropSequenceMarks = tirx.transform.prim_func_pass(drop_sequence_marks, opt_level=0, name="tvmopt.DropSequenceMarks")


def _without_mark(stmt: Any) -> Any:
    return stmt.body if (stmt.attr_key, getattr(stmt.value, "value", None)) == MARK else stmt
