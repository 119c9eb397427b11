"""Compiles kernels and models for Sapphire Rapids and runs them against float64 or onnxruntime: the child of
`tests.amx.run`.

Prints one line of JSON a case: the error relative to the largest value, families and knobs, tile instructions executed
and threads whose tiles are still configured (without AMX).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

import tvmopt
from tests.amx import KINDS, machine
from tests.schedules.cpu.test_int8 import numbers
from tests.schedules.harness import convolution, lowered_bf16, module_of, open_module, rand, rounded
from tvmopt import pipeline
from tvmopt.operators import masked
from tvmopt.runtime import model as runtime
from tvmopt.runtime.artifact import Artifact
from tvmopt.runtime.tiles import request
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
MACHINE = machine()
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
PAGE = mmap.PAGESIZE


def stand_in(owner: object, name: str, value: object) -> None:
    """Put something else in its place, for as long as this process lives."""
    mock.patch.object(owner, name, value).start()


class _Emulator:
    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path) if path else None
        if self.library is None:
            assert not request()
        else:
            self.library.amx_install()

    def counts(self) -> dict[str, int]:
        if self.library is None:
            return {}
        found = (ctypes.c_long * (len(KINDS) + 1))()
        self.library.amx_counts(found)
        return dict(zip((*KINDS, "configured"), found, strict=True))


def outcome(low: Any, inputs: list[Array], expected: Array, machine: Machine) -> dict[str, Any]:
    """The module on its inputs."""
    os.environ["TVM_NUM_THREADS"] = str(machine.cores)  # TVM's pool is made by its first call
    executable = pipeline.build(low, machine)
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*(tvm.runtime.tensor(x) for x in inputs)).numpy()
    assert result.shape == expected.shape
    text = "".join(m.inspect_source("asm") for m in executable.mod.imports if m.kind == "llvm")
    return {
        "error": float(np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-9)),
        "kernels": {k.family: k.knobs for k in low.kernels},
        "notes": [k.note for k in low.kernels if k.note],
        "code": {kind: text.count(f"\t{kind}\t") + text.count(f"\t{kind}\n") for kind in KINDS},
    }


def epilogue(bb: Any, x: Any, name: str, like: Array) -> Any:
    """What a network does behind a product: "" | relu | residual | gelu."""
    n = like.shape[-1]
    if not name:
        return x
    x = bb.emit(relax.op.add(x, relax.const(rand(n, seed=7))))
    if name == "relu":
        return relax.op.nn.relu(x)
    if name == "gelu":
        return relax.op.nn.gelu(x)
    return relax.op.add(x, relax.const(rand(*like.shape, seed=8)))


def epilogue_numbers(x: Array, name: str) -> Array:
    from scipy.special import erf

    if not name:
        return x
    x = x + rand(x.shape[-1], seed=7)
    if name == "relu":
        return np.maximum(x, 0)
    return x * 0.5 * (1 + erf(x / np.sqrt(2))) if name == "gelu" else x + rand(*x.shape, seed=8)


def opened(body: Any, x: Array, machine: Machine, precision: str = "fp32") -> Any:
    """The operator of an open number of rows, or of samples."""
    return pipeline.lower(open_module(body, [("n", *x.shape[1:])], str(x.dtype)), machine, precision=precision)


def gemm(m: int, k: int, n: int, then: str = "", cores: int = 1, rows: str = "known") -> dict[str, Any]:
    x, w, machine = rand(m, k), rand(k, n, seed=1), MACHINE.with_cores(cores)
    expected = epilogue_numbers(rounded(x) @ rounded(w), then)

    def body(bb: Any, a: Any) -> Any:
        return epilogue(bb, bb.emit(relax.op.matmul(a, relax.const(w))), then, expected)

    low = lowered_bf16(body, [x], machine) if rows == "known" else opened(body, x, machine, "bf16")
    return outcome(low, [x], expected, machine)


def conv(
    shape: list[int], weight: list[int], stride: int = 1, pad: int = 0, dilation: list[int] | None = None,
    then: str = "", cores: int = 1, samples: str = "known",
) -> dict[str, Any]:  # fmt: skip
    x, w, machine = rand(*shape), rand(*weight, seed=1), MACHINE.with_cores(cores)
    down = dilation or [1, 1]
    expected = epilogue_numbers(convolution(rounded(x), rounded(w), stride, pad, (down[0], down[1])), then)

    def body(bb: Any, a: Any) -> Any:
        out = relax.op.nn.conv2d(a, relax.const(w), strides=stride, padding=pad, dilation=down, **NHWC)
        return epilogue(bb, bb.emit(out), then, expected)

    low = lowered_bf16(body, [x], machine) if samples == "known" else opened(body, x, machine, "bf16")
    return outcome(low, [x], expected, machine)


def gemm_bytes(m: int, k: int, n: int, extreme: int = 0, cores: int = 1, rows: str = "known") -> dict[str, Any]:
    """uint8 rows times int8 weights: equal to integers; `extreme`: that weight throughout, of rows of 255."""
    x, w = numbers(np.random.default_rng(k), m, k, kind="uint8"), numbers(np.random.default_rng(n), k, n, kind="int8")
    if extreme:
        x, w = np.full_like(x, 255), np.full_like(w, extreme)
    machine = MACHINE.with_cores(cores)

    def body(bb: Any, a: Any) -> Any:
        return relax.op.matmul(a, relax.const(w), out_dtype="int32")

    low = pipeline.lower(module_of(body, [x]), machine) if rows == "known" else opened(body, x, machine)
    return outcome(low, [x], x.astype("int64") @ w.astype("int64"), machine)


def conv_bytes(
    shape: list[int], weight: list[int], stride: int = 1, pad: int = 0, zero: int = 0, dilation: int = 1,
    cores: int = 1, samples: str = "known",
) -> dict[str, Any]:  # fmt: skip
    """The same of a convolution of rows that may be dilated, with a border of `zero`."""
    rng = np.random.default_rng(shape[-1])
    x, w = numbers(rng, *shape, kind="uint8"), numbers(rng, *weight, kind="int8")
    down = {"strides": stride, "dilation": [dilation, 1], "out_dtype": "int32", **NHWC}

    def body(bb: Any, a: Any) -> Any:
        if pad and zero:
            a = bb.emit(relax.op.nn.pad(a, [0, 0, pad, pad, pad, pad, 0, 0], pad_value=float(zero)))
        return relax.op.nn.conv2d(a, relax.const(w), padding=0 if zero else pad, **down)

    machine = MACHINE.with_cores(cores)
    low = pipeline.lower(module_of(body, [x]), machine) if samples == "known" else opened(body, x, machine)
    around = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=zero)
    expected = convolution(around.astype("float64"), w.astype("float64"), stride, 0, (dilation, 1))
    return outcome(low, [x], expected, machine)


def attention(
    queries: int, keys: int, depth: int, heads: int = 2, kv_heads: int = 0, causal: str = "",
    mask: list[int] | None = None, cores: int = 1, fill: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Against softmax(q k' / sqrt(d) + mask) v in float64; `fill` takes the place of some scores."""
    machine, kv = MACHINE.with_cores(cores), kv_heads or heads
    q, k, v = rand(2, queries, heads, depth), rand(2, keys, kv, depth, seed=1), rand(2, keys, kv, depth, seed=2)
    bias = rand(*mask, seed=3) if mask else np.zeros((1, 1, 1, 1), "float32")
    gone = rand(*bias.shape, seed=4) > 0

    def body(bb: Any, *qkv: Any) -> Any:
        if fill is not None:
            return masked.masked_attention(*qkv, relax.const(np.where(gone, masked.GONE, bias)), depth**-0.5, fill)
        extra = [relax.const(bias)] if mask else []
        return relax.op.nn.attention(*qkv, *extra, causal_mask=causal or None)

    a, b, c = (np.moveaxis(np.repeat(rounded(t), heads // t.shape[2], 2), 2, 1) for t in (q, k, v))
    score = a @ np.swapaxes(b, 2, 3) / np.sqrt(depth) + bias
    if fill is not None:
        score = np.where(gone, fill, score)
    if causal:
        score = np.where(np.tri(queries, keys, keys - queries if causal == "BottomRight" else 0), score, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    expected = np.moveaxis((p / p.sum(-1, keepdims=True)) @ c, 1, 2)
    return outcome(lowered_bf16(body, [q, k, v], machine), [q, k, v], expected, machine)


def guarded(m: int, k: int, n: int) -> dict[str, Any]:
    """A GEMM's kernel alone; its rows and packed weights end where a page without access begins."""
    x, w = rand(m, k), rand(k, n, seed=1)
    low = lowered_bf16(lambda bb, a: relax.op.matmul(a, relax.const(w)), [x], MACHINE.with_cores(1))
    (func,) = (f for f in low.module.functions.values() if "amx_gemm" in str(f))
    (value,) = (c for c in constants(low.module) if c.dtype == np.uint32)
    target, config = MACHINE.with_cores(1).tvm_target(), pipeline.BUILD_CONFIG
    with target, tvm.transform.PassContext(opt_level=3, config=config):
        module = pipeline.rewrite_kernels(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        kernel = tvm.compile(module, target=target)["main"]
    operands = (x.astype(ml_dtypes.bfloat16), value, np.zeros((m, n), "float32"))
    data = [before_a_guard(operand) for operand in operands]
    kernel(*(tensor(d) for d in data))
    expected = rounded(x) @ rounded(w)
    return {"error": float(np.abs(data[2] - expected).max() / np.abs(expected).max()), "kernels": {"amx_gemm": {}}}


def constants(module: Any) -> list[Array]:
    from tvm_ffi import structural_walk

    found: list[Array] = []
    structural_walk(module["main"], (tvm.ir.GenericConst, lambda c: found.append(c.value.numpy())))
    return found


def before_a_guard(array: Array) -> Array:
    """A copy whose last byte is the last one before memory that must not be touched."""
    assert array.nbytes % 64 == 0
    whole = -(-array.nbytes // PAGE) * PAGE
    room = mmap.mmap(-1, whole + PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + whole), PAGE, 0) == 0
    out = np.frombuffer(room, np.uint8, array.nbytes, whole - array.nbytes).view(array.dtype).reshape(array.shape)
    out[...] = array
    _KEPT.append(room)
    return out


_KEPT: list[Any] = []


def tensor(array: Array) -> Any:
    """The array itself as TVM's tensor."""
    if array.dtype != ml_dtypes.bfloat16:
        return tvm.runtime.from_dlpack(array)
    from tvmopt.runtime.tensors import to_ffi

    return to_ffi(array, "bfloat16")


def model(path: str, threads: int = 1, seed: int = 0) -> dict[str, Any]:
    """A whole model, compiled as `tvmopt compile` does it, against onnxruntime in fp32."""
    import onnxruntime

    compiled = tvmopt.compile(path, precision="bf16", target=MACHINE, threads=threads, verify=False)
    stand_in(Artifact, "check_host", lambda self: None)
    if EMULATOR.library is not None:
        stand_in(runtime, "use_tiles", lambda where: None)
    found = runtime.Model(compiled.artifact, threads=threads)
    rng = np.random.default_rng(seed)
    feeds = {
        i.name: rng.standard_normal(i.shape).astype("float32") if i.dtype == "float32"
        else rng.integers(0, 2, i.shape).astype(i.dtype)
        for i in found.inputs
    }  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    errors = [
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9))
        for a, b in zip(found.run(feeds).values(), expected, strict=True)
    ]
    families: dict[str, int] = {}
    for kernel in compiled.report.kernels:
        families[kernel.family] = families.get(kernel.family, 0) + kernel.calls
    return {"error": max(errors), "kernels": families, "features": list(compiled.manifest.features)}


def quantised(path: str) -> dict[str, Any]:
    """A quantised model for tiles and for the vectors of this and of older processors: whether all give the same."""
    stand_in(Artifact, "check_host", lambda self: None)
    if EMULATOR.library is not None:
        stand_in(runtime, "use_tiles", lambda where: None)
    found = []
    for target in (MACHINE, "cpu", "x86-64-v3"):
        model = runtime.Model(tvmopt.compile(path, target=target, threads=1, verify=False, int8="all").artifact)
        feeds = {i.name: rand(*i.shape, seed=5) for i in model.inputs}
        found.append(model.run(feeds))
    return {"same": all(np.array_equal(found[0][name], other[name]) for other in found for name in other)}


def misuse() -> dict[str, Any]:
    """A kernel whose tiles of A are one pair narrower than those of B are high."""
    from tvmopt.schedules.cpu._amx import instructions as tile_code

    words, narrow = (tile_code.configuration(16, 16, pairs, 32) for pairs in (16, 15))
    words[3] = narrow[3]  # bytes a row of tiles 4 to 7
    stand_in(tile_code, "configuration", lambda *key: list(words))
    return gemm(32, 64, 32)


EMULATOR = _Emulator(sys.argv[1] if len(sys.argv) > 1 else "")


def main() -> None:
    kinds: dict[str, Any] = {
        "gemm": gemm, "conv": conv, "gemm_bytes": gemm_bytes, "conv_bytes": conv_bytes,
        "attention": attention, "guarded": guarded, "model": model, "quantised": quantised,
        "misuse": misuse,
    }  # fmt: skip
    for case in json.load(sys.stdin):
        before = EMULATOR.counts()
        found = kinds[case["kind"]](**{key: value for key, value in case.items() if key != "kind"})
        after = EMULATOR.counts()
        ran = {k: after[k] - before[k] for k in after if k != "configured"}
        print(json.dumps({"case": case, **found, "ran": ran, "configured": after.get("configured", 0)}), flush=True)


if __name__ == "__main__":
    main()
