"""FLOPs and bytes of one kernel, from its PrimFunc before scheduling - for reports and the roofline.

What is counted is what the kernel executes: of a Winograd convolution the transforms and the products of
transformed tiles, not the multiply-adds of the convolution that they replace. The FLOPs that the model's
definition asks for are counted from ONNX (:mod:`tvmopt.analysis.opcost`); reports show both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tvmopt.scheduling.blocks import blocks_of, extents
from tvmopt.scheduling.facts import negates

Fixed = dict[str, tuple[int | None, int]]
"""Of a block's iteration variables: the value that a condition has fixed, and how many values are left."""


MOST_TRIPS = 64
"""Trips of a loop that are looked at one by one, where they differ."""


@dataclass(frozen=True)
class Cost:
    """What one call of a kernel costs.

    Attributes:
        flops: arithmetic operations that it executes (a multiply-add is two), of floats and of products of bytes.
        bytes: its parameters, each touched once - of a table that is looked up in, as much as is looked up.
        integer: operations of products of bytes among them.
    """

    flops: float
    bytes: float
    integer: float = 0.0

    @property
    def precision(self) -> str:
        """``"int8"`` where most operations are products of bytes, else what the model is compiled in: ``""``."""
        return "int8" if 2 * self.integer > self.flops else ""


def kernel_cost(func: tirx.PrimFunc) -> Cost:
    """Operations counted in every block's body times its iterations; bytes from the parameters' sizes.

    Transcendental calls count one, a product of bytes and its sum two. Other integers (index arithmetic), comparisons
    and selects count nothing. A select
    on an iteration variable executes one side an iteration, any other select both. Tile instructions are not looked
    into: their block is annotated `tvmopt.flops`, of one iteration.
    """
    flops, integer, looked_up = 0.0, 0.0, dict[str, float]()
    for block in blocks_of(func):
        dims = extents(block) or _folded(block)
        iterations = prod(dims or [0])
        variables: Fixed = {iv.var.name: (None, d) for iv, d in zip(block.iter_vars, dims, strict=bool(dims))}
        flops += iterations * (_operations(block.body, variables) + int(block.annotations.get("tvmopt.flops", 0)))
        integer += iterations * _operations(block.body, variables, _of_bytes)
        for name, amount in _look_ups(block.body).items():
            looked_up[name] = looked_up.get(name, 0.0) + iterations * amount
    total = 0.0
    for param in func.params:
        shape = getattr(getattr(param, "ty", None), "shape", None) or getattr(param, "shape", None)
        dtype = str(getattr(getattr(param, "ty", None), "dtype", None) or getattr(param, "dtype", "float32"))
        if shape is not None and all(isinstance(d, tirx.IntImm | int) for d in shape):
            size = prod(int(d) for d in shape) * _itemsize(dtype)
            total += min(size, looked_up.get(str(param.name), size))
    return Cost(flops, total, integer)


def _folded(block: Any) -> list[int]:
    """The extents of a block's variables where numbers stand in place of open sizes: `(32 + 3)//4`; [] if one is open.

    >>> from tvm.tirx import FloorDiv, IntImm, IterVar, Var
    >>> from types import SimpleNamespace
    >>> tiles = FloorDiv(IntImm("int64", 35), IntImm("int64", 4))
    >>> _folded(SimpleNamespace(iter_vars=[IterVar((0, tiles), "i", 0)]))
    [8]
    """
    analyzer = Analyzer()
    dims = [analyzer.simplify(iv.dom.extent) for iv in block.iter_vars]
    return [int(d) for d in dims] if all(isinstance(d, tirx.IntImm) for d in dims) else []


def _itemsize(dtype: str) -> float:
    digits = "".join(c for c in dtype.split("e")[0] if c.isdigit())
    return max(1, int(digits or 8) // 8)


_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
_COMPARE = ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or")


def _operations(node: Any, variables: Fixed, one: Count | None = None) -> float:
    """Operations in one execution of a statement or expression.

    Args:
        one: those of a node itself, without its parts; default: :func:`_of_floats` and :func:`_of_bytes`.
    """
    kind = type(node).__name__
    if kind == "For":
        return _repeated(node, variables, one)
    if kind in ("Select", "IfThenElse"):
        return _either(node, kind, variables, one)
    count = one(node, kind) if one else _of_floats(node, kind) + _of_bytes(node, kind)
    if kind == "Call" and _operator(node) in DOTS:
        return count
    return count + sum(_operations(child, variables, one) for child in _children(node, kind))


Count = Callable[[Any, str], float]
"""From a node and the name of its kind to operations."""

DOTS = {"tvmopt.dot2": 3.0, "tvmopt.dot4": 8.0, "tvmopt.dot4_add": 8.0}
"""Operations a lane of two products and their sum, and of four products of bytes and their sum with what was there."""


def _operator(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def _of_floats(node: Any, kind: str) -> float:
    """Floating-point operations of a node itself."""
    if kind == "Call":
        name = _operator(node)
        return 0.0 if name == "tirx.if_then_else" else DOTS.get(name, 1.0) * _lanes(node)
    return _lanes(node) if kind in _BINARY and not negates(node) else 0.0


def _of_bytes(node: Any, kind: str) -> float:
    """Operations of a node itself that is a product of bytes, with its sum: `dot4`, or a product of two casts."""
    if kind == "Call" and _operator(node).startswith("tvmopt.dot4"):
        return DOTS["tvmopt.dot4"] * _width(node)
    if kind == "Mul" and all(map(_byte, (node.a, node.b))):
        return 2.0 * _width(node)
    return 0.0


def _byte(node: Any) -> bool:
    """Whether a value is a byte that was cast to an integer of more bits."""
    if type(node).__name__ != "Cast" or "int" not in str(node.ty.dtype):
        return False
    return str(getattr(node.value.ty, "dtype", "")).split("x")[0] in ("int8", "uint8")


def _repeated(node: Any, variables: Fixed, one: Count | None) -> float:
    """A loop: once for each value of its variable where that decides about loops and branches inside."""
    extent = _number(node.extent)
    if extent is None:
        return _operations(node.body, variables, one)
    if extent > MOST_TRIPS or not _decides(node.loop_var, node.body):
        return extent * _operations(node.body, variables, one)
    total = 0.0
    for trip in range(extent):
        value = tirx.const(trip, str(node.loop_var.ty.dtype))
        known = structural_map(node.body, (tirx.Var, lambda v, value=value: value if v.same_as(node.loop_var) else v))
        total += _operations(known, variables, one)
    return total


def _number(extent: Any) -> int | None:
    """The value of an expression of numbers; None if a variable is in it."""
    found = Analyzer().simplify(extent)
    return int(found) if isinstance(found, tirx.IntImm) else None


def _decides(var: Any, body: Any) -> bool:
    """Whether a variable stands in the extent of a loop, or in the condition of a branch."""
    found: list[bool] = []

    def look(expr: Any) -> None:
        structural_walk(expr, ((tirx.Var, lambda v: found.append(bool(v.same_as(var)))),))

    structural_walk(
        body, ((tirx.For, lambda node: look(node.extent)), (tirx.IfThenElse, lambda node: look(node.condition)))
    )
    return any(found)


def _either(node: Any, kind: str, variables: Fixed, one: Count | None) -> float:
    """A select or a branch: weighted by how many iterations take each side, where the condition tells."""
    yes = node.true_value if kind == "Select" else node.then_case
    no = node.false_value if kind == "Select" else node.else_case
    test = node.condition
    sides = _operations(test, variables, one)
    if kind == "IfThenElse" and (taken := _number(test)) is not None:
        side = yes if taken else no
        return sides + (_operations(side, variables, one) if side is not None else 0.0)
    name = str(getattr(getattr(test, "a", None), "name", ""))
    if type(test).__name__ == "EQ" and name in variables and isinstance(test.b, tirx.IntImm):
        fixed, left = variables[name]
        if fixed is not None:
            taken = yes if fixed == int(test.b) else no
            return sides + (_operations(taken, variables, one) if taken is not None else 0.0)
        hit = _operations(yes, variables | {name: (int(test.b), 1)}, one)
        rest = variables | {name: (None, max(1, left - 1))}
        miss = _operations(no, rest, one) if no is not None else 0.0
        return sides + (hit + (left - 1) * miss) / left
    first = _operations(yes, variables, one)
    second = _operations(no, variables, one) if no is not None else 0.0
    return sides + (first + second if kind == "Select" else max(first, second))


def _lanes(node: Any) -> float:
    """Elements of a floating-point value, one for a scalar; 0 for other types."""
    return _width(node) if "float" in str(getattr(node, "dtype", None) or node.ty) else 0.0


def _width(node: Any) -> float:
    """Elements of a value, one for a scalar."""
    _, cross, lanes = str(getattr(node, "dtype", None) or node.ty).rpartition("x")
    return float(lanes) if cross and lanes.isdigit() else 1.0


def _children(node: Any, kind: str) -> list[Any]:
    if kind in ("BufferStore", "Evaluate", "Cast", "Broadcast", "Bind"):
        return [node.value]
    if kind == "SeqStmt":
        return list(node.seq)
    if kind in (*_BINARY, *_COMPARE):
        return [node.a, node.b]
    if kind == "Call":
        return list(node.args)
    if kind == "Let":
        return [node.value, node.body]
    return [node.body] if kind in ("AttrStmt", "While") else []


def _look_ups(body: Any) -> dict[str, float]:
    """Bytes that one execution reads of buffers whose index is itself read from memory (a gather), by name."""
    found: dict[str, float] = {}

    def visit(node: Any, times: float) -> None:
        kind = type(node).__name__
        if kind == "For":
            times *= int(node.extent) if isinstance(node.extent, tirx.IntImm) else 1
        if kind == "TensorLoad" and any(_reads(index) for index in node.indices):
            name, dtype = str(node.source.name), str(getattr(node, "dtype", None) or node.ty)
            found[name] = found.get(name, 0.0) + times * _itemsize(dtype) * max(1.0, _lanes(node))
        sides = [node.true_value, node.false_value] if kind == "Select" else []
        for child in sides or ([node.body] if kind == "For" else _children(node, kind)):
            visit(child, times)

    visit(body, 1.0)
    return found


def _reads(index: Any) -> bool:
    """Whether an index is computed from memory."""
    kind = type(index).__name__
    return kind == "TensorLoad" or any(_reads(child) for child in _children(index, kind))
