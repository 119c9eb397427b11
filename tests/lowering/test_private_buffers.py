"""What only threads launched together name is memory of each; what is cleared before they are is memory of all."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from tvmopt.lowering.private_buffers import LAUNCH, PrivateBuffers


def kernel(uses_outside: bool) -> tirx.PrimFunc:
    """y = x doubled twice, in a launch, by way of a buffer, which is cleared before it or not."""
    x, y, own = (tirx.decl_buffer((8,), "float32", name) for name in ("x", "y", "own"))
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    eight = tirx.const(8, "int32")

    def loop(var: tirx.Var, kind: tirx.ForKind, body: object) -> tirx.For:
        return tirx.For(var, tirx.const(0, "int32"), eight, kind, body)

    fill = loop(i, tirx.ForKind.SERIAL, tirx.BufferStore(own, tirx.BufferLoad(x, [i]) * 2.0, [i]))
    read = loop(j, tirx.ForKind.PARALLEL, tirx.BufferStore(y, tirx.BufferLoad(own, [j]) * 2.0, [j]))
    launch = tirx.AttrStmt(tirx.const(0, "int32"), LAUNCH, tirx.const(1, "int32"), tirx.SeqStmt([fill, read]))
    before = [tirx.BufferStore(own, tirx.const(0.0, "float32"), [tirx.const(0, "int32")])] if uses_outside else []
    return tirx.PrimFunc([x, y], tirx.SeqStmt([tirx.AllocBuffer(own), *before, launch]))


def lines(func: tirx.PrimFunc) -> list[str]:
    """In which order the buffer is allocated and threads are launched."""
    import tvm

    text = str(PrivateBuffers(tvm.IRModule({"main": func}))["main"])
    return [word for line in text.split("\n") for word in ("alloc_buffer", "launch_point") if word in line]


def test_memory_of_each_thread_is_allocated_in_the_launch() -> None:
    assert lines(kernel(False)) == ["launch_point", "alloc_buffer"]


def test_memory_that_is_filled_before_it_is_of_all() -> None:
    assert lines(kernel(True)) == ["alloc_buffer", "launch_point"]


def test_kernels_without_a_launch_stay() -> None:
    @T.prim_func
    def plain(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        for i in T.parallel(8):
            y[i] = x[i]

    import tvm

    found = PrivateBuffers(tvm.IRModule({"main": plain}))["main"]
    assert found.body.same_as(plain.body)
