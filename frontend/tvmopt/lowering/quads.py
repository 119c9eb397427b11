"""Products of quantised numbers, four bytes a word, as operators that schedules see as plain scalars - for the
lowering of GEMM and convolution.

`vpdpbusd` adds four products of an unsigned and a signed byte to each int32 lane, so the K axis is taken in words of
four: one int32 holds the bytes 4k (lowest) to 4k + 3::

    gemm[m, p, j] = sum_k dot4(quad(X[m, 4k], .., X[m, 4k+3]), Wp[p, k, j])   X uint8, Wp int32, packed at compile time

    quad(a, b, c, d)   int32 of four bytes; next to each other in memory they are one 32-bit load
    dot4(x, w)         sum of four uint8 * int8, int32; `acc + dot4(x, w)` becomes one instruction

A schedule splits, unrolls and vectorizes them like any other arithmetic: the register tiles of fp32 serve unchanged,
with a quarter of the steps of k. :func:`lower_quads` runs after scheduling, :func:`install`'s rules in TVM's last step.
As in :mod:`tvmopt.lowering.pairs` the instructions come as LLVM IR of our own.

What the processor has decides about the instructions, never about the numbers: every form is exact::

    vpdpbusd    AVX512-VNNI, AVX-VNNI: four products and their sum
    usdot       Arm's I8MM: the same
    sdot        Arm's dot product of signed bytes: 128 is taken from the unsigned ones, and 128 times the weights added
    vpmaddwd    AVX-512, AVX2, SSE2: even and odd bytes widened to 16 bits, two products and their sum each
    otherwise   shifts and 32-bit products

`vpmaddubsw`, which multiplies bytes without VNNI in other libraries, is not used: it saturates (255 * 127 * 2 > 32767).
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
FUNCTION = "tvmopt_dot4"
QUAD, DOT4, DOT4_ADD = "tvmopt.quad", "tvmopt.dot4", "tvmopt.dot4_add"
_ARITY = {QUAD: 4, DOT4: 2, DOT4_ADD: 3}
WORD = 4
"""Bytes of a word."""
MOST_TERMS = 2**31 // (255 * 128)
"""Products of uint8 and int8 that add up in int32 whatever they are."""

INSTRUCTIONS = {  # lanes -> the instruction and what it needs, the fastest first
    16: (("llvm.x86.avx512.vpdpbusd.512", ("avx512vnni",)), ("llvm.x86.avx512.pmaddw.d.512", ("avx512bw",))),
    8: (
        ("llvm.x86.avx512.vpdpbusd.256", ("avx512vnni", "avx512vl")),
        ("llvm.x86.avx512.vpdpbusd.256", ("avxvnni",)),
        ("llvm.x86.avx2.pmadd.wd", ("avx2",)),
    ),
    4: (
        ("llvm.x86.avx512.vpdpbusd.128", ("avx512vnni", "avx512vl")),
        ("llvm.x86.avx512.vpdpbusd.128", ("avxvnni",)),
        ("llvm.x86.sse2.pmadd.wd", ("sse2",)),
        ("llvm.aarch64.neon.usdot.v4i32.v16i8", ("i8mm",)),
        ("llvm.aarch64.neon.sdot.v4i32.v16i8", ("dotprod",)),
    ),
}


def quad(*values: Expr) -> Expr:
    """Four uint8 as one int32, the first one lowest."""
    install()
    return call_intrin("int32", QUAD, *values)


def dot4(x: Expr, w: Expr) -> Expr:
    """The sum of the four products of unsigned bytes of `x` and signed bytes of `w`, int32."""
    install()
    return call_intrin("int32", DOT4, x, w)


def pack_quads(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """int8 W[..., K, N] as int32 [..., ceil(K/4), N], row 4k lowest; behind the last row stand zeros.

    >>> w = np.array([[1], [2], [3], [-1], [5]], np.int8)
    >>> [f"{v & 0xFFFFFFFF:08x}" for v in pack_quads(w)[:, 0].tolist()]
    ['ff030201', '00000005']
    """
    *lead, k, n = weight.shape
    words = -(-k // WORD)
    full = np.zeros((*lead, words * WORD, n), np.int8)
    full[..., :k, :] = weight
    quads = np.moveaxis(full.reshape(*lead, words, WORD, n), -2, -1)
    return np.ascontiguousarray(quads).view("<i4")[..., 0].astype(np.int32)


# -- after scheduling -------------------------------------------------------------------------------------------


def lower_quads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`acc + dot4` as one operator, quads as 32-bit loads; LLVM's part for the current target attached."""
    if not _concerns(func):
        return func

    def add(node: Any, mutator: Any) -> Any:
        return accumulated(mutator.default_mutate(node), DOT4, DOT4_ADD, "int32")

    def call(node: Any, mutator: Any) -> Any:
        node = mutator.default_mutate(node)
        return _quad_load(node.args) if called(node) == QUAD else node

    body = structural_mutate(func.body, ((tirx.Add, add), (tvm.ir.Call, call)))
    return with_llvm(func, body, llvm_functions(_instructions()))


def _concerns(func: tirx.PrimFunc) -> bool:
    found: list[Any] = []
    structural_walk(func.body, ((tvm.ir.Call, lambda node: found.append(node) if called(node) in _ARITY else None),))
    return bool(found) and isinstance(func.body, SBlockRealize)


def _quad_load(values: Any) -> Expr:
    """One load of 32 bits where the four bytes lie next to each other, else four of eight."""
    first = values[0]
    if all(isinstance(v, TensorLoad) and v.source.same_as(first.source) for v in values):
        *rows, at = first.indices
        if all(_next(first.indices, v.indices, step) for step, v in enumerate(values)):
            return tirx.reinterpret("int32", tirx.BufferLoad(first.source, [*rows, tirx.Ramp(at, 1, WORD)]))
    word = values[0].astype("int32")
    for step, value in enumerate(values[1:], 1):
        word = word | (value.astype("int32") << tirx.const(8 * step, "int32"))
    return word


def _next(first: Any, other: Any, step: int) -> bool:
    """Whether indices are those of the element `step` behind the first."""
    same = all(structural_equal(a, b) for a, b in zip(first[:-1], other[:-1], strict=True))
    distance = Analyzer().simplify(other[-1] - first[-1])
    return same and isinstance(distance, tirx.IntImm) and int(distance) == step


# -- LLVM -------------------------------------------------------------------------------------------------------


def _instructions() -> tuple[tuple[int, str], ...]:
    """(lanes, instruction) of the current target."""
    target = tvm.target.Target.current()
    found = []
    for lanes, choices in INSTRUCTIONS.items():
        for name, needs in choices:
            if all(target_has_features(feature, target) for feature in needs):
                found.append((lanes, name))
                break
    return tuple(found)


@cache
def llvm_functions(instructions: tuple[tuple[int, str], ...]) -> str:
    """`tvmopt_dot4_<n>(acc, x, w)` as LLVM IR: an instruction where there is one of n lanes, else the arithmetic."""
    names = dict(instructions)
    return "".join(_function(n, names.get(n, "")) for n in WIDTHS)


def _function(n: int, instruction: str) -> str:
    words = llvm_type(n, "i32")
    head = f"define {words} @{FUNCTION}_{n}({words} %a, {words} %x, {words} %w) {{\n"
    four = "pmadd" not in instruction  # products a lane that the instruction adds up, and the sum so far with them
    taken = llvm_type(4 * n, "i8") if four else llvm_type(2 * n, "i16")
    if not instruction:
        return f"{head}{_plain(n)}  ret {words} %r\n}}\n"
    form = _madd if not four else _signed if ".sdot." in instruction else _unsigned_by_signed
    own = f"{words}, " if four else ""
    text = form(n, instruction)
    return f"declare {words} @{instruction}({own}{taken}, {taken})\n{head}{text}  ret {words} %r\n}}\n"


def _unsigned_by_signed(n: int, instruction: str) -> str:
    words, taken = llvm_type(n, "i32"), llvm_type(4 * n, "i8")
    return (
        f"  %p = bitcast {words} %x to {taken}\n  %q = bitcast {words} %w to {taken}\n"
        f"  %r = call {words} @{instruction}({words} %a, {taken} %p, {taken} %q)\n"
    )


def _signed(n: int, instruction: str) -> str:
    """The same where both are signed. What is added back is of the weights: computed once for all rows of a tile."""
    words, taken = llvm_type(n, "i32"), llvm_type(4 * n, "i8")
    half, zero = llvm_constant(4 * n, "i8", 64), llvm_constant(n, "i32", 0)
    return (
        f"  %p = bitcast {words} %x to {taken}\n  %q = bitcast {words} %w to {taken}\n"
        f"  %s = xor {taken} %p, {llvm_constant(4 * n, 'i8', -128)}\n"
        f"  %h = call {words} @{instruction}({words} {zero}, {taken} %q, {taken} {half})\n"
        f"  %c = call {words} @{instruction}({words} %h, {taken} %q, {taken} {half})\n"
        f"  %d = call {words} @{instruction}({words} %a, {taken} %s, {taken} %q)\n"
        f"  %r = add {words} %d, %c\n"
    )


def _madd(n: int, instruction: str) -> str:
    """Even and odd bytes of every word as 16-bit numbers."""
    words, halves = llvm_type(n, "i32"), llvm_type(2 * n, "i16")
    eight = llvm_constant(2 * n, "i16", 8)
    return (
        f"  %x16 = bitcast {words} %x to {halves}\n  %w16 = bitcast {words} %w to {halves}\n"
        f"  %xe = and {halves} %x16, {llvm_constant(2 * n, 'i16', 255)}\n  %xo = lshr {halves} %x16, {eight}\n"
        f"  %wl = shl {halves} %w16, {eight}\n  %we = ashr {halves} %wl, {eight}\n  %wo = ashr {halves} %w16, {eight}\n"
        f"  %me = call {words} @{instruction}({halves} %xe, {halves} %we)\n"
        f"  %mo = call {words} @{instruction}({halves} %xo, {halves} %wo)\n"
        f"  %s = add {words} %me, %mo\n  %r = add {words} %a, %s\n"
    )


def _plain(n: int) -> str:
    words, low, top = llvm_type(n, "i32"), llvm_constant(n, "i32", 255), llvm_constant(n, "i32", 24)
    text, total = "", "%a"
    for byte in range(WORD):
        at, up = llvm_constant(n, "i32", 8 * byte), llvm_constant(n, "i32", 24 - 8 * byte)
        out = "%r" if byte == WORD - 1 else f"%s{byte}"
        text += f"  %xs{byte} = lshr {words} %x, {at}\n  %xb{byte} = and {words} %xs{byte}, {low}\n"
        text += f"  %ws{byte} = shl {words} %w, {up}\n  %wb{byte} = ashr {words} %ws{byte}, {top}\n"
        text += f"  %m{byte} = mul {words} %xb{byte}, %wb{byte}\n  {out} = add {words} {total}, %m{byte}\n"
        total = out
    return text


@lru_cache(maxsize=1)
def install() -> None:
    """Register the operators with TVM and how LLVM computes them, once a process."""
    register(_ARITY, __name__)
    register_intrin_lowering(DOT4_ADD, "llvm", f=lambda call: call_function(FUNCTION, "int32", *call.args))
    register_intrin_lowering(
        DOT4, "llvm", f=lambda call: call_function(FUNCTION, "int32", tirx.const(0, "int32"), *call.args)
    )
