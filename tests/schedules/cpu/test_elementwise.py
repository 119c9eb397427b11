"""One pass, right at the edges, and only what is contiguous."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from tvmopt.schedules.cpu import elementwise

F = "float32"


def chain(n: int):
    x, bias, scale = (
        te.placeholder((5, n), F, "x"),
        te.placeholder((n,), F, "b"),
        te.placeholder((5, 1), F, "s"),
    )
    return te.create_prim_func([x, bias, scale, topi.tanh(topi.multiply(topi.add(x, bias), scale))])


@pytest.mark.parametrize("knobs", [{}, {"parallel": 1}, {"parallel": 1, "chunk": 8}])
def test_chain(edge, knobs, scheduled, execute):
    rng = np.random.default_rng(edge)
    x, b, s = (rng.standard_normal(shape).astype(F) for shape in ((5, edge), (edge,), (5, 1)))
    (got,) = execute(scheduled(elementwise, chain(edge), knobs), [x, b, s], [(5, edge)])
    np.testing.assert_allclose(got, np.tanh((x + b) * s), rtol=1e-6, atol=1e-6)


def test_one_loop_nest_remains(scheduled, machine):
    text = scheduled(elementwise, chain(64)).script()
    assert text.count("T.sblock(") == 2  # the root, named in a comment, and one block
    assert "sblock_alloc_buffer" not in text


def test_contiguous_axes_become_one_loop(machine):
    x, y = te.placeholder((3, 4, 6, 8), F, "x"), te.placeholder((3, 4, 6, 8), F, "y")
    func = te.create_prim_func([x, y, topi.add(x, y)])
    sch = tvm.s_tir.Schedule(func)
    elementwise.apply(sch, elementwise.recognise(func, machine), {"parallel": 0, "chunk": 200})
    loops = [int(sch.get(loop).extent) for loop in sch.get_loops(sch.get_sblock("T_add"))]
    assert loops == [3, 192]


def test_expensive_producer_is_not_repeated(scheduled, execute):
    """exp(b) has 8 values, its consumer 64 x 8: computed once, kept."""
    x, b = te.placeholder((64, 8), F, "x"), te.placeholder((8,), F, "b")
    func = te.create_prim_func([x, b, topi.add(x, topi.exp(b))])
    result = scheduled(elementwise, func)
    assert result.script().count("T.exp(") == 1 and "sblock_alloc_buffer" in result.script()
    xs, bs = np.ones((64, 8), F), np.linspace(0, 1, 8, dtype=F)
    np.testing.assert_allclose(execute(result, [xs, bs], [(64, 8)])[0], xs + np.exp(bs), rtol=1e-6)


def test_threads_only_when_they_pay(machine):
    small, large = chain(32), chain(200_000)
    for func, expected in ((small, 0), (large, 1)):
        shape = elementwise.recognise(func, machine)
        assert elementwise.knobs(shape, machine).analytic["parallel"] == expected
        assert elementwise.knobs(shape, machine.with_cores(1)).analytic["parallel"] == 0


@pytest.mark.parametrize("make", [
    lambda x: topi.transpose(x, (1, 0)),
    lambda x: topi.sum(x, axis=1),
    lambda x: topi.nn.pad(x, (1, 1), (1, 1)),
    lambda x: te.compute((8, 8), lambda i, j: x[i, j * 2 % 16], attrs={"tvmopt.kernel": "other"}),
    lambda x: te.compute((8, 8), lambda i, j: x[i, 2 * j]),
])  # fmt: skip
def test_declines(make, machine):
    x = te.placeholder((16, 16), F, "x")
    assert elementwise.recognise(te.create_prim_func([x, make(x)]), machine) is None


def test_declines_dynamic_shapes(machine):
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 4), F, "x")
    assert elementwise.recognise(te.create_prim_func([x, topi.exp(x)]), machine) is None


def test_zero_dimensional(scheduled, execute):
    x, y = te.placeholder((), F, "x"), te.placeholder((), F, "y")
    func = scheduled(elementwise, te.create_prim_func([x, y, topi.add(x, y)]))
    assert execute(func, [np.array(2, F), np.array(3, F)], [()])[0] == 5
