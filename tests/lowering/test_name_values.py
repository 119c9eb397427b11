"""Functions inside functions: the numbers stay, and so does the time to compile them."""

import numpy as np
import pytest
from scipy import special
from tvm import relax

from tests.schedules.harness import machines, run


def mish(bb, x):
    """Spelt out as PyTorch exports it: every intermediate used twice or more."""
    e = bb.emit(relax.op.exp(bb.emit(relax.op.negative(bb.emit(relax.op.abs(x))))))
    log = bb.emit(relax.op.log(bb.emit(relax.op.add(e, relax.const(1.0)))))
    zero = bb.emit(relax.op.equal(e, relax.const(0.0)))
    tail = bb.emit(relax.op.where(zero, e, log))
    soft = bb.emit(relax.op.add(bb.emit(relax.op.maximum(x, relax.const(0.0))), tail))
    return bb.emit(relax.op.multiply(x, bb.emit(relax.op.tanh(soft))))


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("n", [1, 7, 16, 17, 33, 1000])
def test_three_mishes_in_a_row(machine, n):
    x = (np.random.default_rng(n).standard_normal((3, n)) * 3).astype("float32")
    # 2**30 terms before: it never came back
    (y,), how = run(lambda bb, x: mish(bb, mish(bb, mish(bb, x))), [x], machine)
    want = x.astype("float64")
    for _ in range(3):
        want = want * np.tanh(np.logaddexp(0, want))
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=2e-6)
    assert len(how) == 1


@pytest.mark.parametrize("machine", machines())
@pytest.mark.parametrize("rows", [9, 16, 27])
def test_behind_a_gemm_with_a_vectorized_epilogue(machine, rows):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, 32)).astype("float32"), rng.standard_normal((32, 64)).astype("float32")
    (y,), how = run(lambda bb, x: relax.op.nn.gelu(bb.emit(relax.op.matmul(x, relax.const(w)))), [x], machine)
    z = x.astype("float64") @ w
    np.testing.assert_allclose(y, z * 0.5 * (1 + special.erf(z / np.sqrt(2))), rtol=1e-4, atol=1e-4)
    assert [(s.family, s.note) for s in how.values()] == [("gemm", "")]
