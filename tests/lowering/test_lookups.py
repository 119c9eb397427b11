"""Tables of bytes: every byte gets its value, at widths around those of registers, by permutations if there are any."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.passes.helpers import build
from tvmopt import pipeline
from tvmopt.lowering.lookups import FEATURE
from tvmopt.operators.lookup import ENTRIES, lookup
from tvmopt.targets import Machine

HOST = Machine.load("cpu").with_cores(1)
WIDTHS = (1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 256, 1000)


def table(kind):
    info = np.iinfo(kind)
    return np.random.default_rng(0).permutation(np.arange(info.min, info.max + 1)).astype(kind)


def module(kind):
    """A lookup for each width, and one whose bytes and results are computed."""
    inputs = {f"x{n}": ((3, n), "uint8") for n in WIDTHS} | {"f": (5, 33)}

    def body(bb, *xs):
        outs = [lookup(x, relax.const(table(kind), kind)) for x in xs[:-1]]
        scale, zero = relax.const(np.float32(0.02)), relax.const(np.array(128, "uint8"), "uint8")
        q = bb.emit(relax.op.quantize(xs[-1], scale, zero, axis=-1, out_dtype="uint8"))
        made = bb.emit(lookup(q, relax.const(table(kind), kind)))
        return *outs, relax.op.add(bb.emit(relax.op.astype(made, "int32")), relax.const(np.int32(1000), "int32"))

    return build(inputs, body)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_every_byte_gets_its_value(kind):
    low = pipeline.lower(module(kind), HOST)
    vm = relax.VirtualMachine(pipeline.build(low, HOST), tvm.cpu())
    rng, known = np.random.default_rng(1), table(kind)
    xs = [rng.permutation(np.resize(np.arange(ENTRIES, dtype="uint8"), 3 * n)).reshape(3, n) for n in WIDTHS]
    f = rng.standard_normal((5, 33)).astype("float32")
    found = [t.numpy() for t in vm["main"](*map(tvm.runtime.tensor, [*xs, f]))]
    for x, y in zip(xs, found, strict=False):
        assert y.dtype == kind and (y == known[x]).all()
    q = np.clip(np.rint(f / np.float32(0.02)) + 128, 0, 255).astype("uint8")
    assert (found[-1] == known[q].astype("int32") + 1000).all()


@pytest.mark.parametrize(("target", "permutes"), [("znver5", True), ("x86-64-v3", False)])
def test_permutations_where_the_machine_has_them(target, permutes):
    machine = Machine.load(target)
    assert (FEATURE in machine.features) == permutes
    made = build({"x": ((64, 64), "uint8")}, lambda bb, x: lookup(x, relax.const(table("uint8"), "uint8")))
    low = pipeline.lower(made, machine)
    built = pipeline.build(low, machine)
    text = "".join(m.inspect_source("asm") for m in built.mod.imports if m.kind == "llvm")
    assert ("vpermi2b" in text or "vpermt2b" in text) == permutes
