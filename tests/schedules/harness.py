"""Compile one Relax operator with its epilogue through the product's own stages, and run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx

from tvmopt.importer.sizes import variable
from tvmopt.lowering import lower_operators
from tvmopt.passes.stages import through
from tvmopt.pipeline import (
    BUILD_CONFIG,
    Lowered,
    build,
    compile_kernels,
    fusion_stages,
    lower,
    rewrite_kernels,
)
from tvmopt.report import DecisionLog
from tvmopt.runtime.tiles import request
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


def open_module(
    build: Callable[..., relax.Expr], shapes: Sequence[Sequence[int | str]], dtype: str | Sequence[str] = "float32"
) -> tvm.IRModule:
    """A module whose `main` is `build(bb, *vars)` of tensors of these sizes: numbers, symbols, or ``"past + 1"``; all
    of one `dtype`, or each of its own."""

    def size(dim: int | str) -> tirx.Expr | int:
        if isinstance(dim, int):
            return dim
        name, _, more = dim.partition(" + ")
        var = variable(name)
        return var + int(more) if more else var

    bb = relax.BlockBuilder()
    kinds = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    params = [
        relax.Var(f"x{i}", relax.TensorType([size(d) for d in s], kind))
        for i, (s, kind) in enumerate(zip(shapes, kinds, strict=True))
    ]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(build(bb, *params))
        bb.emit_func_output(out)
    return bb.get()


class Open:
    """A module with open sizes, compiled; `how`: kernel -> its family, knobs and note."""

    def __init__(self, module: tvm.IRModule, machine: str = "avx512", cores: int = 2, precision: str = "fp32") -> None:
        target = Machine.load(MACHINES.get(machine, machine)).with_cores(cores)
        if target.has_tiles:
            assert not request()
        lowered = lower(module, target, precision=precision)
        self.how = {k.name: (k.family, k.note) for k in lowered.kernels}
        self.module, self.kernels = lowered.module, _executable(lowered.module, target)
        self.vm = relax.VirtualMachine(build(lowered, target), tvm.cpu())

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        result = self.vm["main"](*(tvm.runtime.tensor(x) for x in inputs))
        return [t.numpy() for t in (result if hasattr(result, "__len__") else [result])]

    def guarded(self, inputs: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
        """The one result of :meth:`all_guarded`."""
        return self.all_guarded(inputs, [shape])[0]

    def all_guarded(self, inputs: Sequence[np.ndarray], shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The results of a module of one kernel, each tensor between bands of NaN: what the kernel reads there spoils
        its result, what it writes there is found."""
        main = self.module["main"]
        known = dict(zip(main.params, inputs, strict=True))
        (call,) = (
            b.value
            for block in main.body.blocks
            for b in block.bindings
            if isinstance(b.value, relax.Call) and getattr(b.value.op, "name", "") == "relax.call_tir"
        )
        given = [known[a] if a in known else a.value.numpy() for a in call.args[1].fields]
        bands = [_between_bands(x) for x in given]
        results = [_between_bands(np.full(shape, np.nan, "float32")) for shape in shapes]
        self.kernels[call.args[0].name_hint](*(tvm.runtime.from_dlpack(x) for _, x in (*bands, *results)))
        for whole, _ in results:
            assert np.isnan(whole[:BAND]).all() and np.isnan(whole[-BAND:]).all(), "written outside"
        for (_, x), before in zip(bands, given, strict=True):
            np.testing.assert_array_equal(x, before)
        return [out.copy() for _, out in results]


BAND = 4096


def _between_bands(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A copy of `x` in the middle of a larger vector, and that vector; kernels get tensors at multiples of 64 bytes."""
    room = (
        np.full(x.size + 2 * BAND + 16, np.nan, x.dtype)
        if x.dtype.kind == "f"
        else np.full(x.size + 2 * BAND + 16, 77, x.dtype)
    )
    start = (-room.ctypes.data % 64) // x.itemsize
    whole = room[start : start + 2 * BAND + x.size]
    inside = whole[BAND : BAND + x.size].reshape(x.shape)
    inside[...] = x
    return whole, inside


def _executable(module: tvm.IRModule, target: Machine) -> tvm.runtime.Executable:
    kernels = {
        g: f.with_attr("global_symbol", g.name_hint)
        for g, f in module.functions_items()
        if isinstance(f, tirx.PrimFunc)
    }
    return compile_kernels(tvm.IRModule(kernels), target)


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
