"""Relax operators through the CUDA stages, then into the emulator (numbers) or nvcc (registers)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tests.cuda import device
from tests.cuda.emulator import MODES, Emulation, emulated
from tests.schedules.harness import module_of
from tvmopt import pipeline
from tvmopt.lowering import lower_operators
from tvmopt.passes.stages import through
from tvmopt.pipeline import fusion_stages
from tvmopt.report import DecisionLog
from tvmopt.scheduling.apply import Scheduled, apply_families
from tvmopt.targets import Machine
from tvmopt.toolchain.cuda import compiling_here

Build = Callable[..., relax.Expr]
TOLERANCE = {"float16": 8e-3, "bfloat16": 6e-2, "float32": 1e-5, "float64": 1e-13}
"""Largest difference from float64 for results of about 1 to 5: some eps of the type; fp32 runs as three tf32
products."""


def array(shape: tuple[int, ...], dtype: str, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Seeded normal numbers."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(kind)


def scheduled(
    build: Build,
    inputs: Sequence[np.ndarray],
    machine: str = "nvidia-h100",
    knobs: Mapping[str, int] | None = None,
) -> tuple[Any, dict[str, Scheduled], Machine]:
    """The scheduled module of `build(bb, *vars)`; `knobs` replace a family's own where they have the same names."""
    target = Machine.load(machine)

    def lookup(func: Any, family: Any, shape: Any) -> dict[str, int] | None:
        if knobs is None or family.knobs(shape, target).analytic.keys() != knobs.keys():
            return None
        return dict(knobs)

    with target.tvm_target():
        module = through(fusion_stages(), lower_operators(module_of(build, inputs), target))
        module, how = apply_families(module, target, DecisionLog(), lookup)
    return module, how, target


def run(
    build: Build,
    inputs: Sequence[np.ndarray],
    machine: str = "nvidia-h100",
    knobs: Mapping[str, int] | None = None,
) -> tuple[np.ndarray, dict[str, Scheduled]]:
    """The output, the same in every order of the threads, and how each kernel was scheduled.

    It is the emulator's, or the GPU's where there is one."""
    module, how, target = scheduled(build, inputs, machine, knobs)
    with target.tvm_target(), emulated() as emulation:
        executable = relax.build(module, target=target.tvm_target())
    if device.is_here(target):
        with target.tvm_target(), compiling_here(target):
            executable = relax.build(module, target=target.tvm_target())
        return device.repeated(executable, inputs), how
    return _in_every_order(executable, emulation, inputs), how


def pipelined(build: Build, inputs: Sequence[np.ndarray], precision: str) -> tuple[np.ndarray, str, list[str]]:
    """The same through the whole pipeline: the output, the generated CUDA, the families."""
    target = Machine.load("nvidia-h100")
    lowered = pipeline.lower(module_of(build, inputs), target, DecisionLog(), precision=precision)
    with emulated() as emulation:
        executable = pipeline.build(lowered, target, cuda_graph=False)
    used = [k.family for k in lowered.kernels]
    if device.is_here(target):
        with compiling_here(target):
            executable = pipeline.build(lowered, target, cuda_graph=False)
        return device.repeated(executable, inputs), emulation.sources, used
    return _in_every_order(executable, emulation, inputs), emulation.sources, used


def _in_every_order(executable: Any, emulation: Emulation, inputs: Sequence[np.ndarray]) -> np.ndarray:
    results = []
    for mode in MODES:
        emulation.mode = mode
        vm = relax.VirtualMachine(executable, tvm.cpu())
        results.append(vm["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy())
    assert all(r.tobytes() == results[0].tobytes() for r in results), "a race"
    return np.asarray(results[0])


def families(how: Mapping[str, Scheduled]) -> list[str]:
    """The families used, sorted; none of ours may have failed on the way."""
    assert not [h.note for h in how.values() if "failed" in h.note]
    return sorted(h.family for h in how.values())


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Within TOLERANCE of a float64 reference."""
    assert actual.shape == expected.shape
    error = float(np.abs(actual.astype("float64") - expected).max())
    assert error <= TOLERANCE[str(actual.dtype)], f"error {error:.3g}"
