"""Writing a GPU kernel as TIR - for the tensor-core families.

TVM's schedule primitives end where these kernels begin: fragments in registers, `ldmatrix` addresses and
cp.async groups have no primitive, and the tensor intrinsics that TVM ships take 20 s to import. A family
therefore writes the tile program itself, with index arithmetic in TIR (which TVM simplifies) and one function
of `_device.cuh` for what a warp does, and puts it in the place of the root block (:func:`install`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Range
from tvm.s_tir.stmt import SBlock, SBlockRealize

Expr = Any
INDEX = "int32"


@cache
def source() -> str:
    """The text of `_device.cuh`; TVM puts it before the kernels once."""
    return resources.files(__package__).joinpath("_device.cuh").read_text()


def int_(value: int | Expr) -> Expr:
    return tirx.const(value, INDEX) if isinstance(value, int) else value


def call(name: str, *args: Any) -> Any:
    """A statement: a function of `_device.cuh`, without its namespace; integers are int32."""
    return tirx.Evaluate(tirx.call_extern("void", f"tvmopt::{name}", *map(int_, args)))


def include(buffers: Sequence[Any]) -> Any:
    """The statement that brings `_device.cuh` into the kernel's source. It names the kernel's buffers,
    because TVM shrinks a buffer to the elements it sees used, and does not see through pointers."""
    return tirx.Evaluate(cuda_func_call("tvmopt::include", *(b.data for b in buffers), source_code=source()))


def barrier() -> Any:
    """__syncthreads()."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))


def pointer(buffer: Any, offset: Expr = 0) -> Expr:
    """The address of element `offset` of a buffer, counted in row-major order."""
    if isinstance(offset, int) and offset == 0:
        return buffer.data
    place = [int_(0)] * (len(buffer.shape) - 1) + [int_(offset)]
    return tirx.address_of(tirx.BufferLoad(buffer, place))


def shared(bytes_: int, name: str = "smem") -> Any:
    """A buffer of dynamic shared memory, in bytes."""
    return tirx.decl_buffer((bytes_,), "uint8", name, scope="shared.dyn")


def local(elements: int, dtype: str, name: str) -> Any:
    """A thread's own array: registers, where all its indices are constants."""
    return tirx.decl_buffer((elements,), dtype, name, scope="local")


def seq(statements: Sequence[Any]) -> Any:
    flat = [s for s in statements if s is not None]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def loop(extent: int | Expr, body: Callable[[Expr], Any], name: str, unroll: bool = False) -> Any:
    """`for name in range(extent)`; one step needs no loop."""
    if isinstance(extent, int) and extent == 1:
        return body(int_(0))
    var = tirx.Var(name, INDEX)
    kind = tirx.ForKind.UNROLLED if unroll else tirx.ForKind.SERIAL
    return tirx.For(var, int_(0), int_(extent), kind, body(var))


def when(condition: Expr | None, body: Any) -> Any:
    """`if condition: body`; None: always."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def both(*conditions: Expr | None) -> Expr | None:
    """The conjunction of the conditions that are not None."""
    found = [c for c in conditions if c is not None]
    result = None
    for condition in found:
        result = condition if result is None else tirx.And(result, condition)
    return result


def below(value: Expr, limit: int, multiple: int, extent: int) -> Expr | None:
    """`value < limit` or None, where value comes in runs of `multiple` up to `extent`: whether the test can fail."""
    return None if extent <= limit and multiple >= 1 else value < int_(limit)


def ceildiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def up(value: int, multiple: int) -> int:
    """`value` rounded up."""
    return -(-value // multiple) * multiple


class GridProgram:
    """One launch: its thread indices and the buffers it allocates.

    Args:
        grid: blocks along x, y and z; numbers, or expressions of int32.
        helpers: whether it calls functions of `_device.cuh`.
    """

    def __init__(self, threads: int, grid: Sequence[int | Expr], helpers: bool = True) -> None:
        self.threads, self.grid, self.helpers = threads, list(grid), helpers
        self.tx = tirx.Var("tx", INDEX)
        self.block = [tirx.Var(f"b{axis}", INDEX) for axis in "xyz"[: len(grid)]]
        self.buffers: list[Any] = []

    def alloc(self, buffer: Any) -> Any:
        self.buffers.append(buffer)
        return buffer

    def body(self, statements: Sequence[Any]) -> Any:
        """The launch as a statement."""
        included = [include(self.buffers)] if self.helpers else []
        inner = SBlock([], [], [], "tile", seq([*included, *statements]), None, [], [], {})
        body: Any = SBlockRealize([], tirx.const(True, "bool"), inner)
        body = _bind(self.tx, self.threads, "threadIdx.x", body)
        # without it ptxas spills a register or two to let more blocks on an SM than shared memory does
        body = tirx.AttrStmt(self.tx, "tirx.launch_bounds_min_blocks_per_sm", int_(1), body)
        for var, extent, axis in reversed(list(zip(self.block, self.grid, "xyz", strict=False))):
            body = _bind(var, extent, f"blockIdx.{axis}", body)
        return body


def _bind(var: Any, extent: int | Expr, tag: str, body: Any) -> Any:
    thread = tirx.IterVar(Range(0, extent), tirx.Var(tag, INDEX), 1, tag)
    return tirx.For(var, int_(0), int_(extent), tirx.ForKind.THREAD_BINDING, body, thread, {})


def install(sch: Any, kernel: GridProgram, statements: Sequence[Any]) -> None:
    """Put the kernel in the place of everything under the schedule's root block."""
    root = sch.get_sblock("root")
    old = sch.get(root)
    new = SBlock(
        old.iter_vars,
        old.reads,
        old.writes,
        old.name_hint,
        kernel.body(statements),
        None,
        kernel.buffers,
        [],
        {},
    )
    sch.state.replace(sch.get_sref(root), new, {old: new})
