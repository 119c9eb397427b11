"""Which arithmetic a machine has to offer - for `compile`, which refuses what it could not honour."""

from __future__ import annotations

from collections.abc import Iterable

from tvmopt.errors import InputError
from tvmopt.report import Decision
from tvmopt.targets import Machine

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32: as the model says. tf32: products and convolutions round their fp32 operands to 11 significant bits (GPUs).
bf16, fp16: 16-bit operands of products, convolutions, attention. Sums in fp32 in all of them."""


INT8 = "int8 is in the model: quantize it (onnxruntime.quantization writes QuantizeLinear nodes), then compile that"


def check(precision: str, machine: Machine) -> None:
    """Refuse a precision that the machine has no kernels for.

    Raises:
        InputError: an unknown precision, or one that would be a silent fallback on this machine.
    """
    if precision not in PRECISIONS:
        raise InputError(
            f"precision {precision!r} is not available.",
            where="precision",
            fix=f"one of {', '.join(PRECISIONS)}" + (f"; {INT8}" if precision == "int8" else ""),
        )
    if precision == "fp32" or machine.kind != "llvm":
        return
    if precision == "tf32":
        raise InputError(
            "tf32 is what tensor cores of GPUs multiply: CPUs have no such product.",
            where=machine.name,
            fix="--precision fp32, or bf16 where the processor has avx512_bf16",
        )
    if precision == "fp16":
        raise InputError(
            "fp16 is not available on CPUs: they have no product of fp16 numbers that adds up in fp32, so it "
            "would be less accurate than bf16 or slower than fp32.",
            where=machine.name,
            fix="--precision bf16 (needs avx512_bf16), or fp32",
        )
    if not machine.has("avx512bf16"):
        raise InputError(
            "bf16 needs a processor with avx512_bf16; emulated it would be slower than fp32.",
            where=f"{machine.name} has {', '.join(machine.features) or 'no features listed'}",
            fix="--precision fp32, or a target such as znver5 or sapphirerapids",
        )


def notes(precision: str, decisions: Iterable[Decision]) -> tuple[str, ...]:
    """What was asked for and not done, in one line for the report; nothing where all was done.

    >>> notes("bf16", [Decision("tvmopt.ConvertPrecision", "declined", "dw", "3: a reduction of one term")])
    ('asked for bf16; in it: 0 operators, in fp32: 1 (a reduction of one term)',)
    >>> notes("fp16", [Decision("tvmopt.ConvertPrecision", "declined", "fc", "1: operands are float16")])
    ()
    """
    if precision == "fp32":
        return ()
    if precision == "tf32":
        return (
            "tf32: products and convolutions round their operands to 11 significant bits (by up to 4.9e-4 of "
            "each); sums, attention and all else are fp32",
        )
    mine = [d for d in decisions if d.stage == "tvmopt.ConvertPrecision" and d.node != "main"]
    already = f"operands are {dict(fp16='float16', bf16='bfloat16').get(precision)}"  # as the model has it
    left = [d.reason.partition(": ")[2] for d in mine if d.verdict == "declined" and not d.reason.endswith(already)]
    done = len(mine) - len(left)
    if done and not left:
        return ()
    why = f" ({'; '.join(sorted(set(left)))})" if left else ""
    return (f"asked for {precision}; in it: {done} operators, in fp32: {len(left)}{why}",)
