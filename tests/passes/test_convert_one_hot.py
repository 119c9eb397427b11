"""Products with ones and zeros become rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.passes.helpers import build, check_rewrite, ops, rand, run
from tvmopt.passes import ConvertOneHot
from tvmopt.report import DecisionLog

C = relax.const


def hot(
    shape: tuple[Any, ...], kind: str, weight: Any, first: int = 0, line: Any = None, select: bool = False,
    mirrored: bool = False,
) -> tvm.IRModule:  # fmt: skip
    """A product of the one-hot rows of integers, and a weight."""
    count = np.asarray(weight).shape[-2]
    line = np.arange(first, first + count).astype(kind) if line is None else line

    def body(bb: Any, x: Any) -> Any:
        operands = (x, C(line.reshape([1] * (len(shape) - 1) + [-1]), str(line.dtype)))
        equal = bb.emit(relax.op.equal(*operands[:: -1 if mirrored else 1]))
        ones = relax.op.where(equal, C(1.0), C(0.0)) if select else relax.op.astype(equal, "float32")
        return relax.op.matmul(bb.emit(ones), C(weight))

    return build({"x": (shape, kind)}, body)


@pytest.mark.parametrize(
    ("kind", "first", "rows"),
    [
        ("int32", 0, 257), ("int32", -3, 9), ("int64", 5, 1), ("int64", 0, 16), ("uint8", 0, 256), ("uint8", 200, 31),
        ("uint8", 0, 7), ("int8", -128, 256), ("int8", 0, 33),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ways", [{}, {"select": True}, {"mirrored": True}])
def test_rows_of_the_weight(kind: str, first: int, rows: int, ways: dict[str, bool]) -> None:
    weight = rand(rows, 17)
    mod = hot((3, 41, 1), kind, weight, first, **ways)
    wanted_ops = dict.fromkeys(("maximum", "minimum", "subtract", "reshape", "take"), 1)
    after = check_rewrite(ConvertOneHot, mod, wanted_ops | ({"astype": 1} if kind != "int32" else {}), numbers=False)
    limits = np.iinfo(kind)
    edges = [first - 2, first - 1, first, first + rows - 1, first + rows, first + rows + 1, limits.min, limits.max]
    inside = np.random.default_rng(0).integers(first, first + rows, 3 * 41)
    x = np.concatenate([[v for v in edges if limits.min <= v <= limits.max], inside])[: 3 * 41].reshape(3, 41, 1)
    x = x.astype(kind)
    wanted = np.zeros((3, 41, 17), "float32")
    known = (x[..., 0].astype(int) >= first) & (x[..., 0].astype(int) < first + rows)
    wanted[known] = weight[x[..., 0][known].astype(int) - first]
    for module in (mod, after):
        np.testing.assert_array_equal(run(module, [x])[0], wanted)


def test_an_open_number_of_rows() -> None:
    n = tvm.tirx.Var("n", "int64")
    mod = hot((n, 5, 1), "int32", rand(8, 3))
    after = ConvertOneHot()(mod)
    assert ops(after)["take"] == 1 and "matmul" not in ops(after)
    x = np.arange(-2, 13, dtype="int32").reshape(3, 5, 1)
    np.testing.assert_array_equal(run(after, [x])[0], run(mod, [x])[0])


INFINITE = rand(8, 3)
INFINITE[2, 1] = np.inf


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"weight": INFINITE}, "1: "), ({"weight": rand(4, 3), "line": np.array([0, 1, 3, 2], "int32")}, "2: "),
        ({"weight": rand(8, 3), "line": np.arange(8, dtype="int32") * 2}, "2: "),
        ({"weight": rand(8, 3), "first": 2**30}, "2: "), ({"weight": rand(5, 8, 3)}, ""),
    ],
)  # fmt: skip
def test_refusals(options: dict[str, Any], told: str) -> None:
    log = DecisionLog()
    mod = hot((5, 4, 1), "int32", **options)
    assert ops(ConvertOneHot(log)(mod)) == ops(mod)
    assert [d.reason[: len(told)] for d in log.decisions] == ([told] if told else [])


def test_ones_and_zeros_of_other_things_stay() -> None:
    def floats(bb: Any, x: Any) -> Any:
        equal = bb.emit(relax.op.equal(x, C(np.arange(8, dtype="float32").reshape(1, 8))))
        return relax.op.matmul(bb.emit(relax.op.astype(equal, "float32")), C(rand(8, 3)))

    def many(bb: Any, x: Any) -> Any:  # several ones a row
        equal = bb.emit(relax.op.equal(x, C(np.arange(8, dtype="int32").reshape(1, 8))))
        return relax.op.matmul(bb.emit(relax.op.astype(equal, "float32")), C(rand(8, 3)))

    def twos(bb: Any, x: Any) -> Any:
        equal = bb.emit(relax.op.equal(x, C(np.arange(8, dtype="int32").reshape(1, 8))))
        return relax.op.matmul(bb.emit(relax.op.where(equal, C(2.0), C(0.0))), C(rand(8, 3)))

    cases = ((floats, ((5, 1), "float32")), (many, ((5, 8), "int32")), (twos, ((5, 1), "int32")))
    for body, given in cases:
        mod = build({"x": given}, body)
        assert ops(ConvertOneHot()(mod)) == ops(mod)
