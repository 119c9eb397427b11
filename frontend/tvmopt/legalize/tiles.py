"""AMX instructions for the kernels that the families amx_gemm and amx_conv2d have scheduled - the step between
scheduling and code generation.

The families place the product's block under a loop of their own and annotate it; its loops are replaced here::

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

from typing import Any

from tvm import tirx
from tvm.ir import Call, Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import MatchBufferRegion, SBlock, SBlockRealize
from tvm.tirx.op import address_of
from tvm.tirx.stmt import BufferRegion
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tvmopt.legalize.tile_code import (
    Operands,
    add,
    byte_count,
    configure,
    fill,
    integer,
    long,
    loop,
    product,
    release,
    sequence,
    tile_heights,
)
from tvmopt.scheduling.amx import Steps
from tvmopt.scheduling.blocks import with_root

KERNELS = ("amx_gemm", "amx_conv2d")
HEIGHT, LINES = "tvmopt.height", "tvmopt.lines"
"""Annotations of a scheduled block: rows of a block of tiles; output rows of a task (convolution)."""
Expr = Any


def lower_tiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its tile products as instructions; itself where it has none."""
    if not isinstance(func.body, SBlockRealize) or not _has_product(func.body):
        return func
    writer = _Writer()
    root = func.body.block
    body = structural_mutate(root.body, ((tirx.For, writer.loop),))
    body = writer.configured(body)
    for old, new in writer.replaced:
        body = _with_buffer(body, old, new)
    buffers = [next((new for old, new in writer.replaced if b.same_as(old)), b) for b in root.alloc_buffers]
    return with_root(func, func.body, body, [*buffers, *writer.configurations.values()])


def _kernel(block: Any) -> str:
    return str(block.annotations.get("tvmopt.kernel", "")) if HEIGHT in block.annotations else ""


def _has_product(node: Any) -> bool:
    found: list[Any] = []
    structural_walk(node, (SBlock, lambda b: found.append(b) if _kernel(b) in KERNELS else None))
    return bool(found)


def _with_buffer(body: Any, old: Any, new: Any) -> Any:
    return structural_map(body, (tirx.Var, lambda var: new if var.same_as(old) else var))


class _Writer:
    """Replaces the nests of one function, and remembers what they need around them."""

    def __init__(self) -> None:
        self.configurations: dict[tuple[int, int, int, int], Any] = {}
        self.replaced: list[tuple[Any, Any]] = []
        self.first: tuple[int, int, int, int] | None = None

    def loop(self, node: Any, mutator: Any) -> Any:
        """A loop; the outermost of those that hold nothing but a product becomes its instructions."""
        inner, variables = node, []
        while isinstance(inner, tirx.For):
            variables.append(inner.loop_var)
            inner = inner.body
        if not isinstance(inner, SBlockRealize) or _kernel(inner.block) not in KERNELS:
            return mutator.default_mutate(node)
        block = inner.block
        start = {v: tirx.const(0, v.ty) for v in variables}
        origin = [structural_map(value, (tirx.Var, lambda v: start.get(v, v))) for value in inner.iter_values]
        write = self._gemm if _kernel(block) == "amx_gemm" else self._conv2d
        return write(block, dict(zip((iv.var for iv in block.iter_vars), origin, strict=True)))

    # -- the two products ----------------------------------------------------------------------------------------

    def _gemm(self, block: Any, origin: dict[Any, Expr]) -> Any:
        """gemm[m .. m + height, p, :] for one place (m, p)."""
        m, p, _, _, _ = (iv.var for iv in block.iter_vars)
        total, height = int(block.iter_vars[0].dom.extent), int(block.annotations[HEIGHT])
        data, weight, out = _parts(block)
        width, steps = int(weight.source.shape[-1]), _steps(weight.source, int(data.source.shape[-1]))
        row = origin[m]

        def rows(count: int) -> Any:
            sub, strides = _view(out, "c", (count, 1, width))

            def a(r: Expr, _line: Expr) -> Expr:
                return address_of(tirx.BufferLoad(data.source, _indices(data, {**origin, m: row + r}, 0)))

            operands = Operands(
                a, lambda _line: address_of(tirx.BufferLoad(weight.source, [origin[p], 0, 0, 0])),
                lambda r: address_of(tirx.BufferLoad(sub, [r, 0, 0])),
                long(2 * int(data.source.shape[-1])), 4 * width, byte_count(strides[0], 4), 1, steps, width,
            )  # fmt: skip
            region = _region(out, [(row, count), (origin[p], 1), (0, width)])
            reads = [_all(data.source), _all(weight.source)]
            return _block(product(operands, integer(0), count), reads, region, [MatchBufferRegion(sub, region)])

        full = rows(height) if total >= height else None
        tail = total % height
        self._remember(min(height, total), steps, width)
        if full is None:
            return rows(total)
        if tail == 0:  # pieces of rows that do not come out even: the last one has a block less
            return tirx.IfThenElse(row + height <= total, full, None)
        last = self._guarded(tail, steps, width, rows(tail))
        return tirx.IfThenElse(row + height <= total, full, tirx.IfThenElse(row < total, last, None))

    def _conv2d(self, block: Any, origin: dict[Any, Expr]) -> Any:
        """conv[n, y .. y + lines, :, p, :], as rows y*pitch + x of one product."""
        n, y, _, p, _, _, _, _ = (iv.var for iv in block.iter_vars)
        width_out, kh = int(block.iter_vars[2].dom.extent), int(block.iter_vars[5].dom.extent)
        names = ("pitch", "stride", "terms", "row_stride", "dilation")
        note = {name: int(block.annotations[f"tvmopt.{name}"]) for name in names}
        lines, height, pitch = int(block.annotations[LINES]), int(block.annotations[HEIGHT]), note["pitch"]
        data, weight, out = _parts(block)
        width, steps = int(weight.source.shape[-1]), _steps(weight.source, note["terms"])
        batch, out_h, _, panels, _ = (int(d) for d in out.shape)
        wide = tirx.decl_buffer((batch, out_h, pitch, panels, width), "float32", out.name)
        self.replaced.append((out, wide))
        _, phases, _, columns, channels = (int(d) for d in data.source.shape)
        deep = lines + ((kh - 1) * note["dilation"]) // note["row_stride"]
        pad, _ = _view(data.source, "a", (1, phases, deep, columns, channels))
        sub, strides = _view(out, "c", (1, lines, pitch, 1, width))

        def a(row: Expr, line: Expr) -> Expr:
            at, step = line * note["dilation"], note["row_stride"]
            place = [0, tirx.floormod(at, step), tirx.floordiv(at, step), 0, 0] if step > 1 else [0, 0, at, 0, 0]
            return add(address_of(tirx.BufferLoad(pad, place)), row, 2 * note["stride"] * channels)

        operands = Operands(
            a, lambda line: address_of(tirx.BufferLoad(weight.source, [origin[p], line, 0, 0, 0])),
            lambda r: add(address_of(tirx.BufferLoad(sub, [0] * 5)), strides[2] * r, 4),
            long(2 * note["stride"] * channels), 4 * width, byte_count(strides[2], 4), kh, steps, width,
        )  # fmt: skip
        rows = (lines - 1) * pitch + width_out
        full, tail = divmod(rows, height)
        parts = []
        if full:
            parts.append(loop(full, "q", lambda q: product(operands, q * height, height)))
            self._remember(height, steps, width)
        if tail:
            last = product(operands, integer(full * height), tail)
            parts.append(self._guarded(tail, steps, width, last) if full else last)
            self._remember(tail, steps, width)
        source = _region(data.source, [(origin[n], 1), (0, phases), (origin[y], deep), (0, columns), (0, channels)])
        target = _region(wide, [(origin[n], 1), (origin[y], lines), (0, pitch), (origin[p], 1), (0, width)])
        views = [MatchBufferRegion(pad, source), MatchBufferRegion(sub, target)]
        return _block(sequence(parts), [source, _all(weight.source)], target, views)

    # -- configuration -------------------------------------------------------------------------------------------

    def _remember(self, rows: int, steps: Steps, width: int) -> None:
        if self.first is None:
            self.first = self._key(rows, steps, width)
            self._buffer(self.first)

    @staticmethod
    def _key(rows: int, steps: Steps, width: int) -> tuple[int, int, int, int]:
        heights = tile_heights(rows)
        return heights[0], heights[-1] if len(heights) == 2 else 0, steps.pairs, width

    def _buffer(self, key: tuple[int, int, int, int]) -> Any:
        if key not in self.configurations:
            self.configurations[key] = tirx.decl_buffer((8,), "uint64", f"tiles{len(self.configurations)}")
        return self.configurations[key]

    def _guarded(self, rows: int, steps: Steps, width: int, body: Any) -> Any:
        """`body` under the configuration of a last block of fewer rows."""
        key = self._key(rows, steps, width)
        assert self.first is not None
        if key == self.first:
            return body
        return sequence([configure(self._buffer(key)), body, configure(self._buffer(self.first))])

    def configured(self, body: Any) -> Any:
        """Each task, or all of it where nothing runs in parallel, between configuration and release."""

        def task(node: Any, mutator: Any) -> Any:
            if int(node.kind) != int(tirx.ForKind.PARALLEL) or not _uses_tiles(node):
                return mutator.default_mutate(node)
            inside = self._between(node.body)
            return tirx.For(node.loop_var, node.min, node.extent, node.kind, inside, None, node.annotations)

        found = structural_mutate(body, ((tirx.For, task),))
        if not found.same_as(body):
            return found
        if isinstance(body, tirx.SeqStmt):
            return sequence([self._between(part) if _uses_tiles(part) else part for part in body.seq])
        return self._between(body)

    def _between(self, body: Any) -> Any:
        assert self.first is not None
        words = [store for key, buffer in self.configurations.items() for store in fill(buffer, key)]
        return sequence([*words, configure(self._buffer(self.first)), body, release()])


# -- pieces of IR -----------------------------------------------------------------------------------------------


def _parts(block: Any) -> tuple[Any, Any, Any]:
    """The loads of the first number of a pair and of its weights, and the buffer that is summed into."""
    found: list[Any] = []
    structural_walk(block.body.value, ((Call, lambda c: found.append(c) if str(c.op.name).endswith("dot2") else None),))
    x, weight = found[0].args
    loads: list[Any] = []
    structural_walk(x.args[0], (TensorLoad, loads.append))
    return loads[0], weight, block.body.buffer


def _steps(weight: Any, length: int) -> Steps:
    count, pairs = int(weight.shape[-3]), int(weight.shape[-2])
    return Steps(length, pairs, count)


def _indices(load: Any, place: dict[Any, Expr], last: int) -> list[Expr]:
    """Where a load reads at `place`, its last index set."""
    return [structural_map(i, (tirx.Var, lambda v: place.get(v, v))) for i in load.indices[:-1]] + [integer(last)]


def _view(buffer: Any, name: str, shape: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """A buffer for a part of another one, wherever that comes to lie, and its strides."""
    strides = [tirx.Var(f"{name}_stride{k}", "int32") for k in range(len(shape) - 1)]
    offset = tirx.Var(f"{name}_offset", "int32")
    view = tirx.decl_buffer(
        shape, buffer.dtype, f"{buffer.name}_{name}", strides=[*strides, integer(1)], elem_offset=offset,
        offset_factor=1, layout=None,
    )  # fmt: skip
    return view, strides


def _region(buffer: Any, ranges: list[tuple[Expr, int]]) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(_as(start), integer(extent)) for start, extent in ranges])


def _as(value: Any) -> Expr:
    return integer(value) if isinstance(value, int) else value


def _all(buffer: Any) -> Any:
    return _region(buffer, [(0, int(d)) for d in buffer.shape])


def _block(body: Any, reads: list[Any], write: Any, views: list[Any]) -> Any:
    block = SBlock([], reads, [write], "tiles", body, None, [], views)
    return SBlockRealize([], tirx.const(True, "bool"), block)


def _uses_tiles(node: Any) -> bool:
    found: list[Any] = []

    def look(call: Any) -> None:
        if str(getattr(call.op, "name", "")) == "tirx.call_llvm_intrin":
            found.append(call)

    structural_walk(node, (Call, look))
    return bool(found)
