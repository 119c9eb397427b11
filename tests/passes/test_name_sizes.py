"""Kernels of sizes that are expressions are fused as those of plain sizes are."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.schedules.harness import Open, open_module
from tvmopt.importer.sizes import variable
from tvmopt.passes.name_sizes import SizeNames

op = relax.op


def halves(bb, x):
    """[n, h, 8] -> [n, (h - 1)//2 + 1, 8]."""
    return bb.emit(op.nn.max_pool1d(x, 1, 2, layout="NWC"))


def test_a_chain_of_an_expression_is_one_kernel():
    def build(bb, x):
        y = bb.emit(op.tanh(halves(bb, x)))
        return op.add(bb.emit(op.multiply(y, relax.const(np.float32(0.5)))), relax.const(np.float32(1.0)))

    model = Open(open_module(build, [("n", "h", 8)]))
    assert len(model.how) == 1
    for n, h in [(1, 1), (2, 7), (3, 16)]:
        x = np.random.default_rng(h).standard_normal((n, h, 8)).astype("float32")
        np.testing.assert_allclose(model(x)[0], np.tanh(x[:, ::2]) * 0.5 + 1, rtol=1e-5, atol=1e-6)


def test_a_reshape_to_a_product_of_sizes_is_still_a_view():
    def build(bb, x):
        flat = bb.emit(op.reshape(x, (-1, 8)))
        return op.tanh(flat)

    model = Open(open_module(build, [("n", "h", 8)]))
    assert [name for name in model.how if "reshape" in name] == []
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype("float32")
    np.testing.assert_allclose(model(x)[0], np.tanh(x).reshape(-1, 8), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8), ("n", 8)])
def test_plain_sizes_are_left_alone(shape):
    module = open_module(lambda bb, x: op.tanh(x), [shape])
    names = SizeNames()
    assert names.give(module) is module and names.take_back(module) is module


def test_a_size_that_is_computed_with_is_handed_over():
    def build(bb, x):
        return op.mean(halves(bb, x), 1)

    model = Open(open_module(build, [("n", "h", 8)]))
    for n, h in [(1, 1), (2, 7), (3, 16)]:
        x = np.random.default_rng(h).standard_normal((n, h, 8)).astype("float32")
        np.testing.assert_allclose(model(x)[0], x[:, ::2].mean(1), rtol=1e-5, atol=1e-6)


def test_a_kernel_that_tvm_cannot_tell_from_a_reshape_is_compiled():
    """TVM's analysis raised an InternalError: the padding factor (w - 2)*2 is not divisible by w - 2."""
    w = np.random.default_rng(0).standard_normal((33, 1, 1, 3)).astype("float32")
    model = Open(open_module(lambda bb, x: op.nn.conv2d(x, relax.const(w), groups=33), [(1, 33, 2, "w")]))
    for wide in (3, 7, 9, 17, 33):
        x = np.random.default_rng(wide).standard_normal((1, 33, 2, wide)).astype("float32")
        expected = sum(x[..., k : k + wide - 2] * w[:, 0, 0, k][:, None, None] for k in range(3))
        np.testing.assert_allclose(model(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_size_that_is_written_in_two_ways_is_one():
    """TVM simplifies `n//2 + -2` to `n//2 - 2`: a kernel with a tensor of each could not be built."""
    n = variable("n")
    x = relax.Var("x", relax.TensorType([tirx.max(n // 2 + -2, 0), 5], "float32"))
    z = relax.Var("z", relax.TensorType([n], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, z]):
        with bb.dataflow():
            y = bb.emit(op.multiply(x, relax.const(np.float32(3))))
            padded = bb.emit(op.nn.pad(y, (0, 0, 0, 3), "constant", 0.0))
            out = bb.emit_output(op.permute_dims(padded, [1, 0]))
        bb.emit_func_output(out)
    model = Open(bb.get())
    for size in (6, 9, 40):
        given = np.random.default_rng(size).standard_normal((size // 2 - 2, 5)).astype("float32")
        np.testing.assert_array_equal(model(given, np.zeros(size, "float32"))[0], np.pad(given * 3, ((0, 0), (0, 3))).T)
