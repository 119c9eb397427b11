"""The epilogue of a product: what computes an operand of the chain is inlined into it."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.harness import module_of, rand
from tvmopt import pipeline
from tvmopt.targets import Machine

HOST = Machine.load("cpu").with_cores(2)
op = relax.op


@pytest.mark.parametrize("dims", [(), (1,), (17,), (1, 17), (9, 1)])
def test_an_operand_that_is_computed_beside_the_product(dims):
    """x W (a b) + a: a and b are smaller than the result, or one number."""
    x, w, a, b = rand(9, 24), rand(24, 17, seed=1), rand(*dims, seed=2), rand(*dims, seed=3)

    def body(bb, x, a, b):
        product = bb.emit(op.matmul(x, relax.const(w)))
        return op.add(bb.emit(op.multiply(product, bb.emit(op.multiply(a, b)))), a)

    inputs = [x, np.asarray(a, "float32"), np.asarray(b, "float32")]
    low = pipeline.lower(module_of(body, inputs), HOST)
    assert [k.family for k in low.kernels] == ["gemm"]
    vm = relax.VirtualMachine(pipeline.build(low, HOST), tvm.cpu())
    found = vm["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    expected = (x.astype("f8") @ w) * (np.float64(a) * b) + a
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
