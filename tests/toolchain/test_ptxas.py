"""Limits, occupancy and ptxas' words; kernels that nvcc really compiles."""

from __future__ import annotations

import shutil

import pytest

from tvmopt.errors import ScheduleError
from tvmopt.targets import Machine
from tvmopt.toolchain.ptxas import Launch, Recorder, Usage, compile_source, exceeded, occupancy, parse

nvcc = shutil.which("nvcc")
SPILL = """
extern "C" __global__ void __launch_bounds__(1024, 2) many(float* x) {
  float v[96];
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  for (int k = 0; k < 9; ++k)
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i * 7 + 1) % 96] + 1;
  for (int i = 0; i < 96; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
extern "C" __global__ void few(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[0];
  __syncthreads();
  x[1] = s[1];
}
"""


@pytest.mark.skipif(not nvcc, reason="no nvcc")
def test_nvcc_tells_registers_shared_memory_and_spills() -> None:
    binary, used = compile_source(SPILL, "sm_90", str(nvcc))
    assert binary[:4] == bytes.fromhex("50ed55ba")
    assert used["many"].registers == 32 and used["many"].spill_stores > 0
    assert used["few"].shared == 256 and used["few"].spill_stores == 0


@pytest.mark.skipif(not nvcc, reason="no nvcc")
def test_what_nvcc_refuses() -> None:
    with pytest.raises(RuntimeError, match="identifier"):
        compile_source('extern "C" __global__ void k() { undefined(); }', "sm_90", str(nvcc))


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 1023, 1024])
@pytest.mark.parametrize("name", ["nvidia-a100", "nvidia-h100", "nvidia-h200", "nvidia-b200"])
def test_occupancy_is_a_share(threads: int, name: str) -> None:
    for registers, shared in ((16, 0), (64, 4096), (255, 0), (32, 100_000)):
        share, limit = occupancy(threads, registers, shared, Machine.load(name))
        assert 0 <= share <= 1
        assert limit in ("threads", "blocks", "registers", "shared memory")


def test_two_kernels_of_one_output() -> None:
    text = "".join(
        f"ptxas info : Compiling entry function '{n}' for 'sm_90'\n"
        f" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        f"ptxas info : Used {r} registers, used 0 barriers\n"
        for n, r in (("a", 10), ("b", 20))
    )
    assert parse(text) == {"a": Usage(10, 0, 0, 0, 0), "b": Usage(20, 0, 0, 0, 0)}


def test_spills_are_told_and_limits_refused() -> None:
    recorder = Recorder(Machine.load("nvidia-h100"))
    recorder.tags = {"k_kernel": ["blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory"]}
    recorder.usage = {"k_kernel": Usage(64, 0, 8, 8, 8)}
    recorder.dimensions = {"k_kernel": {"blockIdx.x": 5, "threadIdx.x": 256, "tirx.use_dyn_shared_memory": 1024}}
    assert recorder.of("k") == [Launch("k_kernel", 5, 256, 64, 1024, 8, 0.5, "registers")]
    assert recorder.warnings() == ("registers are spilled to memory in k_kernel (8 bytes a thread)",)
    recorder.check()
    recorder.dimensions["k_kernel"]["threadIdx.x"] = 2048
    with pytest.raises(ScheduleError, match="2048 threads a block, at most 1024"):
        recorder.check()


def test_unknown_registers_are_no_problem() -> None:
    assert exceeded(Launch("k", 1, 64, -1, 0, -1, 1.0, "threads"), Machine.load("nvidia-h100")) == []
