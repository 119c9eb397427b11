"""A flattened image's transpose goes into the rows of the weight."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import FuseTransposeMatmul
from tvmopt.report import DecisionLog

op, c = relax.op, relax.const


@pytest.mark.parametrize("batch, height, width, channels", [(1, 7, 7, 16), (2, 3, 1, 5), (3, 2, 9, 1)])
def test_flatten_and_gemm(batch, height, width, channels):
    size = height * width * channels

    def body(bb, z):
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(z, [0, 3, 1, 2])), (batch, size)))
        return op.matmul(t, c(rand(size, 9)))

    mod = build({"z": (batch, height, width, channels)}, body)
    check_rewrite(FuseTransposeMatmul, mod, {"reshape": 1, "matmul": 1})


def test_five_axes():
    def body(bb, z):
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(z, [0, 3, 1, 4, 2])), (2, 120)))
        return op.matmul(t, c(rand(120, 3)))

    check_rewrite(FuseTransposeMatmul, build({"z": (2, 3, 2, 4, 5)}, body), {"reshape": 1, "matmul": 1})


def test_a_moved_batch_stays():
    def body(bb, z):
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(z, [1, 0, 2])), (4, 15)))
        return op.matmul(t, c(rand(15, 2)))

    check_rewrite(FuseTransposeMatmul, build({"z": (3, 4, 5)}, body))


def test_a_weight_that_is_an_input_stays():
    def body(bb, z, w):
        t = bb.emit(op.reshape(bb.emit(op.permute_dims(z, [0, 3, 1, 2])), (1, 24)))
        return op.matmul(t, w)

    check_rewrite(FuseTransposeMatmul, build({"z": (1, 2, 3, 4), "w": (24, 5)}, body))


def test_a_transposed_activation_is_recorded():
    log = DecisionLog()
    mod = build(
        {"a": (2, 3, 4), "b": (2, 3, 5)},
        lambda bb, a, b: op.matmul(bb.emit(op.permute_dims(a, [0, 2, 1])), b),
    )
    check_rewrite(FuseTransposeMatmul, mod)
    FuseTransposeMatmul(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]
