"""Einsum as matrix products of two operands after another, which attention's fusion and the GEMM families know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, dtype_of, in_float32, is_float, shape_of, stock
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result

Shape = tuple[Any, ...]


def terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """The operands' letters and the result's, capitals of their own for an ellipsis; None where an operand has a
    letter twice (a diagonal), or the equation does not fit the ranks.

    >>> terms("bhid, bhjd -> bhij", (4, 4))
    (['bhid', 'bhjd'], 'bhij')
    >>> terms("...i,ij", (3, 2))
    (['ZYi', 'ij'], 'ZYj')
    >>> terms("ii,j->ij", (2, 1)) is None
    True
    """
    given, arrow, out = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    free = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in given]
    wide = max((rank - len(p) + 3 for p, rank in zip(parts, ranks, strict=False) if "..." in p), default=0)
    if len(parts) != len(ranks) or wide > len(free):
        return None
    dots = "".join(free[:wide])
    if not arrow:  # every letter that stands once, in the alphabet's order
        count = Counter(given.replace(".", "").replace(",", ""))
        out = "..." + "".join(sorted(c for c in count if count[c] == 1))
    if dots and "..." not in out:
        return None
    # an ellipsis is right-aligned, as broadcasting is
    parts = [p.replace("...", dots[max(0, wide - (r - len(p) + 3)) :]) for p, r in zip(parts, ranks, strict=True)]
    out = out.replace("...", dots)
    if any(len(set(p)) != len(p) for p in (*parts, out)) or any(len(p) != r for p, r in zip(parts, ranks, strict=True)):
        return None
    return None if set(out) - set("".join(parts)) else (parts, out)


def einsum(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """Einsum of two or more operands, pairs from the left; diagonals and broadcast letters stay TVM's."""
    shapes = [shape_of(x) for x in inputs]
    found = terms(attrs["equation"], [len(s) for s in shapes])
    if any(0 in s for s in shapes):
        return Build(bb, ctx.name).zeros(_sizes(shapes, found, attrs["equation"]), dtype_of(inputs[0]))
    if found is None or len(inputs) < 2 or not is_float(dtype_of(inputs[0])):
        return in_float32(stock)(bb, inputs, attrs, ctx)
    parts, out = found
    sizes: dict[str, int] = {}
    for letters, shape in zip(parts, shapes, strict=True):
        if any(sizes.setdefault(c, d) != d for c, d in zip(letters, shape, strict=True)):
            return in_float32(stock)(bb, inputs, attrs, ctx)
    b = Build(bb, ctx.name)
    value, have = inputs[0], parts[0]
    for i in range(1, len(parts)):
        needed = set(out).union(*parts[i + 1 :])  # by what follows
        value, have = _pair(b, (value, have), (inputs[i], parts[i]), needed, sizes)
    return _turned(b, value, have, out)


def _sizes(shapes: Sequence[Shape], found: tuple[list[str], str] | None, equation: str) -> Shape:
    """The result's shape. That of no products is zeros, for which TVM writes no number."""
    if found is None:  # a diagonal
        return tuple(np.einsum(equation, *(np.broadcast_to(np.float32(0), s) for s in shapes)).shape)
    sizes: dict[str, Any] = {}
    for letters, shape in zip(found[0], shapes, strict=True):
        sizes |= {c: d for c, d in zip(letters, shape, strict=True) if d != 1 or c not in sizes}
    return tuple(sizes[c] for c in found[1])


def _turned(b: Build, x: Any, letters: str, wanted: str) -> Any:
    axes = [letters.index(c) for c in wanted]
    return x if axes == sorted(axes) else b.emit(relax.op.permute_dims(x, axes))


def _alone(b: Build, x: Any, letters: str, other: str, needed: set[str]) -> tuple[Any, str]:
    """The operand without the letters that nothing else has: they are summed before the product."""
    axes = [i for i, c in enumerate(letters) if c not in other and c not in needed]
    kept = "".join(c for i, c in enumerate(letters) if i not in axes)
    return (b.cast(b.sum(b.wide(x), axes, False), dtype_of(x)), kept) if axes else (x, letters)


def _pair(
    b: Build, left: tuple[Any, str], right: tuple[Any, str], needed: set[str], sizes: dict[str, int]
) -> tuple[Any, str]:
    """The product of two operands, summed over the letters that they share and nobody needs: as a batch of matrix
    products, or without such letters as a product by element. Its letters: batch, rows, columns."""
    x, first = _alone(b, *left, right[1], needed)
    y, second = _alone(b, *right, first, needed)
    batch = "".join(c for c in first if c in second and c in needed)
    rows = "".join(c for c in first if c not in second)
    columns = "".join(c for c in second if c not in first)
    summed = "".join(c for c in first if c in second and c not in needed)

    def dims(letters: str) -> list[int]:
        return [sizes[c] for c in letters]

    made = batch + rows + columns
    if not summed:
        one = b.reshape(_turned(b, x, first, batch + rows), [*dims(batch + rows), *[1] * len(columns)])
        two = b.reshape(_turned(b, y, second, batch + columns), [*dims(batch), *[1] * len(rows), *dims(columns)])
        return b.mul(one, two), made
    lead = dims(batch)
    m, n, k = (prod(dims(letters)) for letters in (rows, columns, summed))
    a = b.reshape(_turned(b, x, first, batch + rows + summed), [*lead, m, k])
    c = b.reshape(_turned(b, y, second, batch + summed + columns), [*lead, k, n])
    return b.reshape(b.matmul(a, c), dims(made)), made


CONVERTERS: dict[tuple[str, str], Converter] = {("", "Einsum"): einsum}
