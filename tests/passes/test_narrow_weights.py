"""Weights of products in float16, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.passes.helpers import build, check_rewrite
from tvmopt.passes.narrow_weights import NarrowWeights
from tvmopt.report import DecisionLog

R = relax.op
RNG = np.random.default_rng(0)


def weight(*shape: int) -> Any:
    return relax.const(RNG.standard_normal(shape).astype(np.float16).astype(np.float32))


def test_a_product_and_a_convolution_keep_their_numbers() -> None:
    check_rewrite(NarrowWeights, build({"x": (3, 40)}, lambda b, x: R.matmul(x, weight(40, 9))), {"matmul": 1})
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    made = build({"x": (1, 5, 5, 4)}, lambda b, x: R.nn.conv2d(x, weight(8, 3, 3, 4), **layouts))
    after = check_rewrite(NarrowWeights, made, {"nn.conv2d": 1})
    assert "float16" in after.script(show_meta=True)


def test_a_product_of_two_activations_stays() -> None:
    check_rewrite(NarrowWeights, build({"x": (3, 4), "y": (4, 5)}, lambda b, x, y: R.matmul(x, y)), None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda b, x: R.matmul(x, relax.const(np.full((4, 2), 1e5, "float32"))), "1: "),
        (lambda b, x: R.matmul(x, relax.const(np.full((4, 2), np.nan, "float32"))), "1: "),
        (lambda b, x: R.matmul(x, relax.const(np.full((4, 2), 1e-9, "float32"))), "1: "),
    ],
)
def test_weights_that_do_not_fit(body: Any, reason: str) -> None:
    log = DecisionLog()
    NarrowWeights(log)(build({"x": (3, 4)}, body))
    assert [d.reason[:3] for d in log.decisions] == [reason]


def test_a_depthwise_convolution_and_what_is_faster_otherwise_stay() -> None:
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "groups": 4}
    made = build({"x": (1, 5, 5, 4)}, lambda b, x: R.nn.conv2d(x, weight(4, 3, 3, 1), **layouts))
    for unsupported, reason in ((None, "3: one input channel a group"), (lambda *_: "slow", "2: slow")):
        log = DecisionLog()
        NarrowWeights(log, unsupported)(made)
        assert [(d.verdict, d.reason) for d in log.decisions] == [("declined", reason)]
