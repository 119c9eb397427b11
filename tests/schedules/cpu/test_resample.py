"""Resampled pictures of bytes, to the bit, on every instruction set that there is here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.schedules.harness import MACHINES, Open, machines, module_of, open_module
from tvmopt.analysis.oracle.pixels import summed
from tvmopt.importer.resampling import Taps, taps
from tvmopt.operators.resample import LARGEST, resample_columns, resample_rows
from tvmopt.pipeline import build, lower
from tvmopt.report import DecisionLog
from tvmopt.schedules.cpu.resample.columns import Band, split
from tvmopt.targets import Machine

HERE = machines()
EDGES = [1, 2, 5, 7, 8, 9, 15, 16, 17, 33]
"""Around the vectors of every machine: a compile each, so they take turns."""


def picture(*shape: int) -> np.ndarray:
    """Every byte, and runs of the largest."""
    generator = np.random.default_rng(sum(shape))
    x = generator.integers(0, 256, shape, dtype=np.uint8)
    x[generator.random(shape) < 0.4] = 255
    return x


def constants(axis: Taps) -> list[relax.Expr]:
    return [relax.const(axis.places.astype(np.int64), "int64"), relax.const(axis.weights, "int32")]


def by_rows(axis: Taps) -> Any:
    return lambda bb, x: bb.emit(resample_rows(x, *constants(axis)))


def by_columns(axis: Taps, rows: range, channels: list[int]) -> Any:
    more = [relax.const(np.array(v, np.int64), "int64") for v in (list(rows), channels)]
    return lambda bb, x: bb.emit(resample_columns(x, *constants(axis), *more))


def run(expression: Any, x: np.ndarray, machine: str) -> tuple[np.ndarray, list[str]]:
    """The result, and the families of the kernels."""
    target = Machine.load(MACHINES[machine]).with_cores(2)
    lowered = lower(module_of(expression, [x]), target)
    vm = relax.VirtualMachine(build(lowered, target), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy(), [k.family for k in lowered.kernels]


def check_columns(x: np.ndarray, axis: Taps, rows: range, channels: list[int], machine: str, family: str) -> None:
    found, families = run(by_columns(axis, rows, channels), x, machine)
    assert families in ([family], [family, "layout"])  # a reshape in front of a result is a copy
    wanted = summed(x[:, rows.start : rows.stop][..., channels], axis.places, axis.weights, 2)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("given", [3, 33])
def test_columns_of_every_width(turn: int, given: int) -> None:
    machine = HERE[turn % len(HERE)]
    for wanted in EDGES[turn::2]:
        axis = taps("lanczos", given, wanted)
        check_columns(picture(1, 3, given, 3), axis, range(3), [0, 1, 2], machine, "resample")


@pytest.mark.parametrize("machine", HERE)
@pytest.mark.parametrize("height", [1, 4, 12, 14])
def test_columns_of_every_number_of_rows(machine: str, height: int) -> None:
    rows = range(height // 3, height)
    check_columns(picture(2, height, 19, 3), taps("bicubic", 19, 11), rows, [2, 1, 0], machine, "resample")


@pytest.mark.parametrize(("colours", "channels"), [(1, [0]), (1, [0, 0, 0]), (3, [0, 1, 2]), (3, [2]), (4, [3, 1, 1])])
def test_columns_of_every_colour(colours: int, channels: list[int]) -> None:
    cases = [("nearest", 0, 40), ("box", 5, 21), ("lanczos", -3, 46), ("bilinear", 0, 39)]
    for turn, (name, first, count) in enumerate(cases):
        axis = taps(name, 300, 40, first, count)
        check_columns(picture(1, 2, 300, colours), axis, range(2), channels, HERE[turn % len(HERE)], "resample")


def test_rows_of_less_than_a_word_are_plain_loops() -> None:
    for given, colours in ((1, 1), (1, 3), (3, 1)):
        axis = taps("bilinear", given, 5)
        check_columns(picture(1, 2, given, colours), axis, range(2), [0], HERE[0], "generic")


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize(("colours", "given", "wanted"), [(1, 9, 4), (3, 5, 17)])
def test_rows_of_every_width(turn: int, colours: int, given: int, wanted: int) -> None:
    machine = HERE[turn % len(HERE)]
    for width in [*EDGES[turn::2], 70]:
        axis = taps("bicubic", given, wanted)
        x = picture(2, given, width, colours)
        found, families = run(by_rows(axis), x, machine)
        assert families in (["resample"], ["resample", "layout"])
        np.testing.assert_array_equal(found, summed(x, axis.places, axis.weights, 1))


@pytest.mark.parametrize("machine", HERE)
def test_the_largest_sums(machine: str) -> None:
    """Weights of both signs as large as they may be, on pictures of 255: no partial sum leaves 32 bits."""
    most = 127 << 16
    for left, right in ((most, 0), (most // 2, -most // 2), (-129, 32640)):
        axis = Taps(np.zeros(5, np.int32), np.tile(np.array([left, right], np.int32), (5, 1)))
        x = np.full((1, 2, 4, 3), 255, np.uint8)
        check_columns(x, axis, range(2), [0, 1, 2], machine, "resample")
        found, _ = run(by_rows(axis), x, machine)
        np.testing.assert_array_equal(found, summed(x, axis.places, axis.weights, 1))


def test_a_weight_that_is_too_large_is_declined() -> None:
    axis = Taps(np.zeros(5, np.int32), np.full((5, 1), LARGEST, np.int32))
    log = DecisionLog()
    lower(module_of(by_columns(axis, range(2), [0]), [picture(1, 2, 9, 1)]), Machine.load("x86-64-v3"), log)
    assert any("more than 24 bits" in decision.reason for decision in log)


def test_what_is_executed_is_counted() -> None:
    """Of columns the whole band: a product of four bytes for each word, limb and number; of rows every tap."""
    axis = taps("bilinear", 40, 16)
    target = Machine.load("x86-64-v3").with_cores(1)
    (columns, *_) = lower(module_of(by_columns(axis, range(4), [0]), [picture(1, 4, 40, 1)]), target).kernels
    (rows, *_) = lower(module_of(by_rows(axis), [picture(1, 40, 9, 1)]), target).kernels
    band = Band(axis.places, axis.weights, np.array([0]), 40, 1, target.lanes("int32"))
    assert columns.precision == "int8" and columns.flops == 4 * 16 * band.count * 3 * 8
    assert rows.flops == 2 * 16 * 9 * axis.weights.shape[1]


def test_limbs() -> None:
    weights = np.random.default_rng(0).integers(-(127 << 16), 127 << 16, 1000)
    low, middle, high = split(weights)
    np.testing.assert_array_equal(low + (middle << 8) + (high << 16), weights)
    assert all(limb.min() >= -128 and limb.max() <= 127 for limb in (low, middle, high))


@pytest.mark.parametrize("cores", [1, 2])
def test_an_open_number_of_pictures(cores: int) -> None:
    across, down = taps("bilinear", 50, 21), taps("bilinear", 40, 17)

    def both(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return by_rows(down)(bb, by_columns(across, range(40), [0, 1, 2])(bb, x))

    compiled = Open(open_module(both, [("n", 40, 50, 3)], "uint8"), HERE[0], cores)
    assert [family for family, _ in compiled.how.values()][:2] == ["resample", "resample"]
    for count in (1, 2, 5):
        x = picture(count, 40, 50, 3)
        wanted = summed(summed(x, across.places, across.weights, 2), down.places, down.weights, 1)
        np.testing.assert_array_equal(compiled(x)[0], wanted)
