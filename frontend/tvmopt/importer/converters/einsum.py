"""Einsum of two operands as one matrix product, which attention's fusion and the GEMM families know."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax

from tvmopt.importer.converters.common import Build, dtype_of, is_float, shape_of
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def roles(equation: str) -> tuple[str, str, str, str, str, str, str] | None:
    """The operands' and the result's letters, then those of batch, rows, columns and sum; None for another form.

    >>> roles("bhid, bhjd -> bhij")
    ('bhid', 'bhjd', 'bhij', 'bh', 'i', 'j', 'd')
    >>> roles("ii,j->ij") is None and roles("...i,ij->...j") is None
    True
    """
    terms, arrow, out = equation.replace(" ", "").partition("->")
    first, comma, second = terms.partition(",")
    if not (arrow and comma) or "." in equation or "," in second:
        return None
    if any(len(set(term)) != len(term) for term in (first, second, out)):
        return None
    batch = "".join(c for c in first if c in second and c in out)
    rows = "".join(c for c in first if c not in second)
    columns = "".join(c for c in second if c not in first)
    summed = "".join(c for c in first if c in second and c not in out)
    if not summed or set(rows + columns) - set(out):
        return None
    return first, second, out, batch, rows, columns, summed


def einsum(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Einsum; forms that are no matrix product stay TVM's."""
    found = roles(attrs["equation"]) if len(inputs) == 2 else None
    if found is None or not is_float(dtype_of(inputs[0])):
        return ctx.stock(inputs, attrs)
    first, second, out, batch, rows, columns, summed = found
    sizes = dict(zip(first, shape_of(inputs[0]), strict=True))
    if any(sizes.setdefault(c, d) != d for c, d in zip(second, shape_of(inputs[1]), strict=True)):
        return ctx.stock(inputs, attrs)
    b = Build(bb, ctx.name)

    def turned(x: Any, letters: str, wanted: str) -> Any:
        axes = [letters.index(c) for c in wanted]
        return x if axes == sorted(axes) else b.emit(relax.op.permute_dims(x, axes))

    def flat(letters: str) -> int:
        return prod(sizes[c] for c in letters)

    lead = [sizes[c] for c in batch]
    left = b.reshape(turned(inputs[0], first, batch + rows + summed), (*lead, flat(rows), flat(summed)))
    right = b.reshape(turned(inputs[1], second, batch + summed + columns), (*lead, flat(summed), flat(columns)))
    made = batch + rows + columns
    product = b.reshape(b.matmul(left, right), [sizes[c] for c in made])
    return turned(product, made, out)


CONVERTERS: dict[tuple[str, str], Converter] = {("", "Einsum"): einsum}
