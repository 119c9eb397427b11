"""Reshapes of leading axes leave the GEMMs and their epilogues together."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.operators.lookup import lookup
from tvmopt.passes import CancelReshapes, PropagateReshapes

op, nn, c = relax.op, relax.op.nn, relax.const


def both(log):
    """As in the pipeline."""
    return lambda mod: CancelReshapes(log)(PropagateReshapes(log)(mod))


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_addmm_and_its_activation(rows):
    def body(bb, x):
        y = bb.emit(op.matmul(bb.emit(op.reshape(x, (2 * rows, 8))), c(rand(8, 9))))
        y = bb.emit(op.reshape(bb.emit(op.add(y, c(rand(9)))), (2, rows, 9)))
        y = bb.emit(op.reshape(bb.emit(nn.gelu(y)), (2 * rows, 9)))
        return op.reshape(bb.emit(op.matmul(y, c(rand(9, 8)))), (2, rows, 8))

    check_rewrite(both, build({"x": (2, rows, 8)}, body), {"matmul": 2, "add": 1, "nn.gelu": 1})


def test_the_output_projection_of_attention():
    def body(bb, q, r):
        a = bb.emit(op.reshape(bb.emit(nn.attention(q, q, q)), (14, 24)))
        y = bb.emit(op.add(bb.emit(op.matmul(a, c(rand(24, 5)))), c(rand(5))))
        return op.add(bb.emit(op.reshape(y, (2, 7, 5))), r)

    after = check_rewrite(
        both,
        build({"q": (2, 7, 3, 8), "r": (2, 7, 5)}, body),
        {"nn.attention": 1, "reshape": 1, "matmul": 1, "add": 2},
    )
    matmul = next(b for b in after["main"].body.blocks[0].bindings if "matmul" in str(b.value))
    assert len(matmul.var.ty.shape) == 3


def test_a_normalisation():
    def body(bb, x):
        y = bb.emit(nn.layer_norm(bb.emit(op.reshape(x, (14, 8))), c(rand(8)), c(rand(8)), axes=[-1]))
        return op.reshape(y, (2, 7, 8))

    check_rewrite(both, build({"x": (2, 7, 8)}, body), {"nn.layer_norm": 1})


def test_two_reshapes_of_one_shape_meet():
    def body(bb, x, y):
        return op.multiply(bb.emit(op.reshape(x, (14, 8))), bb.emit(op.reshape(y, (14, 8))))

    check_rewrite(PropagateReshapes, build({"x": (2, 7, 8), "y": (2, 7, 8)}, body), {"multiply": 1, "reshape": 1})


def test_a_regrouped_last_axis_stays():
    mod = build({"x": (2, 7, 8)}, lambda bb, x: nn.relu(bb.emit(op.reshape(x, (7, 16)))))
    check_rewrite(PropagateReshapes, mod)


def test_an_operand_that_varies_by_row_stays():
    mod = build({"x": (2, 7, 8), "y": (14, 8)}, lambda bb, x, y: op.add(bb.emit(op.reshape(x, (14, 8))), y))
    check_rewrite(PropagateReshapes, mod)


def test_a_batched_weight_stays():
    def body(bb, x):
        return op.matmul(bb.emit(op.reshape(x, (2, 7, 8))), c(rand(2, 8, 3)))

    check_rewrite(PropagateReshapes, build({"x": (14, 8)}, body))


def test_a_softmax_stays():
    mod = build({"x": (2, 7, 8)}, lambda bb, x: nn.softmax(bb.emit(op.reshape(x, (14, 8))), axis=0))
    assert ops(check_rewrite(PropagateReshapes, mod))["reshape"] == 1


def test_a_quantization_between_is_passed():
    def body(bb, x):
        flat = bb.emit(op.reshape(x, (16, 24)))
        product = bb.emit(op.matmul(flat, c(rand(24, 8))))
        zero = c(np.array(9, "uint8"), "uint8")
        q = bb.emit(op.quantize(product, c(np.float32(0.1)), zero, axis=-1, out_dtype="uint8"))
        real = bb.emit(op.dequantize(q, c(np.float32(0.1)), zero, axis=-1))
        return nn.relu(bb.emit(op.reshape(real, (2, 8, 8))))

    mod = build({"x": (2, 8, 24)}, body)
    check_rewrite(both, mod, {"matmul": 1, "quantize": 1, "dequantize": 1, "nn.relu": 1})


def ones(log):
    """As in the pipeline behind ConvertConv1d."""
    return PropagateReshapes(log, ones=True)


@pytest.mark.parametrize(
    ("row", "bias"), [((2, 5, 1, 9), (5, 1)), ((2, 5, 9, 1), (1, 5, 1)), ((2, 5, 1, 9), (1, 5, 9))]
)
def test_an_axis_of_one_moves_below_the_epilogue_and_cancels(row, bias):
    def body(bb, x):
        y = bb.emit(op.reshape(bb.emit(nn.relu(x)), (2, 5, 9)))
        y = bb.emit(nn.relu(bb.emit(op.add(y, c(rand(*bias))))))
        return nn.softmax(bb.emit(op.reshape(y, row)), axis=1)

    check_rewrite(ones, build({"x": row}, body), {"nn.relu": 2, "reshape": 1, "add": 1, "nn.softmax": 1})


def test_a_sum_of_two_rows():
    def body(bb, x, y):
        z = bb.emit(op.add(bb.emit(op.reshape(x, (2, 5, 9))), bb.emit(op.reshape(y, (2, 5, 9)))))
        return bb.emit(op.reshape(z, (2, 5, 1, 9)))

    check_rewrite(ones, build({"x": (2, 5, 1, 9), "y": (2, 5, 1, 9)}, body), {"add": 1})


@pytest.mark.parametrize("other", [(2, 5, 9), (2, 1, 9)])
def test_another_operand_that_is_no_constant(other):
    """As large as the result it would need a reshape of its own: it stays. What is broadcast gets one, a view."""
    mod = build({"x": (2, 5, 1, 9), "y": other}, lambda bb, x, y: op.add(bb.emit(op.reshape(x, (2, 5, 9))), y))
    check_rewrite(ones, mod, None if other == (2, 5, 9) else {"add": 1, "reshape": 2})


def test_regrouped_axes_are_not_axes_of_one():
    check_rewrite(ones, build({"x": (2, 5, 9)}, lambda bb, x: nn.relu(bb.emit(op.reshape(x, (10, 9))))))


def test_a_quantization_names_no_axis_of_fewer():
    """Per tensor its axis has no meaning, and may be none of the tensor before the reshape."""

    def body(bb, x):
        wide = bb.emit(op.reshape(x, (1, 1, 2, 1)))
        zero = c(np.array(9, "uint8"), "uint8")
        q = bb.emit(op.quantize(wide, c(np.float32(0.1)), zero, axis=1, out_dtype="uint8"))
        return bb.emit(op.dequantize(q, c(np.float32(0.1)), zero, axis=1))

    check_rewrite(ones, build({"x": (2,)}, body), {"quantize": 1, "dequantize": 1, "reshape": 1})


def test_a_table_of_bytes_keeps_its_one_axis():
    """Of a one-dimensional convolution that became two-dimensional: 256 values have no axes of the result."""

    def body(bb, x):
        codes = bb.emit(op.quantize(x, c(np.float32(0.1)), c(np.uint8(3)), axis=1, out_dtype="uint8"))
        table = relax.const(np.arange(256, dtype=np.uint8)[::-1].copy(), "uint8")
        return bb.emit(lookup(bb.emit(op.reshape(codes, (2, 5, 9))), table))

    check_rewrite(ones, build({"x": (2, 5, 1, 9)}, body), {"quantize": 1, "tvmopt.lookup": 1, "reshape": 1})
