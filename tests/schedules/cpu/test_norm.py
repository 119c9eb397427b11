"""Softmax, the norms and row reductions through the pipeline's legalize-fuse-schedule, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt import pipeline
from tvmopt.targets import Machine

op = relax.op


def run(build, *arrays):
    """Compile `build(bb, *vars)` and run it; returns the result and the families of its kernels."""
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(a.shape, "float32")) for i, a in enumerate(arrays)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(build(bb, *params))
        bb.emit_func_output(relax.Tuple([out]))
    machine = Machine.load("cpu").with_cores(2)
    lowered = pipeline.lower(bb.get(), machine)
    vm = relax.VirtualMachine(pipeline.build(lowered, machine), tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(a) for a in arrays])[0].numpy(), [k.family for k in lowered.kernels]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalise(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def data(*shape, offset=0.0):
    return (np.random.default_rng(0).standard_normal(shape) + offset).astype("float32")


EDGES = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 770]
G = {n: data(n, offset=1.0) for n in [*EDGES, 12]}


def const(x):
    return relax.const(x)


CASES = {
    "softmax": (lambda bb, x, n: op.nn.softmax(x, -1), lambda x, n: softmax(x)),
    "log_softmax": (lambda bb, x, n: op.nn.log_softmax(x, -1), lambda x, n: np.log(softmax(x))),
    "layer_norm": (
        lambda bb, x, n: op.nn.layer_norm(x, const(G[n]), const(G[n]), axes=[-1]),
        lambda x, n: normalise(x, -1) * G[n] + G[n],
    ),
    "rms_norm": (
        lambda bb, x, n: op.nn.rms_norm(x, const(G[n]), axes=[-1]),
        lambda x, n: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * G[n],
    ),
    "sum": (lambda bb, x, n: op.sum(x, [-1]), lambda x, n: x.sum(-1)),
    "max": (lambda bb, x, n: op.max(x, [-1], True), lambda x, n: x.max(-1, keepdims=True)),
}


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("name", CASES)
def test_lengths(name, n):
    build, reference = CASES[name]
    x = data(3, n)
    got, families = run(lambda bb, v: bb.emit(build(bb, v, n)), x)
    assert families == ["rows"] or (n == 1 and name in ("sum", "max"))  # of one number: no reduction
    np.testing.assert_allclose(got, reference(x.astype("float64"), n), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("shape", [(2, 12, 9, 5), (1, 12, 7, 7), (40, 12, 16, 17)])
def test_several_axes(shape):
    x = data(*shape, offset=3.0)
    exact = x.astype("float64")
    gamma, beta = data(12), data(12, offset=1.0)
    g, b = gamma.reshape(1, 12, 1, 1), beta.reshape(1, 12, 1, 1)
    mean, _ = run(lambda bb, v: bb.emit(op.mean(v, [2, 3], True)), x)
    np.testing.assert_allclose(mean, exact.mean((2, 3), keepdims=True), rtol=1e-5)
    low, _ = run(lambda bb, v: bb.emit(op.min(v, [1, 2, 3])), x)
    np.testing.assert_allclose(low, exact.min((1, 2, 3)), rtol=1e-6)
    instance, _ = run(lambda bb, v: bb.emit(op.nn.instance_norm(v, const(gamma), const(beta), 1, [2, 3])), x)
    np.testing.assert_allclose(instance, normalise(exact, (2, 3)) * g + b, rtol=1e-4, atol=1e-5)
    grouped = exact.reshape(shape[0], 3, -1)
    group, _ = run(lambda bb, v: bb.emit(op.nn.group_norm(v, const(gamma), const(beta), 3, 1, [2, 3])), x)
    np.testing.assert_allclose(group, normalise(grouped, -1).reshape(shape) * g + b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape, groups", [((2, 7, 9, 12), 3), ((1, 1, 1, 8), 8), ((3, 17, 33), 1), ((1, 16, 15, 320), 32)]
)
def test_groups_of_channels_that_stand_last(shape, groups):
    x, channels = data(*shape, offset=3.0), shape[-1]
    gamma, beta = data(channels), data(channels, offset=1.0)
    axes = list(range(1, len(shape) - 1))
    got, _ = run(lambda bb, v: bb.emit(op.nn.group_norm(v, const(gamma), const(beta), groups, -1, axes)), x)
    grouped = x.astype("float64").reshape(shape[0], -1, groups, channels // groups)
    exact = normalise(grouped, (1, 3)).reshape(shape) * gamma + beta
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)


def test_epilogue_is_computed_per_row():
    x = data(64, 100)

    def build(bb, v):
        return bb.emit(op.nn.relu(bb.emit(op.nn.layer_norm(v, const(data(100)), const(data(100)), axes=[-1]))))

    got, families = run(build, x)
    assert families == ["rows"]
    g = data(100)
    np.testing.assert_allclose(got, np.maximum(normalise(x.astype("float64"), -1) * g + g, 0), rtol=1e-5, atol=1e-5)


def test_masked_and_infinite_scores():
    x = data(4, 40)
    x[0, 5:] = -np.inf
    x[1] = -np.inf
    x[2, 3] = np.inf
    x[3, 7] = np.nan
    x[0, 0] = 100.0
    got, _ = run(lambda bb, v: bb.emit(op.nn.softmax(v, -1)), x)
    with np.errstate(all="ignore"):
        want = softmax(x.astype("float64"))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-38)
    assert (got[0, 5:] == 0).all()


def test_variance_does_not_cancel():
    x = data(2, 768, offset=1000.0)
    got, _ = run(
        lambda bb, v: bb.emit(op.nn.layer_norm(v, const(np.ones(768, "f")), const(np.zeros(768, "f")), axes=[-1])),
        x,
    )
    np.testing.assert_allclose(got, normalise(x.astype("float64"), -1), atol=2e-3)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_softmax_along_another_axis(name, axis):
    x = data(5, 17, 9)
    got, families = run(lambda bb, v: bb.emit(getattr(op.nn, name)(v, axis)), x)
    assert ("rows" in families or x.size == 1) and "generic" not in families
    e = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    want = e / e.sum(axis, keepdims=True)
    np.testing.assert_allclose(got, want if name == "softmax" else np.log(want), rtol=2e-5, atol=2e-6)


TERMS = {"abs": (op.abs, np.abs), "square": (lambda x: op.multiply(x, x), np.square)}


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("term", TERMS)
def test_norms_of_rows_are_one_kernel(term, n):
    """Magnitudes and squares are computed on the way, and a root behind them; a row of one number is no reduction."""
    made, of = TERMS[term]
    x = data(3, n)
    got, families = run(lambda bb, v: bb.emit(op.sqrt(bb.emit(op.sum(bb.emit(made(v)), [-1])))), x)
    np.testing.assert_allclose(got, np.sqrt(of(x.astype("float64")).sum(-1)), rtol=2e-6)
    assert families == ["rows"] or (n == 1 and len(families) == 1)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("term", TERMS)
def test_terms_of_what_is_no_number(term, kind):
    x = data(6, 40)
    x[0, 3], x[1, 39], x[2, 5], x[3, 7], x[4] = np.nan, np.inf, -np.inf, 3e30, -0.0
    made, of = TERMS[term]
    got, families = run(lambda bb, v: bb.emit(getattr(op, kind)(bb.emit(made(v)), [-1])), x)
    with np.errstate(over="ignore"):
        want = getattr(of(x).astype("float64"), kind)(-1)
    np.testing.assert_allclose(got, want, rtol=2e-6)
    assert families == ["rows"]


def test_a_term_that_others_read_is_stored_for_them():
    x = data(5, 33)

    def build(bb, v):
        square = bb.emit(op.multiply(v, v))
        return bb.emit(op.divide(square, bb.emit(op.sum(square, [-1], True))))

    got, _ = run(build, x)
    square = x.astype("float64") ** 2
    np.testing.assert_allclose(got, square / square.sum(-1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_everything(term):
    made, of = TERMS[term]
    x = data(33, 17)
    got, families = run(lambda bb, v: bb.emit(op.sum(bb.emit(made(v)), None, False)), x)
    np.testing.assert_allclose(got, of(x.astype("float64")).sum(), rtol=2e-6)
    assert families == run(lambda bb, v: bb.emit(op.sum(v, None, False)), x)[1]  # no kernel for the terms


@pytest.mark.parametrize("shape", [(1,), (7,), (1009,), (33, 17), (3, 1, 64), (512, 1024)])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_of_everything(kind, shape):
    x = data(*shape)
    got, families = run(lambda bb, v: getattr(op, kind)(v, None, False), x)
    want = getattr(x.astype("float64"), kind)()
    assert got.shape == () and abs(got - want) <= 2e-7 * np.abs(x).sum() / (x.size if kind != "sum" else 16)
    assert ("rows" in families or x.size == 1) and "generic" not in families
