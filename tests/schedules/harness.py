"""Compile one Relax operator with its epilogue through the product's own stages, and run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvmopt.lowering import lower_operators
from tvmopt.passes.stages import through
from tvmopt.pipeline import BUILD_CONFIG, Lowered, fusion_stages, lower, rewrite_kernels
from tvmopt.report import DecisionLog
from tvmopt.scheduling.apply import Scheduled, apply_families
from tvmopt.targets import Machine

MACHINES = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "sse": "x86-64-v2"}


def machines() -> list[str]:
    """The machines of MACHINES whose instructions this host has: all three are executed, not only compiled."""
    host = Machine.load("cpu")
    return [name for name, file in MACHINES.items() if set(Machine.load(file).features) <= set(host.features)]


def module_of(build: Callable[..., relax.Expr], inputs: Sequence[np.ndarray]) -> tvm.IRModule:
    """A module whose `main` is `build(bb, *vars)` of variables like the inputs."""
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype))) for i, x in enumerate(inputs)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(build(bb, *params))
        bb.emit_func_output(out)
    return bb.get()


def rand(*dims: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dims).astype("float32")


def rounded(x: np.ndarray) -> np.ndarray:
    """What bf16 kernels see of an input, in float64."""
    return x.astype(ml_dtypes.bfloat16).astype("float64")


def convolution(x: np.ndarray, w: np.ndarray, stride: int, pad: int, dilation: tuple[int, int] = (1, 1)) -> np.ndarray:
    """NHWC by OHWI, in float64, tap by tap."""
    x, w = x.astype("float64"), w.astype("float64")
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    (dy, dx), (_, kh, kw, _) = dilation, w.shape
    out_h = (x.shape[1] - dy * (kh - 1) - 1) // stride + 1
    out_w = (x.shape[2] - dx * (kw - 1) - 1) // stride + 1
    out = np.zeros((x.shape[0], out_h, out_w, w.shape[0]))
    for ky in range(kh):
        for kx in range(kw):
            rows = slice(ky * dy, ky * dy + (out_h - 1) * stride + 1, stride)
            cols = slice(kx * dx, kx * dx + (out_w - 1) * stride + 1, stride)
            out += x[:, rows, cols] @ w[:, ky, kx].T
    return out


def lowered_bf16(build: Callable[..., relax.Expr], inputs: Sequence[np.ndarray], machine: Machine) -> Lowered:
    """The operator after all stages but code generation, with `--precision bf16`."""
    return lower(module_of(build, inputs), machine, precision="bf16")


def run(
    build: Callable[..., relax.Expr],
    inputs: Sequence[np.ndarray],
    machine: str = "avx512",
    cores: int = 2,
    exact: bool = False,
) -> tuple[list[np.ndarray], dict[str, Scheduled]]:
    """Outputs and how each kernel was scheduled; `build(bb, *vars)` emits the expression."""
    target = Machine.load(MACHINES[machine]).with_cores(cores)
    with target.tvm_target():
        module = through(fusion_stages(), lower_operators(module_of(build, inputs), target, exact))
        module, how = apply_families(module, target, DecisionLog())
    module = rewrite_kernels(module)
    with tvm.transform.PassContext(config=BUILD_CONFIG):
        vm = relax.VirtualMachine(tvm.compile(module, target=target.tvm_target()), tvm.cpu())
    result = vm["main"](*(tvm.runtime.tensor(x) for x in inputs))
    return [t.numpy() for t in (result if hasattr(result, "__len__") else [result])], how


def close(actual: np.ndarray, expected: np.ndarray, length: int) -> None:
    """Equal up to fp32 rounding of a reduction of `length` terms: sqrt(length) * eps * 4 of the largest value."""
    scale = float(np.abs(expected).max()) or 1.0
    bound = 4 * np.finfo("float32").eps * max(1.0, length) ** 0.5 * scale
    assert actual.shape == expected.shape
    worst = float(np.abs(actual - expected).max()) if actual.size else 0.0
    assert worst <= bound, f"error {worst:.3g} over {bound:.3g}"
