"""Identities go, expensive spellings become cheap ones, and near misses stay."""

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.dims import Dim
from tvmopt.importer.sizes import shape_to_tvm
from tvmopt.passes import EliminateIdentities
from tvmopt.report import DecisionLog

op, nn, c = relax.op, relax.op.nn, relax.const
F = np.float32

IDENTITIES = {
    "add 0": lambda x: op.add(c(F(0)), x),
    "subtract 0": lambda x: op.subtract(x, c(F(0))),
    "multiply 1": lambda x: op.multiply(x, c(np.ones((7, 1), F))),
    "divide 1": lambda x: op.divide(x, c(F(1))),
    "power 1": lambda x: op.power(x, c(F(1))),
    "pad 0": lambda x: nn.pad(x, [0] * 6),
    "whole slice": lambda x: op.strided_slice(x, [1], [0], [2**63 - 1]),
    "broadcast": lambda x: op.broadcast_to(x, (2, 7, 9)),
    "reshape": lambda x: op.reshape(x, (2, 7, 9)),
    "tile": lambda x: op.tile(x, (1, 1, 1)),
    "repeat": lambda x: op.repeat(x, 1, axis=1),
    "cast": lambda x: op.astype(x, "float32"),
    "concat": lambda x: op.concat([x], axis=1),
}
CHEAPER = {
    "power 2": (lambda x: op.power(x, c(F(2))), {"multiply": 1}),
    "power 3": (lambda x: op.power(x, c(F(3))), {"multiply": 2}),
    "power 4": (lambda x: op.power(x, c(F(4))), {"multiply": 2}),
    "power 9": (lambda x: op.power(x, c(F(9))), {"multiply": 4}),
    "power -1": (lambda x: op.power(x, c(F(-1))), {"divide": 1}),
    "power -2": (lambda x: op.power(x, c(F(-2))), {"multiply": 1, "divide": 1}),
    "square": (lambda x: op.square(x), {"multiply": 1}),
    "divide": (lambda x: op.divide(x, c(rand(9) + 3)), {"multiply": 1}),
    "clip": (lambda x: op.clip(x, -0.5, 0.5), {"maximum": 1, "minimum": 1}),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name):
    mod = build({"x": (2, 7, 9)}, lambda bb, x: nn.relu(bb.emit(IDENTITIES[name](bb.emit(op.exp(x))))))
    check_rewrite(EliminateIdentities, mod, {"exp": 1, "nn.relu": 1})


@pytest.mark.parametrize("name", ["add 0", "multiply 1", "divide 1", "cast"])
def test_identities_of_open_sizes(name):
    """Whisper multiplies its keys by 1: as an operator that would be a copy of the whole cache."""
    shape = shape_to_tvm((Dim.symbol("rows"), 7, 9))
    mod = build({"x": shape}, lambda bb, x: nn.relu(bb.emit(IDENTITIES[name](bb.emit(op.exp(x))))))
    assert ops(EliminateIdentities()(mod)) == {"exp": 1, "nn.relu": 1}


@pytest.mark.parametrize("name", CHEAPER)
def test_cheaper_spellings(name):
    spelling, expected = CHEAPER[name]
    check_rewrite(EliminateIdentities, build({"x": (2, 7, 9)}, lambda bb, x: spelling(x)), expected)


@pytest.mark.parametrize("exponent, name", [(0.5, "sqrt"), (-0.5, "rsqrt")])
def test_roots(exponent, name):
    mod = build({"x": (2, 7, 9)}, lambda bb, x: op.power(bb.emit(op.exp(x)), c(F(exponent))))
    check_rewrite(EliminateIdentities, mod, {"exp": 1, name: 1})


def test_reciprocal_root():
    mod = build({"x": (7, 9)}, lambda bb, x: op.divide(c(F(1)), bb.emit(op.sqrt(bb.emit(op.exp(x))))))
    check_rewrite(EliminateIdentities, mod, {"exp": 1, "rsqrt": 1})


def test_dropout():
    def body(bb, x):
        return nn.relu(bb.emit(bb.emit(nn.dropout(x, 0.5))[0]))

    check_rewrite(EliminateIdentities, build({"x": (7, 9)}, body), {"nn.relu": 1}, numbers=False)


@pytest.mark.parametrize("name, expected", [("sum", {"add": 2}), ("mean", {"add": 2, "multiply": 1})])
def test_a_sum_of_three_as_a_stack(name, expected):
    def body(bb, x, y):
        return getattr(op, name)(bb.emit(op.stack([x, y, x], axis=0)), [0])

    check_rewrite(EliminateIdentities, build({"x": (7, 9), "y": (7, 9)}, body), expected)


def test_an_explicit_broadcast_of_an_operand():
    mod = build({"x": (7, 9), "y": (9,)}, lambda bb, x, y: op.multiply(x, bb.emit(op.broadcast_to(y, (7, 9)))))
    check_rewrite(EliminateIdentities, mod, {"multiply": 1})


@pytest.mark.parametrize(
    "index, expected", [([3, 4, 5], {"strided_slice": 1}), (-1, {"strided_slice": 1, "reshape": 1})]
)
def test_take_of_a_run_is_a_slice(index, expected):
    mod = build({"x": (2, 7, 9)}, lambda bb, x: op.take(x, c(np.array(index)), axis=1, mode="wrap"))
    check_rewrite(EliminateIdentities, mod, expected)


def test_gather_nd_of_everything_is_a_reshape():
    index = np.stack(np.meshgrid(np.arange(2), np.arange(7), indexing="ij"), -1).reshape(2, 1, 7, 2)
    mod = build({"x": (2, 7)}, lambda bb, x: op.gather_nd(x, c(index, "int64")))
    check_rewrite(EliminateIdentities, mod, {"reshape": 1})


KEPT = {
    "add 0 that broadcasts": lambda x: op.add(x, c(np.zeros((3, 1, 1, 1), F))),
    "multiply by nearly one": lambda x: op.multiply(x, c(F(1.0000001) * F(1.0001))),
    "reversing slice": lambda x: op.strided_slice(x, [1], [6], [-8], [-1]),
    "divide by zeros": lambda x: op.divide(x, c(np.array([1] * 8 + [0], F))),
    "divide by a subnormal": lambda x: op.divide(x, c(F(1e-40))),
    "power 2.5": lambda x: op.power(x, c(F(2.5))),
    "power 17": lambda x: op.power(x, c(F(17))),
    "power 0": lambda x: op.power(x, c(F(0))),
    "take out of order": lambda x: op.take(x, c(np.array([1, 0])), axis=1),
    "pad": lambda x: nn.pad(x, [0, 0, 1, 0, 0, 0]),
}


@pytest.mark.parametrize("name", KEPT)
def test_near_misses_stay(name):
    check_rewrite(EliminateIdentities, build({"x": (2, 7, 9)}, lambda bb, x: KEPT[name](x)))


def test_a_refused_division_is_recorded():
    log = DecisionLog()
    EliminateIdentities(log)(build({"x": (2, 7, 9)}, lambda bb, x: KEPT["divide by zeros"](x)))
    assert [d.reason[0] for d in log] == ["1"]


@pytest.mark.parametrize("divisor, expected", [(41, None), (64, {"multiply": 1, "floor": 1})])
def test_a_quotient_that_is_rounded_stays_unless_it_is_exact(divisor, expected):
    mod = build({"x": (7, 9)}, lambda bb, x: op.floor(bb.emit(op.divide(x, c(F(divisor))))))
    check_rewrite(EliminateIdentities, mod, expected)
    assert F(41) * F(1 / 49) < 1


def test_a_quotient_that_places_are_computed_from_stays():
    """PyTorch's nearest-exact took the pixel behind the right one: 6.5 * (218 / 13) is less than 109 in float32."""

    def places(bb, x):
        quotient = bb.emit(op.divide(x, c(F(13))))
        moved = bb.emit(op.add(bb.emit(op.multiply(quotient, c(F(6.5)))), c(F(0))))
        return op.astype(bb.emit(op.reshape(moved, (9, 7))), "int64")

    assert F(6.5) * (F(218) / F(13)) < 109 < F(6.5) * (F(218) * F(1 / 13))
    mod = build({"x": (7, 9)}, places)
    check_rewrite(EliminateIdentities, mod, {"divide": 1, "multiply": 1, "reshape": 1, "astype": 1})


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(
    "shape, axes, wanted",
    [
        ((1, 7, 9, 5), (0, 2, 3), [2, 3]),
        ((7, 1, 9, 1), (2,), [2, 3]),  # the rows are the last axes
        ((5, 3, 1, 4), (1, 3), [1, 2, 3]),
        ((1, 7, 9, 1), (0, 1, 3), [1]),
        ((1, 1, 7, 5), (1, 2), [2]),
    ],
)
def test_reduced_axes_lie_together(name, keepdims, shape, axes, wanted):
    """ReduceMax of an image over axes 0, 2 and 3 took 16 times as long as over 2 and 3."""
    mod = build({"x": shape}, lambda bb, x: getattr(op, name)(x, list(axes), keepdims=keepdims))
    check_rewrite(EliminateIdentities, mod, {name: 1} if keepdims else {name: 1, "reshape": 1})
    assert f"axis={wanted}" in EliminateIdentities()(mod).script()


@pytest.mark.parametrize(
    "shape, axes", [((1, 7, 1, 9), None), ((1, 7, 9), (1, 2)), ((5, 4, 1), (1, 2)), ((7, 9), (0,))]
)
def test_other_reductions_stay(shape, axes):
    mod = build({"x": shape}, lambda bb, x: op.sum(x, list(axes) if axes else None))
    check_rewrite(EliminateIdentities, mod, None)


def test_a_reduction_of_single_elements_is_none():
    mod = build({"x": (7, 1, 9, 1)}, lambda bb, x: op.mean(x, [1, 3], keepdims=False))
    check_rewrite(EliminateIdentities, mod, {"reshape": 1})
