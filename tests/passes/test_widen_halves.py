"""Models of float16 computed in float32: types, what stays, and numbers of a whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvmopt
from tests.passes.helpers import ops
from tvmopt.passes.widen_halves import WidenHalves
from tvmopt.report import DecisionLog

R = relax.op
RNG = np.random.default_rng(0)


def module(body: Any, *shapes: tuple[int, ...], dtype: str = "float16") -> tvm.IRModule:
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(body(bb, *params))
        bb.emit_func_output(out)
    return bb.get()


def half(*shape: int) -> Any:
    return relax.const(RNG.standard_normal(shape).astype(np.float16))


def kinds(mod: tvm.IRModule, operator: str) -> list[str]:
    """The element types of the results of an operator."""
    return [
        str(b.value.ty.dtype)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, relax.Call) and getattr(b.value.op, "name", "") == f"relax.{operator}"
    ]


def widened(mod: tvm.IRModule) -> tvm.IRModule:
    text = mod.script()
    after = WidenHalves(DecisionLog())(mod)
    assert mod.script() == text, "the pass changed its input"
    relax.analysis.well_formed(after)  # raises if it is not
    assert str(after["main"].ret_ty) == str(mod["main"].ret_ty)
    return after


def test_a_chain_is_computed_in_float32_and_its_result_is_rounded_once() -> None:
    after = widened(module(lambda bb, x: R.nn.relu(bb.emit(R.matmul(x, half(8, 5)))), (3, 8)))
    assert kinds(after, "matmul") == kinds(after, "nn.relu") == ["float32"]
    assert dict(ops(after)) == {"matmul": 1, "nn.relu": 1, "astype": 2}


def test_parts_of_a_split_and_a_concatenation() -> None:
    def body(bb: Any, x: Any) -> Any:
        parts = bb.emit(R.split(bb.emit(R.exp(x)), 2, axis=1))
        return R.concat([bb.emit(relax.TupleGetItem(parts, 1)), bb.emit(relax.TupleGetItem(parts, 0))], axis=1)

    after = widened(module(body, (3, 8)))
    assert kinds(after, "concat") == ["float32"] and dict(ops(after))["astype"] == 2


def test_a_comparison_keeps_its_type() -> None:
    after = widened(module(lambda bb, x: R.greater(x, half(1)), (3, 8)))
    assert kinds(after, "greater") == ["bool"]


def test_casts_between_do_not_round() -> None:
    """A mean that is rounded, and subtracted from what is not, differs from equal numbers."""

    def body(bb: Any, x: Any) -> Any:
        wide = bb.emit(R.mean(bb.emit(R.astype(x, "float32")), axis=[0]))
        return R.subtract(bb.emit(R.exp(x)), bb.emit(R.astype(wide, "float16")))

    after = widened(module(body, (3,)))
    assert kinds(after, "subtract") == ["float32"]
    assert kinds(after, "astype").count("float16") == 1  # of the result


@pytest.mark.parametrize("kind", ["int64", "int32", "float32", "float64"])
def test_a_cast_of_what_float16_had_no_part_in_rounds(kind: str) -> None:
    """Decline 2."""

    def body(bb: Any, x: Any) -> Any:
        return R.astype(bb.emit(R.add(bb.emit(R.astype(x, "float16")), half(1))), "float32")

    after = widened(module(body, (3,), dtype=kind))
    assert kinds(after, "add") == ["float32"] and kinds(after, "astype")[0] == "float16"


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3"])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.bool_, np.float32, np.float64])
def test_a_cast_overflows_and_rounds(kind: Any, target: str) -> None:
    """A mask of integers: what float16 cannot hold is infinite, also where the sum behind it is computed in float32."""
    numbers = [0, 1, 255, 2047, 2049, 2051, 65504, 65519, 65520, 100_000, 2**31 - 1, 2**40, 2**63 - 1, -65520, -(2**63)]
    x = np.array([n for n in numbers if kind not in (np.uint8, np.bool_) or 0 <= n <= 255])
    info = np.iinfo(kind) if np.issubdtype(kind, np.integer) else None
    x = np.clip(x, info.min, info.max).astype(kind) if info else x.astype(kind)
    value, to = helper.make_tensor_value_info, TensorProto.FLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=to),
        helper.make_node("Sub", ["one", "h"], ["s"]),
        helper.make_node("Mul", ["s", "fill"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array(v, np.float16), n) for n, v in (("one", 1), ("fill", 0.25))]
    given = value("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph(nodes, "g", [given], [value("y", to, x.shape)], constants)
    made = tvmopt.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), target=target, threads=1
    )
    with np.errstate(over="ignore"):
        half_numbers = x.astype(np.float32).astype(np.float16).astype(np.float32)
        expected = ((1 - half_numbers) / 4).astype(np.float16)
    with made.model as run:
        np.testing.assert_array_equal(run.run({"x": x})["y"], expected)


def test_what_is_not_of_float16_is_left_alone() -> None:
    mod = module(lambda bb, x: R.exp(x), (3, 8), dtype="float32")
    assert tvm_ffi.structural_equal(WidenHalves(DecisionLog())(mod), mod)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_model_with_two_results_and_control_flow(kind: str) -> None:
    """A product, one result that is read again, and an If whose branches read what was computed before it."""
    tensor, dtype = (TensorProto.FLOAT16, "float16") if kind == "float16" else (TensorProto.FLOAT, "float32")
    value = helper.make_tensor_value_info
    w = RNG.standard_normal((8, 8)).astype(dtype)
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["a"], [f"{name}_y"])], name, [], [value(f"{name}_y", tensor, [3, 8])]
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("If", ["c"], ["b"], **branches),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        "g",
        [value("x", tensor, [3, 8]), value("c", TensorProto.BOOL, [])],
        [value("a", tensor, [3, 8]), value("y", tensor, [3, 8])],
        [numpy_helper.from_array(w, "w")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = tvmopt.compile(model, threads=1)
    assert made.report.accuracy["verified"]
    x = RNG.standard_normal((3, 8)).astype(dtype)
    exact = x.astype(float) @ w.astype(float)
    with made.model as run:
        for c in (True, False):
            found = run.run({"x": x, "c": np.array(c)})
            assert [str(v.dtype) for v in found.values()] == [dtype, dtype]
            step = 2.0**-10 if kind == "float16" else 1e-5
            y = exact + (np.maximum(exact, 0) if c else -exact)
            assert np.abs(found["a"] - exact).max() <= step * np.abs(exact).max()
            assert np.abs(found["y"] - y).max() <= 2 * step * np.abs(exact).max()


def test_a_convolution_of_float16_is_scheduled_by_a_family(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    w = RNG.standard_normal((16, 8, 3, 3)).astype("float16")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "g",
        [value("x", TensorProto.FLOAT16, [1, 8, 14, 14])],
        [value("y", TensorProto.FLOAT16, [1, 16, 14, 14])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    report = tvmopt.explain(tmp_path / "m.onnx", target="x86-64-v3")
    assert {k.family for k in report.kernels if k.flops} <= {"conv2d", "winograd", "planes", "layout", "elementwise"}
    assert any(k.family in ("conv2d", "winograd", "planes") for k in report.kernels)
