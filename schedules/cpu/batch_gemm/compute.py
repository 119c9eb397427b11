"""Matrix products of two activations as TE, B packed at run time where its rows do not fill vectors.

Of bytes (uint8 by int8, sums in int32) B becomes words of four rows, in panels, in a kernel of its own::

    words[batch, p, s, j] = quad(B[batch, 4s, p*nr + j], .., B[batch, 4s + 3, p*nr + j])     zeros beyond K and N
    C[batch, m, n]        = sum_s dot4(quad(A[batch, m, 4s], ..), words[batch, n / nr, s, n % nr])
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import (
    INJECTIVE,
    batch_index,
    broadcast_batch,
    call_fusable,
    call_with_pattern,
    constant,
    is_open,
    plain,
    sizes,
)
from tvmopt.lowering.pairs import bits, is_bf16, pair
from tvmopt.lowering.quads import WORD, quad
from tvmopt.schedules.cpu._panels import product, unlike, whole_words
from tvmopt.scheduling.cost_model import common_vector
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine


def matmul(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> relax.Expr | Declined | None:
    """`R.matmul` of two activations, or of a batch of constant matrices: float32 or bfloat16, summed in float32, or
    uint8 by int8 in int32. The batch of floats may be open."""
    x, w = call.args
    xs, ws, value = sizes(x), sizes(w), constant(bb, w)
    if value is not None and prod(value.shape[:-2]) == 1:
        return None
    if xs is None or ws is None or is_open((*xs[-2:], *ws[-2:])):
        return Declined("an open matrix")
    if (reason := unlike(call)) is not None:
        return Declined(reason)
    if min(len(xs), len(ws)) < 2:
        return Declined("a vector")
    batch = broadcast_batch(xs[:-2], ws[:-2])
    if batch is None:
        return Declined("open batches that may be broadcast")
    if str(x.ty.dtype) == "uint8":
        return Declined("an open batch of bytes") if is_open(batch) else _of_bytes(bb, x, w, batch, xs, ws, machine)
    return _batched(bb, x, w, xs, ws, machine)


def _of_bytes(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: relax.Expr,
    batch: tuple[int, ...],
    xs: tuple[int, ...],
    ws: tuple[int, ...],
    machine: Machine,
) -> relax.Expr:
    """The two kernels of the module's docstring."""
    m_len, k_len, n_len = xs[-2], xs[-1], ws[-1]
    nr = machine.lanes() * (2 if n_len > machine.lanes() else 1)
    steps, panels = -(-k_len // WORD), -(-n_len // nr)

    def words(b: te.Tensor) -> te.Tensor:
        def byte(lead: tuple[Any, ...], row: Any, column: Any) -> Any:
            value = b(*lead, row, column).astype("uint8")
            inside = [row < k_len] * (k_len % WORD > 0) + [column < n_len] * (n_len % nr > 0)
            return te.if_then_else(tirx.all(*inside), value, tirx.const(0, "uint8")) if inside else value

        def entry(*i: Any) -> Any:
            *lead, p, s, j = i
            return quad(*(byte(tuple(lead), WORD * s + at, p * nr + j) for at in range(WORD)))

        return te.compute((*ws[:-2], panels, steps, nr), entry, name="words")

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, steps), name="k")
        acc = te.compute(
            (*batch, m_len, panels, nr),
            lambda *i: te.sum(
                product(a, (*batch_index(i[:-3], xs), i[-3], k), b(*batch_index(i[:-3], ws), i[-2], k, i[-1]), k_len),
                axis=[k],
            ),
            name="batch_gemm",
            attrs={"tvmopt.kernel": "batch_gemm"},
        )
        return te.compute(
            (*batch, m_len, n_len),
            lambda *i: acc(*i[:-1], i[-1] // nr, i[-1] % nr),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    packed = bb.emit(call_with_pattern(bb, words, [w], "words", INJECTIVE))
    return call_fusable(bb, compute, [whole_words(bb, x), packed], "batch_matmul")


def _batch(a: te.Tensor, b: te.Tensor) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """The shapes of two operands, in a kernel's own variables, and their batch."""
    shapes = [tuple(map(plain, t.shape)) for t in (a, b)]
    return shapes, broadcast_batch(shapes[0][:-2], shapes[1][:-2]) or ()


def _row(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """One row by each matrix, added up row by row of B, which are no whole vectors: to pack B would take longer."""
    k = te.reduce_axis((0, int(a.shape[-1])), name="k")
    shapes, batch = _batch(a, b)
    return te.compute(
        (*batch, 1, shapes[1][-1]),
        lambda *i: te.sum(
            a(*batch_index(i[:-2], shapes[0]), i[-2], k) * b(*batch_index(i[:-2], shapes[1]), k, i[-1]), axis=[k]
        ),
        name="row",
        attrs={"tvmopt.kernel": "reduce"},
    )


def _batched(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    w: relax.Expr,
    xs: tuple[Any, ...],
    ws: tuple[Any, ...],
    machine: Machine,
) -> relax.Expr | Declined:
    """C[*batch, m, n] of two activations. Where N is no multiple of half a vector, B is packed at run time into
    panels padded with zeros (a block of its own, computed per task): vectors then never straddle a row."""
    m_len, k_len, n_len = xs[-2], xs[-1], ws[-1]
    lanes = machine.lanes()
    half = is_bf16(x)
    narrow = n_len > lanes and 2 * common_vector(n_len, lanes) < lanes
    if narrow and m_len == 1 and not half:
        if is_open((*xs, *ws)):
            return Declined("an open batch of single rows of uneven length")
        return call_fusable(bb, _row, [x, w], "batch_row")
    nr = 2 * lanes if half or narrow else 0
    steps = -(-k_len // 2) if half else k_len

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, steps), name="k")
        (xs, ws), batch = _batch(a, b)
        tag = {"name": "batch_gemm", "attrs": {"tvmopt.kernel": "batch_gemm"}}
        if not nr:
            acc = te.compute(
                (*batch, m_len, n_len),
                lambda *i: te.sum(
                    a(*batch_index(i[:-2], xs), i[-2], k) * b(*batch_index(i[:-2], ws), k, i[-1]), axis=[k]
                ),
                **tag,
            )
            return te.compute(acc.shape, lambda *i: acc(*i), name="unpack", attrs={"tvmopt.kernel": "unpack"})

        def entry(*i: Any) -> Any:
            lead, column = batch_index(i[:-3], ws), i[-3] * nr + i[-1]
            if not half:
                return te.if_then_else(column < n_len, b(*lead, i[-2], column), tirx.const(0.0, "float32"))
            low, high = bits(b(*lead, 2 * i[-2], column)), bits(b(*lead, 2 * i[-2] + 1, column))
            if k_len % 2:
                high = te.if_then_else(2 * i[-2] + 1 < k_len, high, tirx.const(0, "uint16"))
            return te.if_then_else(column < n_len, pair(low, high), tirx.const(0, "uint32"))

        packed = te.compute(
            (*batch, -(-n_len // nr), steps, nr),
            entry,
            name="pack",
            attrs={"tvmopt.kernel": "pack"},
        )
        acc = te.compute(
            (*batch, m_len, -(-n_len // nr), nr),
            lambda *i: te.sum(
                product(a, (*batch_index(i[:-3], xs), i[-3], k), packed(*i[:-3], i[-2], k, i[-1]), k_len), axis=[k]
            ),
            **tag,
        )
        return te.compute(
            (*batch, m_len, n_len),
            lambda *i: acc(*i[:-1], i[-1] // nr, i[-1] % nr),
            name="unpack",
            attrs={"tvmopt.kernel": "unpack"},
        )

    return call_fusable(bb, compute, [x, w], "batch_matmul")
