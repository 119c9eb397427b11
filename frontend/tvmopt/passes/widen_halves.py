"""Models of float16, computed in float32 - for CPUs, which have no products of float16 that are as fast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import relax

from tvmopt.passes.graph import Call, Expr, Graph, Var, const, dtype, name_of, op_name, sizes, variables, with_attrs
from tvmopt.report import DecisionLog

NAME = "tvmopt.WidenHalves"
HALF, FULL = "float16", "float32"
OPAQUE = ("call_tir", "call_tir_inplace", "call_pure_packed", "call_dps_packed", "call_inplace_packed", "print")
"""Operators whose result has the type that stands in the call."""


@relax.transform.function_pass(opt_level=0, name=NAME)
class WidenHalves:
    """Compute in float32 what a model computes in float16; inputs, outputs and state keep their types.

        Before                                  After
        y = R.matmul(x, W)    # float16         x32 = R.astype(x, "float32")
        z = R.nn.relu(y)                        y32 = R.matmul(x32, W32)
        return z                                z32 = R.nn.relu(y32)
                                                z = R.astype(z32, "float16")

    Sums and products have 24 digits instead of 11, and what would overflow float16 between two operators does not. Nor
    does a cast to float16 round what was computed from numbers of float16: where a mean were rounded and what it is
    subtracted from were not, equal numbers would differ. onnxruntime computes such models on CPUs in float32, too.

    Applies when   an operator has a result or operands of float16 and infers float32 from operands of float32.
    Declines when  1. the operator gives another type then: it gets its operands in float16.
                   2. it is a cast of integers, or of floats that no float16 had a part in: it rounds and overflows (a
                      mask made of 2^40 is infinite in every engine).
    Gain           kernels for float32 are scheduled by families, those for float16 by nobody: SqueezeNet in float16
                   took 83 times as long as in float32.
    Order          before all passes that look for float32 patterns, and before constants are folded.
    """

    def __init__(self, log: DecisionLog | None = None) -> None:
        self.log = log if log is not None else DecisionLog()

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            return func
        graph = Graph(func)
        if not any(HALF in _types(value.ty) for value in graph.defs.values()):
            return func
        return _Widening(graph, self.log).run()


def _types(ty: Any) -> set[str]:
    """The element types of a tensor, or of the fields of a tuple."""
    if isinstance(ty, relax.TupleType):
        return set().union(*(_types(field) for field in ty.fields))
    return {str(ty.dtype)} if isinstance(ty, relax.TensorType) else set()


def _opaque(value: Expr) -> bool:
    """Whether a value's type does not follow from those of its operands."""
    if isinstance(value, relax.Call):
        return isinstance(value.op, (relax.Var, relax.GlobalVar)) or op_name(value) in OPAQUE
    return isinstance(value, relax.If | relax.Function)


class _Widening:
    """One function on its way; of each value there are up to two forms."""

    def __init__(self, graph: Graph, log: DecisionLog) -> None:
        self.graph, self.log = graph, log
        self.builder = relax.BlockBuilder()
        self.full: dict[Var, Expr] = {}  # a variable of float16 -> its float32 form
        self.bound: set[Var] = set(graph.func.params)  # those that exist as they were
        self.bindings: list[Any] = []
        self.data = True
        self.widened = 0
        self.from_half = self._from_half()
        # what is rounded for a branch or another function is read rounded by all others, too
        self.shared = {v for value in graph.defs.values() if _opaque(value) for v in variables(value)}

    def run(self) -> Any:
        """The new function."""
        func = self.graph.func
        blocks = []
        results = set(variables(func.body.body))
        for block in func.body.blocks:
            self.bindings, self.data = [], isinstance(block, relax.DataflowBlock)
            for binding in block.bindings:
                self._visit(binding)
                if binding.var in results or not isinstance(binding.var, relax.DataflowVar):
                    self._need([binding.var])  # it is seen outside
            blocks.append((relax.DataflowBlock if self.data else relax.BindingBlock)(self.bindings))
        if not self.widened:
            return func
        self.log.applied(NAME, "main", f"{self.widened} operators of float16 are computed in float32")
        body = self.builder.normalize(relax.SeqExpr(blocks, func.body.body))
        return relax.Function(func.params, body, func.ret_ty, bool(func.is_pure), func.attrs)

    def _from_half(self) -> set[Var]:
        """Variables of real numbers that were computed from float16, in whatever type they are now."""
        found = {p for p in self.graph.func.params if HALF in _types(p.ty)}
        for block in self.graph.func.body.blocks:
            for binding in block.bindings:
                real = any(kind.startswith(("float", "bfloat")) for kind in _types(binding.var.ty))
                if HALF in _types(binding.var.ty) or (real and found & set(variables(self.graph.defs[binding.var]))):
                    found.add(binding.var)
        return found

    def _visit(self, binding: Any) -> None:
        var, value = binding.var, self.graph.defs[binding.var]
        wide = self._wide(var, value) if isinstance(binding, relax.VarBinding) else None
        if wide is None:
            self._need(variables(value))
            self.bindings.append(binding)
            self.bound.add(var)
        elif var in self.shared and dtype(var) == HALF:
            rounded = relax.op.astype(self._emit(wide, name_of(var)), HALF)
            self.bindings.append(relax.VarBinding(var, self.builder.normalize(rounded)))
            self.bound.add(var)
        elif HALF in _types(var.ty):
            self.full[var] = wide if isinstance(wide, relax.Var) else self._emit(wide, name_of(var))
        else:
            self.bindings.append(relax.VarBinding(var, self.builder.normalize(wide)))
            self.bound.add(var)

    def _wide(self, var: Var, value: Expr) -> Expr | None:
        """The value computed in float32; None where it stays as it is."""
        if isinstance(value, relax.TupleGetItem):
            source = self.full.get(value.tuple_value)
            return None if source is None else relax.TupleGetItem(source, value.index)
        if not isinstance(value, relax.Call) or _opaque(value):
            return None
        halves = HALF in _types(var.ty)
        if not halves and not any(HALF in _types(a.ty) for a in value.args):
            return None
        if halves and op_name(value) == "astype" and value.args[0] not in self.from_half:
            self.log.declined(NAME, name_of(var), f"2: a cast of {dtype(value.args[0])}")  # Decline 2
            return None
        made = self._retyped(value)
        before, after = _types(var.ty), _types(made.ty)
        if after != {FULL if t == HALF else t for t in before} or sizes(made) != sizes(var):
            self.log.declined(NAME, name_of(var), f"1: {op_name(value)} gives {', '.join(sorted(after))}")  # Decline 1
            return None
        self.widened += 1
        return made

    def _retyped(self, value: Call) -> Expr:
        fields = {f.name for f in type(value.attrs).__tvm_ffi_type_info__.fields} if value.attrs is not None else set()
        changes = {n: FULL for n in ("dtype", "out_dtype") if n in fields and str(getattr(value.attrs, n)) == HALF}
        return self.builder.normalize(with_attrs(value, [self._argument(a) for a in value.args], **changes))

    def _argument(self, arg: Expr) -> Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._argument(field) for field in arg.fields])
        if dtype(arg) != HALF and not (isinstance(arg, relax.Var) and arg in self.full):
            return arg
        array = self.graph.array(arg)
        if array is not None:
            return const(array.astype(FULL))
        if arg not in self.full:
            self.full[arg] = self._emit(relax.op.astype(arg, FULL), name_of(arg))
        return self.full[arg]

    def _need(self, used: Iterable[Var]) -> None:
        """Bind variables as they were, where so far there is their float32 form only."""
        for var in used:
            if var in self.bound or var not in self.full:
                continue
            self.bound.add(var)
            source = self.full[var]
            narrow = relax.op.astype(source, HALF) if dtype(var) == HALF else self._narrow_fields(var, source)
            self.bindings.append(relax.VarBinding(var, self.builder.normalize(narrow)))

    def _narrow_fields(self, var: Var, source: Expr) -> Expr:
        fields = []
        for index, ty in enumerate(var.ty.fields):
            field = self._emit(relax.TupleGetItem(source, index), name_of(var))
            fields.append(self._emit(relax.op.astype(field, HALF), name_of(var)) if HALF in _types(ty) else field)
        return relax.Tuple(fields)

    def _emit(self, value: Expr, name: str) -> Var:
        value = self.builder.normalize(value)
        var = (relax.DataflowVar if self.data else relax.Var)(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var
