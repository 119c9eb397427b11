"""Loops that a run goes through: bodies join the module of the model, and the machine's code of the loop itself.

    Before                                    After
    main:  r = R.call_packed("loop0", ...)    main:  r = loop0(...)
                                              loop0: go, trip, s = its first parameters
                                               head: if not go: end
                                                     go, trip, s, row = loop0_body(trip, s, others)
                                                     append the row; goto head
                                                end: return s, rows

Relax has no loops, the virtual machine has: its code jumps backwards as well as forwards. So `main` is made to call a
function that exists by name, and the function's code is written instruction by instruction. Rows go to a buffer of
TVM's runtime that doubles when it is full (the one that it has for key-value caches).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.importer.loops import FORM, LOOP_NAME, LOOPS
from tvmopt.passes.lift_constants import Weights
from tvmopt.runtime.tensors import TensorInfo

BODY, SHAPES = "_body", "_shapes"
"""Behind the name of a loop: its body, and the function that says what shapes its rows have together."""


@dataclass(frozen=True)
class Loop:
    """One loop of a module.

    Attributes:
        name: as which `main` calls it; ``name_body`` is the function of a trip.
        states, others: values that go from trip to trip, and those that every trip is given.
        rows: their element types: what every trip adds to a result.
    """

    name: str
    states: int
    others: int
    rows: tuple[str, ...]


def is_loop(symbol: str) -> bool:
    """Whether a function that `main` calls is a loop.

    >>> [is_loop(name) for name in ("loop0", "loop12", "loop0_body", "vm.builtin.copy")]
    [True, True, False, False]
    """
    return LOOP_NAME.fullmatch(symbol) is not None


def without_loops(module: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, tvm.IRModule]]:
    """The module without the bodies in its attribute, and these by the names of their loops."""
    main = module["main"]
    if main.attrs is None or LOOPS not in main.attrs:
        return module, {}
    loops = {str(name): body for name, body in main.attrs[LOOPS].items()}
    bare = module.clone()
    bare.update_func(bare.get_global_var("main"), main.without_attr(LOOPS))
    return bare, loops


def joined(
    module: tvm.IRModule, name: str, body: tvm.IRModule, inner: Sequence[Loop], first: int, weights: Weights
) -> tuple[tvm.IRModule, list[Loop], Weights]:
    """The module with a lowered body in it; all loops that came with it; the weights of the body, numbered from
    `first` on, which have become parameters of `main`.

    Args:
        name: of the loop. inner: loops in the body. weights: those that were lifted out of the body.
    """
    main, whole = body["main"], f"{name}_"
    states, rows = (int(n) for n in main.attrs[FORM])
    new = {g.name_hint: whole + g.name_hint for g in body.get_global_vars()} | {"main": name + BODY}
    rename = _Renamed(
        {old: tvm.ir.GlobalVar(n) for old, n in new.items()}, {one.name: whole + one.name for one in inner}
    )
    for gvar, func in body.functions_items():
        relax.expr._update_type(rename.variables[gvar.name_hint], func.ty)
    functions = dict(module.functions_items())
    for gvar, func in body.functions_items():
        if isinstance(func, relax.Function):
            func = rename.visit_expr(func)
        functions[rename.variables[gvar.name_hint]] = func.with_attr("global_symbol", new[gvar.name_hint])
    function = functions[rename.variables["main"]]
    results = list(main.ret_ty.fields)[2 + states :]
    if rows:
        shapes = _shapes(function, [kind for kind in results])
        functions[tvm.ir.GlobalVar(name + SHAPES)] = shapes.with_attr("global_symbol", name + SHAPES)
    loop = Loop(name, states, len(main.params) - 1 - states, tuple(str(kind.dtype) for kind in results))
    infos = [(TensorInfo(f"w{first + i}", info.shape, info.dtype), data) for i, (info, data) in enumerate(weights)]
    more = [relax.Var(info.name, relax.TensorType(info.shape, info.dtype)) for info, _ in infos]
    gvar = next(g for g in functions if g.name_hint == "main")
    outer = _Given(name, more).visit_expr(functions[gvar])
    functions[gvar] = relax.Function(
        [*outer.params, *more], outer.body, outer.ret_ty, outer.is_pure, outer.attrs, outer.span
    )
    found = [loop, *(replace(one, name=whole + one.name) for one in inner)]
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos), found, infos


@mutator
class _Renamed(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """A function of a body with the names of functions that they have in the whole module."""

    def __init__(self, variables: Mapping[str, Any], loops: Mapping[str, str]) -> None:
        super().__init__(None)
        self.variables, self.loops = variables, loops

    def visit_call_(self, call: Any) -> Any:
        args = [self.visit_expr(a) for a in call.args]
        op = self.variables.get(call.op.name_hint, call.op) if isinstance(call.op, tvm.ir.GlobalVar) else call.op
        return relax.Call(op, args, call.attrs, call.ty_args, call.span)

    def visit_global_var_(self, gvar: Any) -> Any:
        return self.variables.get(gvar.name_hint, gvar)

    def visit_extern_func_(self, func: Any) -> Any:
        new = self.loops.get(str(func.global_symbol))
        return relax.ExternFunc(new) if new else func


@mutator
class _Given(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """`main`, which gives a loop further arguments."""

    def __init__(self, name: str, more: Sequence[Any]) -> None:
        super().__init__(None)
        self.name, self.more = name, list(more)

    def visit_call_(self, call: Any) -> Any:
        if not _calls(call, self.name):
            return self.visit_expr_post_order(call)
        args = [self.visit_expr(a) for a in call.args]
        return relax.Call(call.op, [*args, *self.more], call.attrs, call.ty_args, call.span)


def _calls(call: Any, name: str) -> bool:
    """Whether a call is that of a loop, before or behind the passes that take purity off."""
    callee = call.args[0] if getattr(call.op, "name", "") == "relax.call_pure_packed" else call.op
    return isinstance(callee, relax.ExternFunc) and str(callee.global_symbol) == name


def _shapes(body: relax.Function, rows: Sequence[Any]) -> relax.Function:
    """The function that tells the shapes of all rows together: of what a trip is given, the number of trips first."""
    params = [relax.Var(str(p.name), p.ty) for p in body.params]
    count = tirx.Var("trips", "int64")
    numbers = relax.ShapeType(ndim=1)
    with_axis = relax.Call(
        relax.ExternFunc("vm.builtin.reshape"),
        [params[0], relax.ShapeExpr([1])],
        None,
        [relax.TensorType([1], "int64")],
    )
    one = relax.Var("one", relax.TensorType([1], "int64"))
    shape = relax.Var("number", numbers)
    read = relax.Call(relax.ExternFunc("vm.builtin.tensor_to_shape"), [one], None, [numbers])
    matched = relax.Var("matched", relax.ShapeType([count]))
    told = relax.Tuple([relax.ShapeExpr([count, *list(kind.shape.values)[1:]]) for kind in rows])
    result = relax.Var("shapes", relax.TupleType([relax.ShapeType(list(field.values)) for field in told.fields]))
    block = relax.BindingBlock(
        [
            relax.VarBinding(one, with_axis),
            relax.VarBinding(shape, read),
            relax.MatchCast(matched, shape, relax.ShapeType([count])),
            relax.VarBinding(result, told),
        ]
    )
    attrs = {k: v for k, v in dict(body.attrs).items() if k not in (FORM, "num_input")}
    function = relax.Function(params, relax.SeqExpr([block], result), result.ty, False)
    return function.with_attrs({**attrs, "relax.force_pure": True})


# -- the code of the virtual machine ---------------------------------------------------------------------------------


def callable_loops(module: tvm.IRModule, loops: Sequence[Loop]) -> tvm.IRModule:
    """The module in which loops are functions that are called by name, with code that nobody calls in their place."""
    if not loops:
        return module
    functions = dict(module.functions_items())
    variables = {one.name: tvm.ir.GlobalVar(one.name) for one in loops}
    calls = _Calls(variables)
    for gvar, func in module.functions_items():
        if isinstance(func, relax.Function):
            functions[gvar] = calls.visit_expr(func)
    for one in loops:
        functions[variables[one.name]] = calls.stubs[one.name].with_attr("global_symbol", f"{one.name}_unused")
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__(None)
        self.variables = variables
        self.stubs: dict[str, relax.Function] = {}

    def visit_call_(self, call: Any) -> Any:
        name = str(call.op.global_symbol) if isinstance(call.op, relax.ExternFunc) else ""
        if name not in self.variables:
            return self.visit_expr_post_order(call)
        if name not in self.stubs:
            self.stubs[name] = _stub(len(call.args), call.ty_args[0])
            relax.expr._update_type(self.variables[name], self.stubs[name].ty)
        args = [self.visit_expr(a) for a in call.args]  # of another loop, maybe, whose result is a new variable
        return relax.Call(self.variables[name], args, None, [], call.span)


def _stub(count: int, result: Any) -> relax.Function:
    """A function of any `count` values with that result: the generator wants one of the name that it calls."""
    params = [relax.Var(f"p{i}", relax.AnyType()) for i in range(count)]
    nothing = relax.Var("nothing", result)
    value = relax.Call(relax.ExternFunc("vm.builtin.null_value"), [], None, [result])
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(nothing, value)])], nothing)
    return relax.Function(params, body, result, False)


def write_loops(builder: Any, loops: Sequence[Loop]) -> None:
    """The code of loops, behind that of everything else."""
    for one in loops:
        count = 2 + one.states + one.others
        with builder.function(one.name, num_inputs=count):
            _Code(builder, one, count).write()


class _Code:
    """The instructions of one loop; registers are numbered from the parameters on.

    Parameters: whether there is a first trip, its number 0, the states, the values that every trip is given.
    """

    def __init__(self, builder: Any, loop: Loop, count: int) -> None:
        self.b, self.loop = builder, loop
        self.others = list(range(2 + loop.states, count))
        fresh = iter(range(count, 1 << 30))
        self.go, self.trip, self.flag, self.whole, self.shape = (next(fresh) for _ in range(5))
        self.states = [next(fresh) for _ in range(loop.states)]
        self.rows = [next(fresh) for _ in loop.rows]
        self.stacks = [next(fresh) for _ in loop.rows]
        self.spare, self.shapes, self.result = (next(fresh) for _ in range(3))

    def write(self) -> None:
        b, loop = self.b, self.loop
        copies = [(0, self.go), (1, self.trip), *((2 + i, r) for i, r in enumerate(self.states))]
        for source, target in copies:
            self._call("vm.builtin.copy", [b.r(source)], target)
        if loop.rows:
            self._call("vm.builtin.read_if_cond", [b.r(self.go)], self.flag)
            first = self._size(_Code._trip, _Code._begin)
            empty = self._size(_Code._empty)
            again = self._again()
            b.emit_if(b.r(self.flag), first + again + self._size(_Code._together) + 2)
            self._trip()
            self._begin()
            self._loop()
            self._together()
            b.emit_goto(empty + 1)
            self._empty()
        else:
            self._loop()
        results = [b.r(r) for r in (*self.states, *self.stacks)]
        self._call("vm.builtin.make_tuple", results, self.result)
        b.emit_ret(b.r(self.result))

    def _loop(self) -> None:
        """Trips, as long as there is one."""
        b = self.b
        inside = self._size(_Code._trip, _Code._append)
        self._call("vm.builtin.read_if_cond", [b.r(self.go)], self.flag)
        b.emit_if(b.r(self.flag), inside + 2)
        self._trip()
        self._append()
        b.emit_goto(-(inside + 2))

    def _again(self) -> int:
        """The number of instructions of :meth:`_loop`."""
        return 3 + self._size(_Code._trip, _Code._append)

    def _trip(self) -> None:
        b = self.b
        given = [self.trip, *self.states, *self.others]
        self._call(self.loop.name + BODY, [b.r(r) for r in given], self.whole)
        for index, target in enumerate([self.go, self.trip, *self.states, *self.rows]):
            self._call("vm.builtin.tuple_getitem", [b.r(self.whole), b.imm(index)], target)

    def _begin(self) -> None:
        for row, stack in zip(self.rows, self.stacks, strict=True):
            self._call("vm.builtin.shape_of", [self.b.r(row)], self.shape)
            arguments = [self.b.r(row), self.b.r(self.shape), self.b.imm(-1)]
            self._call("vm.builtin.attention_kv_cache_create", arguments, stack)

    def _append(self) -> None:
        for row, stack in zip(self.rows, self.stacks, strict=True):
            self._call("vm.builtin.attention_kv_cache_append", [self.b.r(stack), self.b.r(row)], stack)

    def _tell_shapes(self) -> None:
        given = [self.trip, *self.states, *self.others]
        self._call(self.loop.name + SHAPES, [self.b.r(r) for r in given], self.shapes)

    def _together(self) -> None:
        b = self.b
        self._tell_shapes()
        for index, stack in enumerate(self.stacks):
            self._call("vm.builtin.tuple_getitem", [b.r(self.shapes), b.imm(index)], self.shape)
            self._call("vm.builtin.attention_kv_cache_view", [b.r(stack), b.r(self.shape)], stack)

    def _empty(self) -> None:
        """The results of no trip: tensors without elements."""
        b = self.b
        self._tell_shapes()
        for index, (stack, dtype) in enumerate(zip(self.stacks, self.loop.rows, strict=True)):
            kind = b.convert_constant(tvm.DataType(dtype))
            byte, where = b.convert_constant(tvm.DataType("uint8")), b.convert_constant("global")
            self._call("vm.builtin.tuple_getitem", [b.r(self.shapes), b.imm(index)], self.shape)
            size = b.convert_constant(tvm.runtime.ShapeTuple([1]))
            self._call("vm.builtin.alloc_storage", [b.vm_state(), size, b.imm(0), byte, where], self.spare)
            self._call("vm.builtin.alloc_tensor", [b.r(self.spare), b.imm(0), b.r(self.shape), kind], stack)

    def _call(self, name: str, arguments: list[Any], target: int) -> None:
        self.b.emit_call(name, args=arguments, dst=self.b.r(target))

    def _size(self, *parts: Callable[[_Code], None]) -> int:
        """The number of instructions that these parts write."""
        counter = _Counter(self)
        for part in parts:
            part(counter)
        return counter.count


class _Counter(_Code):
    """Counts instructions instead of writing them."""

    def __init__(self, code: _Code) -> None:
        self.__dict__.update(code.__dict__)
        self.count = 0

    def _call(self, name: str, arguments: list[Any], target: int) -> None:
        self.count += 1
