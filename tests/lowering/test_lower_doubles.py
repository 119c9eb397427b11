"""Constants of float64 in code for a GPU are those of the model, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, pipelined

NUMBERS = (0.1, 1e-17 / 3, -2.5e-7 / 3, 1e300 / 3, 1e-310, 9.999999747378752e-06, 0.5, -0.0)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_constant(number: float) -> None:
    x = array((5, 7), "float64")

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.multiply(x, relax.const(number, "float64"))

    out, _, _ = pipelined(build, [x], "fp32")
    np.testing.assert_array_equal(out, x * number)


def test_vectors_of_a_constant() -> None:
    x = array((1 << 16, 4), "float64")
    bound = 0.1 + 1e-17

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.maximum(x, relax.const(bound * 1e-9, "float64"))

    out, source, _ = pipelined(build, [x], "fp32")
    assert "double2" in source
    np.testing.assert_array_equal(out, np.maximum(x, bound * 1e-9))


def test_what_fifteen_digits_hold_stays_readable() -> None:
    _, source, _ = pipelined(
        lambda bb, x: relax.op.add(x, relax.const(0.25, "float64")), [array((5,), "float64")], "fp32"
    )
    assert "0.250000000000000" in source
