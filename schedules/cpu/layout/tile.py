"""The transpose of a square of numbers in registers, as a function in LLVM IR that is inlined where it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

PART = 128
"""Bits of the parts of a vector in which instructions interleave numbers."""
Shuffle = Callable[[str, str, Sequence[int]], str]
"""`shuffle(a, b, lanes)`: the name of a vector with these lanes of `a` and, counted on, of `b`."""


def function_name(side: int, bits: int, turns: int = 1) -> str:
    """What the function for squares of this side, of numbers of so many bits, in so many turns, is called."""
    return f"tvmopt_transpose_{side}_{bits}" + (f"_{turns}" if turns > 1 else "")


def side_of(bits: int, lanes: int) -> int:
    """The side of the square for numbers of so many bits, where a vector register has so many floats.

    A row is a register of floats; of narrower numbers at most 16, half a register or a quarter.

    >>> [side_of(bits, 16) for bits in (8, 16, 32, 64)], [side_of(bits, 8) for bits in (8, 16, 32, 64)]
    ([16, 16, 16, 8], [16, 16, 8, 4])
    """
    widest = {8: 16, 16: 16, 32: max(8, lanes), 64: max(4, lanes // 2)}
    return widest[bits]


def interleaved(side: int, part: int, high: bool) -> list[int]:
    """The lanes of two vectors, in turn, of the lower or upper halves of each part; `vunpcklps` and its like.

    >>> interleaved(8, 4, False), interleaved(8, 4, True)
    ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
    """
    starts = range(part // 2 if high else 0, side, part)
    return [lane for start in starts for i in range(part // 2) for lane in (start + i, side + start + i)]


def alternate(side: int, part: int, odd: bool) -> list[int]:
    """The lanes of every other part of two vectors behind each other; `vshuff32x4` and its like.

    >>> alternate(8, 4, False), alternate(8, 4, True)
    ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
    """
    return [start + i for start in range(part if odd else 0, 2 * side, 2 * part) for i in range(part)]


def llvm_function(side: int, bits: int, turns: int = 1) -> str:
    """`void f(ptr to, ptr from, i64 to_stride, i64 from_stride, i64 turn_stride)`, strides in numbers:
    `to[j, i] = from[i, j]` for a square of `side` rows. With turns, so many rows that follow each other are
    `turn_stride` apart, and the next ones `from_stride` from those; without, the last argument is left out.

    Rows are interleaved within parts of 128 bits until each part holds a piece of one column, then the parts
    of rows are put together: log2(side) shuffles a row in all.
    """
    kind, vector, part = f"i{bits}", f"<{side} x i{bits}>", min(side, PART // bits)
    numbers, lines = count(), []

    def emit(text: str) -> str:
        name = f"%v{next(numbers)}"
        lines.append(f"  {name} = {text}")
        return name

    def shuffle(a: str, b: str, lanes: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return emit(f"shufflevector {vector} {a}, {vector} {b}, <{side} x i32> <{mask}>")

    def row(base: str, stride: str, index: int) -> str:
        offset = emit(f"mul i64 {stride}, {index}")
        return emit(f"getelementptr {kind}, ptr {base}, i64 {offset}")

    def place_of(index: int) -> str:
        base = row("%from", "%from_stride", index // turns)
        return row(base, "%turn_stride", index % turns) if turns > 1 else base

    places = [place_of(i) for i in range(side)]
    rows = [emit(f"load {vector}, ptr {place}, align {bits // 8}") for place in places]
    pieces = [_columns(rows[start : start + part], side, part, shuffle) for start in range(0, side, part)]
    for j in range(part):
        for at, whole in enumerate(_together([piece[j] for piece in pieces], side, part, shuffle)):
            place = row("%to", "%to_stride", at * part + j)
            lines.append(f"  store {vector} {whole}, ptr {place}, align {bits // 8}")
    more = ", i64 %turn_stride" if turns > 1 else ""
    name = function_name(side, bits, turns)
    head = f"define void @{name}(ptr %to, ptr %from, i64 %to_stride, i64 %from_stride{more})"
    return "\n".join([f"{head} alwaysinline nounwind willreturn {{", *lines, "  ret void", "}"]) + "\n"


def _columns(rows: list[str], side: int, part: int, shuffle: Shuffle) -> list[str]:
    """From as many rows as a part has numbers, for each j the vector whose part L is column L * part + j."""
    low, high = interleaved(side, part, False), interleaved(side, part, True)
    half = part // 2
    for _ in range(part.bit_length() - 1):
        rows = [shuffle(rows[i], rows[i + half], mask) for i in range(half) for mask in (low, high)]
    return rows


def _together(pieces: list[str], side: int, part: int, shuffle: Shuffle) -> list[str]:
    """Part L of each of the vectors, behind each other, for each L in order."""
    if len(pieces) == 1:
        return pieces
    even, odd = alternate(side, part, False), alternate(side, part, True)
    pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
    first = _together([shuffle(a, b, even) for a, b in pairs], side, part, shuffle)
    second = _together([shuffle(a, b, odd) for a, b in pairs], side, part, shuffle)
    return [piece for both in zip(first, second, strict=True) for piece in both]
