"""Which kernel is to blame where the tensors behind it hardly show it: one wrong row or element in the rounding of 16
bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tests.analysis.test_kernels import made, seen
from tvmopt.analysis.kernels import check_kernels

ROWS, WIDTH, LAYERS = 64, 128, 5


def narrow(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def layers() -> tuple[Any, dict[str, Any], list[Any]]:
    """Products and Relus in turn, each of which a kernel computes in bfloat16."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype("f") * np.float32(np.sqrt(2 / WIDTH)) for _ in range(LAYERS)]
    nodes, last = [], "x"
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"], f"product{i}"))
        last = "y" if i == LAYERS - 1 else f"r{i}"
        nodes.append(helper.make_node("Relu", [f"p{i}"], [last], f"relu{i}"))
    model = made(nodes, {"x": [ROWS, WIDTH]}, {"y": [ROWS, WIDTH]}, {f"w{i}": w for i, w in enumerate(weights)})
    return model, {"x": rng.standard_normal((ROWS, WIDTH)).astype("f")}, weights


def found_in(spoil: Any, at: int) -> Any:
    """What the walk says of a run in which one kernel's result is spoilt, and read by the next one."""
    model, feeds, weights = layers()
    run, last = [], feeds["x"]
    for i, weight in enumerate(weights):
        last = np.maximum(narrow(last) @ narrow(weight), 0)
        last = narrow(last) if i < LAYERS - 1 else last
        if i == at:
            last = last.copy()
            spoil(last)
        run.append(seen(f"kernel{i}", last, f"product{i}", f"relu{i}"))
    return check_kernels(model, feeds, {"y": last}, run, "bf16")


def row(array: np.ndarray[Any, Any]) -> None:
    array[7] = narrow(array[7] * 1.06)


def element(array: np.ndarray[Any, Any]) -> None:
    array[7, 9] = narrow(array[7, 9] + 0.1 * array.max())


@pytest.mark.parametrize("at", [0, LAYERS - 2])
@pytest.mark.parametrize("spoil", [row, element])
def test_a_little_that_is_wrong_shows_where_the_next_kernel_read_it(spoil: Any, at: int) -> None:
    found = found_in(spoil, at)
    assert found.kernel.startswith(f"kernel{at} ") and found.wrong


def test_rounding_is_nobody_s_fault() -> None:
    assert not found_in(lambda array: None, 0).wrong


@pytest.mark.parametrize("at", [0, LAYERS - 2])
@pytest.mark.parametrize("spoil", [row, element])
def test_a_copy_that_nobody_reads_is_not_wrong(spoil: Any, at: int) -> None:
    """A kernel may write something that resembles a tensor, and the next one need not have read it as that tensor."""
    model, feeds, weights = layers()
    run, last = [], feeds["x"]
    for i, weight in enumerate(weights):
        last = np.maximum(narrow(last) @ narrow(weight), 0)
        last = narrow(last) if i < LAYERS - 1 else last
        copy = last.copy()
        if i == at:
            spoil(copy)
        run.append(seen(f"kernel{i}", copy, f"product{i}", f"relu{i}"))
    assert not check_kernels(model, feeds, {"y": last}, run, "bf16").wrong
