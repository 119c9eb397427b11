"""What Winograd's forms of a 3x3 convolution take, and the direct one: for the family that computes them, and for those
that compare themselves with it."""

from __future__ import annotations

from tvmopt.scheduling.cost_model import step_cycles, stream_cycles
from tvmopt.targets import Machine

KERNEL = 3
FORMS = (4, 2)
"""The output tiles that :func:`output_tile` chooses from."""
TRANSFORM = {2: 8.0, 4: 16.0}
"""Vector operations an element of V or M in the transforms, by the size of the output tile."""


def output_tile(
    out_h: int, out_w: int, in_c: int, out_c: int, batch: int, machine: Machine, rate: float = 1.0, margin: float = 1.0
) -> int:
    """The output tile of the fastest form, by :func:`direct_cycles` and :func:`winograd_cycles`: 4 or 2; 1: direct.

    `rate`: how much faster the direct form multiplies than fp32 does (`bf16_rate` with `--precision bf16`, 16 by
    tiles); `margin`: how far ahead Winograd must be.
    """
    if min(in_c, out_c) < machine.lanes():
        return 1
    direct = direct_cycles(out_h * out_w * batch, in_c, out_c, machine, rate)
    cycles = {
        out: margin * winograd_cycles(out, -(-out_h // out), -(-out_w // out), in_c, out_c, batch, machine)
        for out in FORMS
    }
    return min({1: direct, **cycles}.items(), key=lambda form: form[1])[0]


def direct_cycles(pixels: int, in_c: int, out_c: int, machine: Machine, rate: float = 1.0) -> float:
    """9 * C * O / lanes FMAs a pixel at 0.95 of the full rate, and half of the time that its weights take to arrive:
    what the next panel's prefetch does not hide."""
    products = 9 * in_c * out_c / machine.lanes() * pixels / machine.fma_ports / 0.95 / rate
    return float(products / machine.cores + stream_cycles(9 * in_c * out_c * 4, machine) / 2)


def winograd_cycles(out: int, rows: int, cols: int, in_c: int, out_c: int, batch: int, machine: Machine) -> float:
    """Arithmetic or U's traffic for `rows` x `cols` tiles of `out` x `out` outputs, whichever is longer, and what
    `machine.unhidden` says of the other.

    Products    (out+2)^2 * C * O / lanes FMAs a tile (tiles may hang over the edge) in register tiles as high as the
                image has tiles, which few tiles leave bound by FMA latency.
    Transforms  some vector operations an element of V and of M, (out+2)^2 of each a tile and channel.
    Weights     (out+2)^2 * C * O * 4 bytes, once: see :func:`stream_cycles`. Cores share memory, not the arithmetic.
    Cores       share rows of tiles, and beyond these the panels of channels, for which each transforms anew.

    Its constants are fitted to 82 layers inside six networks, on one core and two of Zen 5: choosing by it costs 2 % of
    the time of the best choices (docs/performance.md).
    """
    tiles, places = batch * rows * cols, (out + KERNEL - 1) ** 2
    lanes = machine.lanes()
    height = min(8, rows * cols)
    gemm = places * in_c * (out_c / lanes / 2) * (tiles / height) * step_cycles(height, 2, machine) / 0.9
    transforms = TRANSFORM[out] * places * (in_c + out_c) / lanes * tiles / machine.fma_ports
    pieces = batch * rows
    shares = min(machine.cores, pieces), min(machine.cores, pieces * -(-out_c // (2 * lanes)))
    arithmetic, stream = transforms / shares[0] + gemm / shares[1], stream_cycles(places * in_c * out_c * 4, machine)
    return float(max(arithmetic, stream) + machine.unhidden * min(arithmetic, stream))
