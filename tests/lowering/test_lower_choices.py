"""A choice between two vectors by one truth: it compiles, and chooses."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, pipelined


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_that_are_masked_as_a_whole(dtype: str) -> None:
    """As attention has them behind its softmax: a truth a row, a vector of its numbers."""
    x = array((6, 36), dtype)
    seen = np.array([1, 0, 1, 1, 0, 1], "bool")[:, None]

    def build(bb: relax.BlockBuilder, x: relax.Expr, seen: relax.Expr) -> relax.Expr:
        share = bb.emit(relax.op.nn.softmax(x, -1))
        return relax.op.where(seen, share, relax.const(0, dtype))

    out, source, used = pipelined(build, [x, seen], "fp32")
    assert used == ["rows"]
    assert "make_ushort" not in source.split('extern "C"')[-1]
    wide = np.exp(x.astype("float64"))
    exact = np.where(seen, wide / wide.sum(-1, keepdims=True), 0)
    np.testing.assert_allclose(out.astype("float64"), exact, atol=1e-3 if dtype == "float16" else 1e-6)
    assert (out[[1, 4]] == 0).all()
