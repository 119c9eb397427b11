"""Choices between numbers that are loaded from where the choice decides."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import tirx as T

from tvmopt.lowering.loop_passes import all_loop_passes

# fmt: off


@T.prim_func(s_tir=True)
def decides(x: T.Buffer((144,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    for k in range(4):
        for i in T.vectorized(16):
            y[k * 16 + i] = T.Select(k == 2, x[k * 64 + i], x[i])


@T.prim_func(s_tir=True)
def decides_in_part(x: T.Buffer((80,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    for k in range(4):
        for i in T.vectorized(16):
            y[k * 16 + i] = T.Select(x[i] > 0.0 and k < 2, x[k * 64 + i], x[i])


@T.prim_func(s_tir=True)
def branches(x: T.Buffer((256,), "float32"), y: T.Buffer((4,), "float32")) -> None:
    for k in range(4):
        y[k] = T.Select(k == 2, x[k * 64], x[0])


@T.prim_func(s_tir=True)
def asks_what_is_loaded(x: T.Buffer((256,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    for k in range(4):
        for i in T.vectorized(16):
            y[k * 16 + i] = T.Select(x[k * 64 + i] > 0.0, x[k * 64 + i], x[i])


@T.prim_func(s_tir=True)
def stays_inside(x: T.Buffer((256,), "float32"), y: T.Buffer((64,), "float32")) -> None:
    for k in range(4):
        for i in T.vectorized(16):
            y[k * 16 + i] = T.Select(k < 2, x[k * 64 + i], x[i])


# fmt: on


def lowered(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    target = tvm.target.Target("llvm").with_host("llvm")
    named = func.with_attr({"target": target, "global_symbol": "main"})
    with target:
        return all_loop_passes("llvm")(tvm.IRModule({"main": named}))


@pytest.mark.parametrize("func", [decides, decides_in_part])
def test_a_place_that_the_choice_decides_is_refused(func: tvm.tirx.PrimFunc) -> None:
    with pytest.raises(RuntimeError, match="loop's number"):
        lowered(func)


@pytest.mark.parametrize("func", [branches, asks_what_is_loaded, stays_inside])
def test_branches_and_other_choices_are_not(func: tvm.tirx.PrimFunc) -> None:
    assert lowered(func)
