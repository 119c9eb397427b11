"""Remainders and quotients of places: what TVM's flattening of buffers makes of them is the same element."""

import itertools

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.ir.instrument import pass_instrument
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.script import tirx as T

import tvmopt
from tvmopt import pipeline
from tvmopt.compiler.kernels import loops, named
from tvmopt.importer import import_model
from tvmopt.lowering.loop_passes import all_loop_passes
from tvmopt.pipeline import compile_kernels
from tvmopt.targets import Machine

OWN = ("KeepRemainders", "PlainRemainders", "WidenZeros", "AlignStores", "SpreadBits", "StridedLoads")


def run_by(whole) -> list[str]:
    """The names of the passes that one pass runs, in order."""
    names: list[str] = []

    @pass_instrument
    class Names:
        def run_before_pass(self, module: tvm.IRModule, info) -> None:
            names.append(str(info.name))

    with tvm.transform.PassContext(opt_level=3, instruments=[Names()]), tvm.target.Target("llvm"):
        whole(tvm.IRModule())
    return [name for name in names if name not in ("_pipeline", "sequential", "fuzz.CheckArms")]


def test_the_passes_are_those_of_tvm() -> None:
    ours = run_by(all_loop_passes())
    own = [f"tvmopt.{n}" for n in OWN]
    assert [name for name in ours if name in own] == own
    assert [name for name in ours if name not in own] == run_by(default_s_tir_pipeline()[0])


def test_what_only_gpus_need_changes_no_kernel_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    weight = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 24, 24]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:], [weight]))
    machine = Machine.load("cpu")
    whole = pipeline.plan_memory(pipeline.lower(import_model(model).module, machine), machine)[0].module
    few = [loops(func, name, whole, machine) for name, func in named(whole)]
    monkeypatch.setattr(pipeline, "all_loop_passes", lambda kind: all_loop_passes())
    every = [loops(func, name, whole, machine) for name, func in named(whole)]
    assert len(run_by(all_loop_passes("llvm"))) < len(run_by(all_loop_passes())) and few
    for one, other in zip(few, every, strict=True):
        tvm.ir.assert_structural_equal(one, other, map_free_vars=True)


def taken(place, n: int, k: int):
    """A kernel that copies for each i and j the element at a place."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((4096,), "float32"), y: T.Buffer((n, k), "float32")):
        for i, j in T.grid(n, k):
            with T.sblock("copy"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[place(a, b)]

    return kernel


PLACES = [
    (lambda i, j: (9 - i) % 4, 8, 1), (lambda i, j: (13 - i) % 4, 8, 3), (lambda i, j: (22 - i * 2) // 4 % 4, 6, 2),
    (lambda i, j: ((i + 15) // 8 + j) % 2, 8, 7), (lambda i, j: (i + j * 6 + 12) // 5 % 3, 6, 3),
    (lambda i, j: (23 - (i * 3 + j)) // 2 % 5, 7, 3),
    (lambda i, j: (19 + i * -1 + j * 2) // 2, 2, 1),
    (lambda i, j: (40 - i * 2 - j * 3) % 6, 5, 7),
    (lambda i, j: 7 - (i * 4 + j) % 8, 4, 4), (lambda i, j: (i * 4 + j) // 8 * 8 + (31 - (i * 4 + j)) % 8, 8, 4),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PLACES)))
def test_a_place_stays_the_same_place(number: int) -> None:
    place, n, k = PLACES[number]
    built = compile_kernels(
        tvm.IRModule({"kernel": taken(place, n, k).with_attr("global_symbol", "kernel")}), Machine.load("cpu")
    )
    x, y = np.arange(4096, dtype=np.float32), np.zeros((n, k), np.float32)
    result = tvm.runtime.tensor(y)
    built["kernel"](tvm.runtime.tensor(x), result)
    expected = [[place(i, j) for j in range(k)] for i in range(n)]
    np.testing.assert_array_equal(result.numpy(), expected)


def rows_and_columns(place, row, n: int, k: int):
    """A kernel that reads a matrix of 64 columns at the quotient and the remainder of a place, `row` rows further."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((64, 64), "float32"), y: T.Buffer((n, k), "float32")):
        for i, j in T.grid(n, k):
            with T.sblock("copy"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[place(a, b) // 64 + row(a, b), place(a, b) % 64]

    return kernel


PAIRS = [
    (lambda i, j: (j - 1) // 2 + i * 9 + 1, lambda i, j: (i + 1) // 2),
    (lambda i, j: i * 70 + j, lambda i, j: 3 - i % 2),
    (lambda i, j: (i * 3 + j + 15) // 8 + 60, lambda i, j: i - i),
    (lambda i, j: 400 - i * 64 - j, lambda i, j: i + j % 3),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_row_and_a_column_of_one_number_stay_the_same_place(number: int) -> None:
    place, row = PAIRS[number]
    kernel = rows_and_columns(place, row, 5, 33).with_attr("global_symbol", "kernel")
    built = compile_kernels(tvm.IRModule({"kernel": kernel}), Machine.load("cpu"))
    x, result = np.arange(4096, dtype=np.float32).reshape(64, 64), tvm.runtime.tensor(np.zeros((5, 33), np.float32))
    built["kernel"](tvm.runtime.tensor(x), result)
    expected = [[x[place(i, j) // 64 + row(i, j), place(i, j) % 64] for j in range(33)] for i in range(5)]
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_three_axes_of_one_number_stay_the_same_place(number: int) -> None:
    """Elu of 197 x 7 x 30 took 109 us: each vector's places were divided; 19 without."""
    place, row = PAIRS[number]

    @T.prim_func(s_tir=True)
    def read(x: T.Buffer((64, 8, 8), "float32"), y: T.Buffer((5, 33), "float32")):
        for i, j in T.grid(5, 33):
            with T.sblock("copy"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[place(a, b) // 64 + row(a, b), place(a, b) % 64 // 8, place(a, b) % 8]

    built = compile_kernels(tvm.IRModule({"kernel": read.with_attr("global_symbol", "kernel")}), Machine.load("cpu"))
    x, result = np.arange(4096, dtype=np.float32), tvm.runtime.tensor(np.zeros((5, 33), np.float32))
    built["kernel"](tvm.runtime.tensor(x.reshape(64, 8, 8)), result)
    expected = [[x[place(i, j) + 64 * row(i, j)] for j in range(33)] for i in range(5)]
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(("op", "repeats"), list(itertools.product(["ArgMin", "ArgMax"], [1, 2, 3, 8])))
def test_the_last_of_equal_scores_of_a_repeated_tensor(op: str, repeats: int, tmp_path) -> None:
    x = np.array([[0.5, -1.0], [2.0, 3.0], [-4.0, -5.0]], np.float32)
    nodes = [
        helper.make_node("Tile", ["x", "r"], ["t"]),
        helper.make_node(op, ["t"], ["y"], axis=1, select_last_index=1),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [3, 1])],
        [numpy_helper.from_array(np.array([1, repeats]), "r")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    tvmopt.compile(model, output=tmp_path / "m.tvmopt")
    found = next(iter(tvmopt.load(tmp_path / "m.tvmopt").run({"x": x}).values()))
    chosen = (np.argmin if op == "ArgMin" else np.argmax)(np.tile(x, (1, repeats))[:, ::-1], axis=1)
    np.testing.assert_array_equal(found, 2 * repeats - 1 - chosen[:, None])


def test_long_loops_stay_loops() -> None:
    """TVM wrote out half a milliard steps of four statements: their product in 32 bits is negative, so few."""
    steps = 1 << 29

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((steps,), "float32"), y: T.Buffer((4,), "float32")):
        for k in range(steps):
            y[0] = y[0] + x[k]
            y[1] = y[1] - x[k]
            y[2] = y[2] * x[k]
            y[3] = T.max(y[3], x[k])

    module = tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")})
    lowered = loops(module["kernel"], "kernel", module, Machine.load("cpu"))
    assert str(steps) in str(lowered)
