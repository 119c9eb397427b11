"""Elementwise chains become one block that knows all it reads."""

import numpy as np
from tvm import relax

from tests.schedules.harness import rand, run

op = relax.op


def test_reads_of_buffers_of_one_shape_are_all_kept():
    """Attention scores with two biases, as DeBERTa's: three inputs of the epilogue have the product's shape."""
    x, w, a, b = rand(4, 9, 8), rand(4, 8, 9, seed=1), rand(4, 9, 9, seed=2), rand(4, 9, 9, seed=3)

    def build(bb, x, w, a, b):
        product = bb.emit(op.matmul(x, w))
        bias = bb.emit(op.multiply(bb.emit(op.add(a, b)), relax.const(0.5, "float32")))
        return op.add(product, bias)

    (y,), how = run(build, [x, w, a, b])
    assert [h.family for h in how.values()] == ["batch_gemm"] and not any(h.note for h in how.values())
    np.testing.assert_allclose(y, x.astype("float64") @ w + (a + b) * 0.5, rtol=1e-5, atol=1e-5)
