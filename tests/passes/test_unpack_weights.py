"""Packed weights in float32, where the machine has no kernel for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops
from tvmopt.operators.packed_product import OP, Packing, packed_product
from tvmopt.passes.unpack_weights import UnpackWeights
from tvmopt.report import DecisionLog

PACKING = Packing(40, 9, 4, 16)


def module(zeros: bool) -> tvm.IRModule:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (9, 3, 8)).astype(np.uint8)
    scales, points = (rng.uniform(1, 2, (9, 3)).astype(np.float32) for _ in range(2))

    def body(b: Any, x: Any) -> Any:
        arrays = [codes, scales, *([points] if zeros else [])]
        return b.emit(packed_product(x, PACKING, *(relax.const(a, str(a.dtype)) for a in arrays)), "product")

    return build({"x": (2, 3, 40)}, body)


def test_a_product_of_a_matrix() -> None:
    for zeros in (False, True):
        after = check_rewrite(UnpackWeights, module(zeros), {"matmul": 1})
        assert OP not in ops(after)


def test_a_machine_with_a_kernel_keeps_the_operator() -> None:
    check_rewrite(lambda log: UnpackWeights(log, lambda call: None), module(True))


def test_says_why() -> None:
    log = DecisionLog()
    UnpackWeights(log, lambda call: "no kernel for GPUs")(module(False))
    [said] = log.decisions
    assert (said.verdict, said.node) == ("applied", "product")
    assert said.reason == "weights of 4 bits unpacked to float32: no kernel for GPUs"
