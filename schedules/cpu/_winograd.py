"""Winograd's forms of a convolution, what they take, and what the direct one does: for the family that computes them,
and for those that compare themselves with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from tvmopt.scheduling.cost_model import step_cycles, stream_cycles
from tvmopt.targets import Machine

KERNEL = 3
FORM = "tvmopt.winograd"
"""Annotation of the products: outputs of a tile and parts of a sum along the rows of tiles, the same along the columns,
the phases of a picture's rows and columns, and whether the rows are the columns of a picture of one row."""
FORMS = (4, 2)
"""The output tiles that :func:`output_tile` chooses from."""
TRANSFORM = {1: 0.0, 4: 4.0, 5: 6.0, 6: 8.0, 7: 10.0, 8: 12.0}
"""Vector operations an element of V or M in the transform along one axis, by the size of the tile."""
FAR = 4.0
"""How often V goes through L3 where L2 does not hold that of a row of tiles: it is fetched, written and read in rows of
one place, each far from the one before. 384 to 24 channels of 2x320 by 3x3 took 1030 us so, 834 directly (Xeon)."""
AT_ONCE = 8
"""Tiles of which a signal has a multiple: register tiles are as high."""
GATHER = 4.0
"""Cycles of a vector of the result that is put together of its phases."""
LONGEST = 32
"""Taps of a signal's window, at the most."""


@dataclass(frozen=True)
class Axis:
    """A form along one axis: tiles of `out` outputs, each a sum of `taps` products.

    Longer sums have `parts`: each begins a tile behind the one before, so that all read the same transformed tiles, and
    has as many taps as a tile has outputs.
    """

    out: int = 1
    taps: int = 1
    parts: int = 1

    @property
    def tile(self) -> int:
        """Elements of a transformed tile."""
        return self.out + self.taps - 1

    def tiles(self, size: int) -> int:
        """Of so many outputs; the last may hang over."""
        return -(-size // self.out)


@dataclass(frozen=True)
class Form:
    """A form of a convolution: that of its rows, and that of its columns."""

    rows: Axis
    cols: Axis

    @classmethod
    def square(cls, out: int) -> Form:
        """That of a 3x3 window with tiles of `out` x `out` outputs."""
        return cls(Axis(out, KERNEL), Axis(out, KERNEL))

    @property
    def places(self) -> int:
        """Elements of a transformed tile: one product of matrices each."""
        return self.rows.tile * self.cols.tile

    @property
    def parts(self) -> int:
        """Of a sum, see :class:`Axis`."""
        return self.rows.parts * self.cols.parts


def axis_forms(taps: int, alone: bool) -> tuple[Axis, ...]:
    """The forms along one axis.

    Along both axes tiles have 6 elements at most, which err least; a window along one axis alone errs as little with 8.

    Args:
        alone: the window has one tap along the other axis.

    >>> [(a.out, a.tile, a.parts) for a in axis_forms(3, True)], axis_forms(7, False)
    ([(4, 6, 1), (2, 4, 1)], ())
    >>> [(a.out, a.tile, a.parts) for a in (*axis_forms(5, True), *axis_forms(11, True))]
    [(4, 8, 1), (4, 7, 3)]
    """
    if taps == 1:
        return (Axis(),)
    if taps == KERNEL:
        return tuple(Axis(out, taps) for out in FORMS)
    if taps == 2:
        return (Axis(4, taps),)
    if taps == 5:
        return (Axis(4, 5),) if alone else (Axis(2, 5),)
    return (Axis(4, 4, -(-taps // 4)),) if alone and 4 <= taps <= LONGEST else ()


def forms(kernel: tuple[int, int]) -> Iterator[Form]:
    """The forms of a window; a square one has tiles that are square."""
    high, wide = (axis_forms(taps, 1 in kernel) for taps in kernel)
    for rows, cols in product(high, wide):
        if rows == cols or kernel[0] != kernel[1]:
            yield Form(rows, cols)


@dataclass(frozen=True)
class Window:
    """A convolution of stride 1.

    Attributes:
        kernel: taps along rows and columns. dilation: whose phases are pictures of their own. size: rows and columns of
            the result. batch: pictures, of `in_c` channels, which become `out_c`.
    """

    kernel: tuple[int, int]
    dilation: tuple[int, int]
    size: tuple[int, int]
    in_c: int
    out_c: int
    batch: int


def choose_form(window: Window, machine: Machine, rate: float = 1.0, margin: float = 1.0) -> tuple[Form | None, float]:
    """The fastest form, by :func:`direct_cycles` and :func:`winograd_cycles`, and its cycles; None: the direct one.

    Args:
        rate: how much faster the direct form multiplies than fp32 does (`bf16_rate` with `--precision bf16`, 16 by
            tiles). margin: how far ahead Winograd must be.
    """
    in_c, out_c, phases = window.in_c, window.out_c, prod(window.dilation)
    direct = direct_cycles(prod(window.size) * window.batch, in_c, out_c, machine, rate, prod(window.kernel))
    found: tuple[Form | None, float] = None, direct
    if min(in_c, out_c) < machine.lanes() or window.kernel == (1, 1) or min(window.size) < 1:
        return found
    high, wide = (-(-s // d) for s, d in zip(window.size, window.dilation, strict=True))
    for form in forms(window.kernel):
        batch, weights = window.batch * phases, form.places * form.parts * in_c * out_c * 4
        cycles = winograd_cycles(form, form.rows.tiles(high), form.cols.tiles(wide), in_c, out_c, batch, machine)
        if phases > 1:
            gathered = GATHER * window.batch * prod(window.size) * out_c / machine.lanes()
            again = (batch - 1) * weights / (machine.l2_rate / 2) if weights > machine.l2 // 2 else 0.0
            cycles += (gathered + again) / machine.cores
        if margin * cycles < found[1]:
            found = form, margin * cycles
    return found


def output_tile(
    out_h: int, out_w: int, in_c: int, out_c: int, batch: int, machine: Machine, rate: float = 1.0, margin: float = 1.0
) -> int:
    """The output tile of the fastest form of a 3x3 window: 4 or 2; 1: direct. See :func:`choose_form`."""
    window = Window((KERNEL, KERNEL), (1, 1), (out_h, out_w), in_c, out_c, batch)
    form, _ = choose_form(window, machine, rate, margin)
    return form.rows.out if form is not None else 1


def direct_cycles(
    pixels: int, in_c: int, out_c: int, machine: Machine, rate: float = 1.0, taps: int = KERNEL * KERNEL
) -> float:
    """taps * C * O / lanes FMAs a pixel at 0.95 of the full rate, and half of the time that its weights take to arrive:
    what the next panel's prefetch does not hide."""
    products = taps * in_c * out_c / machine.lanes() * pixels / machine.fma_ports / 0.95 / rate
    return float(products / machine.cores + stream_cycles(taps * in_c * out_c * 4, machine) / 2)


def winograd_cycles(form: Form, rows: int, cols: int, in_c: int, out_c: int, batch: int, machine: Machine) -> float:
    """Arithmetic or U's traffic for `rows` x `cols` tiles, whichever is longer, and what `machine.unhidden` says of the
    other.

    Products    places * C * O / lanes FMAs a tile and part (tiles may hang over the edge) in register tiles as high as
                the image has tiles, which few tiles leave bound by FMA latency.
    Transforms  some vector operations an element of V and of M, one of each for a place, tile and channel.
    V           comes from L3 where L2 does not hold that of one row of tiles, the least of a task: :data:`FAR`.
    Weights     places * C * O * 4 bytes a part, once: :func:`stream_cycles`. Cores share memory, not the arithmetic.
    Cores       share rows of tiles, and beyond these the panels of channels, for which each transforms anew.

    Its constants are fitted to 82 layers inside six networks, on one core and two of Zen 5: choosing by it costs 2 % of
    the time of the best choices (docs/performance.md).
    """
    tiles, places, products = batch * rows * cols, form.places, form.places * form.parts
    lanes = machine.lanes()
    height, wide = min(8, rows * cols), min(2, -(-out_c // lanes))
    gemm = products * in_c * (out_c / lanes / wide) * (tiles / height) * step_cycles(height, wide, machine) / 0.9
    each = TRANSFORM[form.rows.tile] + TRANSFORM[form.cols.tile]
    transforms = each * places * (in_c + out_c) / lanes * tiles / machine.fma_ports
    pieces = batch * rows
    shares = min(machine.cores, pieces), min(machine.cores, pieces * -(-out_c // (2 * lanes)))
    made = places * cols * in_c * 4  # V of a task, which has a row of tiles at least
    far = FAR * made * pieces / machine.l3_rate / shares[0] if made > 0.75 * machine.l2 else 0.0
    arithmetic = transforms / shares[0] + gemm / shares[1] + far
    stream = stream_cycles(products * in_c * out_c * 4, machine)
    return float(max(arithmetic, stream) + machine.unhidden * min(arithmetic, stream))
