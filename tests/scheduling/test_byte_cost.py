"""The model of costs chooses bytes or floats as measured: by arithmetic, on every machine alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvmopt.lowering import predicted
from tvmopt.scheduling.byte_cost import Product, byte_cycles, float_cycles
from tvmopt.targets import Machine

XEON = replace(
    Machine.load("sapphirerapids"), tile_macs=0, features=("avx2", "fma", "avx512f", "avx512bw", "avx512vnni")
)


def conv(channels: int, columns: int, size: int, taps: int = 3, step: int = 1) -> Product:
    out = size // step
    data = channels * size * size
    return Product(1, out, out, columns, channels, (taps, taps), dense=step == 1, border=taps > 1, read=data)


def depthwise(channels: int, size: int, taps: int = 3, step: int = 1) -> Product:
    out, data = size // step, channels * size * size
    return Product(1, out, out, 1, 1, (taps, taps), channels, dense=step == 1, border=True, read=data)


def matmul(m: int, k: int, n: int) -> Product:
    return Product(1, 1, m, n, k, read=m * k)


def both(batch: int, m: int, k: int, n: int) -> Product:
    return Product(batch, 1, m, n, k, read=batch * m * k, second=batch * k * n)


MEASURED = {  # on a Xeon with VNNI, one thread, within a network: time in bytes over that in floats
    "3x3": (conv(64, 64, 56), 0.67), "3x3, deep": (conv(512, 512, 7), 0.17), "few channels": (conv(4, 4, 112), 0.74),
    "first layer": (conv(3, 32, 224, 3, 2), 0.73), "1x1": (conv(64, 256, 56, 1), 0.36),
    "rows of one": (conv(1, 64, 80, 1), 1.03),
    "depthwise, beyond L2": (depthwise(96, 112, 3, 2), 0.46), "depthwise, 56x56": (depthwise(144, 56), 0.86),
    "depthwise, 14x14": (depthwise(576, 14), 1.16), "depthwise 5x5": (depthwise(192, 28, 5), 1.22),
    "depthwise 7x7": (depthwise(96, 56, 7), 1.24), "depthwise 5x5/2": (depthwise(672, 14, 5, 2), 1.07),
    "one row": (matmul(1, 64, 10), 0.97), "rows of three": (matmul(64, 3, 64), 1.08),
    "rows": (matmul(128, 768, 768), 0.21),
    "attention": (both(12, 128, 64, 128), 0.64), "attention, values": (both(12, 128, 128, 64), 0.72),
    "one query": (both(8, 1, 64, 128), 1.24), "small heads": (both(4, 16, 16, 16), 1.17),
    "narrow": (both(1, 256, 16, 256), 0.88),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_the_faster_form_is_chosen(name: str) -> None:
    product, ratio = MEASURED[name]
    taken, floats = predicted(product, XEON)
    assert (taken <= floats) == (ratio <= 1)


def test_sums_for_weights_around_any_number_are_a_kernel_more() -> None:
    """Of 99 pixels bytes took 1.09 times what floats do; of many they gain as without the sums."""
    small, large = conv(8, 16, 10), conv(64, 64, 28)
    for product, faster in ((small, False), (large, True)):
        bytes_, floats = predicted(replace(product, shifted=True), XEON)
        assert (bytes_ <= floats) == faster
        assert bytes_ > predicted(product, XEON)[0]
    assert predicted(small, XEON)[0] < predicted(small, XEON)[1]


def test_without_vnni_winograd_competes() -> None:
    """A 3x3 convolution of many channels is faster in fp32 by Winograd; `--exact` leaves that out."""
    machine = Machine.load("x86-64-v4")
    taken, floats = predicted(conv(256, 256, 14), machine)
    assert taken > floats
    _, direct = predicted(conv(256, 256, 14), machine, exact=True)
    assert direct > floats


@pytest.mark.parametrize("product", [conv(16, 16, 9), depthwise(16, 9), matmul(7, 9, 5), both(2, 3, 5, 7)])
def test_costs_grow_with_what_is_computed(product: Product) -> None:
    more = replace(product, samples=4 * product.samples, read=4 * product.read, second=4 * product.second)
    for cycles in (float_cycles, byte_cycles):
        assert 0 < cycles(product, XEON) < cycles(more, XEON) <= 4.01 * cycles(product, XEON)


def test_cores_do_not_matter() -> None:
    assert predicted(conv(64, 64, 56), XEON.with_cores(64)) == predicted(conv(64, 64, 56), XEON.with_cores(1))
