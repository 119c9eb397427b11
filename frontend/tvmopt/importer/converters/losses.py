"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss, as gathers and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.importer.converters.common import Build, const, dtype_of, in_float32, shape_of, size
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result
from tvmopt.importer.converters.indices import within


def _nll(b: Build, ctx: Context, log_prob: Any, target: Any, weight: Any, attrs: dict[str, Any]) -> Any:
    """``-w[t] * log_prob[n, t, ...]``, zero where the target is ignored; then sum, or mean over the weights."""
    shape, dtype = shape_of(log_prob), dtype_of(log_prob)
    flat = (shape[0], *shape[2:])
    if shape_of(target) != flat:  # a class of each place, else classes are read from where there are none
        told, wanted = (", ".join(map(str, s)) for s in (shape_of(target), flat))
        raise ctx.unsupported(f"its target has the sizes [{told}], and its scores ask for [{wanted}]", "bind the sizes")
    reduction = attrs.get("reduction", "mean")
    if 0 in flat:  # of a mean, zero by the weights of nothing or, as onnxruntime has it, zero
        weighted = weight is not None or attrs.get("ignore_index") is not None
        nothing = np.nan if weighted and reduction == "mean" else 0.0
        return b.zeros(flat, dtype) if reduction == "none" else const(nothing, dtype)
    index = b.cast(target, "int64") if (known := ctx.array(target)) is None else const(known, "int64")
    ignore = attrs.get("ignore_index")
    valid = None
    if ignore is not None:
        valid = b.emit(relax.op.not_equal(index, const(ignore, "int64")))
        index = b.where(valid, index, 0) if known is None else const(np.where(known == ignore, 0, known), "int64")
    index = within(b, ctx, 1, "a class", 0, shape[1] - 1, index)
    picked = b.emit(relax.op.gather_elements(log_prob, b.reshape(index, (shape[0], 1, *shape[2:])), 1))
    loss = b.emit(relax.op.negative(b.reshape(picked, flat)))
    weights = None
    if weight is not None:
        weights = b.reshape(b.take(weight, b.reshape(index, (size(flat),)), 0), flat)
        loss = b.mul(loss, weights)
    if valid is not None:
        kept = b.cast(valid, dtype)
        weights = kept if weights is None else b.mul(weights, kept)
        loss = b.where(valid, loss, 0.0)  # of an infinite loss zero times it would be no number
    if reduction == "none":
        return loss
    total = b.sum(loss, None)
    if reduction == "sum":
        return total
    places = b.sum(weights, None) if weights is not None else b.cast(b.reshape(b.number(size(flat)), ()), dtype)
    return b.div(total, places)


def nll(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """NegativeLogLikelihoodLoss of [N, C, d1, ...] log-probabilities."""
    return _nll(Build(bb, ctx.name), ctx, inputs[0], inputs[1], inputs[2], attrs)


def cross_entropy(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """SoftmaxCrossEntropyLoss of [N, C, d1, ...] scores; the second output is the log-probabilities."""
    b = Build(bb, ctx.name)
    log_prob = b.emit(relax.op.nn.log_softmax(inputs[0], 1))
    return _nll(b, ctx, log_prob, inputs[1], inputs[2], attrs), log_prob


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "NegativeLogLikelihoodLoss"): in_float32(nll),
    ("", "SoftmaxCrossEntropyLoss"): in_float32(cross_entropy),
}
