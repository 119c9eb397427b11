"""Remainders of float32 are those of C's fmod to the bit, whatever the numbers, and where the pass declines."""

import itertools

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import te, tirx
from tvm.s_tir import Schedule

import tvmopt
from tvmopt.lowering.lower_remainders import LowerRemainders
from tvmopt.targets import Machine

WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 300)
TINY, LEAST, HUGE = np.float32(1e-45), np.float32(1.1754944e-38), np.float32(3.4028235e38)
SPECIAL = np.array([0.0, 1.0, 3.0, 0.1, TINY, 7 * TINY, LEAST, LEAST + TINY, HUGE, HUGE / 3, 2.0**23, 2.0**24 - 1,
                    np.inf, np.nan], "float32")  # fmt: skip


def remainders(x_shape, y_shape, kind=TensorProto.FLOAT):
    """A compiled model of one Mod with fmod=1; sizes may be names."""
    values = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", x_shape), ("y", y_shape), ("z", x_shape))]
    node = helper.make_node("Mod", ["x", "y"], ["z"], fmod=1)
    graph = helper.make_graph([node], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return tvmopt.compile(model, threads=1, verify=False, records=False).model


def check(got, x, y):
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    assert (np.isnan(got) == np.isnan(expected)).all()
    known = ~np.isnan(expected)
    assert (got.view("u4")[known] == expected.view("u4")[known]).all()


def of_bits(rng, *shape):
    return rng.integers(0, 2**32, shape, dtype=np.uint64).astype("uint32").view("float32")


def beside(x, steps):
    """Numbers so many last places away."""
    return (x.view("int32") + steps.astype("int32")).view("float32")


def pairs(kind, shape):
    """Dividends and divisors that are hard in one way."""
    rng = np.random.default_rng(0)
    y = of_bits(rng, *shape)
    with np.errstate(all="ignore"):
        if kind == "any bits":
            return of_bits(rng, *shape), y
        if kind == "quotients up to 2^24":
            return (np.ldexp(y, rng.integers(-2, 24, shape)) * rng.uniform(0.5, 1, shape)).astype("float32"), y
        if kind == "one place from a multiple":
            whole = np.floor(2.0 ** rng.uniform(0, 24, shape))
            return beside((y * whole).astype("float32"), rng.integers(-1, 2, shape)), y
        if kind == "denormal divisors":
            tiny = (rng.integers(1, 2**23, shape) * float(TINY)).astype("float32")
            return (tiny * rng.uniform(0, 2**23, shape)).astype("float32"), tiny
    return beside(y, rng.integers(-1, 2, shape)), y  # equal but for the last place


KINDS = ("any bits", "quotients up to 2^24", "one place from a multiple", "denormal divisors", "nearly equal")


@pytest.fixture(scope="module")
def large():
    return remainders((256, 1024), (256, 1024))


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_that_of_fmod(kind, large):
    x, y = pairs(kind, (256, 1024))
    check(large(x, y), x, y)


def test_special_numbers_in_every_lane(large):
    x, y = np.array([*itertools.product(np.concatenate([SPECIAL, -SPECIAL]), repeat=2)], "float32").T
    x, y = (np.resize(np.append(v, np.float32(1)), (256, 1024)) for v in (x, y))  # 785 pairs: each in all lanes
    check(large(x, y), x, y)


@pytest.mark.parametrize("width", WIDTHS)
def test_widths_and_single_divisors(width):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((3, width)) * 10).astype("float32")
    for y in (rng.standard_normal((3, width)).astype("float32"), np.array([0.7], "float32")):
        check(remainders(x.shape, y.shape)(x, y), x, y)


def test_open_sizes():
    model, rng = remainders(("n", "m"), ("n", "m")), np.random.default_rng(0)
    for shape in ((1, 1), (3, 17), (5, 320)):
        x, y = of_bits(rng, *shape), of_bits(rng, *shape)
        check(model(x, y), x, y)


@pytest.mark.parametrize("sizes", [(3, 300), ("n", "m")])
def test_one_in_another_eight_times(sizes):
    """Expanded one in another they took the compiler time exponential in their number."""
    nodes, last = [], "x"
    for i in range(8):
        nodes += [
            helper.make_node("Mod", [last, "y"], [f"r{i}"], fmod=1),
            helper.make_node("Add", [f"r{i}", "x"], [f"s{i}"]),
        ]
        last = f"s{i}"
    nodes.append(helper.make_node("Mod", [last, "y"], ["z"], fmod=1))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in ("x", "y", "z")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((3, 300)).astype("float32") for _ in range(2))
    expected = x
    for _ in range(8):
        expected = np.fmod(expected, y) + x
    check(tvmopt.compile(model, threads=1, verify=False, records=False).model(x, y), expected, y)


def test_float64_and_float16_stay_right():
    rng = np.random.default_rng(0)
    for kind, dtype in ((TensorProto.DOUBLE, "float64"), (TensorProto.FLOAT16, "float16")):
        x, y = ((rng.standard_normal((5, 33)) * s).astype(dtype) for s in (100, 1))
        np.testing.assert_array_equal(remainders(x.shape, y.shape, kind)(x, y), np.fmod(x, y))


def kernel(dtype, lanes):
    x, y = te.placeholder((256,), dtype, name="x"), te.placeholder((256,), dtype, name="y")
    sch = Schedule(te.create_prim_func([x, y, te.compute((256,), lambda i: tirx.truncmod(x[i], y[i]), name="z")]))
    if lanes > 1:
        sch.vectorize(sch.split(sch.get_loops(sch.get_sblock("z"))[0], [None, lanes])[1])
    return sch.mod


@pytest.mark.parametrize(("target", "lanes"), [("x86-64-v3", 1), ("x86-64-v3", 8), ("x86-64-v2", 4)])
def test_other_processors(target, lanes):
    mod = kernel("float32", lanes)
    built = tvm.compile(rewritten(mod, Machine.load(target)), target=Machine.load(target).tvm_target())
    for kind in KINDS:
        x, y = pairs(kind, (256,))
        out = tvm.runtime.tensor(np.zeros_like(x))
        built["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), out)
        check(out.numpy(), x, y)


def rewritten(mod, machine):
    s, t = tvm.s_tir.transform, tirx.transform
    passes = [t.BindTarget(machine.tvm_target()), s.ConvertBlocksToOpaque(), s.LowerOpaqueBlock(), t.FlattenBuffer()]
    return tvm.transform.Sequential([*passes, t.VectorizeLoop(), LowerRemainders])(mod)


@pytest.mark.parametrize(
    ("dtype", "target"), [("float64", "x86-64-v3"), ("int32", "x86-64-v3"), ("float32", "x86-64-v2")]
)
def test_declines_other_types_and_processors_without_fused_products(dtype, target):
    assert "fma" not in rewritten(kernel(dtype, 1), Machine.load(target)).script()


def test_applies_once_a_remainder():
    script = rewritten(kernel("float32", 1), Machine.load("x86-64-v3")).script()
    assert script.count("llvm.fma") == 1 and script.count("truncmod") == 1
