"""Other columns: each row of bytes by a matrix that is zero outside of a band, exact in integers.

A vector of V numbers of the result, colours side by side, reads a short run of bytes of its row. So for a block of V
numbers the weights are a dense matrix of that run, most of whose entries belong to another colour and are zero; what
that wastes, instructions that multiply four bytes a lane give back, and nothing is gathered::

    for a tile of mr rows, for a block b of V numbers
      for a word w of the block's run                                          four bytes, broadcast to all lanes
        for a limb l: part[m, l] = dot4(part[m, l], x[m, start[b] + 4 w ..], band[b, w, l])
      y[m, b] = clip((part[m, 2] + ((part[m, 1] << 8) + part[m, 0] + 2^21 >> 16)) >> 6, 0, 255)

A weight of 22 fractional bits is three signed bytes (limbs), 2^16 l2 + 2^8 l1 + l0; no partial sum leaves int32.

registers  3 mr parts + 3 of the band + 1 word <= vector registers              3 * 8 + 4 = 28 <= 32
floor      3 * rows * blocks * words products of V lanes, one or two a cycle: 480x640 -> 224 columns, bilinear:
           426 rows, 42 blocks, 12 words: 0.64 million
           reads: every byte of the rows once
Measured   one thread of a busy Zen 5, us: 480x640 -> 224 columns, bilinear 175, bicubic 212; 1080x1920 840, 1040:
           a product a cycle. As plain loops that gather, 550, 1280; 2590, 3450
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.tirx.op import call_intrin

from tvmopt.lowering import quads
from tvmopt.lowering.common import OPAQUE, constant, flat, samples
from tvmopt.lowering.loops import (
    INDEX,
    as_index,
    const_index,
    everything,
    load,
    loop,
    nest,
    new_buffer,
    prim_func,
    seq,
    splat,
    spread,
    store,
    vector,
    vector_type,
)
from tvmopt.lowering.quads import WORD
from tvmopt.operators.resample import BITS, HALF
from tvmopt.scheduling.family import Declined
from tvmopt.targets import Machine

Array = np.ndarray[Any, Any]
Expr = Any
LIMBS, LIMB = 3, 8
"""Signed bytes of a weight; bits of one."""
LARGEST = 127 << (2 * LIMB)
"""A weight up to this has its highest limb in a byte."""


def columns(bb: relax.BlockBuilder, call: relax.Call, machine: Machine) -> Any:
    """`tvmopt.resample_columns` of :mod:`tvmopt.operators.resample`."""
    x, *tables = call.args
    shape = samples(x)
    values = [value for table in tables if (value := constant(bb, table)) is not None]
    if shape is None or len(shape) != 4:
        return Declined("an open or empty picture")
    if len(values) < len(tables):
        return Declined("tables that are no constants")
    places, weights, rows, channels = values
    _, height, width, colours = shape
    if width * colours < WORD:
        return Declined(f"rows of {width * colours} bytes")
    if np.abs(weights).max() > LARGEST:
        return Declined("a weight of more than 24 bits")
    band = Band(places, weights, channels, width, colours, machine.lanes("int32"))
    batch = shape[0] if isinstance(shape[0], int) else tirx.Var("n", INDEX)
    mr = (machine.vector_registers - LIMBS - 1) // LIMBS
    func = _func(band, batch, height, rows, min(mr, len(rows)))
    bytes_ = flat(bb, x, (shape[0], height, width * colours))
    args = [bytes_, relax.const(band.words, "int32"), relax.const(band.starts, "int64")]
    out = relax.TensorType([shape[0], len(rows), band.numbers], "uint8")
    y = bb.emit(relax.call_tir(bb.add_func(func, "resample_columns"), args, out))
    return flat(bb, y, (shape[0], len(rows), len(places), len(channels)))


class Band:
    """The matrix of a row, cut into blocks of `lanes` numbers of the result.

    Attributes:
        numbers: of a row of the result. lanes: of a block. count: words of a block's run.
        begins: first number of each block; the last one begins before its place where blocks do not divide the row.
        starts: int64 [blocks]: the first byte of each run.
        words: int32 [blocks, count, 3, lanes]: four bytes of a limb each.
    """

    def __init__(
        self, places: Array, weights: Array, channels: Array, width: int, colours: int, lanes: int
    ) -> None:  # fmt: skip
        self.row, self.numbers = width * colours, len(places) * len(channels)
        while lanes > self.numbers:
            lanes //= 2
        self.lanes = lanes
        blocks = -(-self.numbers // lanes)
        self.begins = np.minimum(np.arange(blocks) * lanes, self.numbers - lanes)
        number = self.begins[:, None] + np.arange(lanes)  # [blocks, lanes]
        pixel, colour = number // len(channels), channels[number % len(channels)]
        at = places[pixel] * colours + colour[..., None]  # [blocks, lanes, taps]: the byte of each tap
        low, high = at.min((1, 2)), at.max((1, 2)) + 1
        self.count = -(-int((high - low).max()) // WORD)
        self.starts = np.clip(low, 0, max(self.row - self.count * WORD, 0)).astype(np.int64)
        word = (at - self.starts[:, None, None]) // WORD
        byte = at - self.begin_of(self.starts[:, None, None], word)
        limbs = np.zeros((blocks, self.count, LIMBS, lanes, WORD), np.int8)
        block, lane = np.arange(blocks)[:, None, None], np.arange(lanes)[None, :, None]
        for limb, part in enumerate(split(weights[pixel])):
            where: Any = np.broadcast_arrays(block, word, limb, lane, byte)
            np.add.at(limbs, tuple(where), part.astype(np.int8))
        self.words = np.ascontiguousarray(limbs).view("<i4")[..., 0].astype(np.int32)

    def begin_of(self, start: Any, word: Any) -> Any:
        """The first byte of a word; the last of a short row begins before its place."""
        return np.minimum(start + WORD * word, self.row - WORD)

    @property
    def is_short(self) -> bool:
        """Whether words of a row overlap."""
        return self.count * WORD > self.row


def split(weights: Array) -> list[Array]:
    """Signed bytes of a weight, the lowest first.

    >>> [int(limb) for limb in split(np.array(-129))], [int(limb) for limb in split(np.array(1 << 22))]
    ([127, -1, 0], [0, 0, 64])
    """
    rest, limbs = weights.astype(np.int64), []
    for _ in range(LIMBS):
        limb = (rest + 128) % 256 - 128
        limbs.append(limb)
        rest = (rest - limb) >> LIMB
    return limbs


def _func(band: Band, batch: Any, height: int, rows: Array, mr: int) -> Any:
    """PrimFunc(x, words, starts, y)."""
    quads.install()
    count, lanes = len(rows), band.lanes
    tiles, whole = -(-count // mr), vector(0, lanes)
    x = new_buffer("x", batch, height, band.row, dtype="uint8")
    w = new_buffer("w", *band.words.shape, dtype="int32")
    starts = new_buffer("starts", len(band.starts), dtype="int64")
    y = new_buffer("y", batch, count, band.numbers, dtype="uint8")
    parts = {(m, i): new_buffer(f"part_{m}_{i}", lanes, dtype="int32") for m in range(mr) for i in range(LIMBS)}
    n, tile = tirx.Var("vn", INDEX), tirx.Var("vtile", INDEX)
    first = tile * mr if tiles * mr == count else tirx.min(tile * mr, const_index(count - mr))

    def block(b: Expr) -> Any:
        def word(k: Expr) -> Any:
            at = load(starts, b) + k * WORD
            at = tirx.min(at, const_index(band.row - WORD)) if band.is_short else at
            statements = []
            for m in range(mr):
                bytes_ = load(x, n, first + int(rows[0]) + m, tirx.Ramp(at, const_index(1), WORD))
                four = spread(tirx.reinterpret("int32", bytes_), lanes)
                for i in range(LIMBS):
                    old, band_ = load(parts[m, i], whole), load(w, b, k, i, vector(0, lanes))
                    total = call_intrin(vector_type("int32", lanes), quads.DOT4_ADD, old, four, band_)
                    statements.append(store(parts[m, i], total, whole))
            return seq(statements)

        cleared = [store(part, splat(0, lanes, "int32"), whole) for part in parts.values()]
        begin = tirx.min(b * lanes, const_index(band.numbers - lanes)) if band.numbers % lanes else b * lanes
        done = [
            store(y, _byte([load(parts[m, i], whole) for i in range(LIMBS)], lanes), n, first + m, vector(begin, lanes))
            for m in range(mr)
        ]
        return seq([*cleared, loop(band.count, word, "k"), *done])

    loops = nest(
        "resample", [(n, as_index(batch)), (tile, tiles)], ("n", "tile"), [everything(b) for b in (x, w, starts)],
        [everything(y)], loop(len(band.starts), block, "b"), list(parts.values()),
        {"tvmopt.kernel": "resample", "tvmopt.products": len(band.starts) * band.count * LIMBS * mr},
    )  # fmt: skip
    return prim_func([x, w, starts, y], loops, OPAQUE)


def _byte(parts: list[Expr], lanes: int) -> Expr:
    """The byte of a sum whose limbs were summed apart."""

    def number(value: int) -> Expr:
        return splat(value, lanes, "int32")

    lower = ((parts[1] << number(LIMB)) + parts[0] + number(HALF)) >> number(2 * LIMB)
    shifted = (parts[2] + lower) >> number(BITS - 2 * LIMB)
    return clipped(shifted, lanes)


def clipped(value: Expr, lanes: int) -> Expr:
    """Vectors of int32 as bytes, what lies outside at the ends."""
    inside = tirx.max(tirx.min(value, splat(255, lanes, "int32")), splat(0, lanes, "int32"))
    return inside.astype(vector_type("uint8", lanes))
