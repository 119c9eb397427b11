"""Softmax, layer, RMS, group and instance norm for GPUs, as TE whose reductions are float32, of float64 float64 - for
the `rows` family.

    softmax     m = max x;  s = sum exp(x - m);  y = exp(x - m) / s
    layer_norm  mu = sum x / C;  v = sum (x - mu)^2 / C;  y = (x - mu) / sqrt(v + eps) * gamma + beta
    rms_norm    y = x / sqrt(sum x^2 / C + eps) * gamma
    group_norm  layer_norm over (channels of the group, pixels), gamma and beta by channel; instance: one channel

The number of rows may be open, their length not. Norms of other forms are written out as Relax operators: TVM's own add
in the input's type, and take E[x^2] - mu^2, which cancels; of float64 they round the squares of an RMS norm to float32,
and there are no group and instance norms. Inputs of 16 bits are widened as they
are read and the result is narrowed as it is written; a cast to float32 right before one of these operators (an fp32
island of a 16-bit graph) is read through, so that the row is loaded in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx

from tvmopt.lowering.common import call_fusable, flat, is_empty, is_open, sizes, trailing
from tvmopt.schedules.cuda.rows.written_out import written_out
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Expr = Any
UNFIT = "an open length or an empty shape, axes that are not the last, or no float of 16, 32 or 64 bits"
FLOATS = ("float64", "float32", "float16", "bfloat16")


def _sum_type(x: te.Tensor) -> str:
    """The type in which numbers of a tensor are computed with."""
    return "float64" if str(x.dtype) == "float64" else "float32"


def _rows(x: te.Tensor, depth: int) -> tuple[list[Expr], list[int]]:
    dims = list(x.shape)
    return dims[:depth], [int(d) for d in dims[depth:]]


def _reduced(
    x: te.Tensor, depth: int, value: Callable[..., Expr], name: str, combine: Callable[..., Expr] = te.sum
) -> te.Tensor:
    """value(*row, *column) combined over the columns."""
    rows, columns = _rows(x, depth)
    axes = [te.reduce_axis((0, c), name=f"k{i}") for i, c in enumerate(columns)]
    return te.compute(
        tuple(rows) or (1,),
        lambda *at: combine(value(*at[:depth], *axes), axis=axes),
        name=name,
    )


def softmax_te(x: te.Tensor, dtype: str, log: bool) -> te.Tensor:
    """Over the last axis."""
    depth, kind = len(x.shape) - 1, _sum_type(x)
    peak = _reduced(x, depth, lambda *i: x(*i).astype(kind), "row_max", te.max)
    at = (lambda i: i[:depth]) if depth else (lambda i: (0,))
    total = _reduced(x, depth, lambda *i: te.exp(x(*i).astype(kind) - peak(*at(i))), "row_sum")

    def value(*i: Expr) -> Expr:
        centred = x(*i).astype(kind) - peak(*at(i))
        result = centred - te.log(total(*at(i))) if log else te.exp(centred) / total(*at(i))
        return result.astype(dtype)

    return te.compute(x.shape, value, name="log_softmax" if log else "softmax")


def norm_te(
    x: te.Tensor, depth: int, epsilon: float, dtype: str, affine: Callable[..., Expr], centre: bool, name: str
) -> te.Tensor:
    """(x - mean) / sqrt(variance + epsilon), or x / sqrt(mean of squares + epsilon); then `affine(value, *index)`."""
    _, columns = _rows(x, depth)
    kind = _sum_type(x)
    inverse, least = tirx.const(1.0 / prod(columns), kind), tirx.const(epsilon, kind)
    at = (lambda i: i[:depth]) if depth else (lambda i: (0,))
    if centre:
        total = _reduced(x, depth, lambda *i: x(*i).astype(kind), "row_sum")

    def centred(*i: Expr) -> Expr:
        return x(*i).astype(kind) - total(*at(i)) * inverse if centre else x(*i).astype(kind)

    squares = _reduced(x, depth, lambda *i: centred(*i) * centred(*i), "row_squares")
    scale = te.compute(squares.shape, lambda *i: te.rsqrt(squares(*i) * inverse + least), name="row_scale")

    def value(*i: Expr) -> Expr:
        return affine(centred(*i) * scale(*at(i)), *i).astype(dtype)

    return te.compute(x.shape, value, name=name)


# -- lowerings -------------------------------------------------------------------------------------------------------


def source(bb: relax.BlockBuilder, x: Any) -> Any:
    """`x`, or what it was before a cast from 16 bits to float32."""
    bound = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(bound, relax.Call) or getattr(bound.op, "name", "") != "relax.astype":
        return x
    narrow = str(bound.args[0].ty.dtype) in ("float16", "bfloat16") and str(x.ty.dtype) == "float32"
    return bound.args[0] if narrow else x


def _shape(x: Any, known: int) -> tuple[Any, ...] | None:
    """The sizes of a tensor of numbers, from axis `known` on all known; else None."""
    shape = sizes(x)
    fits = shape and not is_open(shape[known:]) and not is_empty(shape)
    return shape if fits and str(x.ty.dtype) in FLOATS else None


def _otherwise(bb: relax.BlockBuilder, x: Any, *norm: Any) -> Any:
    """A norm of another form than this family's."""
    shape = sizes(x)
    if shape is None or is_empty(shape) or str(x.ty.dtype) not in FLOATS:
        return Declined(UNFIT)
    return written_out(bb, x, *norm)


def _softmax(log: bool) -> Any:
    def lowering(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
        x = call.args[0]
        shape = _shape(x, -1)
        if shape is None or int(call.attrs.axis) % len(shape) != len(shape) - 1:
            return Declined(UNFIT)
        dtype = str(x.ty.dtype)
        name = "log_softmax" if log else "softmax"
        return call_fusable(bb, lambda data: softmax_te(data, dtype, log), [source(bb, x)], name)

    return lowering


def layer_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.layer_norm` over the last axes."""
    x, gamma, beta = call.args
    attrs, rank = call.attrs, int(x.ty.ndim)
    count = trailing(attrs.axes, rank)
    shape = None if count is None else _shape(x, rank - count)
    if shape is None or count is None or not (_shape(gamma, 0) and _shape(beta, 0)):
        given = gamma if attrs.scale else None, beta if attrs.center else None
        return _otherwise(bb, x, attrs.axes, float(attrs.epsilon), True, given)
    depth, dtype = rank - count, str(x.ty.dtype)

    def compute(data: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
        def affine(value: Expr, *i: Expr) -> Expr:
            value = value * scale(*i[depth:]).astype(value.ty.dtype) if attrs.scale else value
            return value + shift(*i[depth:]).astype(value.ty.dtype) if attrs.center else value

        return norm_te(data, depth, float(attrs.epsilon), dtype, affine, True, "layer_norm")

    return call_fusable(bb, compute, [source(bb, x), gamma, beta], "layer_norm")


def rms_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.rms_norm` over the last axes."""
    x, gamma = call.args
    rank = int(x.ty.ndim)
    count = trailing(call.attrs.axes, rank)
    shape = None if count is None else _shape(x, rank - count)
    if shape is None or count is None or not _shape(gamma, 0):
        return _otherwise(bb, x, call.attrs.axes, float(call.attrs.epsilon), False, (gamma, None))
    depth, dtype = rank - count, str(x.ty.dtype)

    def compute(data: te.Tensor, scale: te.Tensor) -> te.Tensor:
        def affine(value: Expr, *i: Expr) -> Expr:
            return value * scale(*i[depth:]).astype(value.ty.dtype)

        return norm_te(data, depth, float(call.attrs.epsilon), dtype, affine, False, "rms_norm")

    return call_fusable(bb, compute, [source(bb, x), gamma], "rms_norm")


def _grouped(bb: relax.BlockBuilder, call: relax.Call, groups: int | None) -> Any:
    x, gamma, beta = call.args
    shape, attrs, rank = _shape(x, 1), call.attrs, int(x.ty.ndim)
    channel, epsilon = int(attrs.channel_axis) % rank, float(attrs.epsilon)
    given = gamma if attrs.scale else None, beta if attrs.center else None
    if rank < 3 or channel != 1 or trailing(attrs.axes, rank) != rank - 2:
        if groups is None:
            return _otherwise(bb, x, attrs.axes, epsilon, True, given, None, channel)
        return Declined("channels that are not the second axis")
    if shape is None or not (_shape(gamma, 0) and _shape(beta, 0)):
        return _otherwise(bb, x, attrs.axes, epsilon, True, given, groups, channel)
    groups = groups or shape[1]
    channels, dtype = shape[1] // groups, str(x.ty.dtype)
    whole = (shape[0], groups, channels, prod(shape[2:]))

    def compute(data: te.Tensor, scale: te.Tensor, shift: te.Tensor) -> te.Tensor:
        def affine(value: Expr, n: Expr, g: Expr, c: Expr, i: Expr) -> Expr:
            value = value * scale(g * channels + c).astype(value.ty.dtype) if attrs.scale else value
            return value + shift(g * channels + c).astype(value.ty.dtype) if attrs.center else value

        return norm_te(data, 2, float(attrs.epsilon), dtype, affine, True, "group_norm")

    out = call_fusable(bb, compute, [flat(bb, source(bb, x), whole), gamma, beta], "group_norm")
    return relax.op.reshape(bb.emit(out), shape)


def group_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.group_norm`, channels second."""
    return _grouped(bb, call, int(call.attrs.num_groups))


def instance_norm(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`R.nn.instance_norm`, channels second."""
    return _grouped(bb, call, None)


LOWERS = {
    "relax.nn.softmax": _softmax(False),
    "relax.nn.log_softmax": _softmax(True),
    "relax.nn.layer_norm": layer_norm,
    "relax.nn.rms_norm": rms_norm,
    "relax.nn.group_norm": group_norm,
    "relax.nn.instance_norm": instance_norm,
}
