"""Give each thread memory of its own where threads are launched once for several parallel loops - behind TVM's
StorageRewrite.

    Before                                              After
    codes = alloc(144)                                  parallel_launch_point:      # each thread runs all of this
    parallel_launch_point:                                codes = alloc(144)
      for step in range(5):                               for step in range(5):
        codes[...] = round(h[...])                          codes[...] = round(h[...])
        for block in parallel(9): ... codes[...] ...        for block in parallel(9): ... codes[...] ...

StorageRewrite allocates a buffer outside of all loops that are not parallel, and so outside of the launch: what every
thread computes for itself was memory of all of them, which one overwrote while another read it.

Applies when   nothing outside of the launch names the buffer: what is to be shared is cleared before it.
Gain           none; an LSTM whose states are rounded to 8 bits, with weights of float32, gave other results in each run
               where cores share its steps.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.lowering.loops import with_body

LAUNCH = "pragma_parallel_launch_point"
"""TVM's attribute of statements that threads are launched for, as often as they have parallel loops."""


def private_buffers(func: tirx.PrimFunc, module: tvm.IRModule, context: Any) -> tirx.PrimFunc:
    """See the module's text."""
    launches: list[Any] = []
    structural_walk(func.body, ((tirx.AttrStmt, lambda a: launches.append(a) if a.attr_key == LAUNCH else None),))
    body = func.body
    for launch in launches:
        body = _with_its_own(body, launch)
    return with_body(func, body) if launches else func


PrivateBuffers = tirx.transform.prim_func_pass(private_buffers, opt_level=0, name="tvmopt.PrivateBuffers")


def _with_its_own(body: Any, launch: Any) -> Any:
    """The loops of a kernel, with what only this launch names allocated in it."""
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    outside = structural_mutate(body, ((tirx.AttrStmt, lambda a, m: nothing if a.same_as(launch) else
                                        m.default_mutate(a)),))  # fmt: skip
    allocated: list[Any] = []
    structural_walk(outside, ((tirx.AllocBuffer, allocated.append),))
    shared = _named(structural_map(outside, ((tirx.AllocBuffer, lambda _: nothing),)))
    used = _named(launch.body)
    own = [a for a in allocated if a.buffer in used and a.buffer not in shared]
    if not own:
        return body
    inner = tirx.AttrStmt(launch.node, launch.attr_key, launch.value, tirx.SeqStmt([*own, launch.body]), launch.span)

    def moved(node: Any, mutator: Any) -> Any:
        return inner if node.same_as(launch) else mutator.default_mutate(node)

    def dropped(node: Any, mutator: Any) -> Any:
        return nothing if any(node.same_as(a) for a in own) else node

    return structural_mutate(body, ((tirx.AttrStmt, moved), (tirx.AllocBuffer, dropped)))


def _named(body: Any) -> set[Any]:
    """The variables, buffers among them, that statements name."""
    found: list[Any] = []
    structural_walk(body, ((tirx.Var, found.append),))
    return set(found)
