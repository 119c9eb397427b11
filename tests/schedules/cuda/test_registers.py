"""What ptxas makes of the tensor-core kernels: no spills, within the launch limits, occupancy as modelled."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import pytest
from tvm import relax

from tests.cuda.emulator import _source
from tests.schedules.cuda.harness import scheduled
from tvmopt.errors import MissingDependency
from tvmopt.scheduling.cuda_tile import CudaTile
from tvmopt.targets import Machine
from tvmopt.toolchain import cuda as cuda_toolkit
from tvmopt.toolchain.ptxas import compile_source

ARCHITECTURES = {"sm_80": "nvidia-a100", "sm_90": "nvidia-h100", "sm_100": "nvidia-b200"}


def _nvcc() -> str:
    try:
        return cuda_toolkit.find_toolkit().nvcc
    except MissingDependency:
        return ""


def source(build: object, inputs: list[np.ndarray], machine: str, **options: object) -> str:
    """The CUDA C++ of one operator."""
    from tests.cuda.emulator import _for_cpu

    module, _, target = scheduled(build, inputs, machine, **options)
    found: list[str] = []
    place = import_module("tvm.tirx.build")  # the name in the package is a function
    original = place.codegen_build

    def record(mod: object, kind: object) -> object:
        if kind.kind.name != "cuda":
            return original(_for_cpu(mod), kind)
        found.append(_source(mod, kind))
        return None

    place.codegen_build = record
    try:
        with target.tvm_target():
            relax.build(module, target=target.tvm_target())
    finally:
        place.codegen_build = original
    return found[0]


def gemm(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    w = relax.const(np.zeros((512, 512), "float16"))
    return relax.op.nn.gelu(bb.emit(relax.op.matmul(x, w)))


def conv(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    w = relax.const(np.zeros((256, 3, 3, 64), "float16"))
    layout = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    return relax.op.nn.relu(bb.emit(relax.op.nn.conv2d(x, w, padding=(1, 1, 1, 1), **layout)))


def attend(bb: relax.BlockBuilder, q: relax.Expr) -> relax.Expr:
    return relax.op.nn.attention(q, q, q, causal_mask="TopLeft")


BIG = {"bm": 128, "bn": 256, "bk": 64, "stages": 4}
CASES = {
    "gemm": (gemm, (4096, 512), {"bm": 128, "bn": 128, "bk": 32, "stages": 4}),
    "gemm big": (gemm, (4096, 512), BIG),
    "conv": (conv, (8, 56, 56, 64), {"bm": 128, "bn": 128, "bk": 64, "stages": 3}),
    "attention 64": (attend, (8, 512, 12, 64), None),
    "attention 128": (attend, (1, 512, 8, 128), None),
    "attention 256": (attend, (1, 512, 8, 256), None),
}


@pytest.mark.skipif(not _nvcc(), reason="no nvcc")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_spills(arch: str) -> None:
    machine = Machine.load(ARCHITECTURES[arch])
    seen = []
    for number, (build, shape, knobs) in enumerate(CASES.values()):
        if arch == "sm_80" and knobs == BIG:
            knobs = {**BIG, "bk": 32}  # 163 KiB of shared memory
        text = source(build, [np.zeros(shape, "float16")], machine.name, knobs=knobs)
        seen.append(re.sub(r"\b(\w+_kernel)\b", rf"\1_{number}", text))
    head = seen[0][: seen[0].index('extern "C" __global__')]
    kernels = [text[text.index('extern "C" __global__') :] for text in seen]
    _, usage = compile_source(head + "\n".join(kernels), machine.mcpu, _nvcc())
    assert len(usage) == len(CASES)
    for name, used in usage.items():
        assert used.spill_stores + used.spill_loads == 0, f"{name}: {used}"
        assert used.registers <= 255


@pytest.mark.skipif(not _nvcc(), reason="no nvcc")
def test_single_precision_alone() -> None:
    """A module without 16-bit numbers, for which TVM includes no header of theirs."""

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.matmul(x, relax.const(np.zeros((512, 512), "float32")))

    text = source(build, [np.zeros((4096, 512), "float32")], "nvidia-h100")
    (used,) = compile_source(text, "sm_90", _nvcc())[1].values()
    assert used.spill_stores + used.spill_loads == 0


def test_tiles_are_launchable() -> None:
    for file in ARCHITECTURES.values():
        machine = Machine.load(file)
        from tvmopt.scheduling.cuda_tile import tiles

        for dtype in ("float16", "float32"):
            for tile in tiles(machine, dtype):
                assert tile.shared <= machine.tvm["max_shared_memory_per_block"]
                assert tile.threads * min(tile.registers, 255) <= machine.tvm["registers_per_block"]
                assert tile.bm % (16 * tile.warps[0]) == 0
                assert tile.bn % (16 * tile.warps[1]) == 0


def test_the_tile_of_a_large_product_is_large() -> None:
    from tvmopt.scheduling.cuda_tile import plan

    h100 = Machine.load("nvidia-h100")
    tile, splits = plan(4096, 4096, 4096, 1, "float16", h100)
    assert isinstance(tile, CudaTile)
    assert tile.bm * tile.bn == 128 * 256
    assert splits == 1
