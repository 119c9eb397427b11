"""What a product of quantised numbers costs in bytes and in floats, by a model of the machine - for the pass that
chooses between the two, product by product (`--int8 auto`).

Both are one core's cycles: the register tile's, step by step (:mod:`tvmopt.scheduling.cost_model`), and what surrounds
the product: a number in memory has one byte or four, is written once and read once; words of four bytes are packed; a
kernel more is a call more. Threads share all of it alike, so that the ratio is that of one core.

A family that computes a product of floats otherwise says how long that takes (`float_cycles` of
:class:`tvmopt.scheduling.family.Family`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt

from tvmopt.scheduling.cost_model import choose_tile, stream_cycles
from tvmopt.targets import Machine

WORD = 4
"""Bytes of a word, whose products one instruction adds up."""
CALL = 500.0
"""Nanoseconds of a kernel more: its call, and the tensor that it writes. Measured: six kernels of 2x7x9x5 numbers take
8.9 us, three take 7.0."""
SUMMED = 3 * CALL
"""Nanoseconds of a kernel of sums, besides its arithmetic: its call, its tensor, and what the product does with that
for each result. Measured within two networks of 99 pixels, whose time without this was 1.08 and 1.14 of that in floats.
"""
PACKED = 0.7
"""Cycles for a byte of an operand that is put into words, with its sums. Measured: 64 KB in 8.6 us, and as much again
for what those kernels drive out of the caches."""
COPIED = 0.1
"""Cycles for a byte of rows that are copied to have whole words. Measured within networks: rows of one number are
slower in bytes, of 5 and 7 numbers no slower."""
WIDENED = 3.0
"""Instructions that a vector of floats made of bytes costs: `vpmovzxbd` and `vcvtdq2ps`, on the ports of multiply-adds,
and what the chain of both delays. Measured within networks, where depthwise convolutions of 3, 5 and 7 taps a row take
3 to 4, 6 to 8 and 12 cycles a vector of results more in bytes than in floats, their data in L2."""
NEAR = 0.9
"""Share of L2 up to which data that one kernel writes is there when the next reads it."""


@dataclass(frozen=True)
class Product:
    """A product or convolution of quantised numbers.

    Attributes:
        samples: matrices, or pictures.
        height, width: rows of the result of one; a register tile does not cross the edge of a picture's row, and of a
            matrix the height is 1.
        columns: results a row and group.
        channels: numbers of a tap and group that are added up.
        taps: rows and columns of the kernel.
        groups: of channels.
        dense: its steps are single pixels and its taps neighbours: no stride, no dilation.
        border: the picture has one, of a zero point other than 0.
        read: numbers of the data. second: of the other operand where that is no constant, else 0.
    """

    samples: int
    height: int
    width: int
    columns: int
    channels: int
    taps: tuple[int, int] = (1, 1)
    groups: int = 1
    dense: bool = True
    border: bool = False
    read: int = 0
    second: int = 0
    shifted: bool = False

    @property
    def rows(self) -> int:
        """Of all results."""
        return self.samples * self.height * self.width

    @property
    def depthwise(self) -> bool:
        """Whether each channel is summed alone: taps are multiplied, no rows of channels."""
        return self.groups > 1 and self.channels == 1

    @property
    def weights(self) -> int:
        """Numbers of a constant second operand."""
        return 0 if self.second else self.groups * self.columns * self.channels * prod(self.taps)


def float_cycles(product: Product, machine: Machine) -> float:
    """The direct form in fp32; its data is dequantized by the kernel that makes it."""
    one = machine.with_cores(1)
    if product.depthwise:
        arithmetic = prod(product.taps) * _vectors(product, one) / one.fma_ports
    else:
        arithmetic = _steps(product, one) * product.channels * prod(product.taps)
    return arithmetic + float_traffic(product, one) + stream_cycles(4 * product.weights, one) / 2


def float_traffic(product: Product, machine: Machine) -> float:
    """What data of fp32 numbers costs in any form: it is written and read."""
    return _moved(product, 4, machine)


def byte_cycles(product: Product, machine: Machine) -> float:
    """Products of bytes, with all that they take around them."""
    one = machine.with_cores(1)
    traffic = _moved(product, 1, one) * (2 if product.border else 1)
    if product.depthwise:
        step = sqrt(product.read / max(1, product.rows * product.groups))  # of the windows, along a row
        widened = WIDENED * product.taps[0] * max(1.0, step)
        arithmetic = (prod(product.taps) + widened + 2) * _vectors(product, one) / one.fma_ports
        return arithmetic + traffic
    results = product.rows * product.groups * -(-product.columns // one.lanes())
    arithmetic = _steps(product, one) * words(product) * word_rate(one) + 2 * results / one.fma_ports
    around = 0.0
    if product.second:
        around = PACKED * (product.second + product.read / 2) + 3 * CALL * one.ghz
    elif product.taps == (1, 1) and product.channels % WORD:
        around = COPIED * product.rows * (product.channels + WORD) + CALL * one.ghz
    if product.shifted:
        around += _sums(product, one)
    return arithmetic + around + traffic + stream_cycles(product.weights, one) / 2


def _sums(product: Product, machine: Machine) -> float:
    """Cycles of a kernel that adds up what each result is made of: a convolution of one column, or sums of rows."""
    column = replace(product, columns=1)
    arithmetic = _steps(column, machine) * words(column) * word_rate(machine)
    return arithmetic + SUMMED * machine.ghz + _moved(product, 1, machine) / 2


def words(product: Product) -> int:
    """Words of four bytes that a sum has: over the channels of each tap, or along a row of taps where these are fewer.

    >>> [words(Product(1, 9, 9, 8, c, (3, 3))) for c in (64, 3, 1)]
    [144, 9, 3]
    """
    rows, columns = product.taps
    each = columns * -(-product.channels // WORD)
    return rows * (min(each, -(-columns * product.channels // WORD)) if product.groups == 1 else each)


def word_rate(machine: Machine) -> float:
    """Time of a step of words over that of a step of fp32 multiply-adds.

    One instruction with VNNI, or Arm's `usdot`; else bytes are widened to 16 bits, and two products and two sums take
    the place of one (docs/explanation/int8.md): measured as code for x86-64-v4 and -v3; Arm's are counted.

    >>> [word_rate(Machine.load(m)) for m in ("znver5", "x86-64-v4", "x86-64-v3", "neoverse-n1")]
    [1.0, 4.3, 2.7, 1.5]
    """
    if machine.arch != "x86_64":
        return 1.0 if machine.has("i8mm") else 1.5 if machine.has("dotprod") else 8.0
    if machine.has("avx512vnni") or machine.has("avxvnni"):
        return 1.0
    if machine.vector_bits == 512:
        return 4.3
    return 2.7 if machine.has("fma") else 1.5


def _steps(product: Product, machine: Machine) -> float:
    """Cycles for one step of the sum, all rows and columns of all groups."""
    if product.second:
        tile = choose_tile(product.width, product.columns, machine)
        return tile.cycles * product.samples
    tile = choose_tile(product.rows, product.columns, machine, rows=product.width if product.height > 1 else None)
    return tile.cycles * product.groups


def _vectors(product: Product, machine: Machine) -> float:
    """Vectors of channels of a depthwise convolution's results."""
    return float(product.rows * -(-product.groups * product.columns // machine.lanes()))


def _moved(product: Product, itemsize: int, machine: Machine) -> float:
    """Cycles in which one core writes and reads the data of a product: from L2, or from beyond where it and the result
    do not fit."""
    data = itemsize * (product.read + product.second)
    near = data + product.rows * product.groups * product.columns <= NEAR * machine.l2
    return 2.0 * data / (machine.l2_rate if near else machine.core_bandwidth / machine.ghz / 1e9)
