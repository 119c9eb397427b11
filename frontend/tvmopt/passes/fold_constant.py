"""Evaluate constant subexpressions with NumPy - so that every later pass sees weights as constants.

TVM's own FoldConstant compiles and runs each expression with LLVM: 14 s for the weights of a ResNet-50,
40 s for a DenseNet-121. NumPy takes milliseconds; TVM's evaluator remains for small leftovers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmopt.floats import HALVES
from tvmopt.operators.checks import OP, check_of
from tvmopt.passes.cancel_duplicates import call_key
from tvmopt.passes.graph import (
    Array,
    Call,
    Constant,
    Expr,
    Graph,
    Rewrite,
    Var,
    const,
    dtype,
    ints,
    op_name,
    rewrite_pass,
    shape,
)

MOST_BYTES = 1 << 31  # a folded constant is never larger: `Expand` to a terabyte is not a weight
LEFTOVER = 1 << 16  # elements that TVM's evaluator is asked for
INEXACT = ("nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.rms_norm", "nn.batch_norm", "variance", "std")


def _axes(call: Call, ndim: int) -> tuple[int, ...] | None:
    axis = call.attrs.axis
    return None if axis is None else tuple(int(a) % ndim for a in ints(axis))


def _reduce(fn: Callable[..., Array]) -> Callable[[Call, list[Array]], Array]:
    """A reduction; numbers of 16 bits are added up in float32, as at run time."""

    def run(call: Call, a: list[Array]) -> Array:
        wide = a[0].astype(np.float32) if dtype(call.args[0]) in HALVES else a[0]
        return fn(wide, axis=_axes(call, wide.ndim), keepdims=bool(call.attrs.keepdims))

    return run


def _sized(call: Call, arg: int = 1) -> list[int]:
    return ints(call.args[arg])


def _slice(call: Call, a: list[Array]) -> Array:
    axes, begin, end = (ints(call.args[i]) for i in (1, 2, 3))
    step = ints(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    index: list[slice] = [slice(None)] * a[0].ndim
    for ax, b, e, s in zip(axes, begin, end, step, strict=True):
        if s <= 0:
            raise NotImplementedError("negative steps: TVM's rules differ from NumPy's")
        index[ax] = slice(b, e, s)
    return a[0][tuple(index)]


def _take(call: Call, a: list[Array]) -> Array:
    axis = call.attrs.axis
    data = a[0] if axis is not None else a[0].reshape(-1)
    axis = 0 if axis is None else int(axis)
    size = data.shape[axis]
    index = np.where(a[1] < 0, a[1] + size, a[1])
    if ((index < 0) | (index >= size)).any():
        raise NotImplementedError("index out of range")
    return np.take(data, index, axis=axis)


def _checked(call: Call, a: list[Array]) -> Array:
    rule = check_of(call)
    if not rule.allows(a[0]):
        raise NotImplementedError("the check fails, at run time")
    return rule.passed(a[0])


def _divide(call: Call, a: list[Array]) -> Array:
    if a[0].dtype.kind in "iu":
        if not np.asarray(a[1]).all():
            raise NotImplementedError("division by zero")
        return np.asarray(np.trunc(a[0] / a[1])) if a[0].dtype.itemsize < 8 else _int_divide(a[0], a[1])
    return np.asarray(a[0] / a[1])


def _int_divide(x: Array, y: Array) -> Array:
    q = np.abs(x) // np.abs(y)
    return np.asarray(np.where((x < 0) != (y < 0), -q, q))


def _pad(call: Call, a: list[Array]) -> Array:
    if str(call.attrs.pad_mode) != "constant":
        raise NotImplementedError
    w = ints(call.attrs.pad_width)
    return np.pad(
        a[0],
        [(w[2 * i], w[2 * i + 1]) for i in range(a[0].ndim)],
        constant_values=float(call.attrs.pad_value),
    )


def _scipy(name: str) -> Callable[[Call, list[Array]], Array]:
    """A function of `scipy.special`, which is imported when it is first called: few models need it at compile
    time."""

    def fn(x: Array) -> Array:
        from scipy import special

        return np.asarray(getattr(special, name)(x))

    return _unary(fn)


def _unary(fn: Callable[[Array], Array]) -> Callable[[Call, list[Array]], Array]:
    return lambda call, a: np.asarray(fn(a[0]))


def _binary(fn: Callable[[Array, Array], Array]) -> Callable[[Call, list[Array]], Array]:
    return lambda call, a: np.asarray(fn(a[0], a[1]))


# The tensor arguments of a call, in order, are the list `a`; the result is cast to the call's element type.
EVALUATE: dict[str, Callable[[Call, list[Array]], Array]] = {
    "permute_dims": lambda c, a: np.transpose(a[0], None if c.attrs.axes is None else ints(c.attrs.axes)),
    "reshape": lambda c, a: a[0].reshape(shape(c)),
    "flatten": lambda c, a: a[0].reshape(-1),
    "squeeze": lambda c, a: a[0].reshape(shape(c)),
    "expand_dims": lambda c, a: a[0].reshape(shape(c)),
    "broadcast_to": lambda c, a: np.broadcast_to(a[0], _sized(c)),
    "concat": lambda c, a: np.concatenate(a, axis=0 if c.attrs.axis is None else int(c.attrs.axis)),
    "stack": lambda c, a: np.stack(a, axis=0 if c.attrs.axis is None else int(c.attrs.axis)),
    "strided_slice": _slice,
    "take": _take,
    OP: _checked,
    "tile": lambda c, a: np.tile(a[0], ints(c.attrs.repeats)),
    "repeat": lambda c, a: np.repeat(
        a[0], int(c.attrs.repeats), axis=None if c.attrs.axis is None else int(c.attrs.axis)
    ),
    "flip": lambda c, a: np.flip(a[0], axis=int(c.attrs.axis)),
    "nn.pad": _pad,
    "astype": lambda c, a: a[0],
    "full": lambda c, a: np.broadcast_to(a[0], _sized(c, 0)),
    "full_like": lambda c, a: np.broadcast_to(a[1], a[0].shape),
    "zeros": lambda c, a: np.zeros(_sized(c, 0)),
    "ones": lambda c, a: np.ones(_sized(c, 0)),
    "zeros_like": lambda c, a: np.zeros_like(a[0]),
    "ones_like": lambda c, a: np.ones_like(a[0]),
    "where": lambda c, a: np.where(a[0], a[1], a[2]),
    "divide": _divide,
    "add": _binary(np.add),
    "subtract": _binary(np.subtract),
    "multiply": _binary(np.multiply),
    "power": _binary(np.power),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "equal": _binary(np.equal),
    "not_equal": _binary(np.not_equal),
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "logical_and": _binary(np.logical_and),
    "logical_or": _binary(np.logical_or),
    "logical_not": _unary(np.logical_not),
    "negative": _unary(np.negative),
    "abs": _unary(np.abs),
    "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(lambda x: np.asarray(1 / np.sqrt(x))),
    "exp": _unary(np.exp),
    "log": _unary(np.log),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "tanh": _unary(np.tanh),
    "erf": _scipy("erf"),
    "sigmoid": _scipy("expit"),
    "floor": _unary(np.floor),
    "ceil": _unary(np.ceil),
    "square": _unary(np.square),
    "nn.relu": _unary(lambda x: np.maximum(x, 0)),
    "mean": _reduce(np.mean),
    "sum": _reduce(np.sum),
    "max": _reduce(np.max),
    "min": _reduce(np.min),
}


@rewrite_pass("tvmopt.FoldConstant")
class FoldConstant(Rewrite):
    """Evaluate calls whose operands are all constants.

        Before                                            After
        w = R.permute_dims(const, axes=[1, 0])            y = R.matmul(x, const')
        y = R.matmul(x, w)

    Applies when   every operand is a constant and the result's shape is static.
    Declines when  1. the result would exceed 2 GiB
                   2. neither NumPy nor (up to 65536 elements) TVM evaluates the operator
                      (which loses what is no number, and makes something up for a maximum of nothing, so it is not
                      asked where an operand has a NaN or an infinity, or no elements)
                   3. the result has no elements: an executable with a constant of no bytes cannot be loaded
    Gain           the whole expression, at every inference; weights that layers share stay one constant, as equal
                   calls are folded once. Evaluated in the operands' own element type, as
                   at run time; erf and sigmoid by SciPy.
    Order          first, and again after any pass that leaves constant expressions.
    """

    rounds = 1  # operands come before their users: one sweep folds whole trees

    def begin(self, graph: Graph) -> None:
        """Forget the last sweep's expressions."""
        self.made: dict[Hashable, Expr] = {}

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """Replace a constant call by its value."""
        name = op_name(value)
        if name == "shape_to_tensor":
            return _shape_constant(graph, value)
        if name == "split" and graph.is_const(value.args[0]):
            return None  # its parts fold one by one, below
        if isinstance(value, relax.TupleGetItem):
            return self._part_of_split(graph, value)
        if not name or not self._all_const(graph, value):
            return None
        key = call_key(graph, value)
        if key not in self.made:
            found = self._folded(graph, var, name, value)
            if found is None:
                return None
            self.made[key] = found
        self.applied(var)
        return self.made[key]

    def _folded(self, graph: Graph, var: Var, name: str, value: Call) -> Expr | None:
        """The value of a call whose operands are constants, or None."""
        dims = shape(value)
        if dims is None:
            return None
        size = math.prod(dims)
        if size == 0:
            self.declined(var, f"3: {name} of constants has no elements")
            return None
        if size * np.dtype("float64").itemsize > MOST_BYTES * 2:
            self.declined(var, f"1: {name} would make a constant of {size} elements")
            return None
        result = self._evaluate(graph, name, value)
        if result is None:
            asked = size <= LEFTOVER and not _refused(name, value) and self._all_numbers(graph, value)
            result = _ask_tvm(graph, value) if asked else None
        if result is None or result.shape != dims:
            self.declined(var, f"2: {name} of constants is left to run time")
            return None
        return const(result, like=value)

    @staticmethod
    def _all_const(graph: Graph, call: Call) -> bool:
        tensors = [t for a in call.args for t in (a.fields if isinstance(a, relax.Tuple) else [a])]
        if any(isinstance(graph.value(t), relax.Function | relax.If | tvm.ir.GlobalVar) for t in tensors):
            return False
        plain = (relax.ShapeExpr, tvm.tirx.IntImm, tvm.tirx.FloatImm)
        if not all(graph.is_const(t) or isinstance(t, plain) for t in tensors):
            return False
        return any(graph.is_const(t) for t in tensors) or op_name(call) in ("zeros", "ones")

    @staticmethod
    def _all_numbers(graph: Graph, call: Call) -> bool:
        """Whether no operand has a NaN or an infinity, which TVM's own kernels lose, or no elements, of which they
        reduce to what was in memory."""
        tensors = [t for a in call.args for t in (a.fields if isinstance(a, relax.Tuple) else [a])]
        arrays = [a for t in tensors if (a := graph.array(t)) is not None]
        return all(a.size and (a.dtype.kind in "iub" or bool(np.isfinite(a).all())) for a in arrays)

    @staticmethod
    def _evaluate(graph: Graph, name: str, call: Call) -> Array | None:
        fn = EVALUATE.get(name)
        tensors = [t for a in call.args for t in (a.fields if isinstance(a, relax.Tuple) else [a])]
        arrays: list[Array] = [a for t in tensors if (a := graph.array(t)) is not None]
        if fn is None:
            return None
        try:
            with np.errstate(all="ignore"):
                return fn(call, arrays)
        except (NotImplementedError, ValueError, TypeError, IndexError):
            return None

    def _part_of_split(self, graph: Graph, value: Expr) -> Expr | None:
        split = graph.call(value.tuple_value, "split")
        data = graph.array(split.args[0]) if split is not None else None
        if split is None or data is None or shape(value) is None:
            return None
        axis, parts = int(split.attrs.axis), split.attrs.indices_or_sections
        if isinstance(parts, int | tvm.tirx.IntImm):
            pieces = np.array_split(data, int(parts), axis=axis)
        else:
            pieces = np.split(data, ints(parts), axis=axis)
        piece = pieces[int(value.index)]
        return const(piece) if piece.shape == shape(value) else None


def _refused(name: str, call: Call) -> bool:
    """Whether TVM's own kernel must not be asked: a run refuses this call (it would divide by zero, or clamp), or the
    kernel is less exact than ours (a variance by E[x^2] - E[x]^2)."""
    divides = name in ("divide", "floor_divide", "mod", "floor_mod") and "float" not in dtype(call)
    return divides or name in (OP, *INEXACT)


def _shape_constant(graph: Graph, call: Call) -> Expr | None:
    """The shape of a tensor, read as numbers."""
    what = graph.value(call.args[0])
    dims = shape(what.args[0]) if op_name(what) == "shape_of" else None
    try:
        dims = tuple(ints(what)) if isinstance(what, relax.ShapeExpr) else dims
    except TypeError:
        return None
    return None if dims is None else const(np.array(dims, dtype="int64"))


def _ask_tvm(graph: Graph, call: Call) -> Array | None:
    """TVM's own evaluator on this one call."""
    inline = relax.Call(call.op, [_inlined(graph, a) for a in call.args], call.attrs, call.ty_args)
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(inline))
        builder.emit_func_output(out)
    try:
        folded: Any = relax.transform.FoldConstant()(builder.get())
    except (RuntimeError, ValueError, TypeError):  # an operator that TVM cannot legalise either
        return None
    body = folded["main"].body
    result = body.blocks[0].bindings[-1].value if body.blocks else body.body
    return result.value.numpy() if isinstance(result, Constant) and dtype(result) == dtype(call) else None


def _inlined(graph: Graph, arg: Expr) -> Expr:
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([_inlined(graph, f) for f in arg.fields])
    return graph.value(arg)
