"""What a recogniser asks of a PrimFunc: its blocks, their axes, what they read and write - for the families.

Pure Python over the TVM tree, no schedule made: a fused elementwise chain takes some 100 us. How an access moves
along an axis: :mod:`tvmopt.scheduling.strides`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import SBlockRealize

from tvmopt.targets import Machine

KERNEL = "tvmopt.kernel"
"""The block annotation by which a lowering tells a family "this is yours"."""

_TIMES = {
    1.0: "exp exp2 exp10 sqrt rsqrt asin acos atan atan2 hypot fmod",
    1.5: "tanh sigmoid cosh",
    2.0: "log log2 log10",
    2.5: "erf sin cos tan sinh",
    3.5: "log1p",
    5.0: "atanh",
    18.0: "pow",
    45.0: "asinh acosh",
}
"""How many times as long as exp functions take: vectors of 16 on a Zen 4; the last three are libm's, one by one."""
TRANSCENDENTAL = {f"tirx.{name}": time for time, names in _TIMES.items() for name in names.split()}
TRANSCENDENTAL["tvmopt.normal_cdf"] = 1.5
REMAINDER = "tirx.fmod"
"""What a remainder of floats counts as, which is an operation of its own and no call."""


@dataclass(frozen=True)
class Access:
    """One load or store: the buffer and its index expressions (in the block's variables)."""

    buffer: Any
    indices: tuple[Any, ...]


@dataclass(frozen=True)
class BlockFacts:
    """One block.

    Attributes:
        name: its name in the function.
        variables, extents, kinds: its axes; a kind is ``"S"`` (spatial), ``"R"`` (reduction) or ``"O"`` (other).
        loads, store: what it touches; `store` is None where the body is more than one store.
        calls: how often each intrinsic stands in the body.
        operations: arithmetic operations an iteration.
        annotations: the block's annotations.
        guarded: variables that a condition (of a select or if_then_else) depends on other than through data: the
            borders of a pad, the seams of a concatenation.
        trivial: each axis is bound to one loop of its own, in order, without a predicate.
    """

    name: str
    variables: tuple[Any, ...]
    extents: tuple[int, ...]
    kinds: str
    loads: tuple[Access, ...]
    store: Access | None
    calls: Counter[str]
    operations: int
    annotations: dict[str, Any] = field(hash=False)
    guarded: frozenset[Any] = frozenset()
    trivial: bool = True
    body: Any = None

    @property
    def elements(self) -> int:
        """Iterations."""
        return math.prod(self.extents)

    @property
    def spatial(self) -> bool:
        return set(self.kinds) <= {"S"}

    @property
    def kernel(self) -> str:
        """The value of its ``tvmopt.kernel`` annotation, or an empty string."""
        return str(self.annotations.get(KERNEL, ""))

    @property
    def transcendental(self) -> float:
        """Transcendental functions of an iteration, in those that take as long as exp."""
        return _transcendental(self.calls)

    def nanoseconds(self, machine: Machine) -> float:
        """Rough time of one core, data in L2: a vector operation half a cycle, exp what it does."""
        accesses = (*self.loads, *([self.store] if self.store else []))
        memory = sum(itemsize(a.buffer) for a in accesses) / machine.l2_rate
        cycles = (0.5 * self.operations + machine.exp_cycles * self.transcendental) / machine.lanes()
        return self.elements * max(cycles, memory) / machine.ghz


def _transcendental(calls: Counter[str]) -> float:
    return sum(n * TRANSCENDENTAL.get(name, 0.0) for name, n in calls.items())


def itemsize(buffer: Any) -> int:
    """Bytes of one element (a bool is one byte)."""
    return max(1, int(buffer.dtype.bits) // 8)


def nbytes(buffer: Any) -> int:
    """Bytes of a static buffer."""
    return math.prod(int(d) for d in buffer.shape) * itemsize(buffer)


def facts(func: Any) -> tuple[BlockFacts, ...] | None:
    """The blocks of a PrimFunc in order; None where the function is not one of ours to reason about:
    no root block, a dynamic shape, or loops that are not plain counted loops."""
    root = getattr(func, "body", None)
    if not isinstance(root, SBlockRealize):
        return None
    blocks: list[BlockFacts] = []
    try:
        for realize, loops in _leaf_blocks(root.block.body, ()):
            blocks.append(_block(realize, loops))
    except _Foreign:
        return None
    return tuple(blocks) or None


def moving_blocks(func: Any) -> tuple[BlockFacts, ...] | None:
    """The blocks of a function if all are spatial, write one buffer with plain loops and no lowering claimed them,
    else None: what `elementwise` and `layout` have in common, on every kind of machine."""
    blocks = facts(func)
    if blocks is None or any(not b.spatial or b.kernel or b.store is None or not b.trivial for b in blocks):
        return None
    return blocks


def block_facts(sch: Any, block: Any) -> BlockFacts | None:
    """The facts of one block as it stands in a schedule now; None where an extent is not static."""
    from tvm_ffi import get_global_func

    realize = get_global_func("s_tir.schedule.GetSBlockRealize")(sch, block)
    try:
        return _block(realize, tuple(sch.get(loop) for loop in sch.get_loops(block)))
    except _Foreign:
        return None


class _Foreign(Exception):
    pass


def _static(expr: Any) -> int:
    if isinstance(expr, int):
        return expr
    if not isinstance(expr, tirx.IntImm):
        raise _Foreign
    return int(expr.value)


def _leaf_blocks(stmt: Any, loops: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if isinstance(stmt, tirx.For):
        if int(stmt.kind) != 0 or _static(stmt.min) != 0:
            raise _Foreign
        _static(stmt.extent)
        yield from _leaf_blocks(stmt.body, (*loops, stmt))
    elif isinstance(stmt, tirx.SeqStmt):
        for child in stmt.seq:
            yield from _leaf_blocks(child, loops)
    elif isinstance(stmt, SBlockRealize):
        yield stmt, loops
    else:
        raise _Foreign


def epilogue_cycles(block: Any, machine: Machine) -> float:
    """Cycles of one core for what a block of an epilogue computes, its data at hand: rough as `nanoseconds` is; 0 where
    a size is open."""
    scan = _Scan()
    scan.visit(block.body)
    transcendental = _transcendental(scan.calls)
    sizes = [v.dom.extent for v in block.iter_vars]
    if not all(isinstance(size, tirx.IntImm) for size in sizes):
        return 0.0
    elements = math.prod(int(size) for size in sizes)
    return elements * (0.5 * scan.operations + machine.exp_cycles * transcendental) / machine.lanes()


def _block(realize: Any, loops: tuple[Any, ...]) -> BlockFacts:
    block = realize.block
    if not len(block.writes):  # an opaque block (sorting, NMS) hides what it touches: nothing may move past it
        raise _Foreign
    kinds = "".join({0: "S", 2: "R"}.get(int(v.iter_type), "O") for v in block.iter_vars)
    extents = tuple(_static(v.dom.extent) for v in block.iter_vars)
    values = list(realize.iter_values)
    unit = isinstance(realize.predicate, tirx.IntImm) and int(realize.predicate.value) == 1
    own = [value for value, extent in zip(values, extents, strict=True) if extent != 1 or ir.is_prim_var(value)]
    trivial = (
        unit
        and len(own) == len(loops)
        and all(value.same_as(loop.loop_var) for value, loop in zip(own, loops, strict=False))
    )
    scan = _Scan()
    scan.visit(block.body)
    for buffer in {access.buffer for access in scan.loads}:
        for extent in buffer.shape:
            _static(extent)
    single = isinstance(block.body, tirx.BufferStore)
    return BlockFacts(
        str(block.name_hint), tuple(v.var for v in block.iter_vars), extents, kinds, tuple(scan.loads),
        Access(block.body.buffer, tuple(block.body.indices)) if single else None,
        scan.calls, scan.operations, dict(block.annotations), frozenset(scan.guarded), trivial, block.body,
    )  # fmt: skip


_BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod, tirx.Min, tirx.Max,
    tirx.EQ, tirx.NE,    tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or,
)  # fmt: skip
_FIELDS = ("condition", "true_value", "false_value", "value", "body", "base", "stride", "a", "b", "extent",
           "then_case",
           "else_case", "block", "init")  # fmt: skip


class _Scan:
    """Collects the loads, intrinsics and arithmetic of a block's body (index arithmetic is not counted)."""

    def __init__(self) -> None:
        self.loads: list[Access] = []
        self.calls: Counter[str] = Counter()
        self.operations = 0
        self.guarded: set[Any] = set()

    def visit(self, node: Any) -> None:
        if node is None or isinstance(node, (int, float, str)):
            return
        kind = type(node).__name__
        if kind == "TensorLoad":
            self.loads.append(Access(node.source, tuple(node.indices)))
            for index in node.indices:  # a load inside an index is a gather
                self._indices(index)
        elif kind == "BufferStore":
            self.visit(node.value)
            for index in node.indices:
                self._indices(index)
        elif kind == "Call":
            name = getattr(node.op, "name", str(node.op))
            self.calls[name] += 1
            if name.endswith("if_then_else"):
                self._guards(node.args[0])
            for arg in node.args:
                self.visit(arg)
        elif kind == "SeqStmt":
            for child in node.seq:
                self.visit(child)
        elif kind not in ("Var", "IntImm", "FloatImm", "StringImm"):
            self.operations += (isinstance(node, _BINARY) and not negates(node)) or kind == "Select"
            if kind == "Mod" and str(node.ty.dtype).startswith("float"):  # many instructions, or a call of libm
                self.calls[REMAINDER] += 1
            if kind == "Select":
                self._guards(node.condition)
            for name in _FIELDS:
                self.visit(getattr(node, name, None))

    def _guards(self, node: Any) -> None:
        if ir.is_prim_var(node):
            self.guarded.add(node)
        elif type(node).__name__ == "Call":
            for arg in node.args:
                self._guards(arg)
        elif type(node).__name__ != "TensorLoad":
            for name in ("a", "b", "value", "condition", "true_value", "false_value"):
                child = getattr(node, name, None)
                if child is not None and not isinstance(child, (int, float)):
                    self._guards(child)

    def _indices(self, index: Any) -> None:
        before = self.operations
        self.visit(index)
        self.operations = before


def negates(node: Any) -> bool:
    """Whether a node is a product with -1: a change of sign, which the sum around it does without an operation."""
    factor = node.b if isinstance(node, tirx.Mul) else None
    if isinstance(factor, tirx.Broadcast):
        factor = factor.value
    return isinstance(factor, tirx.FloatImm) and float(factor.value) == -1.0


def divisors(n: int) -> list[int]:
    """All of them, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def largest_divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit`.

    >>> largest_divisor(3136, 512)
    448
    """
    best = 1
    for d in range(1, math.isqrt(n) + 1):
        if n % d == 0:
            for c in (d, n // d):
                if best < c <= limit:
                    best = c
    return best
