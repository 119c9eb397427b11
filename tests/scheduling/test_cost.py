"""FLOPs and bytes of kernels, on programs small enough to count by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx
from tvm.script import tirx as T

import tvmopt
from tvmopt.lowering.loops import INDEX, const_index, everything, load, loop, nest, new_buffer, prim_func, seq, store
from tvmopt.report import Kernel
from tvmopt.scheduling.cost import kernel_cost

# fmt: off


@T.prim_func(private=True, s_tir=True)
def gemm(A: T.Buffer((7, 9), "float32"), B: T.Buffer((9, 5), "float32"), C: T.Buffer((7, 5), "float32")):
    for i, j, k in T.grid(7, 5, 9):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(private=True, s_tir=True)
def rows(A: T.Buffer((3, 64), "float32"), C: T.Buffer((3, 1), "float32")):
    for i in range(3):
        with T.sblock("row"):
            vi = T.axis.spatial(3, i)
            T.reads(A[vi, 0:64])
            T.writes(C[vi, 0])
            for k in range(8):
                C[vi, 0] = C[vi, 0] + T.exp(A[vi, k * 8])


@T.prim_func(private=True, s_tir=True)
def transform(A: T.Buffer((6, 4), "float32"), C: T.Buffer((6, 4), "float32")):
    for i, j in T.grid(6, 4):
        with T.sblock("t"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.Select(
                vi == 5, A[1, vj] + A[2, vj] + A[3, vj], T.Select(vi == 4, A[1, vj] * T.float32(2), A[vi, vj])
            )


@T.prim_func(private=True, s_tir=True)
def gather(A: T.Buffer((30522, 16), "float32"), I: T.Buffer((5,), "int64"), C: T.Buffer((5, 16), "float32")):
    for i, j in T.grid(5, 16):
        with T.sblock("g"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[T.min(T.max(I[vi], T.int64(0)), T.int64(30521)), vj]

# fmt: on


@pytest.mark.parametrize(
    ("func", "flops", "nbytes"),
    [
        (gemm, 2 * 7 * 5 * 9, 4 * (63 + 45 + 35)),
        (rows, 3 * 8 * 2, 4 * (192 + 3)),  # a loop inside a block runs as often as it says
        (transform, 4 * (2 + 1), 4 * 48),  # one row of six adds twice, one multiplies once
        (gather, 0, 5 * 16 * 4 + 5 * 8 + 5 * 16 * 4),  # five rows of the table, not the table
    ],
)
def test_counted_by_hand(func, flops, nbytes):
    cost = kernel_cost(func)
    assert (cost.flops, cost.bytes) == (flops, nbytes)


def quantised(path: Path, kind: str, target: str) -> list[Kernel]:
    """Kernels of a model of one quantised operator, bytes in and bytes out; their work is :data:`WORK`."""
    rng = np.random.default_rng(0)
    shape, weight = {
        "product": ((1, 37, 72), (72, 48)),
        "convolution": ((1, 16, 9, 11), (24, 16, 3, 3)),
        "depthwise": ((1, 32, 9, 11), (32, 1, 3, 3)),
    }[kind]
    op = "MatMul" if kind == "product" else "Conv"
    attributes = {} if kind == "product" else {"pads": [1, 1, 1, 1], "group": 32 if kind == "depthwise" else 1}
    constants = {
        "s": np.array(0.02, np.float32),
        "zero": np.array(128, np.uint8),
        "t": np.array(0.01, np.float32),
        "zw": np.array(0, np.int8),
        "wq": rng.integers(-127, 128, weight).astype(np.int8),
        "u": np.array(0.3, np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["wq", "t", "zw"], ["wf"]),
        helper.make_node(op, ["xf", "wf"], ["yf"], **attributes),
        helper.make_node("QuantizeLinear", ["yf", "u", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_empty_tensor_value_info("y")], [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return list(tvmopt.compile(path, target=target, verify=False, records=False).report.kernels)


WORK = {"product": 2 * 37 * 72 * 48, "convolution": 2 * 9 * 11 * 24 * 16 * 9, "depthwise": 2 * 9 * 11 * 32 * 9}


@pytest.mark.parametrize("target", ["znver5", "x86-64-v3"])
@pytest.mark.parametrize("kind", WORK)
def test_products_of_bytes_are_operations(kind: str, target: str, tmp_path: Path) -> None:
    """As many as the definition has, padding of a word's bytes and epilogues aside; their roof is that of int8.
    Depthwise convolutions add up products of bytes in floats, where they are exact."""
    kernels = quantised(tmp_path / "m.onnx", kind, target)
    heaviest = max(kernels, key=lambda k: k.flops)
    assert WORK[kind] <= heaviest.flops < 1.5 * WORK[kind]
    assert heaviest.precision == ("" if kind == "depthwise" else "int8")
    assert {k.precision for k in kernels} <= {"int8", ""}


def test_floats_are_no_int8() -> None:
    assert kernel_cost(gemm).integer == 0.0 and kernel_cost(gemm).precision == ""


@pytest.mark.parametrize("tile, products_a_tile", [(4, 36), (2, 16)])
def test_winograd_executes_less_than_the_convolution_it_computes(tile, products_a_tile, monkeypatch):
    """F(4x4, 3x3): 36 products for 144, F(2x2, 3x3): 16 for 36, and the transforms (some 15 % at 64 channels)."""
    from tvm import relax

    from tvmopt.lowering import lower_operators
    from tvmopt.schedules.cpu._winograd import Form
    from tvmopt.schedules.cpu.winograd import compute as winograd
    from tvmopt.targets import Machine

    monkeypatch.setattr(winograd, "choose_form", lambda *_: (Form.square(tile), 0.0))
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 56, 56, 64), "float32"))
    w = relax.const(np.zeros((64, 3, 3, 64), np.float32))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    module = lower_operators(bb.get(), Machine.load("znver5"), False)
    executed = next(kernel_cost(f).flops for g, f in module.functions.items() if "winograd" in g.name_hint)
    direct = 2 * 56 * 56 * 64 * 9 * 64
    products = 2 * products_a_tile * (56 // tile) ** 2 * 64 * 64
    assert products < executed < 1.25 * products < direct


@pytest.mark.parametrize(("rows", "wanted"), [(3, 3 * 2), (8, 8 * 2), (9, 9), (20, 20)])
def test_loops_and_branches_that_numbers_decide(rows: int, wanted: int) -> None:
    """Blocks of 8 rows, the last one lower; up to 8 rows another branch does twice the work."""
    x, var = new_buffer("x", rows), const_index

    def add(n: int, first: Any) -> Callable[[Any], Any]:
        return lambda i: seq([store(x, load(x, first + i) + tirx.const(1.0, "float32"), first + i)] * n)

    def block(b: Any) -> Any:
        left = tirx.Sub(var(rows), b * 8)
        return loop(tirx.Min(var(8), left), add(1, b * 8), "i")

    few, many = loop(rows, add(2, var(0)), "i"), loop(tirx.floordiv(var(rows) + 7, var(8)), block, "b")
    either = tirx.IfThenElse(tirx.LE(var(rows), var(8)), few, many)
    one = tirx.Var("v", INDEX)
    body = nest("block", [(one, 1)], ("b",), [everything(x)], [everything(x)], either, [], {})
    assert kernel_cost(prim_func([x], body, 0)).flops == wanted
