"""The vector polynomials against float64, over every exponent, with inf, NaN, zeros and denormals."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmopt.lowering import math as tvmopt_math
from tvmopt.targets import Machine


def sigmoid(x):
    return np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


REFERENCE = {
    "exp": (np.exp, 2.0), "log": (np.log, 1.5), "tanh": (np.tanh, 2.5), "erf": (scipy.special.erf, 2.5),
    "sigmoid": (sigmoid, 3.5), "sin": (np.sin, 2.0), "cos": (np.cos, 2.0),
    "atan": (np.arctan, 3.0), "asin": (np.arcsin, 2.5), "acos": (np.arccos, 2.5),
}  # fmt: skip
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 88.722, 88.73, -87.3, -103.9, -104.1, 1e-45, 1.0], "float32")


def every_exponent() -> np.ndarray:
    bits = np.arange(0, 2**32, 99991, dtype=np.uint64).astype(np.uint32)
    values = np.concatenate(
        [
            bits.view("float32"),
            SPECIAL,
            np.linspace(-20, 20, 4096, dtype="float32"),
            np.linspace(-1.01, 1.01, 16384, dtype="float32"),
        ]
    )
    return values[: len(values) // 16 * 16]


def _operator(name: str) -> str:
    return name if "." in name else f"tirx.{name}"


def evaluate(name: str, values: np.ndarray, target: Machine, lanes: int) -> np.ndarray:
    tvmopt_math.install()
    x = te.placeholder(values.shape, name="x")
    y = te.compute(values.shape, lambda i: tirx.call_intrin("float32", _operator(name), x[i]), name="y")
    sch = Schedule(te.create_prim_func([x, y]))
    if lanes > 1:
        (loop,) = sch.get_loops(sch.get_sblock("y"))
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    out = tvm.runtime.tensor(np.zeros_like(values))
    with target.tvm_target():  # as the pipeline does: some forms ask for its instructions
        tvm.compile(sch.mod, target=target.tvm_target())["main"](tvm.runtime.tensor(values), out)
    return out.numpy()


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize(("target", "lanes"), [("cpu", 1), ("cpu", 16), ("x86-64-v3", 8), ("x86-64-v2", 4)])
def test_whole_range(name, target, lanes):
    reference, ulps = REFERENCE[name]
    values = every_exponent()
    got = evaluate(name, values, Machine.load(target), lanes)
    with np.errstate(all="ignore"):
        exact = reference(values.astype("float64"))
        rounded = exact.astype("float32")
    assert (np.isnan(got) == np.isnan(rounded)).all()
    assert (np.isinf(got) == np.isinf(rounded)).all()
    assert (np.signbit(got) == np.signbit(rounded))[~np.isnan(got)].all()
    normal = np.isfinite(rounded) & (np.abs(rounded) > 1.7e-38)
    error = np.abs(got[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal]))
    assert error.max() <= ulps, f"{error.max():.2f} ulp at {values[normal][error.argmax()]}"
    tiny = np.isfinite(rounded) & ~normal  # no denormal results
    assert np.abs(got[tiny] - exact[tiny]).max(initial=0) <= 1.7e-38


def test_exp_at_its_ends():
    values = np.array([-88.0, -95.0, -1e9, -np.inf, 88.4, 88.72, 88.73, 1e9] * 2, "float32")
    with np.errstate(over="ignore"):
        want = np.where(values < -87, 0, np.exp(values.astype("float64"))).astype("float32")
    np.testing.assert_allclose(evaluate("exp", values, Machine.load("cpu"), 16), want, rtol=3e-7)


def test_nan_of_any_payload():
    values = np.array([0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFC00155] * 4, "uint32").view("float32")
    for name in REFERENCE:
        assert np.isnan(evaluate(name, values, Machine.load("cpu"), 16)).all(), name


def test_other_types_keep_their_rule():
    tvmopt_math.install()
    x = te.placeholder((4,), "float64", name="x")
    y = te.compute((4,), lambda i: tirx.exp(x[i]) + tirx.tanh(x[i]), name="y")
    values = np.linspace(-2, 2, 4)
    out = tvm.runtime.tensor(np.zeros(4))
    target = Machine.load("cpu").tvm_target()
    tvm.compile(te.create_prim_func([x, y]), target=target)["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), np.exp(values) + np.tanh(values), rtol=1e-14)


@pytest.mark.parametrize("name", REFERENCE)
def test_vectors_of_float64(name):
    tvmopt_math.install()
    x = te.placeholder((48,), "float64", name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((48,), lambda i: getattr(tirx, name)(x[i]), name="y")]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, 16])[1])
    values, out = np.linspace(0.1, 2, 48), tvm.runtime.tensor(np.zeros(48))
    tvm.compile(sch.mod, target=Machine.load("cpu").tvm_target())["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), REFERENCE[name][0](values), rtol=1e-14)


@pytest.mark.parametrize("lanes", [1, 8])
def test_tanh_of_float64_has_all_digits_near_zero(lanes):
    """TVM's own is (e - 1) / (e + 1): of 1e-16 it leaves 0 or an epsilon."""
    tvmopt_math.install()
    x = te.placeholder((48,), "float64", name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((48,), lambda i: tirx.tanh(x[i]), name="y")]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    if lanes > 1:
        sch.vectorize(sch.split(loop, [None, lanes])[1])
    values = np.concatenate([np.logspace(-300, 2, 42), [0.0, -0.0, np.inf, -np.inf, np.nan, -1e-16]])
    out = tvm.runtime.tensor(np.zeros(48))
    tvm.compile(sch.mod, target=Machine.load("cpu").tvm_target())["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_allclose(out.numpy(), np.tanh(values), rtol=1e-15)


def test_install_twice_is_once():
    assert tvmopt_math.install() == tvmopt_math.install()


@pytest.mark.parametrize("name", REFERENCE)
def test_a_vector_stays_a_vector(name):
    """TVM's vectorizer makes a loop over the lanes of a function that it does not know to be vectorizable."""
    tvmopt_math.install()
    x = te.placeholder((64,), name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((64,), lambda i: getattr(tirx, name)(x[i]), name="y")]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    sch.vectorize(sch.split(loop, [None, 16])[1])
    with Machine.load("x86-64-v4").tvm_target():
        text = tvm.compile(sch.mod, target=Machine.load("x86-64-v4").tvm_target()).mod.inspect_source()
    assert "<16 x float>" in text


@pytest.mark.parametrize(("target", "lanes"), [("cpu", 1), ("cpu", 16), ("x86-64-v3", 8), ("x86-64-v2", 4)])
def test_normal_cdf(target, lanes):
    """To 2e-7 everywhere, 0 and 1 at the ends, so that huge numbers times it are 0 or themselves."""
    values = every_exponent()
    got = evaluate(tvmopt_math.NORMAL_CDF, values, Machine.load(target), lanes)
    with np.errstate(all="ignore"):
        exact = scipy.special.ndtr(values.astype("float64"))
    assert (np.isnan(got) == np.isnan(exact)).all()
    known = ~np.isnan(exact)
    assert np.abs(got[known] - exact[known]).max() < 2e-7
    assert (got[values > 5.6] == 1).all() and (got[values < -5.6] == 0).all()
