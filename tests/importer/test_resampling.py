"""The weights of a resized axis, beside Pillow's own results."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.analysis.oracle.pixels import summed
from tvmopt.importer.resampling import NAMES, taps
from tvmopt.operators.resample import LARGEST, problem
from tvmopt.preprocessing.stages import rows_first

Image = pytest.importorskip("PIL.Image")
SIZES = [(1, 1), (7, 9), (33, 17), (16, 15), (224, 224), (480, 640)]
WANTED = [(1, 1), (8, 31), (9, 7), (32, 33), (224, 224), (256, 341)]


def pictures(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise with black and white in it, which overshoots where a filter has negative weights."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    x[generator.random((height, width)) < 0.3] = 255
    x[generator.random((height, width)) < 0.3] = 0
    return x


def resized(x: np.ndarray, wanted: tuple[int, int], name: str) -> np.ndarray:
    down, across = (taps(name, old, new) for old, new in zip(x.shape[:2], wanted, strict=True))
    passes = [(across, 2), (down, 1)]
    y = x[None]
    for axis, number in passes[::-1] if rows_first(x.shape[:2], wanted) else passes:
        y = summed(y, axis.places, axis.weights, number)
    return y[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "linear"])
@pytest.mark.parametrize("given", SIZES)
def test_equal_to_pillow(name: str, given: tuple[int, int]) -> None:
    """To the bit where both begin with the same axis."""
    newest = rows_first_in_pillow()
    for wanted in WANTED:
        x = pictures(*given)
        theirs = np.asarray(Image.fromarray(x).resize(wanted[::-1], getattr(Image.Resampling, name.upper())))
        if newest or not rows_first(given, wanted):
            wrong = np.abs(resized(x, wanted, name).astype(int) - theirs)
            assert wrong.max() <= (name == "hamming") and wrong.mean() < 1e-4, wanted


def rows_first_in_pillow() -> bool:
    import PIL

    return int(PIL.__version__.partition(".")[0]) >= 13


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_that_of_the_whole(name: str) -> None:
    whole = summed(pictures(40, 50)[None], *_tables(name, 50, 33), 2)
    for first, count in ((0, 33), (5, 7), (32, 1), (1, 31)):
        part = summed(pictures(40, 50)[None], *_tables(name, 50, 33, first, count), 2)
        np.testing.assert_array_equal(part, whole[:, :, first : first + count])
    around = summed(pictures(40, 50)[None], *_tables(name, 50, 33, -2, 38), 2)
    np.testing.assert_array_equal(around[:, :, 2:35], whole)
    assert not around[:, :, :2].any() and not around[:, :, 35:].any()


def _tables(name: str, *sizes: int) -> tuple[np.ndarray, np.ndarray]:
    found = taps(name, *sizes)
    return found.places, found.weights


@pytest.mark.parametrize("name", NAMES)
def test_no_sum_leaves_32_bits(name: str) -> None:
    for given in (1, 2, 7, 16, 33, 500):
        for wanted in (1, 2, 9, 17, 224, 600):
            found = taps(name, given, wanted)
            assert problem(found.places, found.weights, given) == ""
            assert np.abs(found.weights.astype(np.int64)).sum(1).max() <= LARGEST


def test_an_axis_of_the_same_size_is_copied() -> None:
    assert all(taps(name, 17, 17).copies(17) for name in NAMES)
    assert not taps("nearest", 17, 17, 1, 16).copies(17)
    assert not taps("bilinear", 17, 17, -1, 17).copies(17)
