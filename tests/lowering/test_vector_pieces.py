"""Pieces of a loop that copy neighbouring numbers are taken in vectors; loops that may not be are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_walk

from tests.schedules.harness import Open, open_module, rand
from tvmopt.lowering.vector_pieces import VectorPieces

X, Y, INTEGERS = (
    tirx.decl_buffer((4096,), dtype, name) for name, dtype in (("x", "float32"), ("y", "float32"), ("n", "int32"))
)
I, ROW = tirx.Var("i", "int64"), tirx.Var("row", "int64")


def vectors(
    value: Any, index: Any = ROW * 256 + I, extent: int = 64, kind: int = tirx.ForKind.SERIAL, to: Any = Y
) -> bool:
    """Whether `for i in extent: y[index] = value` gets vectors."""
    store = tirx.BufferStore(to, value, [index])
    loop = tirx.For(I, tirx.const(0, "int64"), tirx.const(extent, "int64"), kind, store)
    loop = tirx.For(ROW, tirx.const(0, "int64"), tirx.const(4, "int64"), tirx.ForKind.SERIAL, loop)
    found: list[Any] = []
    func = VectorPieces(tvm.IRModule({"f": tirx.PrimFunc([], loop)}))["f"]
    structural_walk(func.body, ((tirx.For, lambda node: found.append(int(node.kind) == tirx.ForKind.VECTORIZED)),))
    return any(found)


def load(index: Any, of: Any = X) -> Any:
    return tirx.BufferLoad(of, [index])


def chosen(condition: bool, yes: Any, no: Any) -> Any:
    return tirx.if_then_else(tirx.const(condition, "bool"), yes, no)


@pytest.mark.parametrize(
    "value",
    [
        load(ROW * 64 + I),
        load(ROW * 64 + (I + 192 - 192)) * load(ROW) + tirx.const(1.0, "float32"),
        chosen(True, load(I), load(I * 2)),
        chosen(False, load(I * 2), chosen(True, load(I), load(ROW))),
        tirx.max(load(I), load(I + 1)),
    ],
)
def test_copies_are_taken_in_vectors(value: Any) -> None:
    assert vectors(value)


@pytest.mark.parametrize(
    "value",
    [
        load(I * 2),
        load(I + I),
        load(ROW * 256 + I - 1, Y),
        tirx.if_then_else(I < 32, load(I), load(ROW)),
        tirx.exp(load(I)),
        load(load(I, INTEGERS).astype("int64")),
        load(I // 2),
    ],
)
def test_other_values_are_left_alone(value: Any) -> None:
    assert not vectors(value)


@pytest.mark.parametrize(
    "loop",
    [
        {"index": ROW * 256 + I * 2},
        {"index": ROW},
        {"extent": 16},
        {"extent": 60},
        {"extent": 256},
        {"kind": tirx.ForKind.UNROLLED},
    ],
)
def test_other_loops_are_left_alone(loop: dict[str, Any]) -> None:
    assert not vectors(load(I), **loop)


def test_integers_are_left_alone() -> None:
    assert not vectors(load(I, INTEGERS), to=INTEGERS)


CASES: list[tuple[list[int], Callable[..., Any]]] = [
    ([64, 64, 32], lambda bb, *x: relax.op.concat(x, axis=-1)),
    ([48, 16, 17], lambda bb, *x: relax.op.concat(x, axis=-1)),
    ([64, 64], lambda bb, a, b: relax.op.multiply(relax.op.concat([a, b], axis=-1), relax.const(2.0))),
]


@pytest.mark.parametrize(("sizes", "build"), CASES)
def test_numbers_of_concatenations(sizes: list[int], build: Callable[..., Any]) -> None:
    model = Open(open_module(build, [("n", "h", "w", size) for size in sizes]))
    for shape in ((1, 1, 1), (1, 7, 8), (2, 9, 15), (3, 17, 33)):
        inputs = [rand(*shape, size, seed=k) for k, size in enumerate(sizes)]
        expected = np.concatenate(inputs, axis=-1) * (2 if len(sizes) == 2 else 1)
        np.testing.assert_array_equal(model.guarded(inputs, expected.shape), expected)
