"""A Pad behind the last column is not fused behind a kernel of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te

from tests.passes.helpers import build
from tvmopt.passes import LimitFusion
from tvmopt.pipeline import build as generate
from tvmopt.pipeline import lower
from tvmopt.targets import Machine

op = relax.op
HEADS = {
    "mean": (lambda x: op.mean(x, [-1], True), lambda x: x.mean(-1, keepdims=True)),
    "softmax": (lambda x: op.nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "log_softmax": (lambda x: op.nn.log_softmax(x), lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))),
    "max": (lambda x: op.max(x, [0], True), lambda x: x.max(0, keepdims=True)),
}
PADS = [(0, 0, 0, 1), (0, 0, 0, 9), (0, 0, 1, 0), (0, 0, 2, 3), (0, 1, 0, 1), (1, 0, 1, 0)]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("columns", [1, 3, 17])
def test_pad_behind_a_row(head: str, columns: int) -> None:
    call, reference = HEADS[head]

    def body(bb: relax.BlockBuilder, x: Any) -> Any:
        value = bb.emit(call(x))
        # TVM's order of pads is the ends of one axis after the other
        return tuple(op.nn.pad(value, [p[0], p[2], p[1], p[3]], pad_value=0.7) for p in PADS)

    machine = Machine.load("cpu")
    made = relax.VirtualMachine(generate(lower(build({"x": (17, columns)}, body), machine), machine), tvm.cpu())
    x = np.random.default_rng(1).standard_normal((17, columns)).astype("float32")
    for p, found in zip(PADS, made["main"](tvm.runtime.tensor(x)), strict=True):
        want = np.pad(reference(x), ((p[0], p[2]), (p[1], p[3])), constant_values=0.7)
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-6)


def table_pattern(place: Any, kind: str = "uint8") -> int:
    """The op pattern of `y[i, j] = table[x[place(i, j)]]`, which TVM takes for opaque."""
    x, table = te.placeholder((9, 9), kind, name="x"), te.placeholder((256,), "uint8", name="table")
    y = te.compute((9, 9), lambda i, j: table[x[place(i, j)].astype("int32")], name="y")
    func = te.create_prim_func([x, table, y]).with_attr("op_pattern", 8)
    return int(LimitFusion(tvm.IRModule({"main": func}))["main"].attrs["op_pattern"])


def test_a_table_of_bytes_is_elementwise_where_bytes_are_read_at_their_own_place() -> None:
    assert table_pattern(lambda i, j: (i, j)) == 0
    assert table_pattern(lambda i, j: (j, i)) == 8
    assert table_pattern(lambda i, j: (i, 0)) == 8
    assert table_pattern(lambda i, j: (i, j), "int32") == 8


def pattern(rows: int, columns: int, index: Any = lambda i, j: (i, j)) -> int:
    x = te.placeholder((9, 3), name="x")

    def value(i: Any, j: Any) -> Any:
        return te.if_then_else(j < 3, x[index(i, j)], 0.0)

    func = te.create_prim_func([x, te.compute((rows, columns), value, name="y")]).with_attr("op_pattern", 0)
    return int(LimitFusion(tvm.IRModule({"main": func}))["main"].attrs["op_pattern"])


@pytest.mark.parametrize(("shape", "expected"), [((9, 4), 2), ((10, 3), 2), ((9, 3), 0), ((9, 2), 0)])
def test_longer_than_what_it_reads(shape: tuple[int, int], expected: int) -> None:
    assert pattern(*shape) == expected
