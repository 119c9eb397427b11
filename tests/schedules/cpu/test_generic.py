"""The fallback never fails and never changes a result: every kind of function it may meet, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx, topi
from tvm.script import tirx as T

from tvmopt.schedules.cpu import generic

F = "float32"


def prim(*shapes, make):
    inputs = [te.placeholder(s, F, f"x{i}") for i, s in enumerate(shapes)]
    out = make(*inputs)
    outputs = [out] if isinstance(out, te.Tensor) else list(out)
    return te.create_prim_func([*inputs, *outputs]), [tuple(int(d) for d in o.shape) for o in outputs]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


N = "edge"
CASES = {
    "sum_last": ([(5, N)], lambda x: topi.sum(x, axis=-1), lambda x: x.sum(-1)),
    "sum_all": ([(5, N)], lambda x: topi.sum(x), lambda x: x.sum()),
    "max_first": ([(N, 40)], lambda x: topi.max(x, axis=0), lambda x: x.max(0)),
    "sum_middle": ([(2, 9, N)], lambda x: topi.sum(x, axis=1), lambda x: x.sum(1)),
    "matmul": ([(5, N), (N, N)], topi.matmul, lambda a, b: a @ b),
    "softmax": ([(3, N)], topi.nn.softmax, softmax),
    "transpose": ([(N, 5)], lambda x: topi.transpose(x, (1, 0)), lambda x: x.T),
    "concat": ([(3, N), (3, 5)], lambda a, b: topi.concatenate((a, b), axis=1),
               lambda a, b: np.concatenate([a, b], 1)),
    "pad": ([(3, N)], lambda x: topi.nn.pad(x, (1, 1), (0, 2)), lambda x: np.pad(x, ((1, 0), (1, 2)))),
    "two_outputs": ([(6, N)], lambda x: topi.split(x, [2], axis=0), lambda x: (x[:2], x[2:])),
    "var": ([(4, N)], lambda x: topi.sum(topi.multiply(x, x), axis=-1), lambda x: (x * x).sum(-1)),
}  # fmt: skip


def check(name, size, scheduled, execute):
    shapes, make, reference = CASES[name]
    shapes = [tuple(size if d is N else d for d in s) for s in shapes]
    func, outputs = prim(*shapes, make=make)
    rng = np.random.default_rng(size)
    arrays = [rng.standard_normal(s).astype(F) for s in shapes]
    expected = reference(*[a.astype("float64") for a in arrays])
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(execute(scheduled(generic, func), arrays, outputs), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_numbers(name, edge, scheduled, execute):
    check(name, edge, scheduled, execute)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [7, 16, 33])
def test_threads(name, size, scheduled, execute, monkeypatch):
    monkeypatch.setattr(generic.schedule, "worth_threads", lambda ns, machine: True)
    check(name, size, scheduled, execute)


def test_long_sum_runs_in_partial_sums(scheduled):
    func, _ = prim((4, 256), make=lambda x: topi.sum(x, axis=-1))
    result = scheduled(generic, func)
    assert "_rf" in result.script()


@pytest.mark.parametrize("scale", [1.0, 1e18])
def test_scores_are_rounded_before_they_are_compared(scheduled, execute, scale, edge):
    """A softmax of products: the largest one less itself is 0, also where a fused multiply-add would not round it."""
    func, outputs = prim((3, edge), make=lambda x: topi.nn.softmax(topi.multiply(x, tirx.const(0.7071, F))))
    x = (np.random.default_rng(edge).standard_normal((3, edge)) * scale).astype(F)
    (found,) = execute(scheduled(generic, func), [x], outputs)
    np.testing.assert_allclose(found, softmax((x * np.float32(0.7071)).astype("float64")), rtol=1e-5, atol=1e-6)


def test_argmax_is_left_alone(scheduled, execute):
    x = te.placeholder((9, 33), F, "x")
    result = scheduled(generic, te.create_prim_func([x, topi.argmax(x, axis=1)]))
    values = np.random.default_rng(0).standard_normal((9, 33)).astype(F)
    np.testing.assert_array_equal(execute(result, [values], [(9,)], "int32")[0], values.argmax(1))


def test_dynamic_and_opaque_are_declined(machine):
    n = tirx.Var("n", "int64")
    x = te.placeholder((n,), F, "x")
    assert generic.recognise(te.create_prim_func([x, topi.exp(x)]), machine) is None

    @T.prim_func(s_tir=True)
    def loops(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            b[i] = a[i] + T.float32(1)

    assert generic.recognise(loops, machine) is None


def test_the_given_function_is_not_changed(scheduled):
    func, _ = prim((4, 64), make=topi.nn.softmax)
    before = func.script()
    scheduled(generic, func)
    assert func.script() == before
