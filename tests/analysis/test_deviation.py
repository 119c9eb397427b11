"""How far a tensor may be from the oracle's: slices, scales, single elements, steps, shares of a product."""

from dataclasses import replace

import numpy as np
import pytest

from tvmopt.analysis.deviation import LIMITS, agreement, deviation, slope, small
from tvmopt.analysis.walk import along

FILLS = [-3.4e38, float(np.finfo(np.float32).min), -np.inf, -1e4]


def test_slices_show_a_row_that_the_whole_hides():
    exact = np.random.default_rng(0).standard_normal((512, 64))
    found = exact.copy()
    found[100] *= 1.01
    assert deviation("y", exact, exact * (1 + 1e-6), LIMITS["fp32"]).ok
    one = deviation("y", exact, found, LIMITS["fp32"])
    assert not one.ok and one.worst[0] == 100


@pytest.mark.parametrize("hole", [0.0, np.nan, np.inf])
def test_one_wrong_element_shows_beside_any_value(hole: float) -> None:
    """A NaN that both have hid an error that is too large for one element and too small for its slice."""
    exact = np.random.default_rng(0).standard_normal((33, 33)).astype(np.float32)
    exact[10, 20] = hole
    found = exact.copy()
    found[3, 4] += np.float32(8e-4)
    one = deviation("y", exact, found, LIMITS["fp32"])
    assert not one.ok and one.worst == (3, 4) and 2 < one.excess < 3
    assert deviation("y", exact, exact.copy(), LIMITS["fp32"]).ok


@pytest.mark.parametrize("fill", FILLS)
def test_a_fill_is_no_scale(fill):
    exact = np.random.default_rng(0).standard_normal((8, 64))
    exact[:, 60:] = fill
    found = exact.copy()
    found[2, 3] += 0.01
    assert not deviation("y", exact, found, LIMITS["fp32"]).ok


def test_steps_differ_only_where_rounding_moves_them():
    exact, found, natural = (np.array(v, np.uint8) for v in ([3, 4, 5], [3, 5, 5], [3, 5, 5]))
    assert not deviation("q", exact, found, LIMITS["fp32"]).ok
    assert deviation("q", exact, found, LIMITS["fp32"], [natural]).ok
    assert not deviation("q", exact, found + np.uint8(1), LIMITS["fp32"], [natural]).ok


def test_an_error_along_a_product_shows_under_a_residual():
    rng = np.random.default_rng(0)
    product, rest = rng.standard_normal((64, 64)), 30 * rng.standard_normal((64, 64))
    noise = 0.1 * rng.standard_normal((64, 64))
    assert abs(slope(product + rest, product + rest + noise, product)) < 0.01
    assert abs(slope(product + rest, 1.05 * product + rest + noise, product) - 0.05) < 0.01


@pytest.mark.parametrize("size", [1e-25, 1e-15, 1.0, 1e18, 1e30])
def test_errors_show_at_every_size_of_numbers(size):
    """Squares of such numbers leave float32."""
    exact = (np.random.default_rng(0).standard_normal((9, 33)) * size).astype("f")
    assert deviation("y", exact, exact.copy(), LIMITS["fp32"]).ok
    assert deviation("y", exact, exact * np.float32(1 + 1e-6), LIMITS["fp32"]).ok
    leaky = np.where(exact < 0, exact * np.float32(0.9), exact)
    assert not deviation("y", exact, leaky, LIMITS["fp32"]).ok
    assert abs(slope(exact, leaky, exact)) > 0.01


def test_a_product_that_its_sum_rounds_away_says_nothing():
    product = np.random.default_rng(0).standard_normal((40, 40))
    exact = product - 65504
    found = exact.astype(np.float16).astype(np.float64)
    assert abs(slope(exact, found, product)) > 0.9
    assert slope(exact, found, product, float(np.finfo(np.float16).eps)) == 0
    assert abs(slope(product, 1.03 * product, product, float(np.finfo(np.float16).eps)) - 0.03) < 1e-9


def test_error_and_tolerance_are_told_in_one_unit() -> None:
    """The largest element beside what such an error may be, not beside the limit of the root mean square."""
    exact = np.random.default_rng(0).standard_normal((8, 256))
    for share, ok in ((1e-6, True), (1e-3, False)):
        one = deviation("y", exact, (exact * (1 + share)).astype("f"), LIMITS["fp32"])
        assert one.ok is ok
        assert one.needed == one.max_error / one.scale
        assert one.needed / one.tolerance == pytest.approx(one.excess)


def test_rounding_along_a_product_is_no_share_of_it() -> None:
    """Where runs that only round are off by a share of a product, a kernel may be."""
    product = np.random.default_rng(0).standard_normal((64, 64))
    one = deviation("y", product, product, LIMITS["bf16"])

    def judged(share: float, *rounded: float) -> bool:
        naturals = [(1 + r) * product for r in rounded]
        apart = replace(one, max_error=share * float(np.abs(product).max()))
        return along(apart, product, (1 + share) * product, [product], "bf16", np.dtype("f"), naturals).ok

    assert judged(0.005) and not judged(0.02)
    assert judged(0.02, 0.015, -0.001) and not judged(0.02, 0.005)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_relu_that_leaves_little_lets_rounding_through(precision) -> None:
    """Sums round as much where a Relu cuts most of them off as where it does not: a row of which it leaves nothing may
    get a number near 0. A number of a larger size, or a row of them, is wrong there, too."""
    rng = np.random.default_rng(0)
    noise = {"bf16": 6e-3, "fp32": 2e-5}[precision]
    sums = rng.standard_normal((1, 32, 300, 160)) - 2

    def run() -> np.ndarray:
        return np.maximum(sums + noise * rng.standard_normal(sums.shape), 0).astype(np.float32)

    exact, rounded, found = np.maximum(sums, 0).astype(np.float32), run(), run()
    assert deviation("y", exact, found, LIMITS[precision], [rounded]).ok
    where = np.unravel_index(int(sums.argmin()), sums.shape)
    for at, wrong in ((where, 40 * noise), (where[:3], 20 * noise), (where[:2], 20 * noise)):
        spoilt = found.copy()
        spoilt[at] += wrong
        assert not deviation("y", exact, spoilt, LIMITS[precision], [rounded]).ok, (at, wrong)


@pytest.mark.parametrize("channels", [16, 40, 240])
def test_one_pixel_of_five_per_cent_shows_in_bf16(channels: int) -> None:
    """Its channels are a row of a kernel that writes them last, and each of them alone may be off by as much."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((1, channels, 24, 33)) * np.exp(rng.standard_normal((1, 1, 24, 33)))
    found = exact * (1 + 2e-3 * rng.standard_normal(exact.shape)) + 3e-3 * rng.standard_normal(exact.shape)
    assert deviation("y", exact, found, LIMITS["bf16"]).ok
    row, column = np.unravel_index(int(np.square(exact).sum((0, 1)).argmax()), (24, 33))
    found[0, :, row, column] *= 1.05
    one = deviation("y", exact, found, LIMITS["bf16"])
    assert not one.ok and one.worst[2:] == (row, column)


def test_what_rounds_wildly_in_few_pixels_may_do_so_in_others() -> None:
    """A norm of equal numbers is 0 or anything, in each run in other pixels."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((1, 32, 24, 33))
    exact[..., :8] = 0

    def run() -> np.ndarray:
        return np.where((exact == 0) & (rng.random((1, 1, 24, 33)) < 0.2), 4 * rng.standard_normal(exact.shape), exact)

    rounded = [run(), run()]
    assert deviation("y", exact, run(), LIMITS["bf16"], rounded).ok


@pytest.mark.parametrize("rows", [3, 17])
def test_a_single_element_of_16_bits_is_as_wrong_as_its_own_size_and_the_rounding_say(rows):
    """A tenth of the rms in one small number shows, beside large numbers whose own rounding is as much."""
    rng = np.random.default_rng(rows)
    exact = rng.standard_normal((rows, 4096)) * np.where(rng.random((rows, 4096)) < 0.02, 6, 0.3)

    def run():
        return exact * (1 + 2.0**-8 * rng.uniform(-1, 1, exact.shape)) + 2e-3 * rng.standard_normal(exact.shape)

    small = tuple(np.argwhere(np.abs(exact) < 0.1)[0])
    rms = float(np.sqrt(np.mean(exact**2)))
    naturals = [run(), run()]
    for _ in range(8):
        found = run()
        assert deviation("y", exact, found, LIMITS["bf16"], naturals).ok
        found[small] += rms / 10
        assert not deviation("y", exact, found, LIMITS["bf16"], naturals).ok


@pytest.mark.parametrize("seed", range(8))
def test_what_clearly_agrees_agrees(seed) -> None:
    """The short comparison says nothing, or what the whole one says: also of relus, fills, NaN and single errors."""
    rng = np.random.default_rng(seed)
    for shape in ((1,), (7, 9), (1, 16, 33, 17), (4, 64, 31)):
        exact = rng.standard_normal(shape).astype(np.float32) * np.float32(10.0 ** rng.integers(-14, 18))
        if seed % 2:
            exact = np.maximum(exact, 0)
        if seed % 3 == 0:
            exact.flat[0] = rng.choice([np.nan, np.inf, -3.4e38, 2e3, 0.0])
        with np.errstate(all="ignore"):
            found = exact * (1 + np.float32(10.0 ** rng.integers(-8, -3)) * rng.standard_normal(shape).astype("f"))
        if seed % 4 == 0:
            found.flat[-1] = rng.choice([np.nan, np.inf, 0.0, 1.0])
        found = found.astype(np.float32)
        one, whole = (judged("y", exact, found, LIMITS["fp32"]) for judged in (agreement, deviation))
        assert one is None or (one.ok and whole.ok)
        if one is not None:
            assert one.max_error == pytest.approx(whole.max_error) and one.scale == pytest.approx(whole.scale)
            assert one.mean_error == pytest.approx(whole.mean_error, rel=1e-3) and whole.excess <= one.excess


def test_a_single_number_clearly_agrees() -> None:
    """NumPy makes no array of the difference of two: a model whose output is a mean ended in a TypeError."""
    exact, found = np.array(1.5, np.float32), np.array(1.5 + 1e-6, np.float32)
    one, whole = (judged("y", exact, found, LIMITS["fp32"]) for judged in (agreement, deviation))
    assert one is not None and one.ok and one.worst == whole.worst == ()
    assert one.max_error == pytest.approx(whole.max_error) and one.mean_error == pytest.approx(whole.mean_error)


def test_most_kernels_clearly_agree() -> None:
    """What a right kernel of float32 makes is told by the short comparison; one wrong element among many is not."""
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32)
    exact = (a.astype(np.float64) @ b).astype(np.float32)
    found = a @ b
    assert agreement("y", exact, found, LIMITS["fp32"]) is not None
    found[200, 3] += 0.01
    assert agreement("y", exact, found, LIMITS["fp32"]) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_small_error_is_a_small_share(seed) -> None:
    """By the short way no error is called small that is a larger share of a product."""
    rng = np.random.default_rng(seed)
    product = rng.standard_normal((64, 64)).astype(np.float32)
    exact = np.maximum(product - seed, 0) if seed else product + 9
    for share in (1e-4, 1e-3, 3e-3, 1e-2):
        found = exact + share * product * (exact != 0)
        error = float(np.abs(found - exact).max())
        assert not small(error, exact, product, 2e-3) or abs(slope(exact, found, product)) <= 2e-3
