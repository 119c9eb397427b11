"""Remove operators that change nothing, and spell the rest in the plainest operator that does the work."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.passes.graph import (
    Call,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    ints,
    is_float,
    op_name,
    rewrite_pass,
    shape,
    sizes,
)

WHOLE = ("floor", "ceil", "round", "trunc", "mod", "floor_mod")
"""What makes whole numbers, and so places in a tensor, of numbers that others were computed from."""
COMPARED = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "quantize")
"""What else jumps where a number does not hit another one exactly."""
ON_THE_WAY = {
    *("add", "subtract", "multiply", "divide", "negative", "minimum", "maximum", "clip", "astype"),
    *("reshape", "expand_dims", "squeeze", "broadcast_to", "permute_dims", "concat", "stack", "strided_slice"),
}
"""Sums, products and moves, between a quotient and what makes whole numbers of it."""
PRODUCTS = {"float32": (-16, 16), "float64": (-16, 16), "int32": (2, 16), "int64": (2, 16)}
"""Exponents that are written as products, from and to, by type: each product rounds, and 16 bits have few digits."""
FARTHEST = 32
"""Results that are looked at behind a division."""
SHAPE_ONLY = ("broadcast_to", "strided_slice", "tile", "repeat", "nn.pad", "concat", "reshape")


@rewrite_pass("tvmopt.EliminateIdentities")
class EliminateIdentities(Rewrite):
    """Remove identities, and write powers, constant divisions and stacked sums with cheaper operators.

        Before                                        After
        R.add(x, 0), R.multiply(x, 1), R.divide(x, 1) x
        R.nn.pad(x, all zero), R.tile(x, all one)     x
        R.strided_slice(x, the whole), R.astype(x, its own type), R.broadcast_to(x, its own shape)
        R.nn.dropout(x)[0], one-element concat        x
        R.power(x, 2), R.square(x)                    R.multiply(x, x)
        R.power(x, 0.5), (x, -0.5), (x, 1), (x, 3)    R.sqrt(x), R.rsqrt(x), x, x * x * x
        R.power(x, 9), (x, -2)                        the square of x's fourth power times x, 1 / (x * x)
        R.divide(x, c)                                R.multiply(x, 1 / c)
        R.divide(1, R.sqrt(x))                        R.rsqrt(x)
        R.clip(x, lo, hi)                             R.minimum(R.maximum(x, lo), hi)
        R.gather_nd, R.take with constant indices     R.reshape, R.strided_slice, where these read the same
        R.add(R.broadcast_to(x), y)                   R.add(x, y), where y gives the result its shape
        R.sum(R.stack([a, b]), axis=0)                R.add(a, b)
        R.mean(R.stack([a, b]), axis=0)               R.multiply(R.add(a, b), 0.5)
        R.max / min (R.stack([a, b]), axis=0)         R.maximum / minimum (a, b)
        R.sum(x, axis=[0, 2])  # [1, n, m]            R.reshape(R.sum(x, axis=[2], keepdims=True))

    Applies when   the result has the operand's shape and element type (identities); the constant is one
                   number (powers); the divisor and its reciprocal hold no zero, infinity or subnormal.
    Declines when  1. the divisor holds such a number
                   2. the quotient is rounded or compared, or sums and products of it are rounded to whole
                   numbers: x * (1 / c) can miss an integer that x / c hits. PyTorch computes the places of a
                   resize so: astype(6.5 * (218 / 13)) is 108 in float32, and 6.5 * (218 * (1 / 13)) is 109.
    Gain           a read and a write each where they are not fused; 4 to 8 cycles a vector for a division,
                   some 100 for a power. An axis of one element hid that the reduced ones are rows of a tensor: a
                   maximum of 1x320x56x56 over axes 0, 2 and 3 took 16 times as long.
    Order          after FoldConstant; before the fusions, which need not know these spellings.
    """

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Rewrite one binding by the table above."""
        if isinstance(value, relax.TupleGetItem):
            drop = graph.call(value.tuple_value, "nn.dropout")
            return drop.args[0] if drop is not None and int(value.index) == 0 else None
        name = op_name(value)
        if not name:
            return None
        new = self._identity(graph, name, value)
        if new is None and name in ("gather_nd", "take"):
            new = self._gather(graph, name, value)
        if new is None and is_float(value):
            new = self._cheaper(graph, var, name, value)
        if new is None and name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "where"):
            new = self._broadcast_operand(graph, value)
        if new is None and name in ("sum", "mean", "max", "min"):
            new = self._stacked(graph, name, value)
            new = _without_unit_axes(name, value) if new is None else new
        if new is not None:
            self.applied(var, name)
        return new

    def _identity(self, graph: Graph, name: str, call: Call) -> Expr | None:
        if name == "concat":
            tensors = graph.value(call.args[0])
            one = isinstance(tensors, relax.Tuple) and len(tensors.fields) == 1
            return tensors.fields[0] if one else None
        for x, other in graph.binary(call, "add", "subtract", "multiply", "divide", "power"):
            neutral = 0.0 if name in ("add", "subtract") else 1.0
            if graph.scalar(other) == neutral and _same(x, call) and not graph.is_const(x):
                return x
        x = call.args[0] if call.args else None
        if name == "astype" or (name in SHAPE_ONLY and (name != "nn.pad" or not any(ints(call.attrs.pad_width)))):
            plain = name != "strided_slice" or len(call.args) < 5 or all(s == 1 for s in ints(call.args[4]))
            return x if plain and _same(x, call) else None
        return None

    def _cheaper(self, graph: Graph, var: Var, name: str, call: Call) -> Expr | None:
        op, x = relax.op, call.args[0]
        if name == "clip":
            low, high = (const(np.float64(a.value), like=call) for a in call.args[1:3])
            return op.minimum(op.maximum(x, low), high)
        if name == "divide" and graph.scalar(x) == 1.0 and graph.op(call.args[1]) == "sqrt":
            return op.rsqrt(graph.value(call.args[1]).args[0]) if _same(call.args[1], call) else None
        if name == "square":
            return op.multiply(x, x)
        if name == "power" and _same(x, call):
            exponent = graph.scalar(call.args[1])
            if exponent in (0.5, -0.5):
                return op.sqrt(x) if exponent == 0.5 else op.rsqrt(x)
            least, most = PRODUCTS.get(dtype(call), (2, 3))
            if exponent is not None and exponent.is_integer() and least <= exponent <= most:
                return self._products(call, int(exponent))
        if name == "divide" and not graph.is_const(x):
            divisor = graph.array(call.args[1])
            if divisor is None:
                return None
            wide = divisor.astype(np.float64)
            tiny = 2.0**-120 if dtype(call) != "float16" else 2.0**-14
            sizes = np.abs(wide)
            if not (np.isfinite(wide).all() and (sizes > tiny).all() and (sizes < 1 / tiny).all()):
                self.declined(var, "1: the divisor holds a zero, an infinity or a number near them")
                return None
            inexact = not (np.frexp(wide)[0] == 0.5).all()  # not powers of two
            if inexact and _jumps(graph, var):
                self.declined(var, "2: the quotient is rounded or compared")
                return None
            return op.multiply(x, const(1.0 / wide, like=call))
        return None

    @staticmethod
    def _products(call: Call, exponent: int) -> Expr | None:
        """A whole power with one product more, and half the exponent."""
        op, x = relax.op, call.args[0]

        def power(base: Expr, exponent: int) -> Expr:
            return base if exponent == 1 else op.power(base, const(np.float64(exponent), like=call))

        if exponent < 0:
            return op.divide(const(np.float64(1), like=call), power(x, -exponent))
        if exponent < 2:
            return None
        even = power(op.multiply(x, x), exponent // 2)
        return op.multiply(even, x) if exponent % 2 else even

    def _broadcast_operand(self, graph: Graph, call: Call) -> Expr | None:
        """An operand that is broadcast explicitly, where the operator would do it."""
        for i, arg in enumerate(call.args):
            wide = graph.call(arg, "broadcast_to")
            others = [shape(a) for k, a in enumerate(call.args) if k != i]
            narrow = shape(wide.args[0]) if wide is not None else None
            if wide is None or narrow is None or shape(call) is None or None in others:
                continue
            if np.broadcast_shapes(narrow, *[o for o in others if o is not None]) == shape(call):
                return relax.Call(
                    call.op, [*call.args[:i], wide.args[0], *call.args[i + 1 :]], call.attrs, call.ty_args
                )
        return None

    def _gather(self, graph: Graph, name: str, call: Call) -> Expr | None:
        """A gather with constant indices that reads everything in order, or a run of slices."""
        data, index = call.args
        dims, where = shape(data), graph.array(index)
        if dims is None or where is None or graph.is_const(data) or math.prod(dims) == 0 or not where.size:
            return None
        if name == "gather_nd":
            if int(call.attrs.batch_dims) or where.shape[-1] != len(dims) or where.size > 1 << 22:
                return None
            coordinates = np.where(where < 0, where + np.array(dims), where)
            flat = np.ravel_multi_index(tuple(np.moveaxis(coordinates, -1, 0)), dims, mode="clip").ravel()
            in_order = flat.size == math.prod(dims) and (flat == np.arange(flat.size)).all()
            return relax.op.reshape(data, shape(call)) if in_order else None
        if call.attrs.axis is None or where.ndim > 1:
            return None
        axis = int(call.attrs.axis) % len(dims)
        first = int(where.flat[0]) + (dims[axis] if where.flat[0] < 0 else 0)
        run = np.where(where < 0, where + dims[axis], where).ravel()
        if first < 0 or first + run.size > dims[axis] or (run != first + np.arange(run.size)).any():
            return None
        part = relax.op.strided_slice(data, [axis], [first], [first + run.size])
        return part if where.ndim else relax.op.reshape(part, shape(call))

    def _stacked(self, graph: Graph, name: str, call: Call) -> Expr | None:
        """ONNX's Sum, Mean, Max and Min of several tensors, which TVM's importer stacks on a new axis."""
        stack = graph.call(call.args[0], "stack")
        if stack is None or call.attrs.axis is None or call.attrs.keepdims:
            return None
        axes = ints(call.attrs.axis)
        if len(axes) != 1 or axes[0] != int(stack.attrs.axis or 0):
            return None
        tensors = graph.value(stack.args[0])
        fold = {"max": relax.op.maximum, "min": relax.op.minimum}.get(name, relax.op.add)
        total = tensors.fields[0]
        for t in tensors.fields[1:]:
            total = fold(total, t)
        if name == "mean":
            total = relax.op.multiply(total, const(np.float64(1 / len(tensors.fields)), like=call))
        return total if len(tensors.fields) > 1 or name != "mean" else tensors.fields[0]


def _jumps(graph: Graph, var: Var) -> bool:
    """Whether a number is compared, or rounded to a whole one, be it behind sums, products and moves."""
    seen, left = {var}, [var]
    while left and len(seen) < FARTHEST:
        number = left.pop()
        for user in graph.users(number):
            name = "" if isinstance(user, str) else graph.op(user)
            if name in WHOLE or (name == "astype" and not is_float(user)) or (number is var and name in COMPARED):
                return True
            if not isinstance(user, str) and name in ON_THE_WAY and user not in seen:
                seen.add(user)
                left.append(user)
    return False


def _without_unit_axes(name: str, call: Call) -> Expr | None:
    """A reduction of a tensor with axes of one element, over axes that lie together: those of one element are reduced
    exactly where the nearest longer axis before them is. A reduction of everything stays one."""
    dims = shape(call.args[0])
    if dims is None:  # a reshape between open sizes is no loop over rows
        return None
    axes = range(len(dims)) if call.attrs.axis is None else sorted(a % len(dims) for a in ints(call.attrs.axis))
    long = [a for a, d in enumerate(dims) if d != 1]
    if not any(a in axes for a in long):
        return call.args[0] if call.attrs.keepdims else relax.op.reshape(call.args[0], call.ty.shape)
    before = [max((b for b in long if b <= a), default=-1) for a in range(len(dims))]
    wanted = [a for a in range(len(dims)) if before[a] in axes]
    if wanted == list(axes) or all(a in axes for a in long):
        return None
    reduced = getattr(relax.op, name)(call.args[0], wanted, keepdims=True)
    return reduced if call.attrs.keepdims else relax.op.reshape(reduced, call.ty.shape)


def _same(x: Expr, call: Call) -> bool:
    """Whether the operand has the result's shape, open sizes included, and its element type."""
    return sizes(x) is not None and sizes(x) == sizes(call) and dtype(x) == dtype(call)
