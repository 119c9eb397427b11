"""What every lowering needs: static shapes, constants, and kernels that FuseOps may extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Range
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import StructuralKey, structural_equal, structural_map

from tvmopt.importer.sizes import least_sizes, named_sizes
from tvmopt.lowering.repeats import Made, key_of, repeats
from tvmopt.runtime.tensors import numbers
from tvmopt.scheduling.strides import evaluate

INJECTIVE, OUT_ELEMENTWISE_FUSABLE = 2, 4
"""TVM's op patterns (OpPatternKind) of what moves elements, and of a reduction whose output an elementwise chain may be
fused into."""
NAMED_SIZE = 128
"""What tiles are chosen for where nobody named a size of an open dimension."""
OPAQUE = 8
"""TVM's op pattern of a kernel that nothing is fused with."""


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor expression if every dimension is a constant, else None."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    dims = []
    for dim in shape.values:
        if not isinstance(dim, int | tirx.IntImm):
            return None
        dims.append(int(dim))
    return tuple(dims)


def sizes(expr: relax.Expr) -> tuple[Any, ...] | None:
    """The shape of a tensor expression, open sizes as TVM's expressions; None where it has no shape."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not hasattr(shape, "values"):
        return None
    return tuple(map(plain, shape.values))


def is_empty(shape: Sequence[Any] | None) -> bool:
    """Whether a size is known to be 0."""
    return any(isinstance(d, int) and d == 0 for d in shape or ())


def is_open(shape: Sequence[Any]) -> bool:
    """Whether a size of a shape is known at run time only."""
    return any(not isinstance(d, int) for d in shape)


def plain(dim: Any) -> Any:
    """A size of TVM's, as an int where it is a number."""
    return int(dim) if isinstance(dim, int | tirx.IntImm) else dim


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are the same number or the same expression."""
    plain = [int(d) if isinstance(d, int | tirx.IntImm) else None for d in (a, b)]
    return plain[0] == plain[1] if None not in plain else plain == [None, None] and structural_equal(a, b)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are the same."""
    return len(a) == len(b) and all(map(same_size, a, b))


def named_size(bb: relax.BlockBuilder, dims: Sequence[Any]) -> int:
    """The product of sizes, each symbol at the size that the program is to be fastest at: what tiles are chosen for.

    A symbol that the program does not name is :data:`NAMED_SIZE`.
    """
    named = named_sizes(bb.get())

    count = 1
    for dim in dims:
        if not isinstance(dim, int):
            env = {v: int(named.get(v.name, NAMED_SIZE)) for v in undefined_vars(dim, [])}
            dim = evaluate(dim, env) or NAMED_SIZE
        count *= max(1, dim)
    return count


def least_size(bb: relax.BlockBuilder, dim: Any) -> int:
    """The least value that a size can have, by the ranges of the program's symbols; of any other symbol 1."""
    if isinstance(dim, int):
        return dim
    least, analyzer = least_sizes(bb.get()), Analyzer()
    for var in undefined_vars(dim, []):
        analyzer.bind(var, Range(tirx.const(least.get(var.name, 1), "int64"), tirx.const(1 << 31, "int64")))
    return int(analyzer.const_int_bound(dim).min_value)


def flat(bb: relax.BlockBuilder, x: Any, shape: Sequence[Any]) -> Any:
    """A view of `x` with another shape."""
    return x if same_sizes(sizes(x) or (), shape) else bb.emit(relax.op.reshape(x, tuple(shape)))


def trailing(axes: Sequence[Any], rank: int) -> int | None:
    """How many last axes `axes` names; None where it is another set.

    >>> trailing([-1, 2], 4), trailing([1, 2], 4)
    (2, None)
    """
    named = sorted(int(a) % rank for a in axes)
    return len(named) if named and named == list(range(rank - len(named), rank)) else None


def constant(bb: relax.BlockBuilder, expr: relax.Expr) -> np.ndarray | None:
    """The value of a constant, also through a variable bound to one, else None."""
    while isinstance(expr, relax.Var):
        bound = bb.lookup_binding(expr)
        if bound is None:
            return None
        expr = bound
    return numbers(expr.value) if hasattr(expr, "value") and hasattr(expr.value, "numpy") else None


def batch_index(index: tuple[Any, ...], shape: tuple[Any, ...]) -> list[Any]:
    """Where a matrix of a batch [..., m, n] of this shape lies, at a position of the broadcast batch."""
    tail = index[len(index) - (len(shape) - 2) :] if len(shape) > 2 else ()
    return [0 if isinstance(d, int) and d == 1 else i for i, d in zip(tail, shape[:-2], strict=True)]


def broadcast_batch(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...] | None:
    """The batch of a product of two batches; None where it depends on whether an open size is 1."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    more = len(longer) - len(shorter)
    found = list(longer[:more])
    for one, other in zip(longer[more:], shorter, strict=True):
        if not same_size(one, other) and 1 not in [d for d in (one, other) if isinstance(d, int)]:
            return None
        found.append(other if isinstance(one, int) and one == 1 else one)
    return tuple(found)


def nhwc_shapes(call: relax.Call) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of data and weight of `R.nn.conv2d` in NHWC/OHWI; None if a layout is another one, or a shape is open
    or empty."""
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NHWC", "OHWI", "NHWC"):
        return None
    xs, ws = (static_shape(a) for a in call.args)
    return None if xs is None or ws is None or 0 in xs + ws else (xs, ws)


def image_sizes(call: relax.Call) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """As :func:`nhwc_shapes`, where all but the number of channels may be open."""
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NHWC", "OHWI", "NHWC"):
        return None
    xs, ws = pictures(call.args[0]), static_shape(call.args[1])
    return None if xs is None or ws is None or 0 in ws else (xs, ws)


def samples(x: relax.Expr) -> tuple[Any, ...] | None:
    """The shape of a tensor of samples, none of which is empty, and whose number alone may be open; else None."""
    shape = sizes(x)
    if (
        not shape
        or not all(isinstance(d, int) and d > 0 for d in shape[1:])
        or (isinstance(shape[0], int) and shape[0] == 0)
    ):
        return None
    return shape


def pictures(x: relax.Expr) -> tuple[Any, ...] | None:
    """The shape [n, y, x, c] of pictures, none of which is empty; all but the number of channels may be open."""
    shape = sizes(x)
    if (
        shape is None
        or len(shape) != 4
        or not isinstance(shape[3], int)
        or 0 in [d for d in shape if isinstance(d, int)]
    ):
        return None
    return shape


def known(samples: Any) -> int:
    """For how many samples tiles are chosen: one where their number is open."""
    return samples if isinstance(samples, int) else 1


def nhwc_convolution(
    bb: relax.BlockBuilder, call: relax.Call
) -> tuple[tuple[int, ...], tuple[int, ...], np.ndarray] | None:
    """The shapes of data and weight of `R.nn.conv2d` in NHWC/OHWI and the weight's value; None where
    :func:`nhwc_shapes` is, or if the weight is not constant."""
    shapes, value = nhwc_shapes(call), constant(bb, call.args[1])
    return None if shapes is None or value is None else (*shapes, value)


def is_rows_product(call: relax.Call) -> bool:
    """Whether `R.nn.conv2d` in NHWC/OHWI is the product of rows (n, y, x) and a matrix: a 1x1 window, one group, no
    padding, no stride."""
    attrs, shapes = call.attrs, image_sizes(call)
    steps = [int(v) for v in attrs.strides] + [int(v) for v in attrs.padding]
    return shapes is not None and shapes[1][1:3] == (1, 1) and int(attrs.groups) == 1 and steps == [1, 1, 0, 0, 0, 0]


def operand_types(call: relax.Call) -> str:
    """The types of a call's first two operands, for people: ``"float16 operands"``."""
    return " and ".join(dict.fromkeys(str(a.ty.dtype) for a in call.args[:2])) + " operands"


def call_fusable(
    bb: relax.BlockBuilder,
    compute: Callable[..., te.Tensor],
    args: Sequence[relax.Expr],
    name: str,
    wanted: Sequence[Any] = (),
) -> relax.Expr:
    """Emit `compute` as a PrimFunc into which FuseOps may fuse the elementwise chain that follows it."""
    return call_with_pattern(bb, compute, args, name, OUT_ELEMENTWISE_FUSABLE, wanted)


def call_with_pattern(
    bb: relax.BlockBuilder,
    compute: Callable[..., Any],
    args: Sequence[relax.Expr],
    name: str,
    pattern: int,
    wanted: Sequence[Any] = (),
) -> relax.Expr:
    """`BlockBuilder.call_te` whose PrimFunc carries an explicit `op_pattern` (the analysis guesses 8, opaque, for
    a reduction with a second block behind it).

    Args:
        wanted: sizes of `main`, which `compute` gets behind its tensors in the kernel's own variables.
    """
    key, made = key_of(compute, args, name, pattern, wanted), repeats(bb)
    if key in made:
        return made[key].called(args)
    symbols = Symbols(whole=True)
    tensors = [te.placeholder(symbols.of(a), name=f"arg{i}", dtype=str(a.ty.dtype)) for i, a in enumerate(args)]
    out = compute(*tensors, *symbols.here(wanted))
    handed = symbols.to_hand_over(out.shape)
    func = te.create_prim_func([*tensors, *handed, out], "int64").with_attr("op_pattern", pattern)
    gvar = bb.add_func(func.without_attr("global_symbol"), name)
    result = relax.TensorType(symbols.named(out.shape), out.dtype)
    if key is not None:
        made[key] = Made(gvar, result)
    return relax.call_tir(gvar, [*args, *symbols.named(handed)], result)


class Symbols:
    """The symbols of `main` in one kernel: variables of its own, which stand for them.

    Args:
        whole: a variable stands for a whole size, `(h - 1)//2 + 1`, which the kernel reads off its tensors. So nothing
            need be handed over, and the kernel is fused with others: NameSizes would not find the size again in what
            the kernel computes with it, `(h - 1)//2 + 3` with a border.
    """

    def __init__(self, whole: bool = False) -> None:
        self._here: dict[Any, Any] = {}
        self._shapes: list[Any] = []
        self._whole, self._sizes = whole, dict[Any, Any]()

    def of(self, expr: relax.Expr) -> tuple[Any, ...]:
        """The shape of a tensor expression in the kernel's variables."""
        shape = self.here(sizes(expr) or ())
        self._shapes.extend(shape)
        return shape

    def here(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """A shape of `main` in the kernel's variables."""
        return tuple(d if isinstance(d, int) else self._size(d) for d in shape)

    def _size(self, dim: Any) -> Any:
        if not self._whole or isinstance(dim, tirx.Var):
            return structural_map(dim, (tirx.Var, self._own))
        key = StructuralKey(Analyzer().simplify(dim))
        if key not in self._sizes:
            self._sizes[key] = dim, tirx.Var(f"size{len(self._sizes)}", "int64")
        return self._sizes[key][1]

    def named(self, shape: Sequence[Any]) -> list[Any]:
        """Sizes of the kernel in the symbols of `main`."""
        outer = {own: symbol for symbol, own in self._here.items()} | {own: dim for dim, own in self._sizes.values()}
        known = (tirx.Var, lambda var: outer.get(var, var))
        return [int(d) if isinstance(d, int | tirx.IntImm) else structural_map(d, known) for d in shape]

    def to_hand_over(self, result: Sequence[Any] = ()) -> list[Any]:
        """The variables that are no tensor's size and cannot be read off one: `past` where the size is `past + 1`.

        Args:
            result: the sizes of the result, which the kernel is given as a tensor too.
        """
        known = [*self._shapes, *result]
        mine = [*self._here.values(), *(own for _, own in self._sizes.values())]
        return [own for own in mine if not any(own.same_as(d) for d in known)]

    def _own(self, symbol: Any) -> Any:
        if symbol not in self._here:
            self._here[symbol] = tirx.Var(str(symbol.name), str(symbol.ty.dtype))
        return self._here[symbol]
