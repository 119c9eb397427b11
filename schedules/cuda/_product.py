"""What the lowerings of products for tensor cores share: types, annotations, the blocks behind a product."""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from tvmopt.lowering.common import call_fusable
from tvmopt.scheduling.cuda_tile import PLAIN, TF32
from tvmopt.targets import Machine

ROWS_BY_CONSTANT = "gemm"
"""The annotation of the product of rows and a constant matrix, whichever family multiplies it."""
FLOATS = ("float16", "bfloat16", "float32")


def product_type(dtype: str, machine: Machine) -> str:
    """What tensor cores multiply: the operands' type, or "tf32" for fp32 where the precision allows it."""
    return "tf32" if dtype == "float32" and machine.has("tf32") else dtype


def notes(
    kernel: str, k: int, kind: str, *, pitch: int, parts: int = 1, across: int = 0, shared_a: int = 0, shared_b: int = 1
) -> dict[str, Any]:
    """The annotations that the family reads. `kind`: see `product_type`."""
    return {
        "tvmopt.kernel": kernel, "tvmopt.mma": TF32 if kind == "tf32" else PLAIN,
        "tvmopt.k": k, "tvmopt.pitch": pitch, "tvmopt.parts": parts,
        "tvmopt.across": across, "tvmopt.shared_a": shared_a, "tvmopt.shared_b": shared_b,
    }  # fmt: skip


def unpack(acc: te.Tensor, out: str) -> te.Tensor:
    """The block behind a product: its result in the output's type."""
    return te.compute(
        acc.shape,
        lambda *i: acc(*i) if out == "float32" else acc(*i).astype(out),
        name="unpack",
        attrs={"tvmopt.kernel": "unpack"},
    )


def add_parts(bb: relax.BlockBuilder, parts: relax.Expr, shape: tuple[int, ...], out: str) -> relax.Expr:
    """Sum of partial sums [parts, m, n] as [*shape], the entry of the epilogue."""
    count, *_ = (int(d) for d in parts.ty.shape.values)

    def compute(data: te.Tensor) -> te.Tensor:
        p = te.reduce_axis((0, count), name="p")

        def row(index: tuple[Any, ...]) -> Any:
            flat: Any = 0
            for position, extent in zip(index, shape[:-1], strict=True):
                flat = flat * extent + position
            return flat

        acc = te.compute(
            shape,
            lambda *i: te.sum(data(p, row(i[:-1]), i[-1]), axis=[p]),
            name="split_sum",
            attrs={"tvmopt.kernel": "split_sum"},
        )
        return unpack(acc, out)

    return call_fusable(bb, compute, [parts], "split_sum")


def wide(value: Any) -> Any:
    return value.astype("float32") if str(value.ty.dtype) != "float32" else value
