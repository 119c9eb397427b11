"""Move transposes down the graph until they meet their inverses - what makes a whole-graph layout free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.dims import Size
from tvmopt.passes.graph import (
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    ints,
    name_of,
    op_name,
    rank,
    rewrite_pass,
    shape,
    sizes,
    with_attrs,
)
from tvmopt.passes.permute import (
    Perm,
    compose,
    identity,
    inverse,
    moves_data,
    permuted,
    reshape_of_permuted,
    split_again,
)

# fmt: off
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "isfinite", "isinf", "isnan", "log", "logical_not", "negative", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "bitwise_not", "astype",
    "clip", "nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.selu", "nn.softplus",
    "add", "subtract", "multiply", "divide", "floor_divide", "mod", "floor_mod", "power", "maximum",
    "minimum", "atan2", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
    "left_shift", "right_shift", "where", "tvmopt.scaled_sum",
))
# fmt: on
RESHAPES = ("reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten")
REDUCTIONS = ("mean", "sum", "max", "min", "prod", "variance", "std")
Source = tuple[Expr, Perm]  # the tensor before the transpose, and the permutation


@rewrite_pass("tvmopt.PropagateTransposes")
class PropagateTransposes(Rewrite):
    """Move a transpose from an operator's operands to its result, and cancel it where it meets its inverse.

        Before                                          After
        t = R.permute_dims(z, axes=[0, 3, 1, 2])        y = R.nn.relu(z)
        r = R.nn.relu(t)                                n = R.mean(y, axis=[1, 2])
        m = R.mean(r, axis=[2, 3])

    Through elementwise operators (constants are transposed now), pooling, resizing, concatenation, splits,
    slices, padding, reductions, softmax and normalisations, and reshapes that keep groups of axes apart. A transpose
    between two reshapes of which one takes apart what the other has put together is one of all axes.

    Applies when   the operator commutes with the transpose and no operand needs a new transpose that moves
                   data; or it needs one, and a transpose further down cancels in return.
    Declines when  1. another operand would have to be transposed and nothing further down cancels
                   2. softmax or a normalisation would leave the innermost axis
                   3. the reshape mixes axes that the transpose separates
    Gain           a read and a write of the tensor for each transpose cancelled.
    Order          after ConvertLayout, which creates them, and after the fusions, which know BSNH from BNSH.
    """

    rounds = 6

    def begin(self, graph: Graph) -> None:
        """Forget the splits of the last sweep."""
        self.splits: dict[Any, Expr] = {}

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite any binding whose operand is a transpose."""
        if isinstance(value, relax.TupleGetItem):
            return self._split(graph, var, value)
        name = op_name(value)
        if name == "permute_dims":
            return self._permute(graph, value)
        if name in RESHAPES:
            return self._reshape(graph, var, value)
        if name in ELEMENTWISE:
            return self._operands(graph, var, value, value.args, lambda args, perm: with_attrs(value, args))
        if name == "concat":
            return self._concat(graph, var, value)
        found = source(graph, value.args[0]) if name and value.args else None
        if found is None or name not in RULES:
            return None
        new = RULES[name](graph, value, *found)
        if isinstance(new, str):
            self.declined(var, new)
            return None
        if new is not None:
            self.applied(var, name)
        return new

    def _permute(self, graph: Graph, value: Call) -> Expr | None:
        axes = axes_of(value)
        found = source(graph, value.args[0])
        if found is None:
            return value.args[0] if identity(axes) else None
        z, first = found
        both = compose(first, axes)
        return z if identity(both) else relax.op.permute_dims(z, both)

    def _reshape(self, graph: Graph, var: Var, value: Call) -> Expr | None:
        found, target = source(graph, value.args[0]), shape(value)
        if found and (whole := self._between(graph, value, *found)) is not None:
            self.applied(var, "between reshapes")
            return whole
        if target is None:
            return self._units(var, value, *found) if found else None
        inner = graph.call(value.args[0], *RESHAPES)
        if inner is not None and shape(inner.args[0]) is not None:
            return inner.args[0] if shape(inner.args[0]) == target else relax.op.reshape(inner.args[0], target)
        if found is None:
            return None
        z, perm = found
        dims = shape(z)
        if dims is None:
            return None
        if not moves_data(perm, dims):
            return relax.op.reshape(z, target)
        swap = reshape_of_permuted(dims, perm, target)
        if swap is None:
            self.declined(var, "3: the reshape merges axes that the transpose has moved apart")
            return None
        q, middle, r = swap
        if q is not None:
            if not cancels_below(graph, var, r):
                return None
            z = relax.op.permute_dims(z, q)
        self.applied(var, "reshape")
        return relax.op.permute_dims(relax.op.reshape(z, middle), r)

    @staticmethod
    def _between(graph: Graph, value: Call, merged: Expr, perm: Perm) -> Expr | None:
        """A transpose between two reshapes as one of the tensor before them."""
        inner = graph.call(merged, *RESHAPES)
        if inner is None:
            return None
        before, between, after = (sizes(tensor) for tensor in (inner.args[0], merged, value))
        if before is None or between is None or after is None:
            return None
        axes = split_again(before, between, perm, after)
        return None if axes is None else relax.op.permute_dims(inner.args[0], axes)

    def _units(self, var: Var, value: Call, z: Expr, perm: Perm) -> Expr | None:
        """A reshape of open sizes that only adds or removes axes of 1."""
        dims, target = sizes(z), sizes(value)
        if dims is None or target is None or _beside_units(permuted(perm, dims)) != _beside_units(target):
            return None
        if not moves_data(perm, dims):
            return relax.op.reshape(z, value.ty.shape)
        swap = reshape_of_permuted(dims, perm, target)
        if swap is None:
            return None
        self.applied(var, "reshape")
        middle = permuted(inverse(swap[2]), value.ty.shape.values)
        return relax.op.permute_dims(relax.op.reshape(z, middle), swap[2])

    def _operands(
        self,
        graph: Graph,
        var: Var,
        value: Call,
        tensors: Sequence[Expr],
        rebuild: Callable[[list[Expr], Perm], Expr],
        broadcast: bool = True,
    ) -> Expr | None:
        """Transpose the other operands too (constants now), and the result back."""
        ndim = rank(value)
        found = [s for t in tensors if (s := source(graph, t)) is not None and rank(t) == ndim]
        if not found:
            return None
        perm = max(found, key=lambda s: int(np.prod(shape(s[0]) or (0,))))[1]
        new, costly = [], False
        for t in tensors:
            moved = self._moved(graph, t, perm, ndim, broadcast)
            if moved is None:
                return None
            operand, cost = moved
            costly |= cost
            new.append(operand)
        if costly and not cancels_below(graph, var, perm):
            self.declined(var, "1: another operand would have to be transposed, and nothing below cancels")
            return None
        self.applied(var, op_name(value))
        return relax.op.permute_dims(rebuild(new, perm), perm)

    def _moved(self, graph: Graph, t: Expr, perm: Perm, ndim: int, broadcast: bool) -> tuple[Expr, bool] | None:
        """The operand in the source's layout, and whether that takes a transpose that moves data."""
        found = source(graph, t)
        if found is not None and found[1] == perm:
            return found[0], False
        dims = shape(t)
        if rank(t) <= 0:
            return t, False  # a scalar, or the bound of a clip
        if dims is None or len(dims) > ndim or (len(dims) < ndim and not broadcast):
            return None
        full = (1,) * (ndim - len(dims)) + dims
        if broadcast and all(n == 1 for n in full):
            return t, False
        back = inverse(perm)
        data = graph.array(t)
        if data is not None:
            return const(np.transpose(data.reshape(full), back)), False
        t = t if len(dims) == ndim else relax.op.reshape(t, full)
        if found is not None and len(dims) == ndim:
            z, other = found
            both = compose(other, back)
            return relax.op.permute_dims(z, both), moves_data(both, shape(z) or full)
        return relax.op.permute_dims(t, back), moves_data(back, full)

    def _concat(self, graph: Graph, var: Var, value: Call) -> Expr | None:
        tensors = graph.value(value.args[0])
        if not isinstance(tensors, relax.Tuple):
            return None
        axis = int(value.attrs.axis or 0) % rank(value)
        return self._operands(
            graph,
            var,
            value,
            list(tensors.fields),
            lambda args, perm: relax.op.concat(args, axis=perm[axis]),
            broadcast=False,
        )

    def _split(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        split = graph.call(value.tuple_value, "split")
        found = source(graph, split.args[0]) if split is not None else None
        if split is None or found is None:
            return None
        z, perm = found
        if value.tuple_value not in self.splits:
            moved = with_attrs(split, [z], axis=perm[int(split.attrs.axis) % len(perm)])
            self.splits[value.tuple_value] = graph.emit(moved, name_of(var))
        self.applied(var, "split")
        return relax.op.permute_dims(relax.TupleGetItem(self.splits[value.tuple_value], value.index), perm)


def axes_of(permute: Call) -> Perm:
    """The axes of a permute_dims; without any it reverses them."""
    n = rank(permute.args[0])
    axes = permute.attrs.axes
    return tuple(reversed(range(n))) if axes is None else tuple(a % n for a in ints(axes))


def source(graph: Graph, expr: Expr) -> Source | None:
    """What a transposed tensor is the transpose of."""
    call = graph.call(expr, "permute_dims")
    return None if call is None or rank(call) < 0 else (call.args[0], axes_of(call))


def _beside_units(dims: Sequence[Size]) -> list[Size]:
    """The sizes other than 1."""
    return [size for size in dims if size != 1]


def cancels_below(graph: Graph, var: Var, perm: Perm, most: int = 200) -> bool:
    """Whether some path down from `var`, through operators that transposes pass, undoes `perm`."""
    undo, seen, queue = inverse(perm), {var}, [var]
    while queue and most:
        most -= 1
        for user in graph.users(queue.pop(0)):
            if isinstance(user, str) or user in seen:
                continue
            value = graph.value(user)
            name = op_name(value)
            if name == "permute_dims":
                if axes_of(value) == undo:
                    return True
            elif name in ELEMENTWISE or name in RULES or name == "concat" or isinstance(value, relax.Tuple):
                seen.add(user)
                queue.append(user)
    return False


# ---- operators with axes: rule(graph, call, z, perm) -> new value, a reason, or None


def _reduce(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    n = len(perm)
    if call.attrs.axis is None:
        return with_attrs(call, [z]) if not call.attrs.keepdims else None
    axes = [a % n for a in ints(call.attrs.axis)]
    new = with_attrs(call, [z], axis=sorted(perm[a] for a in axes))
    if call.attrs.keepdims:
        return relax.op.permute_dims(new, perm)
    left = [perm[i] for i in range(n) if i not in axes]
    order = tuple(sorted(left).index(a) for a in left)
    return new if identity(order) else relax.op.permute_dims(new, order)


def _softmax(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    n = len(perm)
    axis = int(call.attrs.axis) % n
    if axis == n - 1 and perm[axis] != n - 1:
        return "2: softmax would leave the innermost axis"
    return relax.op.permute_dims(with_attrs(call, [z], axis=perm[axis]), perm)


def _layer_norm(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    n = len(perm)
    axes = [perm[a % n] for a in ints(call.attrs.axes)]
    if axes != list(range(n - len(axes), n)):
        return "2: the normalised axes would not be the innermost"
    return relax.op.permute_dims(with_attrs(call, [z, *call.args[1:]], axes=axes), perm)


def _channel_norm(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    n = len(perm)
    channel = perm[int(call.attrs.channel_axis) % n]
    axes = sorted(perm[a % n] for a in ints(call.attrs.axes))
    new = with_attrs(call, [z, *call.args[1:]], channel_axis=channel, axes=axes)
    return relax.op.permute_dims(new, perm)


def _axis(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    if call.attrs.axis is None:
        return None
    axis = perm[int(call.attrs.axis) % len(perm)]
    return relax.op.permute_dims(with_attrs(call, [z, *call.args[1:]], axis=axis), perm)


def _take(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    return _axis(graph, call, z, perm) if rank(call.args[1]) == 1 else None


def _arg_reduce(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    return _axis(graph, call, z, perm) if call.attrs.keepdims else None


def _slice(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    try:
        axes, *rest = (ints(a) for a in call.args[1:])
    except TypeError:
        return None
    axes = [perm[a % len(perm)] for a in axes]
    new = relax.op.strided_slice(z, axes, *rest, assume_inbound=bool(call.attrs.assume_inbound))
    return relax.op.permute_dims(new, perm)


def _pad(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    width = ints(call.attrs.pad_width)
    pairs = [width[2 * i : 2 * i + 2] for i in inverse(perm)]
    return relax.op.permute_dims(with_attrs(call, [z], pad_width=[w for p in pairs for w in p]), perm)


def _layout(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    """Pooling and resizing carry their layout as a string; TVM knows channels first and channels last."""
    old = str(call.attrs.layout)
    if perm[:2] == (0, 1) and old == "NCDHW" and op_name(call) in ("nn.max_pool3d", "nn.avg_pool3d"):
        return _window(call, z, perm)
    new = "".join(permuted(inverse(perm), old)) if len(old) == len(perm) else ""
    if new not in ("NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"):
        return None
    changes = {"layout": new, **({"out_layout": new} if hasattr(call.attrs, "out_layout") else {})}
    return relax.op.permute_dims(with_attrs(call, [z, *call.args[1:]], **changes), perm)


def _window(call: Call, z: Expr, perm: Perm) -> Expr:
    """The spatial axes of a pooling window change places, its sizes with them (LRN pools the channels)."""
    spatial = [a - 2 for a in inverse(perm)[2:]]
    changes = {k: permuted(spatial, ints(getattr(call.attrs, k))) for k in ("pool_size", "strides", "dilation")}
    before, after = ints(call.attrs.padding)[:3], ints(call.attrs.padding)[3:]
    padding = permuted(spatial, before) + permuted(spatial, after)
    return relax.op.permute_dims(with_attrs(call, [z], padding=padding, **changes), perm)


def _pixel_shuffle(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    dims, r = shape(z), int(call.attrs.upscale_factor)
    if dims is None or perm != (0, 3, 1, 2):
        return None
    n, h, w, c = dims
    six = relax.op.permute_dims(relax.op.reshape(z, (n, h, w, c // (r * r), r, r)), (0, 1, 4, 2, 5, 3))
    return relax.op.permute_dims(relax.op.reshape(six, (n, h * r, w * r, c // (r * r))), perm)


def _broadcast(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    target = shape(call)
    if target is None or len(target) != len(perm):
        return None
    return relax.op.permute_dims(relax.op.broadcast_to(z, permuted(inverse(perm), target)), perm)


def _quantize(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    return _axis(graph, call, z, perm)


def _lookup(graph: Graph, call: Call, z: Expr, perm: Perm) -> Expr | str | None:
    return relax.op.permute_dims(with_attrs(call, [z, call.args[1]]), perm)


RULES: dict[str, Callable[[Graph, Call, Expr, Perm], Expr | str | None]] = {
    **dict.fromkeys(REDUCTIONS, _reduce),
    "nn.softmax": _softmax,
    "nn.log_softmax": _softmax,
    "nn.layer_norm": _layer_norm,
    "nn.instance_norm": _channel_norm,
    "nn.group_norm": _channel_norm,
    "nn.prelu": _axis,
    "flip": _axis,
    "cumsum": _axis,
    "quantize": _quantize,
    "dequantize": _quantize,
    "tvmopt.lookup": _lookup,
    "take": _take,
    "argmax": _arg_reduce,
    "argmin": _arg_reduce,
    "strided_slice": _slice,
    "nn.pad": _pad,
    "nn.max_pool2d": _layout,
    "nn.avg_pool2d": _layout,
    "nn.adaptive_avg_pool2d": _layout,
    "nn.max_pool1d": _layout,
    "nn.avg_pool1d": _layout,
    "nn.max_pool3d": _layout,
    "nn.avg_pool3d": _layout,
    "image.resize2d": _layout,
    "nn.pixel_shuffle": _pixel_shuffle,
    "broadcast_to": _broadcast,
}
