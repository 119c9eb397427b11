"""AMX instructions in the place of a scheduled product's loops - for the families whose products are AMX's, between
scheduling and code generation.

A family places the product's block under a loop of its own and annotates it; its loops are replaced here::

    for a task                                     ldtilecfg                       once a task and thread
      for a block of rows                          tilezero 0..3
        gemm[32 x 32] = sum_{t, i} dot2(..)  ->    for a step t: tileloadd 4..7, tdpbf16ps 0..3
        epilogue of gemm[32 x 32]                  tilestored 0..3                 into the buffer of `gemm`
                                                   tilerelease                     at the end of the task

A last block of fewer rows has a configuration of its own, loaded before it and put back behind it: loading one clears
all tiles. No tile reads beyond the rows and terms that exist. A process must have asked the operating system for tiles
first (:mod:`tvmopt.runtime.tiles`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.stmt import BufferRegion
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.lowering.intrinsics import called
from tvmopt.lowering.pairs import DOT2
from tvmopt.lowering.quads import DOT4
from tvmopt.schedules.cpu._amx.cost import Steps
from tvmopt.schedules.cpu._amx.instructions import (
    configure,
    fill,
    integer,
    release,
    sequence,
    tile_heights,
)
from tvmopt.scheduling.blocks import with_root

HEIGHT = "tvmopt.height"
"""The annotation of a scheduled block: rows of a block of tiles."""
Expr = Any
Key = tuple[int, int, int, int]
"""A configuration: rows of the upper and of the lower tiles, words of a step, columns."""
Write = Callable[["TileWriter", Any, dict[Any, Expr]], Any]
"""`write(writer, block, origin)`: the instructions of a product's block whose axes start at `origin`."""


def lower_tiles(func: tirx.PrimFunc, kernel: str, write: Write) -> tirx.PrimFunc:
    """The function with its products of this kernel as instructions; itself where it has none."""
    if not isinstance(func.body, SBlockRealize) or not _has_product(func.body, kernel):
        return func
    writer = TileWriter(kernel, write)
    root = func.body.block
    body = structural_mutate(root.body, ((tirx.For, writer.loop),))
    body = writer.configured(body)
    for old, new in writer.replaced:
        body = _with_buffer(body, old, new)
    buffers = [next((new for old, new in writer.replaced if b.same_as(old)), b) for b in root.alloc_buffers]
    return with_root(func, func.body, body, [*buffers, *writer.buffers])


def _kernel(block: Any) -> str:
    return str(block.annotations.get("tvmopt.kernel", "")) if HEIGHT in block.annotations else ""


def _has_product(node: Any, kernel: str) -> bool:
    found: list[Any] = []
    structural_walk(node, (SBlock, lambda b: found.append(b) if _kernel(b) == kernel else None))
    return bool(found)


def _with_buffer(body: Any, old: Any, new: Any) -> Any:
    return structural_map(body, (tirx.Var, lambda var: new if var.same_as(old) else var))


class TileWriter:
    """Replaces the nests of one function, and remembers what they need around them.

    Attributes:
        replaced: buffers that a product needs in another shape: (old, new).
        buffers: what the instructions need, to be allocated.
        first: the configuration of a task.
    """

    def __init__(self, kernel: str, write: Write) -> None:
        self.kernel, self.write = kernel, write
        self.replaced: list[tuple[Any, Any]] = []
        self.buffers: list[Any] = []
        self.first: Key | None = None
        self._task, self._rest = (tirx.decl_buffer((8,), "uint64", f"tiles{k}") for k in range(2))

    def loop(self, node: Any, mutator: Any) -> Any:
        """A loop; the outermost of those that hold nothing but a product becomes its instructions."""
        inner, variables = node, []
        while isinstance(inner, tirx.For):
            variables.append(inner.loop_var)
            inner = inner.body
        if not isinstance(inner, SBlockRealize) or _kernel(inner.block) != self.kernel:
            return mutator.default_mutate(node)
        block = inner.block
        start = {v: tirx.const(0, v.ty) for v in variables}
        origin = [structural_map(value, (tirx.Var, lambda v: start.get(v, v))) for value in inner.iter_values]
        return self.write(self, block, dict(zip((iv.var for iv in block.iter_vars), origin, strict=True)))

    # -- configuration -------------------------------------------------------------------------------------------

    def remember(self, rows: int, steps: Steps, width: int) -> None:
        """The function has a block of so many rows; the first one's configuration is that of a task."""
        if self.first is None:
            self.first = self._key(rows, steps, width)

    @staticmethod
    def _key(rows: int, steps: Steps, width: int) -> Key:
        heights = tile_heights(rows)
        return heights[0], heights[-1] if len(heights) == 2 else 0, steps.words, width

    def guarded(self, rows: int, steps: Steps, width: int, body: Any) -> Any:
        """`body` under the configuration of a last block of fewer rows, the task's own behind it."""
        key = self._key(rows, steps, width)
        if key == self.first:
            return body
        return sequence([*fill(self._rest, key), configure(self._rest), body, configure(self._task)])

    def configured(self, body: Any) -> Any:
        """Each task, or all of it where nothing runs in parallel, between configuration and release."""
        if not _uses_tiles(body):
            return body
        if isinstance(body, tirx.For) and int(body.kind) == int(tirx.ForKind.PARALLEL):
            return _loop_of(body, self._between(body.body))
        if isinstance(body, tirx.SeqStmt):
            return sequence([self.configured(part) for part in body.seq])
        if not _has_threads(body):
            return self._between(body)
        if isinstance(body, tirx.IfThenElse):
            other = None if body.else_case is None else self.configured(body.else_case)
            return tirx.IfThenElse(body.condition, self.configured(body.then_case), other)
        return _loop_of(body, self.configured(body.body))

    def _between(self, body: Any) -> Any:
        """A task, with memory of its own for configurations."""
        assert self.first is not None
        body = sequence([*fill(self._task, self.first), configure(self._task), body, release()])
        for shared in [self._task, *([self._rest] if _mentions(body, self._rest) else [])]:
            self.buffers.append(tirx.decl_buffer((8,), "uint64", shared.name))
            body = _with_buffer(body, shared, self.buffers[-1])
        return body


# -- pieces of IR -----------------------------------------------------------------------------------------------


def parts_of(block: Any) -> tuple[Any, Any, Any]:
    """The loads of the first number of a word and of its weights, and the buffer that is summed into."""
    found: list[Any] = []
    structural_walk(block.body.value, ((Call, lambda c: found.append(c) if called(c) in (DOT2, DOT4) else None),))
    x, weight = found[0].args
    loads: list[Any] = []
    structural_walk(x.args[0], (TensorLoad, loads.append))
    return loads[0], weight, block.body.buffer


def steps_of(weight: Any, length: int) -> Steps:
    count, words = int(weight.shape[-3]), int(weight.shape[-2])
    return Steps(length, words, count, 4 if str(weight.dtype) == "int32" else 2)


def indices_at(load: Any, place: dict[Any, Expr], last: int) -> list[Expr]:
    """Where a load reads at `place`, its last index set."""
    return [structural_map(i, (tirx.Var, lambda v: place.get(v, v))) for i in load.indices[:-1]] + [integer(last)]


def view_of(buffer: Any, name: str, shape: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """A buffer for a part of another one, wherever that comes to lie, and its strides."""
    strides = [tirx.Var(f"{name}_stride{k}", "int32") for k in range(len(shape) - 1)]
    offset = tirx.Var(f"{name}_offset", "int32")
    view = tirx.decl_buffer(
        shape, buffer.dtype, f"{buffer.name}_{name}", strides=[*strides, integer(1)], elem_offset=offset,
        offset_factor=1, layout=None,
    )  # fmt: skip
    return view, strides


def region(buffer: Any, ranges: Sequence[tuple[Expr, Expr]]) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(_as(start), _as(extent)) for start, extent in ranges])


def _as(value: Any) -> Expr:
    return integer(value) if isinstance(value, int) else value


def whole(buffer: Any) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(tirx.const(0, d.ty.dtype), d) for d in buffer.shape])


def tile_block(body: Any, reads: list[Any], write: Any, views: list[Any]) -> Any:
    block = SBlock([], reads, [write], "tiles", body, None, [], views)
    return SBlockRealize([], tirx.const(True, "bool"), block)


def _mentions(node: Any, buffer: Any) -> bool:
    found: list[bool] = []
    structural_walk(node, (tirx.Var, lambda var: found.append(True) if var.same_as(buffer) else None))
    return bool(found)


def _loop_of(loop: Any, body: Any) -> Any:
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)


def _has_threads(node: Any) -> bool:
    kinds: list[int] = []
    structural_walk(node, (tirx.For, lambda loop: kinds.append(int(loop.kind))))
    return int(tirx.ForKind.PARALLEL) in kinds


def _uses_tiles(node: Any) -> bool:
    found: list[Any] = []

    def look(call: Any) -> None:
        if str(getattr(call.op, "name", "")) == "tirx.call_llvm_intrin":
            found.append(call)

    structural_walk(node, (Call, look))
    return bool(found)
