"""AMX instructions as statements of TIR - for the lowering of scheduled products (tiles.py) and for attention.

Tile numbers are fixed: 0 to 3 are C, 4 and 5 are A, 6 and 7 are B, so that nothing can spill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx.op import address_of, call_llvm_intrin, handle_add_byte_offset

from tvmopt.schedules.cpu._amx.cost import ROWS, Steps

Expr = Any
WORD_BYTES = 4
PRODUCTS = {2: "tdpbf16ps", 4: "tdpbusd"}
"""Terms of a word -> the instruction that multiplies them."""


@dataclass(frozen=True)
class Operands:
    """One product: C[rows, width] of `lines` sums each; addresses as functions.

    a(row, line), b(line), c(row): addresses of the first number of a row, of a line's packed weights, of a row of C.
    a_stride, b_stride, c_stride: bytes between rows. lines: separate runs of terms (the rows of a window).
    count: steps of a line, if not those of `steps` (a causal mask needs fewer).
    """

    a: Callable[[Expr, Expr], Expr]
    b: Callable[[Expr], Expr]
    c: Callable[[Expr], Expr]
    a_stride: Expr
    b_stride: int
    c_stride: Expr
    lines: int
    steps: Steps
    width: int
    count: Expr | None = None


def product(o: Operands, first: Expr, rows: int) -> Any:
    """C[first .. first + rows, width]: zero, sum, store."""
    heights = tile_heights(rows)
    starts = [0, heights[0]][: len(heights)]
    tiles = [(i, j) for i in range(len(heights)) for j in range(o.width // ROWS)]

    def step(line: Expr, at: Expr, term: Expr) -> Any:
        a = [add(o.a(first + r, line), term, WORD_BYTES // o.steps.word) for r in starts]
        b = add(o.b(line), at, o.b_stride * o.steps.words)
        out = []
        for i, j in tiles:
            if i == 0:
                address = handle_add_byte_offset(b, integer(64 * j)) if j else b
                out.append(_memory("tileloadd64", 6 + j, address, long(o.b_stride)))
            if j == 0:
                out.append(_memory("tileloadd64", 4 + i, a[i], o.a_stride))
            out.append(_tile(PRODUCTS[o.steps.word], 2 * i + j, 4 + i, 6 + j))
        return sequence(out)

    def line(index: Expr) -> Any:
        whole = o.steps.terms
        even = o.steps.length // whole
        parts = [loop(o.count if o.count is not None else even, "t", lambda t: step(index, t, t * whole))]
        if o.count is None and even < o.steps.count:
            parts.append(step(index, integer(even), integer(o.steps.start(even))))
        return sequence(parts)

    out = [_tile("tilezero", 2 * i + j) for i, j in tiles]
    out.append(loop(o.lines, "line", line))
    for i, j in tiles:
        address = o.c(first + starts[i])
        address = handle_add_byte_offset(address, integer(64 * j)) if j else address
        out.append(_memory("tilestored64", 2 * i + j, address, o.c_stride))
    return sequence(out)


def tile_heights(rows: int) -> list[int]:
    """Rows of the one or two tiles of a block."""
    return [rows] if rows <= ROWS else [-(-rows // 2), rows // 2]


def configuration(upper: int, lower: int, words: int, width: int) -> list[int]:
    """What LDTILECFG reads, as eight 64-bit words: palette 1; bytes a row of tiles 0 to 7; rows of tiles 0 to 7.

    >>> [hex(v) for v in configuration(16, 4, 12, 32)][2:]
    ['0x40004000400040', '0x40004000300030', '0x0', '0x0', '0xc0c041004041010', '0x0']
    """
    columns = width // ROWS
    rows, wide = [0] * 8, [0] * 8
    for i, height in enumerate((upper, lower)):
        if height:
            rows[4 + i], wide[4 + i] = height, WORD_BYTES * words
            for j in range(columns):
                rows[2 * i + j], wide[2 * i + j] = height, 64
    for j in range(columns):
        rows[6 + j], wide[6 + j] = words, 64
    sizes = b"".join(w.to_bytes(2, "little") for w in wide)
    content = bytes([1, *[0] * 15]) + sizes + bytes(16) + bytes(rows) + bytes(8)
    return [int.from_bytes(content[k : k + 8], "little") for k in range(0, 64, 8)]


def fill(buffer: Any, key: tuple[int, int, int, int]) -> list[Any]:
    """Write :func:`configuration` into eight words of memory."""
    words = configuration(*key)
    return [tirx.BufferStore(buffer, tirx.const(word, "uint64"), [k]) for k, word in enumerate(words)]


def configure(buffer: Any) -> Any:
    """LDTILECFG: also clears all tiles."""
    address = address_of(tirx.BufferLoad(buffer, [integer(0)]))
    return tirx.Evaluate(call_llvm_intrin("void", "llvm.x86.ldtilecfg", address))


def release() -> Any:
    """TILERELEASE: this thread's tiles are idle again."""
    return _tile("tilerelease")


def _tile(instruction: str, *tiles: int) -> Any:
    numbers = [tirx.const(t, "int8") for t in tiles]
    return tirx.Evaluate(call_llvm_intrin("void", f"llvm.x86.{instruction}", *numbers))


def _memory(instruction: str, tile: int, address: Expr, stride: Expr) -> Any:
    name = f"llvm.x86.{instruction}"
    return tirx.Evaluate(call_llvm_intrin("void", name, tirx.const(tile, "int8"), address, stride))


def integer(value: int) -> Expr:
    return tirx.const(value, "int32")


def long(value: int) -> Expr:
    return tirx.const(value, "int64")


def byte_count(elements: Expr, size: int) -> Expr:
    """Elements as bytes, 64 bits."""
    return elements.astype("int64") * long(size)


def add(address: Expr, count: Expr, size: int) -> Expr:
    """An address `count` elements of `size` bytes further."""
    return handle_add_byte_offset(address, count * size)


def sequence(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def loop(extent: int | Expr, name: str, body: Callable[[Expr], Any]) -> Any:
    """A plain loop; none where it runs once."""
    if isinstance(extent, int):
        if extent == 1:
            return body(integer(0))
        extent = integer(extent)
    var = tirx.Var(name, extent.ty)
    return tirx.For(var, tirx.const(0, extent.ty), extent, tirx.ForKind.SERIAL, body(var))
