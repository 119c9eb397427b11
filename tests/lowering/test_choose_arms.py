"""Of a choice by the number of an unrolled loop each copy has its own arm alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmopt.lowering.choose_arms import ChooseArms
from tvmopt.pipeline import compile_kernels
from tvmopt.targets import Machine

X, Y = (tirx.decl_buffer((64,), "float32", name) for name in "xy")


def after(value: Callable[..., Any], kind: int = tirx.ForKind.UNROLLED) -> list[Any]:
    """The selects that the pass leaves in `for j in unroll(2): for i in 4: y[4 * j + i] = value(i, j)`."""
    j, i = (tirx.Var(name, "int32") for name in "ji")
    zero, two, four = (tirx.const(n, "int32") for n in (0, 2, 4))
    loop = tirx.For(i, zero, four, kind, tirx.BufferStore(Y, value(i, j), [j * 4 + i]))
    func = tirx.PrimFunc([], tirx.For(j, zero, two, tirx.ForKind.UNROLLED, loop))
    left: list[Any] = []
    structural_walk(ChooseArms(tvm.IRModule({"f": func}))["f"].body, ((tirx.Select, left.append),))
    return left


def x(number: int) -> Any:
    return tirx.BufferLoad(X, [number])


def three(i: Any, *_: Any) -> Any:
    return tirx.Select(i.equal(3), x(0), tirx.Select(i.equal(2), x(1), x(2)))


def test_one_arm_is_left() -> None:
    assert not after(three)
    assert not after(lambda i, j: tirx.Select(j.equal(1), three(i), x(3)))  # of both loops


@pytest.mark.parametrize(
    "value", [lambda i, j: tirx.Select(i < 2, x(0), x(1)), lambda i, j: tirx.Select(x(5) > 0, x(0), x(1))]
)
def test_other_choices_are_left_alone(value: Callable[..., Any]) -> None:
    assert len(after(value)) == 1


def test_loops_that_are_not_unrolled_are_left_alone() -> None:
    assert len(after(three, tirx.ForKind.SERIAL)) == 2


def test_the_numbers_are_the_same() -> None:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((5, 8), "float32"), y: T.Buffer((4, 4, 8), "float32")):
        for i in T.unroll(4):
            for j in T.unroll(4):
                for v in T.vectorized(8):
                    with T.sblock("transform"):
                        a, b, c = T.axis.remap("SSS", [i, j, v])
                        y[a, b, c] = T.Select(
                            a == 3,
                            x[0, c] - x[3, c],
                            T.Select(a == 1, T.Select(b == 2, x[4, c], x[2, c] * T.float32(4)), x[1, c]),
                        ) + T.Select(b == 0, T.float32(100), T.float32(0))

    built = compile_kernels(tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")}), Machine.load("cpu"))
    x = np.random.default_rng(0).standard_normal((5, 8)).astype("f")
    y = tvm.runtime.tensor(np.zeros((4, 4, 8), "f"))
    built["kernel"](tvm.runtime.tensor(x), y)
    for a, b in np.ndindex(4, 4):
        wanted = x[0] - x[3] if a == 3 else x[1] if a != 1 else x[4] if b == 2 else x[2] * 4
        np.testing.assert_allclose(y.numpy()[a, b], wanted + (100 if b == 0 else 0), rtol=1e-6)
