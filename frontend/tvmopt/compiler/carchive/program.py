"""A compiled run as calls of kernels on places in memory, read off `main` - what a C archive does in place of TVM's
virtual machine.

    main(x, w0):                        bases: workspace 0, weights 1, numbers 2, inputs from 3, outputs behind
      a = alloc_tensor(...)
      conv(x, w0, a)                    conv(input 0 + 0, weights + 0, workspace + 0)
      y = alloc_tensor(...)
      dense(a, w1, y)                   dense(workspace + 0, weights + 3456, output 0 + 0)
      return (y,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from tvmopt.compiler.carchive.arena import Span, places
from tvmopt.errors import InputError
from tvmopt.passes.graph import inputs_of
from tvmopt.passes.run_loops import is_loop
from tvmopt.runtime.tensors import ALIGNMENT, TensorInfo, from_ffi

WORKSPACE, WEIGHTS, NUMBERS, FIRST = 0, 1, 2, 3
"""Bases that every program has, and the first of those of inputs, behind which outputs stand."""

IGNORED = ("relax.memory.alloc_storage", "relax.memory.kill_storage", "relax.memory.kill_tensor", "relax.null_value")
"""What only TVM's own plan of memory needs."""


@dataclass(frozen=True)
class Place:
    """So many bytes from one of the program's bases."""

    base: int
    offset: int = 0


@dataclass(frozen=True)
class Call:
    """A kernel, and where its arguments lie."""

    kernel: str
    arguments: tuple[Place, ...]


@dataclass(frozen=True)
class Copy:
    """Bytes of an output that no kernel writes where it is wanted: an input, a weight, or another output."""

    source: Place
    target: Place
    bytes: int


@dataclass(frozen=True)
class Program:
    """A run.

    Attributes:
        calls: in order. copies: behind them.
        workspace: bytes that the tensors between kernels need.
        numbers: scalars that are arguments, each at a multiple of 64.
    """

    calls: tuple[Call, ...]
    copies: tuple[Copy, ...]
    workspace: int
    numbers: bytes


def read(main: Any, offsets: Sequence[int]) -> Program:
    """The program of a `main` whose tensors are allocated.

    Args:
        offsets: of the weights, in the order of its parameters behind the inputs.

    Raises:
        InputError: it does what no C archive does yet: branches that a run decides, functions of TVM's runtime.
    """
    reader = _Reader(main, offsets)
    reader.sequence(main.body)
    return reader.program(reader.tensors(main.body.body))


@dataclass
class _Tensor:
    """Memory that is known under one or several names; `place`: None as long as it has none."""

    bytes: int
    place: Place | None = None
    span: Span | None = None


@dataclass
class _Reader:
    """Walks `main`; `env` maps a variable to its tensors: one, or those of a tuple."""

    main: Any
    offsets: Sequence[int]
    env: dict[Any, list[_Tensor]] = field(default_factory=dict)
    calls: list[tuple[str, list[_Tensor]]] = field(default_factory=list)
    numbers: bytes = b""

    def __post_init__(self) -> None:
        self.inputs = len(inputs_of(self.main))
        for index, param in enumerate(self.main.params):
            weight = index >= self.inputs
            place = Place(WEIGHTS, self.offsets[index - self.inputs]) if weight else Place(FIRST + index)
            self.env[param] = [_Tensor(_bytes(param), place)]

    def sequence(self, body: Any) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                self.env[binding.var] = self._bound(binding.var, binding.value)

    def tensors(self, expr: Any) -> list[_Tensor]:
        """Those that an expression holds."""
        if isinstance(expr, relax.Tuple):
            return [found for one in expr.fields for found in self.tensors(one)]
        if isinstance(expr, relax.TupleGetItem):
            return [self.tensors(expr.tuple_value)[expr.index]]
        if isinstance(expr, relax.Var) and expr in self.env:
            return self.env[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return [self._number(expr.value)]
        raise _refused(f"a value of its own ({type(expr).__name__})")

    def _number(self, value: Any) -> _Tensor:
        """A scalar; larger constants are weights."""
        info = TensorInfo("", tuple(int(size) for size in value.shape), str(value.dtype))
        data, offset = from_ffi(value, info).tobytes(), len(self.numbers)
        self.numbers += data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0")
        return _Tensor(len(data), Place(NUMBERS, offset))

    def _bound(self, var: Any, value: Any) -> list[_Tensor]:
        if isinstance(value, relax.If):
            raise _refused("an If that a run decides")
        if not isinstance(value, relax.Call):
            return self.tensors(value)
        name = getattr(value.op, "name", "")
        if name in IGNORED:
            return []
        if name in ("relax.memory.alloc_tensor", "relax.builtin.alloc_tensor"):
            return [_Tensor(_bytes(var))]
        if name in ("relax.reshape", "relax.memory.view"):
            return self.tensors(value.args[0])
        if isinstance(value.op, tvm.ir.GlobalVar):
            self.calls.append((value.op.name_hint, [one for a in value.args for one in self.tensors(a)]))
            return []
        symbol = getattr(value.op, "global_symbol", None) or getattr(value.args[0], "global_symbol", None)
        if is_loop(str(symbol)):
            raise _refused("a Loop that a run goes through")
        raise _refused(f"a call of {symbol or name}, which TVM's runtime has")

    def program(self, outputs: Sequence[_Tensor]) -> Program:
        copies = []
        for index, output in enumerate(outputs):
            target = Place(FIRST + self.inputs + index)
            if output.place is None:
                output.place = target
            else:
                copies.append(Copy(output.place, target, output.bytes))
        inner: dict[int, _Tensor] = {}
        for number, (_, arguments) in enumerate(self.calls):
            for one in arguments:
                if one.place is None:
                    first = one.span.first if one.span else number
                    one.span = Span(one.bytes, first, number)
                    inner[id(one)] = one
        offsets, size = places([one.span for one in inner.values() if one.span])
        for one, offset in zip(inner.values(), offsets, strict=True):
            one.place = Place(WORKSPACE, offset)
        calls = tuple(Call(name, tuple(a.place for a in arguments if a.place)) for name, arguments in self.calls)
        return Program(calls, tuple(copies), size, self.numbers)


def _bytes(var: Any) -> int:
    """Of a tensor of known sizes."""
    sizes = getattr(getattr(var.ty, "shape", None), "values", (None,))
    if not all(isinstance(size, tvm.tirx.IntImm) for size in sizes):
        raise _refused(f"{var.name}, whose size is known at run time only")
    return int(TensorInfo(str(var.name), tuple(map(int, sizes)), str(var.ty.dtype)).nbytes)


def _refused(what: str) -> InputError:
    fix = "leave --emit out: an artifact can have it"
    return InputError(f"a C archive cannot have {what}.", where="--emit c-archive", fix=fix)
