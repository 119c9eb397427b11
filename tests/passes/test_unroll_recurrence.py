"""A recurrence as operators of its steps, where the machine has no kernel for it."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

import tvmopt.importer.converters  # noqa: F401  # the step-by-step form is registered there
from tests.passes.helpers import build, check_rewrite, ops, rand
from tvmopt.operators.recurrence import OP, Spec, recurrent
from tvmopt.passes.unroll_recurrence import UnrollRecurrence
from tvmopt.report import DecisionLog

USUAL = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))


def module(steps: int = 3, directions: int = 1, both: bool = True) -> tvm.IRModule:
    spec = Spec("LSTM", (USUAL,) * directions)

    def body(b, projected):
        r = relax.const(rand(directions, 32, 8, scale=0.3))
        out = b.emit(recurrent(spec, {"projected": projected, "recurrence": r}), "lstm")
        y = b.emit(relax.TupleGetItem(out, 0))
        return (y, b.emit(relax.TupleGetItem(out, 2))) if both else y

    return build({"projected": (steps, 2, directions * 32)}, body)


@pytest.mark.parametrize("directions", [1, 2])
def test_steps(directions):
    before = module(directions=directions)
    after = check_rewrite(UnrollRecurrence, before, dict(ops(UnrollRecurrence()(before))))
    assert OP not in ops(after)
    assert ops(after)["matmul"] == 3 * directions


def test_an_output_that_nobody_reads_is_not_computed():
    some, every = (UnrollRecurrence()(module(both=both)) for both in (False, True))
    assert sum(ops(some).values()) <= sum(ops(every).values())
    assert [b.var.name for b in some["main"].body.blocks[0].bindings].count("lstm") > 3  # named after the node


def test_a_machine_with_a_kernel_keeps_the_operator():
    check_rewrite(lambda log: UnrollRecurrence(log, lambda call: None), module())


def test_says_why():
    log = DecisionLog()
    UnrollRecurrence(log, lambda call: "no kernel for GPUs")(module(steps=5))
    [said] = log.decisions
    assert (said.verdict, said.node) == ("applied", "lstm")
    assert said.reason == "unrolled over 5 steps: no kernel for GPUs"
