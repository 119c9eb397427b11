"""Products of the slices of a tensor become one product where they have one weight."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, rand
from tvmopt.passes import CombineSlicedMatmul
from tvmopt.report import DecisionLog

op, c = relax.op, relax.const


def products(bb, x, weight, axis=0, places=(0, 1, 2)):
    """The product of each of some slices, one behind the other."""
    slices = [bb.emit(op.take(x, c(np.int64(place), "int64"), axis=axis)) for place in places]
    return tuple(bb.emit(op.matmul(one, weight)) for one in slices)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("places", [(0, 1, 2), (2, 0), (1, 1, 2)])
def test_steps_of_a_loop(axis, places):
    weight = c(rand(9, 7))
    mod = build({"x": (3, 3, 9)}, lambda bb, x: products(bb, x, weight, axis, places))
    check_rewrite(CombineSlicedMatmul, mod, {"matmul": 1, "take": len(places)})


def test_rows_of_a_matrix_are_vectors():
    weight = c(rand(9, 7))
    check_rewrite(
        CombineSlicedMatmul, build({"x": (3, 9)}, lambda bb, x: products(bb, x, weight)), {"matmul": 1, "take": 3}
    )


def test_each_weight_has_a_product_of_its_own():
    """Equal numbers do not make two weights one: with others they would differ."""
    weights = [c(rand(9, 7)) for _ in range(2)]
    mod = build({"x": (3, 2, 9)}, lambda bb, x: products(bb, x, weights[0]) + products(bb, x, weights[1]))
    check_rewrite(CombineSlicedMatmul, mod, {"matmul": 2, "take": 6})


def test_few_slices_of_many_stay_apart():
    weight = c(rand(9, 7))
    check_rewrite(CombineSlicedMatmul, build({"x": (5, 2, 9)}, lambda bb, x: products(bb, x, weight, places=(0, 3))))
    check_rewrite(CombineSlicedMatmul, build({"x": (1, 2, 9)}, lambda bb, x: products(bb, x, weight, places=(0,))))


def test_slices_of_the_sum_stay_apart():
    """Columns are multiplied with other numbers each."""
    weight = c(rand(3, 7))
    check_rewrite(CombineSlicedMatmul, build({"x": (3, 3, 3)}, lambda bb, x: products(bb, x, weight, axis=2)))


def test_slices_of_many_rows_stay_apart():
    log, weight = DecisionLog(), c(rand(9, 7))
    mod = build({"x": (3, 32, 9)}, lambda bb, x: products(bb, x, weight))
    check_rewrite(CombineSlicedMatmul, mod)
    CombineSlicedMatmul(log)(mod)
    assert {d.reason for d in log} == {"1: 3 GEMMs of 32 rows"}
