"""Values looked at before they are used: raised on a CPU, clamped where a kernel cannot raise."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.harness import module_of, run
from tvmopt.operators.checks import Check, checked
from tvmopt.passes import FoldConstant
from tvmopt.report import DecisionLog
from tvmopt.schedules.cpu.checked.compute import kernel
from tvmopt.targets import Machine

EDGES = [1, 17, 1000]
PART = ("it is wrong", "node 'n'", "pass others")
INDEX = Check(*PART, (-5,), (4,), wrap=True)
PAIRS = Check(*PART, (-5, -2), (4, 1), wrap=True)
LENGTH = Check(*PART, (0,), (6,))
DIVISOR = Check(*PART)


def answer(values, check):
    (y,), _ = run(lambda bb, x: checked(x, check), [values])
    return y


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("n", EDGES)
def test_one_wrong_value_anywhere_is_found(n, dtype):
    """Rows of n, and the same values in each."""
    info = np.iinfo(dtype)
    call = tvm.compile(
        tvm.IRModule({"main": kernel([5, n], dtype, INDEX).with_attr("global_symbol", "main")}),
        target=Machine.load("cpu").tvm_target(),
    )
    right = np.random.default_rng(n).integers(-5, 5, (5, n)).astype(dtype)
    found = tvm.runtime.tensor(np.zeros_like(right))
    call["main"](tvm.runtime.tensor(right), found)
    np.testing.assert_array_equal(found.numpy(), right % 5)
    for row, wrong in enumerate((5, -6, info.max, info.min)):
        values = right.copy()
        values[row, n * row // 4] = wrong
        with pytest.raises(RuntimeError, match="it is wrong\n  where: node 'n'\n  fix:   pass others"):
            call["main"](tvm.runtime.tensor(values), found)


def test_each_component_of_a_position_has_its_own_bounds():
    right = np.array([[[4, -2], [-5, 1]], [[0, 0], [3, 1]]])
    np.testing.assert_array_equal(answer(right, PAIRS), right % [5, 2])
    for wrong in ([1, 2], [-6, 0]):
        values = right.copy()
        values[1, 0] = wrong
        with pytest.raises(RuntimeError, match="wrong"):
            answer(values, PAIRS)


def test_lengths_do_not_wrap_and_divisors_are_not_zero():
    np.testing.assert_array_equal(answer(np.array([0, 6]), LENGTH), [0, 6])
    np.testing.assert_array_equal(answer(np.array([-3, 2], "int8"), DIVISOR), [-3, 2])
    for values, check in ((np.array([-1]), LENGTH), (np.array([7]), LENGTH), (np.zeros((), "uint16"), DIVISOR)):
        with pytest.raises(RuntimeError, match="wrong"):
            answer(values, check)


@pytest.mark.parametrize("check, values, expected", [
    (INDEX, [9, -9, 4, -5, -1], [4, 0, 4, 0, 4]),
    (PAIRS, [[9, 9], [-9, -9], [-1, -1]], [[4, 1], [0, 0], [4, 1]]),
    (LENGTH, [-4, 0, 99], [0, 0, 6]),
    (DIVISOR, [0, -2, 7], [1, -2, 7]),
])  # fmt: skip
def test_a_gpu_clamps(check, values, expected):
    """The form that TVM's LegalizeOps takes where a machine has no other, run here on a CPU."""
    values = np.array(values)
    module = relax.transform.LegalizeOps()(module_of(lambda bb, x: checked(x, check), [values]))
    assert not any("assert" in func.script() for _, func in module.functions_items())
    vm = relax.VirtualMachine(tvm.compile(module, target=Machine.load("cpu").tvm_target()), tvm.cpu())
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(values)).numpy(), expected)


@pytest.mark.parametrize("values, folds", [([-1, 2], True), ([5, 0], False)])
def test_constants_fold_only_if_they_are_right(values, folds):
    def build(bb, x):
        return relax.op.add(x, bb.emit(checked(relax.const(np.array(values), "int64"), INDEX)))

    text = FoldConstant(DecisionLog())(module_of(build, [np.array([0, 0])])).script()
    assert ("tvmopt.checked" not in text) == folds
