"""Rows of keys and values as a kernel reads them: float32 out of what a cache stores.

    float32     the numbers
    bfloat16    vpmovzxwd, vpslld                   a vector of halves becomes one of floats
    int8        vpmovsxbd, vcvtdq2ps                bytes become floats; a row's step is multiplied once, not once a
                                                    number: into a key's score, into a value's weight

So a step reads 2 or 1.06 bytes a number in place of 4, and computes two instructions a vector more, which a group of
heads shares. A strip of queries reads each key number by number; it unpacks a tile of keys first, one vector after the
other.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmopt.lowering.loops import load, vector, vector_type
from tvmopt.operators.stored import BYTES, WORD

Expr = Any
Where = tuple[Expr, Expr, Expr]


class StoredRows:
    """Reads rows of `depth` numbers, the last axis of a buffer of four.

    Attributes:
        has_steps: what :meth:`numbers` gives has to be multiplied by :meth:`step`.
    """

    def __init__(self, buffer: Any, depth: int, stored: str) -> None:
        self.buffer, self.depth, self.has_steps = buffer, depth, stored == BYTES

    def numbers(self, where: Where, start: Expr, lanes: int) -> Expr:
        """Numbers start .. start + lanes of a row, float32; of words `lanes` and `start` are multiples of a word's."""
        kind = vector_type("float32", lanes)
        if not self.has_steps:
            found = load(self.buffer, *where, vector(start, lanes))
            return found if str(self.buffer.dtype) == "float32" else found.astype(kind)
        words = load(self.buffer, *where, vector(tirx.floordiv(start, WORD), lanes // WORD))
        return tirx.reinterpret(vector_type("int8", lanes), words).astype(kind)

    def step(self, where: Where) -> Expr:
        """The step of a row of bytes."""
        return tirx.reinterpret("float32", load(self.buffer, *where, self.depth // WORD))
