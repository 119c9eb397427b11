"""Matrix products, convolutions and attention on 16-bit numbers - for `--precision bf16` and `fp16`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmopt.operators import masked
from tvmopt.passes.graph import (
    RESULT,
    Call,
    Expr,
    Graph,
    Var,
    const,
    dtype,
    name_of,
    names_sizes,
    op_name,
    shape,
    sizes,
    variables,
    with_attrs,
)
from tvmopt.report import DecisionLog

NAME = "tvmopt.ConvertPrecision"
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
HEAVY = ("matmul", "nn.conv2d")  # take 16-bit operands, sum and answer in float32
ATTENTION = ("nn.attention", "nn.attention_bias", masked.OP)  # answers in the type of its operands
MOVES = (  # move or choose elements, so that rounding before is rounding after
    "reshape", "squeeze", "expand_dims", "flatten", "permute_dims", "concat", "split", "strided_slice",
    "nn.max_pool2d",
)  # fmt: skip
VIEWS = ("reshape", "squeeze", "expand_dims", "flatten")  # the same bytes
LARGEST_FP16 = 65504.0
SHORT = 2  # a reduction of fewer terms is no product of pairs

Reason = Callable[[str, Call], "str | None"]
"""Why the machine has no 16-bit kernel for this operator call (its name, the call), or None if it has one."""


@relax.transform.function_pass(opt_level=0, name=NAME)
class ConvertPrecision:
    """Give the compute-heavy operators 16-bit operands; they add up and answer in float32.

        Before                                  After, x produced by LayerNorm
        y = R.matmul(x, W)                      x16 = R.astype(x, "bfloat16")         # fuses into LayerNorm
        z = R.add(y, x)                         y = R.matmul(x16, W16, out_dtype="float32")
                                                w = R.astype(x16, "float32")          # fuses into the add
                                                z = R.add(y, w)

    Constants are rounded (to nearest, ties to even) here, at compile time. What computes on single elements,
    on rows or over windows - softmax, norms, reductions, exp, averages - stays in float32; so do the model's
    inputs and outputs. A value that some heavy operator reads exists in memory only in 16 bits: every other
    reader widens it, and these casts fuse into their readers. Casts move up through operators that only move
    elements (a transpose, a concatenation, maximum pooling), so that these move half the bytes. A value that
    no heavy operator reads (the residual stream before a LayerNorm, logits) stays in float32. The model's inputs are
    in float32 anyway, in another shape as well, or follow from those of float16 as they are read: their other readers
    read that.

    Applies when   the operator is one of HEAVY or ATTENTION on float32 tensors. Of data with open sizes: where the
                   second operand is a constant, so that what is open are rows, samples or pixels.
    Declines when  1. an operand is not float32 (float64 is asked for by the model)
                   2. a size is open, and both operands are computed by a run, or the sum is of open length
                   3. the reduction has fewer than two terms: no product of pairs. A depthwise convolution has one,
                      and multiplies in float32; it is converted for half the bytes, where `unsupported` lets it
                   4. a weight does not fit into float16 (fp16 only: more than 65504)
                   5. the machine has no such kernel; `unsupported` says why
                   6. the function has control flow: its values cross blocks
                   7. an operand is a quantized tensor's numbers, which 16 bits would round: the sum is exact in
                      float32, and one that is quantized again would be off by a step. Whether bytes are multiplied as
                      bytes was asked before (ConvertIntegerProducts).
                   8. it is a Fourier transform: of a spectrum whose bins are far apart 8 bits leave the largest ones
    Gain           half the bytes of weights and activations, and the machine's 16-bit products.
    Order          after everything that looks for float32 patterns; before FoldConstant, which has nothing to
                   fold of ours, and CanonicalizeBindings.

    Args:
        precision: "bf16" or "fp16".
        unsupported: see :data:`Reason`; default: every kernel is there.
    """

    def __init__(
        self, log: DecisionLog | None = None, precision: str = "bf16", unsupported: Reason | None = None
    ) -> None:
        self.log = log if log is not None else DecisionLog()
        self.dtype = DTYPES[precision]
        self.unsupported = unsupported or (lambda name, call: None)

    def transform_function(self, func: Any, mod: Any, ctx: Any) -> Any:
        """TVM's entry point for a function pass."""
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            return func
        graph = Graph(func)
        heavy = {}
        for var, value in graph.defs.items():
            name = op_name(value)
            if name in HEAVY or name in ATTENTION:
                reason = self._declines(graph, name, value)
                if reason is None:
                    heavy[var] = value
                else:
                    self.log.declined(NAME, name_of(var), reason)
        if not heavy:
            return func
        if len(func.body.blocks) > 1:
            self.log.declined(NAME, "main", "6: control flow")
            return func
        return _Conversion(graph, heavy, self.dtype, self.log).run()

    def _declines(self, graph: Graph, name: str, call: Call) -> str | None:
        operands = list(call.args[:3] if name in ATTENTION else call.args[:2])
        kinds = {dtype(a) for a in operands}
        if kinds != {"float32"}:
            return f"1: operands are {', '.join(sorted(kinds))}"  # Decline 1
        if any(shape(a) is None for a in operands) and (reason := _open(graph, name, operands)) is not None:
            return f"2: {reason}"  # Decline 2
        if name in HEAVY and not _depthwise(name, call) and _terms(name, call) < SHORT:
            return "3: a reduction of one term"  # Decline 3
        if self.dtype == "float16":
            for operand in operands:
                array = graph.array(operand)
                if array is not None and array.size and float(np.abs(array).max()) > LARGEST_FP16:
                    return "4: a weight does not fit into float16"  # Decline 4
        if name in HEAVY and any(_dequantized(graph, operand) for operand in operands):
            return "7: an operand is a quantized tensor's numbers"  # Decline 7
        if name == "matmul" and _turns(graph.array(call.args[1])):
            return "8: a Fourier transform"  # Decline 8
        reason = self.unsupported(name, call)
        return None if reason is None else f"5: {reason}"  # Decline 5


def _turns(matrix: Any) -> bool:
    """Whether a matrix turns every number of a row by angles: pairs of columns that are cosines and sines.

    >>> angles = np.outer(np.arange(4), np.arange(3)) * np.pi / 2
    >>> turning = np.stack([np.cos(angles), -np.sin(angles)], -1).reshape(4, 6)
    >>> _turns(turning), _turns(turning + np.eye(4, 6)), _turns(np.ones((4, 5)))
    (True, False, False)
    """
    if matrix is None or matrix.ndim != 2 or matrix.shape[1] % 2 or matrix.size < 4:
        return False
    for part in (matrix[:1], matrix):  # of weights the first row says no
        lengths = np.hypot(part[:, 0::2], part[:, 1::2])
        if not lengths.max() or np.ptp(lengths) > 1e-5 * lengths.max():
            return False
    return True


def _dequantized(graph: Graph, operand: Expr) -> bool:
    """Whether a run computes an operand from bytes, and moves elements at most."""
    value = graph.defs.get(operand) if isinstance(operand, relax.Var) else None
    while value is not None and op_name(value) in MOVES and isinstance(value.args[0], relax.Var):
        value = graph.defs.get(value.args[0])
    return value is not None and op_name(value) == "dequantize"


def _open(graph: Graph, name: str, operands: list[Expr]) -> str | None:
    """Why operands of which a size is open have no 16-bit kernel; None if they have one."""
    data, *others = operands
    if name in ATTENTION or any(graph.array(other) is None for other in others):
        return "an open size of two operands that a run computes"
    known = sizes(data)
    return None if known and (name != "matmul" or isinstance(known[-1], int)) else "a sum of open length"


def _terms(name: str, call: Call) -> int:
    """Length of the innermost reduction: K, or the input channels of a group."""
    if name == "matmul":
        data = sizes(call.args[0])
        return int(data[-1]) if data else 0
    return (shape(call.args[1]) or ())[str(call.attrs.kernel_layout).find("I")]


def _depthwise(name: str, call: Call) -> bool:
    if name != "nn.conv2d" or int(call.attrs.groups) == 1:
        return False
    return _terms(name, call) == 1


class _Conversion:
    """One function on its way: what is wanted in 16 bits, then the new bindings in order."""

    def __init__(self, graph: Graph, heavy: dict[Var, Call], half: str, log: DecisionLog) -> None:
        self.graph, self.heavy, self.half, self.log = graph, heavy, half, log
        self.builder = relax.BlockBuilder()
        self.narrow: dict[Var, Var] = {}  # a float32 variable -> its 16-bit form
        self.out: list[Any] = []
        self.bound: set[Expr] = set(graph.func.params)  # variables that exist in float32
        self.inputs = _inputs(graph)  # those that do whoever reads them besides
        self.wanted: set[Var] = set()
        self.flow = isinstance(graph.func.body.blocks[0], relax.DataflowBlock)
        self.casts = [0, 0]
        for call in heavy.values():
            for operand in self._operands(call):
                self._want(operand)

    def _operands(self, call: Call) -> list[Expr]:
        return list(call.args[: 3 if op_name(call) in ATTENTION else 2])

    # -- what is wanted in 16 bits ---------------------------------------------------------------------------

    def _want(self, expr: Expr) -> None:
        """Mark a value, and what it only moves, as wanted in 16 bits."""
        stack = [expr]
        while stack:
            var = stack.pop()
            if isinstance(var, relax.Var) and var not in self.wanted:
                self.wanted.add(var)
                stack += self._moved(var)

    def _moved(self, var: Var) -> list[Expr]:
        """The float32 tensors that the value of `var` only moves; none where it computes, or moves an input
        of the model (there the cast fuses into the move, and would be a kernel of its own before it)."""
        value = self.graph.defs.get(var) if var not in self.inputs else None
        if isinstance(value, relax.TupleGetItem):
            source = value.tuple_value
            return [source] if self._moved(source) else []  # a split, but not of an input
        if value is None or op_name(value) not in MOVES:
            return []
        first = value.args[0]
        tensors = list(first.fields) if isinstance(first, relax.Tuple) else [first]
        known = all(isinstance(t, relax.Var) and t in self.graph.defs and dtype(t) == "float32" for t in tensors)
        return tensors if known else []

    # -- new bindings ----------------------------------------------------------------------------------------

    def run(self) -> Any:
        """The new function."""
        func = self.graph.func
        for param in func.params:
            if param in self.wanted:
                self._round(param)
        for binding in func.body.blocks[0].bindings:
            self._visit(binding)
        kept = _used(self.out, func.body.body)
        block = relax.DataflowBlock(kept) if self.flow else relax.BindingBlock(kept)
        body = self.builder.normalize(relax.SeqExpr([block], func.body.body))
        to, back = self.casts
        self.log.applied(NAME, "main", f"{len(self.heavy)} operators in {self.half}; {to} casts to it, {back} back")
        return relax.Function(func.params, body, func.ret_ty, bool(func.is_pure), func.attrs)

    def _visit(self, binding: Any) -> None:
        var, value = binding.var, self.graph.defs[binding.var]
        if var in self.heavy:
            self._heavy(var, value)
        elif var in self.wanted and self._moved(var):
            self.narrow[var] = self._emit(self._half_of(value), name_of(var))
            seen = RESULT in self.graph.users(var) or not isinstance(var, relax.DataflowVar)
            if seen and isinstance(var.ty, relax.TensorType):  # the elements of a tuple are bound one by one
                self._bind(var, relax.op.astype(self.narrow[var], "float32"))
                self.casts[1] += 1
            return
        elif isinstance(binding, relax.VarBinding):
            self._bind(var, self._widened(value, name_of(var)))
        else:
            self.out.append(relax.MatchCast(var, self._widened(value, name_of(var)), binding.ty))
        if var in self.wanted and var not in self.narrow:
            self._round(var)

    def _heavy(self, var: Var, value: Call) -> None:
        name = op_name(value)
        operands = [self._to_half(a, name_of(var)) for a in self._operands(value)]
        rest = [self._wide(a, name_of(var)) for a in value.args[len(operands) :]]
        self.log.applied(NAME, name_of(var), f"{name} on {self.half}, sums in float32")
        if name not in ATTENTION:
            self._bind(var, with_attrs(value, [*operands, *rest], out_dtype="float32"))
            return
        self.narrow[var] = self._emit(with_attrs(value, [*operands, *rest]), name_of(var))
        if any(user is RESULT or not self._reads_half(user) for user in self.graph.users(var)):
            self.wanted.add(var)
            if RESULT in self.graph.users(var) or not isinstance(var, relax.DataflowVar):
                self._bind(var, relax.op.astype(self.narrow[var], "float32"))
                self.casts[1] += 1

    def _reads_half(self, user: Any) -> bool:
        return user in self.heavy or (user in self.wanted and bool(self._moved(user)))

    def _half_of(self, value: Expr) -> Expr:
        """A move of 16-bit tensors instead of float32 ones."""
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.narrow[value.tuple_value], value.index)
        first = value.args[0]
        if isinstance(first, relax.Tuple):
            first = relax.Tuple([self.narrow[f] for f in first.fields])
        else:
            first = self.narrow[first]
        return with_attrs(value, [first, *value.args[1:]])

    def _to_half(self, operand: Expr, name: str) -> Expr:
        """An operand of a heavy operator in 16 bits."""
        array = self.graph.array(operand)
        if array is not None:
            like = relax.Var("like", relax.TensorType(list(array.shape), self.half))
            return self.graph.remade(operand, self.half, lambda: const(array, like))
        return self.narrow[operand]

    def _widened(self, value: Expr, name: str) -> Expr:
        """`value` reading float32 casts of the variables that exist in 16 bits only."""
        if isinstance(value, relax.Tuple):  # a result: what exists in float32 too stays as it is
            return relax.Tuple([f if f in self.bound else self._wide(f, name) for f in value.fields])
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.narrow:  # its split is in 16 bits
            self.casts[1] += 1
            return relax.op.astype(self._emit(self._half_of(value), name), "float32")
        if isinstance(value, relax.Call) and not isinstance(value.op, relax.Var):
            args = [self._wide(a, name) for a in value.args]
            if any(a is not b for a, b in zip(args, value.args, strict=True)):
                return relax.Call(value.op, args, value.attrs, value.ty_args)
        return value

    def _wide(self, arg: Expr, name: str) -> Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._wide(f, name) for f in arg.fields])
        narrow = isinstance(arg, relax.Var) and arg in self.narrow and arg not in self.inputs
        if narrow and dtype(arg) == "float32":
            self.casts[1] += 1
            return self._emit(relax.op.astype(self.narrow[arg], "float32"), name)
        return arg

    def _round(self, var: Var) -> None:
        self.casts[0] += 1
        self.narrow[var] = self._emit(relax.op.astype(var, self.half), name_of(var))

    def _emit(self, value: Expr, name: str) -> Var:
        value = self.builder.normalize(value)
        var = (relax.DataflowVar if self.flow else relax.Var)(name, value.ty)
        self.out.append(relax.VarBinding(var, value))
        return var

    def _bind(self, var: Var, value: Expr) -> None:
        self.bound.add(var)
        self.out.append(relax.VarBinding(var, self.builder.normalize(value)))


def _inputs(graph: Graph) -> set[Var]:
    """The model's inputs, views of them, and those of 16 bits as float32."""
    found = set(graph.func.params)
    for var, value in graph.defs.items():
        if op_name(value) in (*VIEWS, "astype") and value.args[0] in found and dtype(var) == "float32":
            found.add(var)
    return found


def _used(bindings: list[Any], result: Expr) -> list[Any]:
    """The bindings that the result needs, those of variables visible outside, and those that name sizes."""
    needed = set(variables(result))
    kept = []
    for binding in reversed(bindings):
        if binding.var in needed or not isinstance(binding.var, relax.DataflowVar) or names_sizes(binding):
            kept.append(binding)
            needed.update(variables(binding.value))
    return kept[::-1]
