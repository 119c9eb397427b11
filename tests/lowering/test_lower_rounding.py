"""Rounding by one instruction: the numbers of `round`, also of two behind each other, and where it declines."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from tests.passes.helpers import build
from tvmopt import pipeline
from tvmopt.lowering.lower_rounding import LowerRounding
from tvmopt.targets import Machine

HOST = Machine.load("cpu").with_cores(1)
WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 33, 256)
KINDS = {"uint8": 117, "int8": -3, "uint16": 40_000, "int16": 5}
EDGES = np.array([0.5, -0.5, 1.5, 2.5, -1.5, 1e9, -1e9, 3e9, 3e38, np.inf, -np.inf, 127.5, 255.5], "float32")


def quantized(bb, x, kind, zero):
    scale = relax.const(np.float32(1.0))
    return bb.emit(relax.op.quantize(x, scale, relax.const(np.array(zero, kind), kind), axis=-1, out_dtype=kind))


def real(bb, q, kind, zero):
    scale = relax.const(np.float32(1.0))
    return bb.emit(relax.op.dequantize(q, scale, relax.const(np.array(zero, kind), kind), axis=-1, out_dtype="float32"))


def expected(x, kind, zero):
    info = np.iinfo(kind)
    return np.clip(np.rint(x.astype("float64")) + zero, info.min, info.max).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_round(kind):
    """Quantised once, and again behind a real number: every width, ties, what is beyond int32."""
    zero, factor = KINDS[kind], np.float32(0.37)

    def body(bb, *xs):
        for x in xs:
            q = quantized(bb, x, kind, zero)
            again = bb.emit(relax.op.multiply(real(bb, q, kind, zero), relax.const(factor)))
            yield from (q, quantized(bb, again, "uint8", 7))

    made = build({f"x{n}": ((5, n), "float32") for n in WIDTHS}, lambda bb, *xs: tuple(body(bb, *xs)))
    vm = relax.VirtualMachine(pipeline.build(pipeline.lower(made, HOST), HOST), tvm.cpu())
    rng = np.random.default_rng(0)
    xs = [(rng.standard_normal((5, n)) * 300).astype("float32") for n in WIDTHS]
    for x in xs:
        x.reshape(-1)[: len(EDGES)] = EDGES[: x.size]
    found = [t.numpy() for t in vm["main"](*map(tvm.runtime.tensor, xs))]
    for x, once, twice in zip(xs, found[::2], found[1::2], strict=True):
        first = expected(x, kind, zero)
        assert once.dtype == kind and (once == first).all()
        assert (twice == expected((first.astype("float32") - zero) * factor, "uint8", 7)).all()


def test_a_nan_becomes_an_integer():
    made = build({"x": ((3, 17), "float32")}, lambda bb, x: (quantized(bb, x, "uint8", 3),))
    vm = relax.VirtualMachine(pipeline.build(pipeline.lower(made, HOST), HOST), tvm.cpu())
    x = np.full((3, 17), np.nan, "float32")
    x[1] = 4
    assert (vm["main"](tvm.runtime.tensor(x))[0].numpy()[1] == 7).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_read_again_is_the_zero_point(kind):
    """Quantised and read again in one kernel, where no byte is written in between; every width."""
    zero = KINDS[kind]
    made = build(
        {f"x{n}": ((5, n), "float32") for n in WIDTHS},
        lambda bb, *xs: tuple(real(bb, quantized(bb, x, kind, zero), kind, zero) for x in xs),
    )
    vm = relax.VirtualMachine(pipeline.build(pipeline.lower(made, HOST), HOST), tvm.cpu())
    xs = [np.full((5, n), np.nan, "float32") for n in WIDTHS]
    for x in xs:
        x[1] = -4
    for found in vm["main"](*map(tvm.runtime.tensor, xs)):
        y = found.numpy() + zero
        assert (y[1] == expected(np.float32(-4), kind, zero)).all()
        assert (np.delete(y, 1, 0) == zero).all()


def function(value, target):
    x = te.placeholder((16,), "float32", "x")
    func = te.create_prim_func([x, te.compute((16,), lambda i: value(x[i]), name="y")])
    return tvm.IRModule({"main": func.with_attr("target", tvm.target.Target(target))})


def byte(value, low=0.0, high=255.0, zero=0, kind="uint8"):
    bounded = tirx.max(tirx.min(value, tirx.const(high, "float32")), tirx.const(low, "float32"))
    whole = tirx.round(bounded).astype("int32")
    return (whole + tirx.const(zero, "int32") if zero else whole).astype(kind).astype("float32")


@pytest.mark.parametrize(
    ("value", "rounds", "bytes_left"),
    [
        (byte, 0, 0),
        (lambda v: byte(v, -117.0, 138.0, 117), 0, 0),
        (lambda v: byte(v, 0.0, 256.0), 0, 1),  # 256 is 0 as a byte
        (lambda v: byte(v, -1.0, 255.0), 0, 1),
        (lambda v: byte(v, -117.0, 138.0, 118), 0, 1),
        (lambda v: byte(v, -128.0, 127.0, kind="int8"), 0, 0),
        (lambda v: tirx.round(v).astype("int32").astype("uint8").astype("float32"), 0, 1),  # no bounds
        (lambda v: tirx.round(v), 1, 0),  # stays a float
        (lambda v: tirx.round(v).astype("int64").astype("float32"), 1, 0),
        (lambda v: tirx.floor(v).astype("int32").astype("float32"), 0, 0),
    ],
)
def test_what_is_rewritten(value, rounds, bytes_left):
    module = function(value, {"kind": "llvm", "mcpu": "znver5", "mtriple": "x86_64-linux-gnu"})
    text = LowerRounding(module)["main"].script()
    assert text.count("T.round") == rounds and ("int8" in text) == bool(bytes_left), text
    tvm.ir.assert_structural_equal(LowerRounding(LowerRounding(module)), LowerRounding(module))


@pytest.mark.parametrize("target", ["aarch64", "cortex-a76"])
def test_other_processors_keep_their_rounding(target):
    module = function(byte, Machine.load(target).tvm_target())
    tvm.ir.assert_structural_equal(LowerRounding(module), module)


@pytest.mark.parametrize("target", ["znver5", "x86-64-v3", "x86-64-v2"])
def test_one_instruction(target):
    machine = Machine.load(target).with_cores(1)
    made = build({"x": ((64, 64), "float32")}, lambda bb, x: quantized(bb, x, "uint8", 3))
    built = pipeline.build(pipeline.lower(made, machine), machine)
    text = "".join(m.inspect_source("asm") for m in built.mod.imports if m.kind == "llvm")
    assert "cvtps2dq" in text and "cvttps2dq" not in text and "round" not in text and "rndscale" not in text
