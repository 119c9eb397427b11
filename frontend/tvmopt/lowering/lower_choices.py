"""A choice between two vectors by one truth, for a GPU - a rewrite of loops before code generation.

    Before                                  After
    select(broadcast(c, 2), a, b)           if_then_else(c, a, b)

TVM 0.27 writes the first one's truth into a variable of the type of `a`, as in `float2 v_ = make_ushort2(c, c)`, which
is no C++: the mask of an attention whose queries are masked as a whole did not compile.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map


def lower_choices(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    target = func.attrs.get("target", None)
    if target is None or target.kind.name != "cuda":
        return func
    body = structural_map(func.body, (tirx.Select, _by_one_truth))
    return func if body.same_as(func.body) else func.with_body(body)


LowerChoices = tirx.transform.prim_func_pass(lower_choices, opt_level=0, name="tvmopt.LowerChoices")


def _by_one_truth(node: Any) -> Any:
    truth = node.condition
    if not isinstance(truth, tirx.Broadcast):
        return node
    return tirx.if_then_else(truth.value, node.true_value, node.false_value)
