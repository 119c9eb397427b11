"""Which arithmetic a machine has to offer - for `compile` and `tune`, which refuse what they could not honour."""

from __future__ import annotations

from tvmopt.errors import InputError
from tvmopt.operators.stored import CHOICES
from tvmopt.targets import Machine

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32: as the model says. tf32: products and convolutions round their fp32 operands to 11 significant bits (GPUs).
bf16, fp16: 16-bit operands of products, convolutions, attention; fp16 on CPUs: of weights only. Sums in fp32 in all of
them."""


INT8_CHOICES = ("auto", "all", "off")
"""Which products of a quantised model are integer products: each that the model of costs predicts to be faster so, all
that there is a kernel for, or none."""

INT8 = "int8 is in the model: `tvmopt quantize` writes one in 8 bits; compile that"

OTHER_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "f32": "fp32", "f16": "fp16", "half": "fp16"}
"""What the precisions are called elsewhere."""


def check_int8(choice: str) -> None:
    """Refuse anything but one of :data:`INT8_CHOICES`.

    Raises:
        InputError: another word.
    """
    if choice not in INT8_CHOICES:
        raise InputError(f"int8 is {choice!r}.", where="int8", fix=f"one of {', '.join(INT8_CHOICES)}")


def check_kv_cache(choice: str) -> None:
    """Refuse anything but one of :data:`tvmopt.operators.stored.CHOICES`.

    Raises:
        InputError: another word.
    """
    if choice not in CHOICES:
        raise InputError(
            f"the cache of keys and values is {choice!r}.", where="kv_cache", fix=f"one of {', '.join(CHOICES)}"
        )


def multiplies_bytes(machine: Machine) -> bool:
    """Whether products of bytes take less time than those of floats: with VNNI, and by the 16-bit products of any x86.

    ResNet-50 and MobileNetV2, one thread of a busy Zen 4, least of 21, over fp32; for
    x86-64-v4 0.80 and 0.46, x86-64-v3 0.93 and 0.56, x86-64-v2 0.52 and 0.73. On Arm the dot
    product instructions do. Other processors multiply bytes by shifts and 32-bit products.

    >>> [multiplies_bytes(Machine.load(m)) for m in ("znver5", "x86-64-v2", "neoverse-n1", "aarch64")]
    [True, True, True, False]
    """
    return machine.arch == "x86_64" or machine.has("i8mm") or machine.has("dotprod")


def multiplies_bf16(machine: Machine) -> bool:
    """Whether a CPU has products of pairs of bfloat16 that add up in float32: `vdpbf16ps` or `bfdot`."""
    return machine.has("avx512bf16") or machine.has("bf16")


def widens_fp16(machine: Machine) -> bool:
    """Whether a CPU has an instruction that makes float32 of float16: all of AArch64 do, x86 with F16C.

    >>> [widens_fp16(Machine.load(m)) for m in ("x86-64-v3", "x86-64-v2", "aarch64")]
    [True, False, True]
    """
    return machine.arch == "aarch64" or machine.has("f16c")


def check(precision: str, machine: Machine) -> None:
    """Refuse a precision that the machine has no kernels for.

    Raises:
        InputError: an unknown precision, or one that would be a silent fallback on this machine.
    """
    if precision not in PRECISIONS:
        near = OTHER_NAMES.get(str(precision).lower())
        guess = f"did you mean {near}? " if near else ""
        raise InputError(
            f"precision {precision!r} is not available.",
            where="precision",
            fix=f"{guess}one of {', '.join(PRECISIONS)}" + (f"; {INT8}" if precision == "int8" else ""),
        )
    if precision == "fp32" or machine.kind != "llvm":
        return
    if precision == "tf32":
        raise InputError(
            "tf32 is what tensor cores of GPUs multiply: CPUs have no such product.",
            where=machine.name,
            fix="--precision fp32, or bf16 where the processor has avx512_bf16",
        )
    if precision == "fp16" and not widens_fp16(machine):
        raise InputError(
            "fp16 needs a processor that converts fp16 numbers: x86 with f16c, or Arm.",
            where=f"{machine.name} has {', '.join(machine.features) or 'no features listed'}",
            fix="--precision fp32, or a target such as x86-64-v3 or aarch64",
        )
    if precision == "bf16" and not multiplies_bf16(machine):
        raise InputError(
            "bf16 needs a processor with avx512_bf16, or bf16 on Arm; emulated it would be slower than fp32.",
            where=f"{machine.name} has {', '.join(machine.features) or 'no features listed'}",
            fix="--precision fp32, or a target such as znver5, sapphirerapids or neoverse-v1",
        )
