"""The bindings of a Relax function as an editable graph - for every rewrite in this folder.

A pass of ours is a *rule*: it is shown each binding ``var = value`` in order, with everything upstream
already rewritten, and answers with a new value of the **same type**, or None. :class:`Graph` lets it look
through variables, ask for users, read constants as NumPy arrays, and emit new bindings. Variables are reused,
so a rewritten node keeps the name of the ONNX node it comes from; what is left without users is dropped.

TVM's ``dpl.rewrite_call`` is not used: it starts matching anew after each rewrite, and loops forever when a
replacement matches its own pattern.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

from tvmopt.dims import Size
from tvmopt.importer.sizes import shape_of
from tvmopt.report import DecisionLog
from tvmopt.runtime.tensors import numbers

Array = npt.NDArray[Any]
Expr = Any  # relax.Expr; TVM is untyped here
Var = Any
Call = Any
Constant = tvm.ir.GenericConst
RESULT = "<return>"  # the user that stands for the function's result


def shape(expr: Expr) -> tuple[int, ...] | None:
    """The static shape of a tensor expression, or None where it is not a tensor or not static."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    dims = [int(v.value) if isinstance(v, tvm.tirx.IntImm) else -1 for v in ty.shape.values]
    return None if -1 in dims else tuple(dims)


def _same_sizes(a: Expr, b: Expr) -> bool:
    """Whether two tensors of open sizes have one type, however TVM writes it: ``(t - 192)//128 + 1`` is
    ``(t + 64)//128 - 1``."""
    known = shape_of(a)
    return known is not None and known == shape_of(b) and a.ty.dtype == b.ty.dtype


def inputs_of(main: relax.Function) -> list[Var]:
    """The model's inputs among the parameters of `main`: weights, once they are lifted, are the parameters behind."""
    count = int(main.attrs["num_input"]) if main.attrs and "num_input" in main.attrs else len(main.params)
    return list(main.params)[:count]


def sizes(expr: Expr) -> tuple[Size, ...] | None:
    """The shape of a tensor expression, open sizes as `tvmopt.dims.Dim`; None where a size is not known at all."""
    return shape_of(expr)


def rank(expr: Expr) -> int:
    """Number of axes of a tensor expression, -1 where unknown."""
    ty = getattr(expr, "ty", None)
    return int(ty.ndim) if isinstance(ty, relax.TensorType) else -1


def dtype(expr: Expr) -> str:
    """Element type of a tensor expression, "" where unknown."""
    ty = getattr(expr, "ty", None)
    return str(ty.dtype) if isinstance(ty, relax.TensorType) else ""


def is_float(expr: Expr) -> bool:
    """Whether a tensor holds floating point numbers (float16, bfloat16, float32, float64)."""
    return dtype(expr).startswith(("float", "bfloat"))


def ints(values: Any) -> list[int]:
    """A TVM array, Tuple or ShapeExpr of integers as Python integers; TypeError where one is symbolic."""
    if isinstance(values, relax.Tuple):
        values = values.fields
    elif isinstance(values, relax.ShapeExpr):
        values = values.values
    out = []
    for v in values:
        v = getattr(v, "value", v)
        if not isinstance(v, int):
            raise TypeError(f"not a constant integer: {v}")
        out.append(int(v))
    return out


def op_name(value: Expr) -> str:
    """``"add"`` for a call of ``relax.add``, "" for anything else."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return str(value.op.name).removeprefix("relax.")
    return ""


def with_attrs(call: Call, args: Sequence[Expr] | None = None, **changes: Any) -> Call:
    """The same operator on other arguments and with some attributes changed."""
    attrs = call.attrs
    if changes:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {f.name: getattr(attrs, f.name) for f in info.fields}
        attrs = tvm.ir.make_node(info.type_key, **{**fields, **changes})
    return relax.Call(call.op, list(call.args if args is None else args), attrs, call.ty_args)


def name_of(var: Var) -> str:
    """The variable's name, which is that of the ONNX node it comes from."""
    return str(var.name)


def const(array: npt.ArrayLike, like: Expr | None = None) -> Expr:
    """A Relax constant; with `like`, of the element type of that expression."""
    data = np.asarray(array)
    if like is not None:
        target = dtype(like)
        if str(data.dtype) != target:
            data = data.astype(numpy_dtype(target))
    return relax.const(data, str(data.dtype))


def numpy_dtype(name: str) -> Any:
    """NumPy's type, or ml_dtypes', for TVM's name of it."""
    if name in ("bfloat16",) or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


class Graph:
    """One Relax function while a rule rewrites it.

    Attributes:
        defs: the value each variable is bound to, after rewriting.
        changed: whether a rule has rewritten anything.
    """

    def __init__(self, func: Any) -> None:
        self.func = func
        self.defs: dict[Var, Expr] = {}
        self.changed = False
        self._builder = relax.BlockBuilder()
        self._users: dict[Var, Counter[Any]] = {}
        self._alias: dict[Var, Expr] = {}
        self._out: list[Any] = []
        self._dataflow = True
        self._arrays: dict[Any, Array] = {}
        self._remade: dict[Any, Expr] = {}
        self._blocks: list[tuple[bool, list[tuple[Any, Var, Expr]]]] = []
        for block in func.body.blocks:
            bound = [(binding, binding.var, binding.value) for binding in block.bindings]
            self._blocks.append((isinstance(block, relax.DataflowBlock), bound))
            for _, var, value in bound:
                self.defs[var] = value
                self._use(var, value)
        self._use(RESULT, func.body.body)
        self._whole = len(self.defs)

    def forget(self) -> bool:
        """Drop what was read of constants; whether all else is as it was read: nothing was rewritten or emitted."""
        self._arrays.clear()
        self._remade.clear()
        self._out = []
        return not self.changed and len(self.defs) == self._whole

    # ---- looking

    def value(self, expr: Expr) -> Expr:
        """What a variable is bound to (followed to the end); other expressions as they are."""
        while isinstance(expr, relax.Var) and expr in self.defs:
            expr = self.defs[expr]
        return expr

    def op(self, expr: Expr) -> str:
        """Name (without ``relax.``) of the operator whose call `expr` is bound to, "" if there is none."""
        return op_name(self.value(expr))

    def call(self, expr: Expr, *names: str) -> Call | None:
        """The call that `expr` is bound to if it is one of these operators."""
        value = self.value(expr)
        return value if op_name(value) in names else None

    def binary(self, expr: Expr, *names: str) -> Iterator[tuple[Expr, Expr]]:
        """The operands of a binary call; both ways round where the operator commutes."""
        call = self.call(expr, *names)
        if call is not None:
            yield call.args[0], call.args[1]
            if op_name(call) in ("add", "multiply", "maximum", "minimum"):
                yield call.args[1], call.args[0]

    def is_const(self, expr: Expr) -> bool:
        """Whether `expr` is a constant tensor."""
        return isinstance(self.value(expr), Constant)

    def array(self, expr: Expr) -> Array | None:
        """The numbers of a constant, or None."""
        value = self.value(expr)
        if not isinstance(value, Constant):
            return None
        if value not in self._arrays:
            self._arrays[value] = numbers(value.value)
        return self._arrays[value]

    def remade(self, expr: Expr, how: Hashable, make: Callable[[], Expr]) -> Expr:
        """What `make` makes of a constant in a sweep: one for all that read this constant. Equal numbers do not make
        two constants one: with other weights they would differ.

        Args:
            how: what is made of it.
        """
        key = self.value(expr), how
        if key not in self._remade:
            self._remade[key] = make()
        return self._remade[key]

    def scalar(self, expr: Expr) -> float | None:
        """The number that a constant of at most 4096 elements holds in all of them, or None."""
        value = self.value(expr)
        dims = shape(value) if isinstance(value, Constant) else None
        if dims is None or not 0 < math.prod(dims) <= 4096:
            return None
        data = self.array(value)
        if data is None or data.dtype == bool or not (data == data.flat[0]).all():
            return None
        return float(data.flat[0])

    def users(self, expr: Expr) -> list[Var]:
        """The variables whose values use this one, and :data:`RESULT` for the function's result."""
        return list(self._users.get(expr, ()))

    def uses(self, expr: Expr) -> int:
        """How often a variable is used; 0 for a constant, which is never shared."""
        users = self._users.get(expr)
        return sum(users.values()) if users else 0

    def single(self, *exprs: Expr) -> bool:
        """Whether each of these is used exactly once, so that absorbing it saves it."""
        return all(not isinstance(e, relax.Var) or self.uses(e) == 1 for e in exprs)

    # ---- building

    def emit(self, expr: Expr, name: str) -> Expr:
        """Bind a (possibly nested) expression before the binding at hand; gives the new variable."""
        value = self._normal(expr, name)
        if isinstance(value, relax.Var | Constant):
            return value
        var = (relax.DataflowVar if self._dataflow else relax.Var)(name, value.ty)
        self.defs[var] = value
        self._use(var, value)
        self._out.append(relax.VarBinding(var, value))
        return var

    def _normal(self, expr: Expr, name: str) -> Expr:
        """The expression with nested calls bound to variables, and its type inferred."""
        if isinstance(expr, relax.Call):
            args = [self._leaf(a, name) for a in expr.args]
            if any(a is not b for a, b in zip(args, expr.args, strict=True)):
                expr = relax.Call(expr.op, args, expr.attrs, expr.ty_args)
        elif isinstance(expr, relax.Tuple):
            expr = relax.Tuple([self._leaf(f, name) for f in expr.fields])
        elif isinstance(expr, relax.TupleGetItem):
            expr = relax.TupleGetItem(self._leaf(expr.tuple_value, name), expr.index)
        return self._builder.normalize(expr)

    def _leaf(self, expr: Expr, name: str) -> Expr:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._leaf(f, name) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem) or op_name(expr):
            return self.emit(expr, name)
        return expr

    # ---- the sweep

    def rewrite(self, rule: Callable[[Var, Expr], Expr | None]) -> Any:
        """Show each binding to `rule`; gives the new function, or the function itself if nothing changed."""
        blocks = []
        for flow, bound in self._blocks:
            self._dataflow, self._out = flow, []
            for binding, var, value in bound:
                self._visit(binding, var, value, rule)
            blocks.append((self._dataflow, self._out))
        if not self.changed:
            return self.func
        kept = [(flow, [b for b in out if not flow or self.uses(b.var) or names_sizes(b)]) for flow, out in blocks]
        body = relax.SeqExpr(
            [relax.DataflowBlock(out) if flow else relax.BindingBlock(out) for flow, out in kept if out],
            self.func.body.body,
        )
        return relax.Function(
            self.func.params,
            self._builder.normalize(body),
            self.func.ret_ty,
            bool(self.func.is_pure),
            self.func.attrs,
        )

    def _visit(self, binding: Any, var: Var, old: Expr, rule: Callable[[Var, Expr], Expr | None]) -> None:
        value = self.defs[var]
        if self._dataflow and not self.uses(var) and not names_sizes(binding):
            self.changed = True
            self._drop(var, value)
        elif not isinstance(binding, relax.VarBinding):
            self._out.append(relax.MatchCast(var, value, binding.ty))
        elif isinstance(value, relax.Var) or (new := rule(var, value)) is None:
            self._out.append(binding if value is old else relax.VarBinding(var, value))
        else:
            self._replace(var, value, self._normal(new, name_of(var)))

    def _replace(self, var: Var, old: Expr, new: Expr) -> None:
        if not tvm_ffi.structural_equal(new.ty, var.ty) and _same_sizes(new, var):
            new = self._normal(relax.op.reshape(self._leaf(new, name_of(var)), var.ty.shape), name_of(var))
        if not tvm_ffi.structural_equal(new.ty, var.ty):
            raise TypeError(f"the rewrite of {name_of(var)} changes its type from {var.ty} to {new.ty}")
        self.changed = True
        if isinstance(new, relax.Var | Constant) and isinstance(var, relax.DataflowVar):
            # An alias: every user takes `new` at once, and the binding goes.
            for user, n in self._users.pop(var, Counter()).items():
                self.defs[user] = substitute(self.defs[user], {var: new})
                if isinstance(new, relax.Var):
                    self._users.setdefault(new, Counter())[user] += n
            self._drop(var, old)
            return
        self.defs[var] = new
        self._use(var, new)
        self._drop(var, old)
        self._out.append(relax.VarBinding(var, new))

    def _use(self, user: Any, value: Expr) -> None:
        for v in variables(value):
            users = self._users.get(v)
            if users is None:
                users = self._users[v] = Counter()
            users[user] += 1

    def _drop(self, user: Any, value: Expr) -> None:
        """`user` no longer uses `value`; variables left without users let go of theirs."""
        stack = [(user, value)]
        while stack:
            who, what = stack.pop()
            for v in variables(what):
                counts = self._users[v]
                counts[who] -= 1
                if not counts[who]:
                    del counts[who]
                if not counts and v in self.defs and isinstance(v, relax.DataflowVar):
                    stack.append((v, self.defs[v]))


_KEPT: ContextVar[list[Graph] | None] = ContextVar("_KEPT", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Inside, a pass goes on with the graph that the pass before it left unchanged: to read all bindings takes longer
    than most passes. Behind it nothing is kept: a graph holds all constants."""
    token = _KEPT.set([])
    try:
        yield
    finally:
        _KEPT.reset(token)


def graph_of(func: Any) -> Graph:
    """The graph of a function, read anew unless it was kept."""
    kept = _KEPT.get()
    if kept and kept[0].func.same_as(func):
        return kept[0]
    return Graph(func)


def keep(graph: Graph) -> None:
    """Keep a graph for the next pass, inside :func:`sharing`, if it is still as it was read."""
    kept = _KEPT.get()
    if kept is not None:
        kept[:] = [graph] if graph.forget() else []


def variables(value: Expr) -> Iterator[Var]:
    """Every use of a variable in a bound value, with repetition."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, relax.Call):
        if isinstance(value.op, relax.Var):
            yield value.op
        for arg in value.args:
            if isinstance(arg, relax.Var):
                yield arg
            elif not isinstance(arg, Constant):
                yield from variables(arg)
    elif isinstance(value, relax.Tuple):
        for f in value.fields:
            yield from variables(f)
    elif isinstance(value, relax.TupleGetItem):
        yield from variables(value.tuple_value)
    elif isinstance(value, relax.If | relax.SeqExpr | relax.Function):
        yield from relax.analysis.free_vars(value)


def names_sizes(binding: Any) -> bool:
    """Whether a binding names sizes found at run time, ``match_cast(x, R.Shape([n]))``: nobody reads its variable."""
    return isinstance(binding, relax.MatchCast) and isinstance(binding.ty, relax.ShapeType)


def substitute(value: Expr, alias: dict[Var, Expr]) -> Expr:
    """A bound value (no control flow) with variables replaced."""
    if isinstance(value, relax.Var):
        return alias.get(value, value)
    if isinstance(value, relax.Call):
        new: Expr = relax.Call(value.op, [substitute(a, alias) for a in value.args], value.attrs, value.ty_args)
    elif isinstance(value, relax.Tuple):
        new = relax.Tuple([substitute(f, alias) for f in value.fields])
    elif isinstance(value, relax.TupleGetItem):
        new = relax.TupleGetItem(substitute(value.tuple_value, alias), value.index)
    else:
        return value
    return relax.BlockBuilder().normalize(new)


class Rewrite:
    """Base of a pass that is one local rule; :func:`rewrite_pass` makes it a TVM pass.

    Attributes:
        name: as it shows in TVM's pass timing and in the log: ``"tvmopt.FoldBatchNorm"``.
        rounds: the most sweeps over a function; a sweep that changes nothing ends it.
    """

    name = ""
    rounds = 4

    def __init__(self, log: DecisionLog | None = None) -> None:
        self.log = log if log is not None else DecisionLog()

    def rule(self, graph: Graph, var: Var, value: Expr) -> Expr | None:
        """The new value of this binding, or None to leave it."""
        raise NotImplementedError

    def begin(self, graph: Graph) -> None:
        """Called before each sweep; a pass that keeps state between bindings clears it here."""

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            return func
        for _ in range(self.rounds):
            graph = graph_of(func)
            self._refusals: list[tuple[str, str]] = []
            self.begin(graph)
            func = graph.rewrite(partial(self.rule, graph))
            if not graph.changed:
                keep(graph)
                break
        for node, reason in self._refusals:  # those of the last sweep: the others no longer stand
            self.log.declined(self.name, node, reason)
        return func

    def applied(self, var: Var, reason: str = "") -> None:
        """Record that the rewrite applied at this binding."""
        self.log.applied(self.name, name_of(var), reason)

    def declined(self, var: Var, reason: str) -> None:
        """Record why a near match was left alone; `reason` starts with the number in the docstring."""
        self._refusals.append((name_of(var), reason))


def rewrite_pass(name: str) -> Callable[[type[Rewrite]], Any]:
    """Class decorator: a :class:`Rewrite` becomes a TVM function pass of this name, made by ``Pass(log)``."""

    def wrap(cls: type[Rewrite]) -> Any:
        cls.name = name
        return relax.transform.function_pass(opt_level=0, name=name)(cls)

    return wrap
