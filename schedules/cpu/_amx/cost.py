"""AMX tiles as arithmetic: how a sum is cut into steps, how high a block of tiles is, when tiles pay - for the
lowerings, which pack weights for them, and for the schedules.

A tile is 16 rows of 64 bytes. `tdpbf16ps` multiplies A (rows x 32 bf16) by B (16 pairs x 16 columns) into C (rows x 16
fp32), `tdpbusd` A (rows x 64 uint8) by B (16 words of four int8 x 16 columns) into C (rows x 16 int32). So a word of 32
bits holds two terms of a sum, or four, and all else is the same. A block is up to 2 x 2 tiles of C, which leaves two
tiles for A and two for B: eight in all, four loads for four products a step of 16 words.

Cycles     a product 16, result after 52; a load two rows a cycle, a store one: uops.info's figures for Sapphire Rapids.
           Measured in C on a Xeon with AMX at 3.13 GHz: a block of nine steps takes 598 cycles at 32 rows and 579 at
           24, so fewer rows cost what 16 do; 803 with a configuration before it. A step takes 64 cycles with B in L1,
           72 from L2 (here 128: what comes from further out is slower); A in rows 1 KB apart, also from L2, changes
           nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmopt.scheduling.cost_model import choose_tile
from tvmopt.targets import Machine

ROWS, WORDS, COLUMNS = 16, 16, 16
"""Of one tile: rows of A and C, words of a row of A, columns of C."""
TERMS = {"bfloat16": 2, "uint8": 4}
"""Terms of a sum in a word of 32 bits."""
LATENCY = 52
SWITCH = 200
"""Cycles that a configuration of the tiles waits for what is before it: one a task, two a last block of fewer rows."""
HEIGHT = 2 * ROWS


@dataclass(frozen=True)
class Steps:
    """A sum of `length` terms in `count` steps of `words` words each, a word of `word` terms.

    The last step starts at length - terms: where the length is no multiple it overlaps the one before, and the
    weights of terms that were summed already are zero. So no step reads beyond a row, and no step is short.

    >>> Steps.of(70, 2), Steps.of(70, 2).start(2)
    (Steps(length=70, words=16, count=3, word=2), 38)
    >>> Steps.of(24, 2), Steps.of(130, 4)
    (Steps(length=24, words=12, count=1, word=2), Steps(length=130, words=16, count=3, word=4))
    """

    length: int
    words: int
    count: int
    word: int

    @classmethod
    def of(cls, length: int, word: int) -> Steps:
        """Raises ValueError for a length that has no form: shorter than a step, and no whole words."""
        if not fits(length, word):
            raise ValueError(f"no words of {word} in {length} terms")
        words = min(length // word, WORDS)
        return cls(length, words, -(-length // (words * word)), word)

    @property
    def terms(self) -> int:
        """Terms of a step."""
        return self.words * self.word

    def start(self, step: int) -> int:
        """The first term of a step."""
        return min(self.terms * step, self.length - self.terms)

    def fresh(self, step: int) -> int:
        """The first term of a step that no step before has summed."""
        return self.terms * step


def fits(length: int, word: int) -> bool:
    """Whether a sum of so many terms has steps.

    >>> [fits(n, 2) for n in (1, 2, 31, 32, 33)], [fits(n, 4) for n in (2, 4, 63, 64, 65)]
    ([False, True, False, True, True], [False, True, False, True, True])
    """
    return length >= WORDS * word or (length >= word and length % word == 0)


def panel_width(n: int) -> int:
    """Columns of a packed panel: two tiles, or one where that holds all."""
    return COLUMNS if n <= COLUMNS else 2 * COLUMNS


def block_cycles(rows: int, width: int, steps: int, machine: Machine) -> float:
    """Cycles of one core for a block of `rows` x `width`, `steps` steps, its result stored and read again.

    Each step takes the slowest of::

        multiply  16 a tile of C             however many of its rows are used
        latency   52                         each accumulator waits for itself
        load      (rows + width) / load_ports
        stream    what comes from L2: the rows of A, and B's panel if it is longer than half of L1

    >>> m = Machine.load("sapphirerapids")
    >>> [block_cycles(rows, 32, 9, m) - block_cycles(rows, 32, 0, m) for rows in (32, 24, 16, 4)]
    [576.0, 576.0, 468.0, 468.0]
    """
    panel = steps * width * 4 * WORDS
    stream = (64 * rows + (width * 4 * WORDS if panel > machine.l1d // 2 else 0)) / machine.l2_rate
    tiles = -(-rows // ROWS) * (width // COLUMNS)
    step = max(ROWS * tiles, LATENCY, (rows + width) / machine.load_ports, stream)
    result = rows * width / COLUMNS * 2  # stored a row a cycle, read and stored again by the epilogue
    return float(steps * step + result)


def rows_cycles(m: int, height: int, width: int, steps: int, machine: Machine) -> float:
    """Cycles of one core for a panel of `m` rows in blocks of `height`, a last one of fewer configured anew."""
    full, tail = divmod(m, height)
    cycles = full * block_cycles(height, width, steps, machine)
    if tail:
        cycles += block_cycles(tail, width, steps, machine) + (2 * SWITCH if full else 0)
    return cycles


def choose_height(m: int, width: int, steps: int, machine: Machine) -> int:
    """Rows of a block: the fewest cycles for `m` rows, the last block's included; the higher on a tie.

    >>> m = Machine.load("sapphirerapids")
    >>> [choose_height(rows, 32, 8, m) for rows in (5, 16, 17, 49, 64, 196, 12544)]
    [5, 16, 17, 32, 32, 28, 32]
    """
    return min(range(1, min(m, HEIGHT) + 1), key=lambda h: (rows_cycles(m, h, width, steps, machine), -h))


def product_cycles(m: int, n: int, k: int, machine: Machine, word: int) -> float:
    """Cycles of one core for C[m, n] of k terms by tiles, `word` of them a word."""
    width, steps = panel_width(n), -(-k // (word * WORDS))
    height = choose_height(m, width, steps, machine)
    return -(-n // width) * (rows_cycles(m, height, width, steps, machine) + SWITCH)


def pays(m: int, n: int, k: int, machine: Machine, word: int = 2) -> bool:
    """Whether C[m, n] of k terms is faster by tiles than by `vdpbf16ps` (words of two terms) or `vpdpbusd` (four);
    False on machines without tiles.

    One row is a matrix times a vector: both read all of B, and tiles do 15/16 of their work for nothing.

    >>> m = Machine.load("sapphirerapids")
    >>> [pays(*mnk, m) for mnk in ((1, 1000, 2048), (4, 768, 768), (8, 768, 768), (128, 768, 768), (64, 64, 2))]
    [False, False, True, True, False]
    >>> [pays(*mnk, m, 4) for mnk in ((1, 1000, 2048), (4, 768, 768), (8, 768, 768), (128, 768, 768), (64, 64, 4))]
    [False, False, True, True, False]
    >>> pays(128, 768, 768, Machine.load("znver5"))
    False
    """
    if not machine.has_tiles or not fits(k, word):
        return False
    one = machine.with_cores(1)
    vectors = choose_tile(m, n, one).cycles * -(-k // word) + 2 * m * -(-n // machine.lanes())
    return bool(product_cycles(m, n, k, one, word) < vectors)
