"""Products of bfloat16 pairs and rounding to bfloat16, as operators that schedules see as plain scalars - for the
lowerings of GEMM, convolution and attention with `--precision bf16`.

`vdpbf16ps`, and `bfdot` on Arm, add two products to each float32 lane, so the K axis is taken in pairs: one uint32 has
the numbers 2k (low half) and 2k + 1::

    gemm[m, p, j] = sum_k dot2(pair(X[m, 2k], X[m, 2k+1]), Wp[p, k, j])       Wp uint32, packed at compile time

    pair(lo, hi)   uint32 of two bfloat16; next to each other in memory they are one 32-bit load
    dot2(x, w)     lo(x)*lo(w) + hi(x)*hi(w) in float32; `acc + dot2(x, w)` becomes one instruction
    round(x)       bits of the nearest bfloat16, ties to even; denormals are zero where the instruction does so

A schedule splits, unrolls and vectorizes them like any other arithmetic: the register tiles of fp32 serve unchanged,
with half as many steps of k. :func:`lower_pairs` runs after scheduling, :func:`install`'s rules in TVM's last step.

TVM's types have no way to name LLVM's `bfloat`, so the instructions come as LLVM IR of our own, a function for each
number of lanes, which TVM links into the module and LLVM inlines (`pragma_import_llvm`).

Measured   Zen 5, one core, peaks in C in the same run: vdpbf16ps 472 GFLOP/s, fp32 FMA 253, a ratio of 1.86;
           GEMM 196x256x768 468 with the 14x2 tile of fp32.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm.sym import Analyzer
from tvm.target.codegen import target_has_features
from tvm.tirx.op import call_intrin, register_intrin_lowering
from tvm_ffi import structural_equal, structural_mutate, structural_walk

from tvmopt.lowering.intrinsics import (
    WIDTHS,
    accumulated,
    call_function,
    called,
    llvm_constant,
    llvm_type,
    register,
)
from tvmopt.scheduling.blocks import with_llvm

Expr = Any
INSTRUCTIONS = {  # feature -> lanes -> the instruction
    "avx512bf16": {n: f"llvm.x86.avx512bf16.dpbf16ps.{n * 32}" for n in (4, 8, 16)},
    "bf16": {4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"},
}
PAIR, DOT2, DOT2_ADD, ROUND = "tvmopt.pair", "tvmopt.dot2", "tvmopt.dot2_add", "tvmopt.round_bf16"
_ARITY = {PAIR: 2, DOT2: 2, DOT2_ADD: 3, ROUND: 1}


def bits(value: Expr) -> Expr:
    """The 16 bits of a bfloat16, or of a float32 rounded to one, as uint16. TVM keeps local buffers of bfloat16 in
    float32, so kernels keep the bits."""
    kind = str(value.ty.dtype)
    if kind == "float32":
        install()
        return call_intrin("uint16", ROUND, value)
    return value if kind == "uint16" else tirx.reinterpret("uint16", value)


def pair(low: Expr, high: Expr) -> Expr:
    """Two bfloat16, or their bits, as one uint32."""
    install()
    return call_intrin("uint32", PAIR, bits(low), bits(high))


def dot2(x: Expr, w: Expr) -> Expr:
    """lo(x)*lo(w) + hi(x)*hi(w), float32."""
    install()
    return call_intrin("float32", DOT2, x, w)


def pack_pairs(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bfloat16 W[..., K, N] as uint32 [..., ceil(K/2), N]: rows 2k low, 2k + 1 high; an odd K ends with a zero.

    >>> import ml_dtypes
    >>> w = np.array([[1.0], [2.0], [3.0]], ml_dtypes.bfloat16)
    >>> [f"{v:08x}" for v in pack_pairs(w)[:, 0]]
    ['40003f80', '00004040']
    """
    bits = weight.view(np.uint16).astype(np.uint32)
    if bits.shape[-2] % 2:
        bits = np.concatenate([bits, np.zeros_like(bits[..., :1, :])], axis=-2)
    return np.ascontiguousarray(bits[..., 0::2, :] | (bits[..., 1::2, :] << 16))


def is_bf16(expr: Any) -> bool:
    """Whether a tensor expression holds bfloat16."""
    return str(expr.ty.dtype) == "bfloat16"


# -- after scheduling -------------------------------------------------------------------------------------------


def lower_pairs(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`acc + dot2` as one operator, pairs as 32-bit loads, casts to bfloat16 as :data:`ROUND`; LLVM's part attached."""
    if not _concerns(func):
        return func
    install()

    def add(node: Any, mutator: Any) -> Any:
        return accumulated(mutator.default_mutate(node), DOT2, DOT2_ADD, "float32")

    def cast(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        source, target = str(node.value.ty.dtype), str(node.ty.dtype)
        if source.startswith("bfloat16") or not target.startswith("bfloat16"):
            return node
        shape = target.removeprefix("bfloat16")  # "", or "x16" where a kernel writes its vectors out
        value = node.value if source.startswith("float32") else tirx.Cast(f"float32{shape}", node.value)
        return tirx.reinterpret(target, call_intrin(f"uint16{shape}", ROUND, value))

    def call(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return _pair_load(*node.args) if called(node) == PAIR else node

    body = structural_mutate(func.body, ((tirx.Add, add), (tirx.Cast, cast), (tvm.ir.Call, call)))
    return with_llvm(func, body, llvm_functions(_feature()))


def _feature() -> str:
    """Which of :data:`INSTRUCTIONS` the current target has; empty if none."""
    target = tvm.target.Target.current()
    return next((feature for feature in INSTRUCTIONS if target_has_features(feature, target)), "")


def _concerns(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []

    def look(node: Any) -> None:
        if called(node) in _ARITY or (isinstance(node, tirx.Cast) and str(node.ty.dtype).startswith("bfloat16")):
            found.append(node)

    structural_walk(func.body, ((tvm.ir.Call, look), (tirx.Cast, look)))
    return bool(found) and isinstance(func.body, SBlockRealize)


def _pair_load(low: Expr, high: Expr) -> Expr:
    """One load of 32 bits where the two numbers lie next to each other, else two of 16."""
    low, high = _plain(low), _plain(high)
    if isinstance(low, TensorLoad) and isinstance(high, TensorLoad) and low.source.same_as(high.source):
        *rows, first = low.indices
        *others, second = high.indices
        same = all(structural_equal(a, b) for a, b in zip(rows, others, strict=True))
        if same and _difference(second, first) == 1:
            return tirx.reinterpret("uint32", tirx.BufferLoad(low.source, [*rows, tirx.Ramp(first, 1, 2)]))
    return bits(low).astype("uint32") | (bits(high).astype("uint32") << tirx.const(16, "uint32"))


def _plain(value: Expr) -> Expr:
    """A load from under its reinterpretation as bits."""
    if called(value).endswith("reinterpret") and isinstance(value.args[0], TensorLoad):
        return value.args[0]
    return value


def _difference(a: Expr, b: Expr) -> int | None:
    value = Analyzer().simplify(a - b)
    return int(value) if isinstance(value, tirx.IntImm) else None


# -- LLVM -------------------------------------------------------------------------------------------------------


@cache
def llvm_functions(feature: str) -> str:
    """`tvmopt_dot2_<n>(acc, x, w)` and `tvmopt_round_<n>(x)` as LLVM IR.

    Args:
        feature: which of :data:`INSTRUCTIONS` the target has; without, and for widths that it lacks, the arithmetic.
    """
    text = []
    names = INSTRUCTIONS.get(feature, {})
    for n in WIDTHS:
        floats, words = llvm_type(n, "float"), llvm_type(n, "i32")
        text.append(_round(n) if feature else _rounding_arithmetic(n))
        pairs = llvm_type(2 * n, "bfloat")
        head = f"define {floats} @tvmopt_dot2_{n}({floats} %a, {words} %x, {words} %w) {{\n"
        if name := names.get(n):
            text.append(
                f"declare {floats} @{name}({floats}, {pairs}, {pairs})\n{head}"
                f"  %p = bitcast {words} %x to {pairs}\n  %q = bitcast {words} %w to {pairs}\n"
                f"  %r = call {floats} @{name}({floats} %a, {pairs} %p, {pairs} %q)\n  ret {floats} %r\n}}\n"
            )
            continue
        body = ""
        for side in "xw":
            body += f"  %{side}l = shl {words} %{side}, {llvm_constant(n, 'i32', 16)}\n"
            body += f"  %{side}h = and {words} %{side}, {llvm_constant(n, 'i32', -65536)}\n"
            for half in "lh":
                body += f"  %{side}{half}f = bitcast {words} %{side}{half} to {floats}\n"
        body += f"  %m = fmul {floats} %xhf, %whf\n  %s = fadd {floats} %a, %m\n"
        body += f"  %n = fmul {floats} %xlf, %wlf\n  %r = fadd {floats} %s, %n\n  ret {floats} %r\n}}\n"
        text.append(head + body)
    return "".join(text)


def _round(lanes: int) -> str:
    halves, bfloats = llvm_type(lanes, "i16"), llvm_type(lanes, "bfloat")
    return (
        f"define {halves} @tvmopt_round_{lanes}({llvm_type(lanes, 'float')} %x) {{\n"
        f"  %r = fptrunc {llvm_type(lanes, 'float')} %x to {bfloats}\n"
        f"  %b = bitcast {bfloats} %r to {halves}\n"
        f"  ret {halves} %b\n}}\n"
    )


def _rounding_arithmetic(lanes: int) -> str:
    """To the nearest, ties to even: the bits plus half a step less one, plus one for odd numbers; NaN stays NaN."""
    floats, words, halves, flags = (llvm_type(lanes, t) for t in ("float", "i32", "i16", "i1"))
    return (
        f"define {halves} @tvmopt_round_{lanes}({floats} %x) {{\n"
        f"  %u = bitcast {floats} %x to {words}\n"
        f"  %s = lshr {words} %u, {llvm_constant(lanes, 'i32', 16)}\n"
        f"  %o = and {words} %s, {llvm_constant(lanes, 'i32', 1)}\n"
        f"  %h = add {words} %u, {llvm_constant(lanes, 'i32', 0x7FFF)}\n"
        f"  %t = add {words} %h, %o\n"
        f"  %n = lshr {words} %t, {llvm_constant(lanes, 'i32', 16)}\n"
        f"  %q = or {words} %s, {llvm_constant(lanes, 'i32', 0x40)}\n"
        f"  %c = fcmp uno {floats} %x, %x\n"
        f"  %k = select {flags} %c, {words} %q, {words} %n\n"
        f"  %r = trunc {words} %k to {halves}\n"
        f"  ret {halves} %r\n}}\n"
    )


@lru_cache(maxsize=1)
def install() -> None:
    """Register the operators with TVM and how LLVM computes them, once a process."""
    register(_ARITY, __name__)
    register_intrin_lowering(DOT2_ADD, "llvm", f=lambda call: call_function("tvmopt_dot2", "float32", *call.args))
    register_intrin_lowering(ROUND, "llvm", f=lambda call: call_function("tvmopt_round", "uint16", *call.args))
    register_intrin_lowering(
        DOT2, "llvm", f=lambda call: call_function("tvmopt_dot2", "float32", tirx.const(0.0, "float32"), *call.args)
    )
