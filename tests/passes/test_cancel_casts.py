"""Round trips through a wider type go; through a narrower one they stay."""

import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes import CancelCasts
from tvmopt.report import DecisionLog

op = relax.op


def casts(start, *kinds):
    """A module that casts x through these types."""

    def body(bb, x):
        for kind in kinds:
            x = bb.emit(op.astype(x, kind))
        return bb.emit(op.negative(x))

    return build({"x": ((7, 9), start)}, body)


@pytest.mark.parametrize("start, middle", [("float16", "float32"), ("int32", "int64"), ("int8", "float32")])
def test_round_trips(start, middle):
    check_rewrite(CancelCasts, casts(start, middle, start), {"negative": 1})


def test_a_chain_starts_from_the_first_type():
    check_rewrite(CancelCasts, casts("int8", "int16", "int32", "float32"), {"astype": 1, "negative": 1})


@pytest.mark.parametrize(
    "kinds", [("float32", "float16", "float32"), ("int64", "int32", "int64"), ("int32", "float32", "int32")]
)
def test_roundings_are_part_of_the_model(kinds):
    log, mod = DecisionLog(), casts(*kinds)
    check_rewrite(CancelCasts, mod)
    CancelCasts(log)(mod)
    assert [d.reason[0] for d in log] == ["1"]


def test_a_cast_to_the_same_type():
    check_rewrite(CancelCasts, casts("float32", "float32"), {"negative": 1})
