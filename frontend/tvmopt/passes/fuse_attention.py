"""Put scaled-dot-product attention together again, on operands in the order they have in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from tvmopt.dims import Size, is_open
from tvmopt.importer.sizes import shape_to_tvm
from tvmopt.operators import masked
from tvmopt.passes.graph import (
    Array,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    is_float,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    sizes,
    with_attrs,
)

HEADS = (0, 2, 1, 3)  # [B, N, S, H] from [B, S, N, H], and back
EMPTY = float(np.float32(-3.4e38))  # a row is without a key where its mask is smaller throughout, says the importer
SCALES = (1e-12, 1e12)  # of the scores, in size: what kernels multiply q by


@dataclass(frozen=True)
class Scores:
    """The argument of softmax, taken apart: ``scale * q @ k.T + sum(masks)``, or `fill` where a mask is plus infinity.

    Attributes:
        q: queries ``[..., Sq, H]``.
        keys: transposed keys ``[..., H, Sk]``.
        scale: product of every constant on the way.
        masks: additive masks.
        chosen: masks that are 0 where a score stays, and plus infinity where the fill stands in its place.
        fill: what stands in place of a score that a ``where`` hides, if one does.
    """

    q: Expr
    keys: Expr
    scale: float = 1.0
    masks: tuple[Expr, ...] = ()
    chosen: tuple[Expr, ...] = ()
    fill: float | None = None


@rewrite_pass("tvmopt.FuseAttention")
class FuseAttention(Rewrite):
    """Recognise attention and give it operands [B, S, N, H], as the projections leave them.

        Before                                              After
        q = R.permute_dims(qv, [0, 2, 1, 3])                y = R.nn.attention(qv, kv, vv, mask, scale)
        k = R.permute_dims(kv, [0, 2, 3, 1])
        v = R.permute_dims(vv, [0, 2, 1, 3])
        s = R.add(R.multiply(R.matmul(q, k), c), mask)
        o = R.matmul(R.nn.softmax(s), v)
        y = R.permute_dims(o, [0, 2, 1, 3])

    The scale may stand on q, on k, on both or on the product; q, k, v may be [B * N, S, H]. Masks may be added, or
    chosen with R.where: then the call is ``tvmopt.masked_attention``. A constant mask that is 0 up to the diagonal and
    hides everything above it (minus infinity, or the type's lowest number) becomes ``causal_mask="TopLeft"`` and is not
    read at all. torch's ``where(isnan(p), 0, p)`` around the
    probabilities goes where no row can be masked altogether; elsewhere, and for our importer's
    ``where(max(mask) < lowest, 0, p)``, a where behind the call makes rows without a key 0. (Vaswani et al. 2017,
    section 3.2.1.)

    Applies when   softmax is over the keys, q and k have 3 or 4 axes, and each mask broadcasts to [B, N, Sq, Sk].
    Declines when  1. the scores are used elsewhere too
                   2. softmax's argument is no product, q and k do not have 3 or 4 axes, or a batch or the heads of one
                      of the three broadcast
                   3. a mask does not broadcast to the scores
                   4. float64: no family has it, and in TVM's own loops exp(s * scale - max) rounds once, but max twice:
                      what is left of a score of 1e28 is 1e12, and exp of that is infinite
                   5. a scale beyond SCALES: kernels multiply q by it, so that single products overflow, or vanish,
                      where their sum times the scale does not
                   6. vectors of q, k or v of open length, as where channels attend to each other over an open picture:
                      no family has it, and products of open sums are batch_gemm's
    Gain           the [B, N, Sq, Sk] scores and probabilities never leave the cache; 4 transposes go.
    Order          after FuseSoftmax, and after PropagateTransposes and CancelReshapes, which bring the transposes of q,
                   k and v next to the product; PropagateTransposes again after it, to cancel them.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite the product of probabilities and values."""
        if op_name(value) != "matmul" or not is_float(value):
            return None
        probabilities, guard = _without_guard(graph, value.args[0])
        softmax = graph.call(probabilities, "nn.softmax")
        if softmax is None or int(softmax.attrs.axis) not in (-1, rank(softmax) - 1):
            return None
        if dtype(value) == "float64":
            self.declined(var, "4: float64")
            return None
        if not graph.single(value.args[0]):
            self.declined(var, "1: the probabilities are an output or have other users")
            return None
        scores = take_apart(graph, Scores(softmax.args[0], softmax.args[0]), softmax.args[0])
        if isinstance(scores, str):
            self.declined(var, scores)
            return None
        if not SCALES[0] <= abs(scores.scale) <= SCALES[1]:
            self.declined(var, f"5: a scale of {scores.scale:.3g}")
            return None
        bias = _mask(graph, scores, sizes(softmax) or (), var)
        if isinstance(bias, str):
            self.declined(var, bias)
            return None
        if is_open((sizes(scores.q) or ())[-1:] + (sizes(value) or ())[-1:]):
            self.declined(var, "6: the vectors have an open length")
            return None
        if not _same_batch(scores, value):
            self.declined(var, "2: q, k and v do not have the same batch and heads")
            return None
        if rank(value) == 3 and not isinstance((sizes(value) or (0,))[0] // _batch(graph, scores, value), int):
            self.declined(var, "2: the number of heads is open")
            return None
        empty = scores.fill == -np.inf or any(not _keeps_a_key(graph, m) for m in scores.masks)
        limit = EMPTY if guard == "mask" else -np.inf if guard == "isnan" and empty else None
        return self._attention(graph, var, value, scores, bias, limit)

    def _attention(
        self,
        graph: Graph,
        var: Var,
        value: Expr,
        scores: Scores,
        bias: tuple[Expr | None, bool],
        limit: float | None,
    ) -> Expr | None:
        """The call; `limit`: rows whose masks are this or less throughout are zeros."""
        name, ndim = name_of(var), rank(value)
        batch = _batch(graph, scores, value)
        swap = (*range(ndim - 2), ndim - 1, ndim - 2)
        key = graph.emit(relax.op.permute_dims(scores.keys, swap), name)
        query = graph.emit(scores.q, name)
        q, k, v = (_bsnh(graph, t, batch, name) for t in (query, key, value.args[1]))
        mask, causal = bias
        if mask is not None and ndim == 3:
            have = sizes(mask) or (0,)
            mask = relax.op.reshape(mask, shape_to_tvm((batch, have[0] // batch, *have[1:])))
        mask = None if mask is None else graph.emit(mask, name)
        kept = None
        if limit is not None and mask is not None:  # [B, N, Sq, Sk] to [B, Sq, N, 1]: does the row keep a key?
            seen = graph.emit(relax.op.greater(mask, const(np.float64(limit), like=mask)), name)
            if scores.fill is not None and scores.fill <= limit:
                stays = graph.emit(relax.op.less(mask, const(np.float64(masked.GONE), like=mask)), name)
                seen = graph.emit(relax.op.logical_and(seen, stays), name)
            most = relax.op.max(relax.op.astype(seen, dtype(mask)), [-1], keepdims=True)
            kept = relax.op.greater(relax.op.permute_dims(most, HEADS), const(np.float64(0), like=mask))
            kept = graph.emit(kept, name)  # the kernel's other rows are NaN, and nobody reads them
        if scores.fill is not None and mask is not None:
            out = masked.masked_attention(q, k, v, mask, scores.scale, scores.fill)
        else:
            out = relax.op.nn.attention(
                q,
                k,
                v,
                bias=mask,
                scale=tvm.tirx.FloatImm("float32", scores.scale),
                causal_mask="TopLeft" if causal else None,
            )
        kind = "causal" if causal else "masked" if mask is not None else "no mask"
        self.applied(var, f"{kind}, scale {scores.scale:.6g}")
        out = graph.emit(out, name)
        if kept is not None:
            out = relax.op.where(kept, out, const(np.float64(0), like=out))
        out = relax.op.permute_dims(out, HEADS)
        return out if ndim == 4 else relax.op.reshape(out, shape_to_tvm(sizes(value) or ()))


def take_apart(graph: Graph, scores: Scores, expr: Expr) -> Scores | str:
    """The scores' operands, scale and masks, or why they cannot be told."""
    if not graph.single(expr):
        return "1: the scores are used elsewhere too"
    if (call := graph.call(expr, "matmul")) is not None:
        if rank(call.args[0]) not in (3, 4) or rank(call.args[1]) != rank(call.args[0]):
            return "2: q and k do not have 3 or 4 axes"
        q, a = _unscaled(graph, call.args[0])
        keys, b = _unscaled(graph, call.args[1])
        return replace(scores, q=q, keys=keys, scale=scores.scale * a * b)
    for data, other in graph.binary(expr, "multiply"):
        number = graph.scalar(other)
        if number is not None and _same_shape(data, expr):
            return take_apart(graph, replace(scores, scale=scores.scale * number), data)
    for data, other in graph.binary(expr, "add"):
        if not _same_shape(data, expr) or not _leads_to_product(graph, data):
            continue
        mask = other if scores.scale == 1.0 else relax.op.multiply(other, const(scores.scale, like=other))
        return take_apart(graph, replace(scores, masks=(*scores.masks, mask)), data)
    if (call := graph.call(expr, "where")) is not None:
        keep, a, b = call.args
        for data, other, kept in ((a, b, True), (b, a, False)):
            number = graph.scalar(other)
            if number is None or not _same_shape(data, expr):
                continue
            flags, number = graph.array(keep), number * scores.scale
            if flags is not None and number <= hidden(expr) and rank(expr) == 4:
                array = np.where(flags == kept, 0.0, number)
                if is_causal(array, sizes(expr) or (), number):
                    mask = const(array, like=expr)
                    return take_apart(graph, replace(scores, masks=(*scores.masks, mask)), data)
            if number > hidden(expr) and (scores.masks or scores.fill not in (None, number)):
                return "2: a mask fills scores that another one is added to"
            chosen = (*scores.chosen, _chosen(keep, flags, kept, expr))
            return take_apart(graph, replace(scores, chosen=chosen, fill=number), data)
    if (call := graph.call(expr, "reshape")) is not None and not scores.masks + scores.chosen:
        return "2: the scores are reshaped between product and softmax"
    return f"2: the argument of softmax is {graph.op(expr) or 'not computed here'}, not a product"


def _same_batch(scores: Scores, value: Expr) -> bool:
    """Whether q, k and v have as many axes and one size along each before their last two, as far as that is known: 1 is
    spread over an open size."""
    known = [(sizes(t) or ())[:-2] for t in (scores.q, scores.keys, value.args[1])]
    return rank(value.args[0]) == rank(value.args[1]) and all(
        len({n for n in along if isinstance(n, int)}) < 2 and (1 not in along or not is_open(along))
        for along in zip(*known, strict=False)
    )


def _same_shape(a: Expr, b: Expr) -> bool:
    """Whether two tensors have one shape, open sizes included."""
    return sizes(a) is not None and sizes(a) == sizes(b)


def _chosen(keep: Expr, flags: Array | None, kept: bool, like: Expr) -> Expr:
    """0 where a score stays, plus infinity where the fill stands in its place."""
    stays, goes = const(np.float64(0), like=like), const(np.float64(masked.GONE), like=like)
    if flags is not None:
        return const(np.where(flags == kept, 0.0, masked.GONE), like=like)
    return relax.op.where(keep, stays, goes) if kept else relax.op.where(keep, goes, stays)


def hidden(expr: Expr) -> float:
    """What must be added to a number of this type, at least, to hide it for good."""
    return 0.99 * float(ml_dtypes.finfo(str(expr.ty.dtype)).min)


def _leads_to_product(graph: Graph, expr: Expr, depth: int = 6) -> bool:
    call = graph.call(expr, "matmul", "multiply", "add", "where")
    if call is None or depth == 0:
        return False
    return op_name(call) == "matmul" or any(_leads_to_product(graph, a, depth - 1) for a in call.args)


def _unscaled(graph: Graph, expr: Expr) -> tuple[Expr, float]:
    """An operand without its constant factor, which may stand before its transpose."""
    for data, other in graph.binary(expr, "multiply"):
        number = graph.scalar(other)
        if number is not None and _same_shape(data, expr):
            inner, more = _unscaled(graph, data)
            return inner, number * more
    call = graph.call(expr, "permute_dims", "reshape")
    if call is not None:
        inner, number = _unscaled(graph, call.args[0])
        if number != 1.0:
            return with_attrs(call, [inner, *call.args[1:]]), number
    return expr, 1.0


def _without_guard(graph: Graph, expr: Expr) -> tuple[Expr, str]:
    """``where(isnan(p), 0, p)``, or ``where(max(mask) < lowest, 0, p)``, as p, and which of the tests was there."""
    call = graph.call(expr, "where")
    if call is not None and graph.scalar(call.args[1]) == 0.0:
        test = graph.call(call.args[0], "isnan")
        if test is not None and test.args[0].same_as(call.args[2]):
            return call.args[2], "isnan"
        if _no_key_is_left(graph, call.args[0], call.args[2]):
            return call.args[2], "mask"
    return expr, ""


def _no_key_is_left(graph: Graph, test: Expr, probabilities: Expr) -> bool:
    """Whether a test is that of a mask which hides the whole row: the one that softmax's argument is a sum with."""
    less, softmax = graph.call(test, "less"), graph.call(probabilities, "nn.softmax")
    most = graph.call(less.args[0], "max") if less is not None else None
    if (
        less is None
        or most is None
        or softmax is None
        or list(most.attrs.axis or ()) not in ([-1], [rank(softmax) - 1])
    ):
        return False
    limit = graph.scalar(less.args[1])
    added = any(most.args[0].same_as(other) for _, other in graph.binary(softmax.args[0], "add"))
    return added and limit is not None and limit <= EMPTY and _shows_or_hides(graph, most.args[0], limit)


def _shows_or_hides(graph: Graph, mask: Expr, limit: float) -> bool:
    """Whether a mask is 0 or below `limit` everywhere, as flags make it: a number between hides no key for good."""
    call: Any = graph.value(mask)
    if op_name(call) == "add":
        return all(_shows_or_hides(graph, a, limit) for a in call.args)
    if op_name(call) in ("reshape", "broadcast_to", "expand_dims"):
        return _shows_or_hides(graph, call.args[0], limit)
    parts = call.args[1:] if op_name(call) == "where" else [mask]
    numbers = [graph.array(a) for a in parts]
    return all(n is not None and bool(((n == 0) | (n < limit)).all()) for n in numbers)


def _mask(graph: Graph, scores: Scores, dims: tuple[Size, ...], var: Var) -> tuple[Expr | None, bool] | str:
    """The masks as one bias of 4 (or 3) axes, or as a causal mask, or why not."""
    total: Expr | None = None
    causal = False
    for mask in (*scores.masks, *scores.chosen):
        data = graph.array(mask)
        if scores.fill is None and data is not None and len(dims) == 4 and is_causal(data, dims, hidden(mask)):
            causal = True
            continue
        chosen = any(mask is one for one in scores.chosen)
        mask = graph.emit(mask, name_of(var))
        have = sizes(mask)
        if have is None or len(have) > len(dims):
            return "3: a mask does not broadcast to the scores"
        full = (1,) * (len(dims) - len(have)) + have
        if any(a not in (1, b) for a, b in zip(full, dims, strict=True)):
            return "3: a mask does not broadcast to the scores"
        mask = mask if full == have else relax.op.reshape(mask, shape_to_tvm(full))
        if total is not None and chosen:  # to add plus infinity to the minus infinity of another mask is NaN
            mask = graph.emit(mask, name_of(var))
            gone = relax.op.equal(mask, const(np.float64(masked.GONE), like=mask))
            total = relax.op.where(gone, mask, graph.emit(total, name_of(var)))
        else:
            total = mask if total is None else relax.op.add(total, mask)
    if total is None:
        return None, causal
    total = graph.emit(total, name_of(var))
    have = sizes(total) or ()
    wanted = dims if len(dims) == 3 else (*have[:3], dims[3])
    if have != wanted:  # R.nn.attention broadcasts the first three axes only
        total = graph.emit(relax.op.broadcast_to(total, shape_to_tvm(wanted)), name_of(var))
    return total, causal


def is_causal(mask: Array, dims: tuple[Size, ...], highest: float) -> bool:
    """Whether a mask is 0 on and below the diagonal, and at most `highest` above it, for every head and batch."""
    rows, columns = dims[-2:]
    if not isinstance(rows, int) or rows != columns or rows < 2 or mask.shape[-2:] != (rows, columns):
        return False
    flat = mask.reshape(-1, rows, columns).astype(np.float64)
    lower = np.tril(np.ones((rows, columns), dtype=bool))
    return bool((flat[:, lower] == 0).all() and (flat[:, ~lower] <= highest).all())


def _keeps_a_key(graph: Graph, mask: Expr) -> bool:
    """Whether softmax stays a number under this mask: none of it is minus infinity, or no whole row of a constant."""
    data = graph.array(mask)
    if data is not None:
        return bool((data > -np.inf).any(axis=-1).all())
    call: Any = mask if op_name(mask) else graph.value(mask)
    if op_name(call) == "multiply":
        return any(_keeps_a_key(graph, a) for a in call.args if graph.scalar(a) is None)
    if op_name(call) in ("reshape", "broadcast_to", "expand_dims"):
        return _keeps_a_key(graph, call.args[0])
    if op_name(call) == "where":
        numbers = [graph.array(a) for a in call.args[1:]]
        return all(n is not None and (n > -np.inf).all() for n in numbers)
    return False


def _batch(graph: Graph, scores: Scores, value: Expr) -> Size:
    """B of operands [B * N, S, H]: what a reshape from [B, N, S, H] on the way tells, else 1."""
    dims = sizes(value) or (1,)
    if len(dims) == 4:
        return dims[0]
    for operand in (scores.q, value.args[1]):
        call = graph.call(operand, "reshape")
        have = sizes(call.args[0]) if call is not None else None
        if have is not None and len(have) == 4 and have[0] * have[1] == dims[0]:
            return have[0]
    return 1


def _bsnh(graph: Graph, operand: Expr, batch: Size, name: str) -> Expr:
    """An operand [B, N, S, H] or [B * N, S, H] as [B, S, N, H]; the transposes cancel later."""
    dims = sizes(operand) or ()
    if len(dims) == 3:
        operand = relax.op.reshape(operand, shape_to_tvm((batch, dims[0] // batch, *dims[1:])))
    return graph.emit(relax.op.permute_dims(operand, HEADS), name)
