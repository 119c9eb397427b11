"""Words of four bytes: packing, loads of 32 bits, and the same sum whatever the processor has."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tests.schedules.harness import MACHINES, machines, module_of
from tvmopt import pipeline
from tvmopt.lowering.quads import MOST_TERMS, WIDTHS, WORD, dot4, llvm_functions, lower_quads, pack_quads, quad
from tvmopt.targets import Machine

HOST = Machine.load("cpu")


def test_packing_puts_the_first_row_lowest_and_ends_with_zeros():
    w = np.random.default_rng(0).integers(-128, 128, (3, 9, 5)).astype("int8")
    words = pack_quads(w)
    assert words.shape == (3, 3, 5)
    back = np.moveaxis(words[..., None].view("int8"), -1, -2).reshape(3, 12, 5)
    assert (back[:, :9] == w).all() and not back[:, 9:].any()


def test_no_sum_of_so_many_terms_leaves_int32():
    assert MOST_TERMS * 255 * 128 < 2**31 <= (MOST_TERMS + 1) * 255 * 128


def test_every_width_has_a_function_and_instructions_are_declared_once():
    text = llvm_functions(((16, "llvm.x86.avx512.vpdpbusd.512"), (8, "llvm.x86.avx2.pmadd.wd")))
    assert all(f"@tvmopt_dot4_{n}(" in text for n in WIDTHS)
    declared = re.findall(r"^declare .*@([\w.]+)", text, re.M)
    assert sorted(declared) == ["llvm.x86.avx2.pmadd.wd", "llvm.x86.avx512.vpdpbusd.512"]


def dots(lanes: int, stride: int = 1) -> tvm.tirx.PrimFunc:
    """acc[j] = sum_k dot4 over lanes j, the data's bytes `stride` apart, vectorized as a schedule would."""
    x, w = te.placeholder((64 * stride,), "uint8", "x"), te.placeholder((4, lanes), "int32", "w")
    k = te.reduce_axis((0, 4), "k")
    out = te.compute(
        (lanes,),
        lambda j: te.sum(dot4(quad(*(x[(WORD * k + b) * stride] for b in range(WORD))), w[k, j]), axis=k),
        "out",
    )
    sch = tvm.s_tir.Schedule(te.create_prim_func([x, w, out]))
    block = sch.get_sblock("out")
    j, axis = sch.get_loops(block)
    sch.reorder(axis, j)
    sch.vectorize(j)
    sch.decompose_reduction(block, axis)
    return sch.mod["main"]


@pytest.mark.parametrize("lanes", [1, 3, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("name", machines())
def test_sums_are_exact(name, lanes):
    rng, machine = np.random.default_rng(lanes), Machine.load(MACHINES[name])
    for stride in (1, 2):  # next to each other: one load; apart: four
        with machine.tvm_target():
            func = lower_quads(dots(lanes, stride))
            built = tvm.compile(func, machine.tvm_target())
        x = rng.choice([0, 1, 127, 128, 255], 64 * stride).astype("uint8")
        w = rng.choice([-128, -127, -1, 0, 1, 127], (4 * WORD, lanes)).astype("int8")
        out = tvm.runtime.tensor(np.zeros(lanes, "int32"))
        built(tvm.runtime.tensor(x), tvm.runtime.tensor(pack_quads(w)), out)
        assert (out.numpy() == x[: 16 * stride : stride].astype("int64") @ w.astype("int64")).all()


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("znver5", "vpdpbusd"), ("sapphirerapids", "vpdpbusd"), ("x86-64-v4", "vpmaddwd"), ("x86-64-v3", "vpmaddwd"),
        ("neoverse-v1", "usdot"), ("neoverse-n1", "\tsdot"), ("cortex-a76", "\tsdot"), ("apple-m1", "sdot"),
    ],
)  # fmt: skip
def test_the_instruction_follows_the_target_and_none_saturates(target, instruction):
    machine = Machine.load(target)
    with machine.tvm_target():
        module = tvm.compile(lower_quads(dots(machine.lanes())), machine.tvm_target())
    code = module.mod.inspect_source("asm") if hasattr(module, "mod") else module.inspect_source("asm")
    assert instruction in code and "maddubs" not in code and "tvmopt_dot4" not in code


def test_a_kernel_reads_words():
    """The inner loop of a scheduled GEMM broadcasts 32 bits, not four bytes."""
    x = np.zeros((16, 64), "uint8")
    w = np.ones((64, 32), "int8")
    machine = Machine.load("znver5")

    def body(bb, a):
        return bb.emit(relax.op.matmul(a, relax.const(w), out_dtype="int32"))

    low = pipeline.lower(module_of(body, [x]), machine)
    code = next(i for i in pipeline.build(low, machine).mod.imports if i.kind == "llvm").inspect_source("asm")
    assert "vpdpbusd" in code and not re.search(r"vpinsrb|pinsrb|movzbl", code)
