"""Products of packed weights by rows rounded to 8 bits, against exactly that arithmetic in integers and float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cpu.test_open_packed import compiled
from tests.schedules.cpu.test_packed import HOST, lowered, operands, run
from tvmopt import pipeline
from tvmopt.lowering import why_unrolled
from tvmopt.operators.codes import LEAST, round_groups, unpack
from tvmopt.operators.packed_product import ROUNDED, Packing, packed_product
from tvmopt.report import DecisionLog
from tvmopt.schedules.cpu.packed.compute import WORDS
from tvmopt.schedules.cpu.packed.round_rows import MORE, RoundRows, row_words
from tvmopt.schedules.cpu.packed.schedule import recognise
from tvmopt.targets import Machine

MACHINES = [HOST.with_cores(1), HOST, Machine.load("x86-64-v3").with_cores(1), HOST.with_cores(40)]


def oracle(x: Any, packing: Packing, weights: list[Any]) -> tuple[Any, Any]:
    """(The product of the rounded rows, the sum of the sizes of its terms), float64: sums of integers by groups."""
    codes = unpack(weights[0].reshape(packing.n, -1), packing.bits, packing.groups * packing.group).astype(np.int64)
    codes = codes.reshape(packing.n, packing.groups, packing.group)
    zeros = weights[2].astype(np.float64) if len(weights) > 2 else np.float64(2 ** (packing.bits - 1))
    padded = np.zeros((len(x), packing.groups * packing.group), np.float32)
    padded[:, : packing.k] = x
    groups = padded.reshape(len(x), packing.groups, packing.group)
    with np.errstate(all="ignore"):
        step = np.maximum(np.abs(groups).max(-1), np.float32(127 * 2.0**-126)) / np.float32(127)
        inverse = np.float32(127) / np.maximum(np.abs(groups).max(-1), np.float32(127 * 2.0**-126))
        whole = np.rint(groups * inverse[..., None])
    known = np.isfinite(step)
    integers = np.where(known[..., None], whole, 0).astype(np.int64)
    assert np.abs(integers).max(initial=0) <= 127
    parts = np.einsum("mgk,ngk->mng", integers, codes) - integers.sum(-1)[:, None] * zeros
    factors = np.where(known, step.astype(np.float64), np.nan)[:, None] * weights[1].astype(np.float64)
    sizes = np.abs(integers)
    magnitude = np.einsum("mgk,ngk->mng", sizes, codes) + sizes.sum(-1)[:, None] * zeros
    return (parts * factors).sum(-1), (magnitude * factors).sum(-1)


def check(packing: Packing, rows: int, zeros: bool, machine: Machine, x: Any = None) -> None:
    weights = operands(packing, zeros)
    found = lowered(packing, (rows,), weights, machine, ROUNDED)
    assert [k.family for k in found.kernels if k.name != "pad"] == ["packed", "packed"]
    x = np.random.default_rng(3).standard_normal((rows, packing.k)).astype(np.float32) if x is None else x
    wanted, size = oracle(x, packing, weights)
    got = run(found, machine, x)
    assert (np.abs(got - wanted) <= 2e-7 * (1 + packing.groups**0.5) * size + 1e-30).all()


@pytest.mark.parametrize("machine", range(len(MACHINES)))
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_every_width(machine: int, bits: int, zeros: bool) -> None:
    check(Packing(96, 130, bits, 32), 3, zeros, MACHINES[machine])


@pytest.mark.parametrize(("k", "group"), [(1, 16), (17, 16), (33, 32), (63, 64), (128, 128), (300, 256)])
@pytest.mark.parametrize("n", [16, 17, 31, 33, 49, 64, 65, 129])
def test_sizes(k: int, group: int, n: int) -> None:
    check(Packing(k, n, 8 if n == 33 else 4, group), 1, bool(n % 2), MACHINES[0])


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 9, 13, 16, 31, 32, 33])
@pytest.mark.parametrize("machine", [1, 3])
def test_rows(rows: int, machine: int) -> None:
    check(Packing(64, 80, 4, 32), rows, rows % 2 == 0, MACHINES[machine])


@pytest.mark.parametrize(
    ("bits", "k", "n", "group", "zeros", "target"),
    [(4, 600, 130, 32, False, "cpu"), (4, 300, 65, 128, True, "cpu"), (8, 70, 33, 16, True, "x86-64-v3")],
)
def test_an_open_number_of_rows(bits: int, k: int, n: int, group: int, zeros: bool, target: str) -> None:
    """One kernel for a token and for a prompt: the sums are the same whatever the other rows are."""
    generator = np.random.default_rng(k)
    packing = Packing(k, n, bits, group)
    model, exact, weight_bytes = compiled(packing, zeros, generator, target, "1..300", level=4)
    assert weight_bytes < 4 * k * n
    x = generator.standard_normal((300, k)).astype(np.float32)
    numbers, steps = round_groups(x, group)
    rounded = (numbers.astype(np.float64) * steps).reshape(len(x), -1)[:, :k]
    wanted = rounded @ exact
    every = model(x)
    np.testing.assert_allclose(every, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
    assert np.abs(every - x @ exact).max() > 1e-4 * np.abs(wanted).max()  # it does round
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 32, 33, 128):
        np.testing.assert_allclose(model(x[:rows]), every[:rows], rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("machine", [0, 2])
@pytest.mark.parametrize("zeros", [False, True])
def test_edge_values(machine: int, zeros: bool) -> None:
    """Groups of zeros, huge, tiny and denormal numbers; what is infinite or no number takes its row, and no other."""
    packing = Packing(96, 48, 4, 32)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((8, 96)).astype(np.float32)
    x[0], x[1, 32:64], x[2] = 0, 0, 1e36 * x[2]
    x[3], x[4] = x[3] * np.float32(1e-30), x[4] * np.float32(1e-41)
    x[5, 7] = x[5, 8] = 127.0
    x[5, :7] = np.arange(7) + 0.5  # ties
    check(packing, 8, zeros, MACHINES[machine], x)
    weights = operands(packing, zeros)
    found = lowered(packing, (8,), weights, MACHINES[machine], ROUNDED)
    for row, value in enumerate((np.inf, -np.inf, np.nan, -np.nan)):
        x[row] = rng.standard_normal(96)
        x[row, 40 + row] = value
    got = run(found, MACHINES[machine], x)
    assert np.isnan(got[:4]).all() and np.isfinite(got[4:]).all()


@pytest.mark.parametrize(("group", "lanes"), [(16, 16), (32, 16), (128, 8), (64, 4)])
@pytest.mark.parametrize("middle", [None, 8])
def test_rounded_rows_bit_by_bit(group: int, lanes: int, middle: int | None) -> None:
    """The bytes, the step and the sum of every group are those of `round_groups`."""
    rng = np.random.default_rng(group)
    x = (rng.standard_normal((9, 3 * group)) * 10.0 ** rng.integers(-30, 30, (9, 1))).astype(np.float32)
    x[0, :group], x[1, 0] = 0, np.float32(1e-42)
    bb, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, "float32"))
    kernel = bb.add_func(RoundRows(9, 3, group, middle, lanes, False).func(), "round_rows")
    with bb.function("main", [given]):
        with bb.dataflow():
            kind = relax.TensorType((9, row_words(3, group)), "int32")
            made = bb.emit_output(bb.emit(relax.call_tir(kernel, [given], kind)))
        bb.emit_func_output(made)
    out = run(pipeline.lower(bb.get(), MACHINES[0], DecisionLog()), MACHINES[0], x)
    words = out.reshape(9, 3, group // 4 + MORE)
    numbers, steps = round_groups(x, group)
    np.testing.assert_array_equal(np.ascontiguousarray(words[..., :-MORE]).view(np.int8), numbers.astype(np.int8))
    np.testing.assert_array_equal(np.ascontiguousarray(words[..., -2]).view(np.float32), steps[..., 0])
    sums = numbers.sum(-1)
    wanted = -middle * sums if middle else (sums * steps[..., 0]).astype(np.float32).view(np.int32)
    np.testing.assert_array_equal(words[..., -1], wanted)


def test_few_rows_leave_the_stream_to_the_processor() -> None:
    """One row and two prefetch nothing; tiles of more rows fetch each line of a panel once."""
    packing = Packing(64, 128, 4, 32)
    counts = {}
    for rows in (1, 2, 3, 6):
        found = lowered(packing, (rows,), operands(packing, False), MACHINES[0], ROUNDED).unscheduled
        (product,) = (f for g, f in found.functions_items() if g.name_hint == "rounded_product")
        counts[rows] = str(product).count("tvmopt_prefetch")
    words, lines = min(WORDS, packing.group // 8), 4
    assert counts == {1: 0, 2: 0, 3: words * lines, 6: words * lines}


def test_steps_are_never_denormal() -> None:
    numbers, steps = round_groups(np.array([[0.0, 1e-44], [1e-38, -1e-38]], np.float32), 2)
    assert steps.min() == np.finfo(np.float32).tiny == np.float32(LEAST / np.float32(127))
    np.testing.assert_array_equal(numbers[..., 0, :], [[0, 0], [1, -1]])


def test_too_few_columns_are_declined() -> None:
    x, packing = relax.Var("x", relax.TensorType((2, 32), "float32")), Packing(32, 7, 4, 16)
    weights = [relax.const(w, str(w.dtype)) for w in operands(packing, False)]
    made = packed_product(x, packing, *weights, op=ROUNDED)
    assert why_unrolled(made, HOST) == "7 columns, less than a vector"


AHEAD = replace(HOST.with_cores(1), stream_ahead=2048, l2=HOST.l1d)
"""A machine that is asked to prefetch for one row; its L2 holds nothing."""


@pytest.mark.parametrize(("bits", "zeros"), [(2, True), (4, False), (4, True), (8, False)])
@pytest.mark.parametrize("n", [1040, 1056, 1087])
def test_two_panels_at_once(bits: int, zeros: bool, n: int) -> None:
    """An odd number of panels, a last one that begins early: the same bits as by one panel after the other."""
    packing, x = Packing(288, n, bits, 32), np.random.default_rng(n).standard_normal((3, 288)).astype(np.float32)
    weights = operands(packing, zeros)
    for machine in (AHEAD, AHEAD.with_cores(2)):
        plain = replace(machine, stream_ahead=0)
        for rows in (1, 2, 3):
            check(packing, rows, zeros, machine, x[:rows])
            made = [run(lowered(packing, (rows,), weights, m, ROUNDED), m, x[:rows]) for m in (machine, plain)]
            np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("far", [True, False])
def test_one_row_fetches_ahead_where_the_machine_asks(far: bool) -> None:
    """Every line of both panels of a task, where the weights come from memory; tasks are half as many then."""
    packing = Packing(256, 1024, 4, 32)
    machine = AHEAD if far else replace(AHEAD, l2=1 << 21)
    found = lowered(packing, (1,), operands(packing, False), machine, ROUNDED).unscheduled
    (product,) = (f for g, f in found.functions_items() if g.name_hint == "rounded_product")
    words, lines = packing.group // 8, 4
    assert str(product).count("tvmopt_prefetch") == (2 * (words + 1) * lines if far else 0)
    problem = recognise(product, machine)
    assert problem is not None and problem.tasks == (8 if far else 16)


def test_open_rows_by_two_panels_at_once() -> None:
    """A decoder's product: one token and a prompt have the same sums."""
    generator, packing = np.random.default_rng(0), Packing(288, 1100, 4, 32)
    model, exact, _ = compiled(packing, False, generator, AHEAD, "1..40", level=4)
    x = generator.standard_normal((40, 288)).astype(np.float32)
    every = model(x)
    assert np.abs(every - x @ exact).max() < 2e-2 * np.abs(x @ exact).max()
    for rows in (1, 2, 3, 6, 7, 13, 33):
        np.testing.assert_allclose(model(x[:rows]), every[:rows], rtol=1e-6, atol=1e-6 * np.abs(every).max())
