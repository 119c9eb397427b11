"""Rows rounded to 8 bits where a file allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.passes.helpers import build, ops
from tvmopt.operators.packed_product import OP, ROUNDED, Packing, packed_product, packing_of, rounded
from tvmopt.passes.round_activations import RoundActivations
from tvmopt.report import DecisionLog

PACKING = Packing(40, 9, 4, 16)


def module(level: int, zeros: bool = False) -> tvm.IRModule:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (9, 3, 8)).astype(np.uint8)
    arrays = [codes, *(rng.uniform(1, 2, (9, 3)).astype(np.float32) for _ in range(1 + zeros))]

    def body(b: Any, x: Any) -> Any:
        weights = [relax.const(a, str(a.dtype)) for a in arrays]
        return b.emit(packed_product(x, PACKING, *weights, level=level), "product")

    return build({"x": (2, 3, 40)}, body)


@pytest.mark.parametrize("zeros", [False, True])
def test_rounds_where_the_file_allows_it(zeros: bool) -> None:
    log, before = DecisionLog(), module(4, zeros)
    after = RoundActivations(log)(before)
    assert ops(after)[ROUNDED] == 1 and OP not in ops(after) and OP in ops(before)
    call = after["main"].body.blocks[0].bindings[0].value
    assert packing_of(call) == PACKING and len(call.args) == 3 + zeros
    assert tuple(map(int, call.ty.shape)) == (2, 3, 9)
    [said] = log.decisions
    assert (said.verdict, said.node) == ("applied", "product")
    assert said.reason == "accuracy_level 4: rows rounded to 8 bits by 16, weights of 4 bits"
    assert ops(RoundActivations(log)(after)) == ops(after)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_leaves_other_levels_alone(level: int) -> None:
    log = DecisionLog()
    assert OP in ops(RoundActivations(log)(module(level))) and not log.decisions


def test_says_why_not() -> None:
    for options, reason in (
        ({"unwanted": "not asked for"}, "1: not asked for"),
        ({"unsupported": lambda call: "9 columns"}, "2: 9 columns"),
    ):
        log = DecisionLog()
        assert OP in ops(RoundActivations(log, **options)(module(4)))
        assert [(d.verdict, d.node, d.reason) for d in log.decisions] == [("declined", "product", reason)]


def test_the_kernel_is_asked_about_the_rounded_product() -> None:
    asked: list[str] = []
    RoundActivations(None, lambda call: asked.append(str(call.op.name)))(module(4))
    assert set(asked) == {ROUNDED}


def test_the_operator_has_a_form_that_always_works() -> None:
    """Without a family the matrix is unpacked: rounding is allowed, and not asked for."""
    call = module(4)["main"].body.blocks[0].bindings[0].value
    legal = tvm.ir.Op.get(ROUNDED).get_attr("FLegalize")(None, rounded(call))
    assert str(legal.op.name) == "relax.matmul"
