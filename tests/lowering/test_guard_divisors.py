"""A size of 0 is no divisor: kernels of open sizes run where values select nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import tirx

from tests.importer.onnx_check import model, value
from tvmopt import api
from tvmopt.debug.forks import forked
from tvmopt.lowering.guard_divisors import GuardDivisors


@pytest.mark.parametrize("division", [tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod])
def test_only_divisors_that_may_be_0_are_guarded(division: Any) -> None:
    n, real = tirx.Var("n", "int64"), tirx.Var("r", "float32")
    buffer = tirx.decl_buffer((1,), "int64", "b")
    eight = tirx.const(8, "int64")

    def divisor(value: Any) -> str:
        body = tirx.BufferStore(buffer, value, [0])
        after = GuardDivisors(tvm.IRModule({"f": tirx.PrimFunc([n, real], body)}))["f"].body.value
        return type((after.value if isinstance(after, tirx.Cast) else after).b).__name__

    assert divisor(division(eight, n)) == "Select"
    assert divisor(division(n, eight)) == "IntImm"
    assert divisor(tirx.Cast("int64", tirx.Div(tirx.const(8.0, "float32"), real))) == "Var"


def test_sizes_and_places_are_divided_plainly() -> None:
    n, i, other = (tirx.Var(name, "int64") for name in ("n", "i", "other"))
    data, out = tirx.decl_buffer((n, 3), "int64", "x"), tirx.decl_buffer((n,), "int64", "y")

    def divided(place: Any) -> str:
        store = tirx.BufferStore(out, place, [i])
        loop = tirx.For(i, tirx.const(0, "int64"), n, tirx.ForKind.SERIAL, store)
        body = tirx.SeqStmt([tirx.DeclBuffer(data, data=data.data), loop])
        after = GuardDivisors(tvm.IRModule({"f": tirx.PrimFunc([n, other], body)}))["f"].body
        return type(after.seq[1].body.value).__name__

    eight, three = tirx.const(8, "int64"), tirx.const(3, "int64")
    assert divided(tirx.FloorDiv(i * n + eight, n)) == "Div"
    assert divided(tirx.FloorMod(tirx.FloorDiv(i, n), n * 2)) == "Mod"
    assert divided(tirx.FloorDiv(i * n, three)) == "Div"
    assert divided(tirx.FloorDiv(i * n, eight)) == "FloorDiv"
    assert divided(tirx.FloorDiv(i - 1, n)) == "FloorDiv"
    assert divided(tirx.FloorDiv(i, other)) == "FloorDiv"


NODES: dict[str, dict[str, Any]] = {
    "Conv": {"kernel_shape": [3, 1]},
    "ConvTranspose": {"kernel_shape": [3, 1]},
    "MaxPool": {"kernel_shape": [3, 1]},
    "AveragePool": {"kernel_shape": [3, 1]},
    "Softmax": {"axis": 1},
    "ReduceMean": {"axes": [2]},
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", NODES)
def test_columns_that_nothing_selects(op: str, threads: int) -> None:
    """How many rows a task of a transposed convolution has was 262144 over its columns: SIGFPE."""
    nodes = [
        helper.make_node("Greater", ["s", "edge"], ["g"]),
        helper.make_node("NonZero", ["g"], ["z"]),
        helper.make_node("Reshape", ["z", "flat"], ["i"]),
        helper.make_node("Gather", ["x", "i"], ["t"], axis=-1),
        helper.make_node(op, ["t", "w"] if op.startswith("Conv") else ["t"], ["y"], **NODES[op]),
    ]
    weights = {"edge": np.float32(1.5), "flat": np.int64([-1]), "w": np.ones((1, 8, 3, 1), np.float32)}
    if op == "Conv":
        weights["w"] = np.ones((8, 1, 3, 1), np.float32)
    made = model(nodes, [value("x", (17, 1, 4, 31)), value("s", (31,))], [value("y", None)], weights)
    run = api.compile(made, threads=threads, verify=False).model
    x = np.ones((17, 1, 4, 31), np.float32)

    def widths() -> list[int]:
        return [run.run({"x": x, "s": np.float32([2] * n + [0] * (31 - n))})["y"].shape[-1] for n in (31, 0, 1)]

    assert forked(widths, "run") == [31, 0, 1]


def test_quotients_of_many_open_sizes_end() -> None:
    """Volumes whose sizes are all open: a reshape's places are quotients of quotients of five."""
    node = helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])
    sizes = ("batch", "channels", "depth", "height", "width")
    made = model([node], [value("x", sizes), value("s", ("channels",)), value("b", ("channels",))], [value("y", None)])
    run = api.compile(made, shape={size: "1..9@5" for size in sizes}, verify=False).model
    rng = np.random.default_rng(0)
    for shape in ((1, 1, 1, 1, 1), (2, 3, 1, 5, 4), (1, 8, 9, 7, 9)):
        x, s, b = (rng.standard_normal(d, dtype=np.float32) for d in (shape, shape[1:2], shape[1:2]))
        wide, apart = x.astype(np.float64), (1, -1, 1, 1, 1)
        centred = wide - wide.mean((2, 3, 4), keepdims=True)
        exact = centred / np.sqrt(np.square(centred).mean((2, 3, 4), keepdims=True) + 1e-5)
        exact = exact * s.reshape(apart) + b.reshape(apart)
        np.testing.assert_allclose(run(x, s, b), exact, rtol=1e-4, atol=1e-4)
