"""FLOP counts of single operators, against hand arithmetic."""

import pytest

from tvmopt.analysis.opcost import OpShapes, flops


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes", "expected"),
    [
        ("Conv", ((1, 8, 7, 7), (16, 8, 3, 3)), (1, 16, 7, 7), {}, 2 * 16 * 49 * 8 * 9),
        ("Conv", ((1, 8, 7, 7), (16, 8, 3, 3), (16,)), (1, 16, 7, 7), {}, 16 * 49 * (2 * 8 * 9 + 1)),
        ("Conv", ((1, 8, 7, 7), (8, 1, 3, 3)), (1, 8, 7, 7), {"group": 8}, 2 * 8 * 49 * 9),
        ("ConvTranspose", ((1, 8, 7, 7), (8, 4, 2, 2)), (1, 4, 14, 14), {}, 2 * 8 * 49 * 4 * 4),
        ("MatMulNBits", ((2, 3, 64), (9, 2, 16), (9, 2)), (2, 3, 9), {}, 2 * 54 * 64),
        ("QLinearConv", ((1, 8, 7, 7), (), (), (16, 8, 3, 3)), (1, 16, 7, 7), {}, 2 * 16 * 49 * 72),
        ("Gemm", ((9, 17), (17, 33), (33,)), (9, 33), {}, 9 * 33 * (2 * 17 + 1)),
        ("Gemm", ((17, 9), (17, 33)), (9, 33), {"transA": 1}, 9 * 33 * 2 * 17),
        ("MatMul", ((12, 31, 15), (15, 7)), (12, 31, 7), {}, 2 * 12 * 31 * 7 * 15),
        ("MatMul", ((15,), (15,)), (), {}, 30),
        ("Relu", ((3, 5),), (3, 5), {}, 15),
        ("Sum", ((3, 5), (3, 5), (3, 5)), (3, 5), {}, 30),
        ("Softmax", ((3, 5),), (3, 5), {}, 75),
        ("ReduceMean", ((3, 5),), (3, 1), {}, 15),
        ("Transpose", ((3, 5),), (5, 3), {}, 0),
        ("Reshape", ((3, 5), (1,)), (15,), {}, 0),
        ("MaxPool", ((1, 2, 8, 8),), (1, 2, 4, 4), {"kernel_shape": [3, 3]}, 32 * 9),
        ("AveragePool", ((1, 2, 7, 7),), (1, 2, 1, 1), {"kernel_shape": [1280, 1280]}, 2 * 49),
        ("Einsum", ((3, 4), (4, 5)), (3, 5), {"equation": b"ij,jk->ik"}, 2 * 60),
        (
            "Attention",
            ((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8)),
            (2, 4, 7, 8),
            {},
            2 * 4 * 7 * 9 * (16 + 16 + 5),
        ),
        ("LSTM", ((5, 1, 3), (1, 16, 3), (1, 16, 4)), (5, 1, 1, 4), {}, 2 * 5 * (48 + 64)),
        ("ResampleRows", ((1, 9, 5, 3), (4, 7), (4, 7)), (1, 4, 5, 3), {}, 2 * 60 * 7),
        ("SomethingNew", ((3, 5),), (3, 5), {}, 15),
    ],
)
def test_flops(op_type, inputs, output, attributes, expected):
    assert flops(OpShapes(op_type, inputs, (output,), attributes)) == expected


def test_an_absent_input_is_the_empty_shape():
    assert OpShapes("Conv", ((1,),), (), {}).input(2) == ()
