"""A choice between two vectors by one truth, for a GPU - a rewrite of loops before code generation.

    Before                                  After
    select(broadcast(c, 2), a, b)           if_then_else(c, a, b)

TVM 0.27 writes the first one's truth into a variable of the type of `a`, as in `float2 v_ = make_ushort2(c, c)`, which
is no C++: the mask of an attention whose queries are masked as a whole did not compile.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import gpu_pass


def _by_one_truth(node: Any) -> Any:
    truth = node.condition
    if not isinstance(truth, tirx.Broadcast):
        return node
    return tirx.if_then_else(truth.value, node.true_value, node.false_value)


LowerChoices = gpu_pass("tvmopt.LowerChoices", tirx.Select, _by_one_truth)
