"""Planes resized by plain loops, whose taps are written out up to some number."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedules.cuda.harness import array, run
from tvmopt.operators.interpolate import WRITTEN, WRITTEN_LAST, Taps, interpolate


@pytest.mark.parametrize("down", [WRITTEN, WRITTEN + 1])
@pytest.mark.parametrize("across", [WRITTEN_LAST, WRITTEN_LAST + 1])
def test_taps_that_are_written_out_and_taps_that_are_a_loop(down: int, across: int) -> None:
    rng = np.random.default_rng(down + across)
    x = array((2, 3, 90, 41), "float32")
    rows, columns = (
        Taps(rng.integers(0, size, (count, taps)), rng.standard_normal((count, taps)) / taps)
        for size, count, taps in ((90, 5, down), (41, 7, across))
    )
    got, _ = run(lambda bb, x: interpolate(x, rows, columns), [x])
    lines = np.einsum("nchkw,hk->nchw", x.astype("float64")[:, :, rows.places], rows.weights)
    want = np.einsum("nchwk,wk->nchw", lines[..., columns.places], columns.weights)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
