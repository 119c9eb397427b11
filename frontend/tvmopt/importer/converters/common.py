"""The small words converters are written in: shapes, constants, arithmetic on Relax expressions - for
authors of converters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvmopt.dims import Dim, OpenSize, Size, is_open
from tvmopt.floats import HALVES
from tvmopt.importer import sizes
from tvmopt.importer.converters.context import Context, Converter, Inputs, Result


def shape_of(expr: Any) -> tuple[Size, ...]:
    """The shape; an open size is a `tvmopt.dims.Dim`, with which one computes as with an integer.

    Raises:
        OpenSize: a size is not known even by name.
    """
    shape = sizes.shape_of(expr)
    if shape is None:
        raise OpenSize("a size of its input is decided by values")
    return shape


def dtype_of(expr: Any) -> str:
    """The dtype, by name."""
    return str(expr.ty.dtype)


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def const(value: Any, dtype: str) -> Any:
    """A constant tensor of that dtype."""
    if dtype == "bfloat16":
        import ml_dtypes

        return relax.const(np.asarray(value, dtype=np.float32).astype(ml_dtypes.bfloat16), dtype)
    return relax.const(np.asarray(value).astype(dtype), dtype)


def like(value: Any, expr: Any) -> Any:
    """A scalar constant of `expr`'s dtype."""
    return const(value, dtype_of(expr))


def places(count: Any) -> te.Tensor:
    """The integers 0 .. count - 1, in TE."""
    return te.compute((count,), lambda i: tirx.Cast("int64", i), name="places")


def one_number(value: Any) -> te.Tensor:
    """A number [1], in TE."""
    return te.compute((1,), lambda i: tirx.Cast("int64", value), name="number")


class Build:
    """Relax operators on expressions whose type is needed at once: each call emits one binding.

    Binary operators take Python numbers, which become constants of the other side's dtype.
    """

    def __init__(self, bb: relax.BlockBuilder, name: str = "") -> None:
        hint = "".join(c if c.isalnum() else "_" for c in name) or "v"
        self.bb, self.name = bb, "n_main" if hint == "main" else hint  # the builder would rename the function `main`

    def emit(self, expr: Any) -> Any:
        """Bind an expression (constants and variables stay what they are)."""
        if isinstance(expr, relax.Var | tvm.ir.GenericConst):
            return expr
        return self.bb.emit(expr, self.name)

    def te(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A TE computation as one kernel."""
        return self.bb.emit(self.bb.call_te(fn, *args, primfunc_name_hint=fn.__name__.strip("_"), **kwargs), self.name)

    def _binary(self, op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        if not isinstance(a, tvm.ir.Expr):
            a = like(a, b)
        if not isinstance(b, tvm.ir.Expr):
            b = like(b, a)
        return self.emit(op(a, b))

    def add(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.add, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.subtract, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.multiply, a, b)

    def div(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.divide, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.maximum, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.minimum, a, b)

    def less(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.less, a, b)

    def greater(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.greater, a, b)

    def greater_equal(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.greater_equal, a, b)

    def less_equal(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.less_equal, a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return self._binary(relax.op.equal, a, b)

    def both(self, a: Any, b: Any) -> Any:
        return self.emit(relax.op.logical_and(a, b))

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if not isinstance(a, tvm.ir.Expr):
            a = like(a, b)
        if not isinstance(b, tvm.ir.Expr):
            b = like(b, a)
        return self.emit(relax.op.where(condition, a, b))

    def unary(self, op: Callable[[Any], Any], a: Any) -> Any:
        """An operator that TVM has for float32 and float64 only, on low-precision floats too."""
        return self.cast(self.emit(op(self.wide(a))), dtype_of(a))

    def cast(self, a: Any, dtype: str) -> Any:
        """Convert to `dtype`, or nothing if it is that already."""
        return a if dtype_of(a) == dtype else self.emit(relax.op.astype(a, dtype))

    def wide(self, a: Any) -> Any:
        """float16 and bfloat16 in float32; others as they are."""
        return self.cast(a, "float32") if dtype_of(a) in HALVES else a

    def reshape(self, a: Any, shape: Sequence[Size]) -> Any:
        """Reshape to known dimensions (no -1), or nothing if it has that shape."""
        if 0 in shape:  # which TVM takes for "as before"
            return self.zeros(shape, dtype_of(a))
        return a if shape_of(a) == tuple(shape) else self.emit(relax.op.reshape(a, sizes.shape_to_tvm(shape)))

    def full(self, shape: Sequence[Size], value: Any, dtype: str) -> Any:
        """A tensor of one number; a constant where its sizes are known."""
        return self.broadcast(const(value, dtype), shape) if is_open(shape) else const(np.full(shape, value), dtype)

    def zeros(self, shape: Sequence[Size], dtype: str) -> Any:
        """Likewise of zeros."""
        if is_open(shape):
            return self.emit(relax.op.zeros(sizes.shape_to_tvm(shape), dtype))
        return const(np.zeros(shape), dtype)

    def ones(self, shape: Sequence[Size], dtype: str) -> Any:
        """Likewise of ones."""
        if is_open(shape):
            return self.emit(relax.op.ones(sizes.shape_to_tvm(shape), dtype))
        return const(np.ones(shape), dtype)

    def sizes(self, shape: Sequence[Any]) -> Any:
        """A tensor [len(shape)] int64 of sizes as TVM has them."""
        tensor = self.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(shape))))
        return self.bb.match_cast(tensor, relax.TensorType([len(shape)], "int64"))

    def arange(self, count: Size) -> Any:
        """The integers 0 .. count - 1, int64."""
        if not isinstance(count, Dim):
            return const(np.arange(count), "int64")
        return self.te(places, sizes.to_tvm(count))

    def number(self, value: Size) -> Any:
        """A size as a tensor [1], int64."""
        if not isinstance(value, Dim):
            return const([value], "int64")
        return self.te(one_number, sizes.to_tvm(value))

    def transpose(self, a: Any, axes: Sequence[int]) -> Any:
        """Permute the dimensions, or nothing for the identity."""
        axes = [int(x) for x in axes]
        return a if axes == list(range(len(axes))) else self.emit(relax.op.permute_dims(a, axes))

    def broadcast(self, a: Any, shape: Sequence[Size]) -> Any:
        """Broadcast, or nothing if it has that shape."""
        return a if shape_of(a) == tuple(shape) else self.emit(relax.op.broadcast_to(a, sizes.shape_to_tvm(shape)))

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        """Concatenate; empty parts are left out."""
        full = [p for p in parts if 0 not in shape_of(p)] or [parts[0]]
        return full[0] if len(full) == 1 else self.emit(relax.op.concat(full, axis))

    def slice(self, a: Any, axis: int, begin: Size, end: Size, step: int = 1) -> Any:
        """``a[..., begin:end:step, ...]`` along one axis, ``0 <= begin <= end <= size``."""
        if (begin, end, step) == (0, shape_of(a)[axis], 1):
            return a
        # inside: TVM's own bounds of open sizes are minima that no later shape is known to equal
        bounds = {"begin": sizes.shape_to_tvm([begin]), "end": sizes.shape_to_tvm([end]), "strides": [step]}
        inside = is_open((begin, end, *shape_of(a)))
        return self.emit(relax.op.strided_slice(a, axes=[axis], assume_inbound=inside, **bounds))

    def cut(self, a: Any, axis: int, begin: int, count: Any, size: Any) -> Any:
        """As many elements of `a` along an axis as a run says, from `begin` on.

        Args:
            count: their number, [1] int64. size: TVM's variable that stands for it in shapes.
        """
        length = self.emit(relax.op.tensor_to_shape(count))
        self.bb.match_cast(length, relax.ShapeType([size]))
        bounds = {"begin": [begin], "end": [size + begin], "strides": [1]}
        return self.emit(relax.op.strided_slice(a, axes=[axis], assume_inbound=True, **bounds))

    def pad(self, a: Any, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Any:
        """Constant padding, by dimension."""
        if not any(before) and not any(after):
            return a
        width = [int(w) for pair in zip(before, after, strict=True) for w in pair]
        return self.emit(relax.op.nn.pad(a, width, "constant", value))

    def matmul(self, a: Any, b: Any) -> Any:
        """Matrix product; low-precision floats are summed in float32."""
        dtype = dtype_of(a)
        if dtype in HALVES:
            return self.cast(self.emit(relax.op.matmul(a, b, out_dtype="float32")), dtype)
        return self.emit(relax.op.matmul(a, b))

    def sum(self, a: Any, axes: Sequence[int] | int | None, keepdims: bool = False) -> Any:
        """The sum along axes, of no numbers 0, for which TVM writes nothing."""
        shape = shape_of(a)
        listed = range(len(shape)) if axes is None else [axes] if isinstance(axes, int) else axes
        gone = {axis % len(shape) for axis in listed} if shape else set()
        if any(shape[axis] == 0 for axis in gone):
            kept = [1 if i in gone else size for i, size in enumerate(shape) if keepdims or i not in gone]
            return self.zeros(kept, dtype_of(a))
        return self.emit(relax.op.sum(a, axes, keepdims))

    def mean(self, a: Any, axes: Sequence[int] | int | None, keepdims: bool = False) -> Any:
        return self.emit(relax.op.mean(a, axes, keepdims))

    def max(self, a: Any, axes: Sequence[int] | int | None, keepdims: bool = False) -> Any:
        return self.emit(relax.op.max(a, axes, keepdims))

    def softmax(self, a: Any, axis: int = -1) -> Any:
        return self.emit(relax.op.nn.softmax(a, axis))

    def take(self, a: Any, indices: Any, axis: int) -> Any:
        return self.emit(relax.op.take(a, indices, axis))


def in_float32(convert: Converter) -> Converter:
    """A converter that gets float16 and bfloat16 inputs as float32, and whose results are rounded once, at the end.

    A machine without arithmetic for such a type rounds after each operation, and TVM sums in the type that it is given.
    """

    def run(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
        narrow = next((d for x in inputs if x is not None and (d := dtype_of(x)) in HALVES), None)
        if narrow is None:
            return convert(bb, inputs, attrs, ctx)
        b = Build(bb, ctx.name)

        def rounded(result: Any) -> Any:
            result = b.emit(result)
            return b.cast(result, narrow) if dtype_of(result) == "float32" else result

        made = convert(bb, Inputs(x if x is None else b.wide(x) for x in inputs), attrs, ctx)
        return tuple(map(rounded, made)) if isinstance(made, tuple) else rounded(made)

    return run


def stock(bb: relax.BlockBuilder, inputs: Inputs, attrs: dict[str, Any], ctx: Context) -> Result:
    """What TVM's own converter makes of a node."""
    return ctx.stock(inputs, attrs)


def size(shape: Sequence[Size]) -> Size:
    """Number of elements."""
    return math.prod(shape)
