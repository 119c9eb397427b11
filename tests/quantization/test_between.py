"""What a quantised model computes in floats between its products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import run_ort
from tvmopt.quantization.between import in_floats


def model(nodes: list[tuple[str, list[str], str]], outputs: list[str], **weights: object) -> onnx.ModelProto:
    """Nodes, each named after its result, of an input ``x [1, 8, 8, 8]``."""
    made = [
        helper.make_node(op, inputs, [result], name=result, **({"pads": [1, 1, 1, 1]} if op == "Conv" else {}))
        for op, inputs, result in nodes
    ]
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((8, 8, 3, 3)) / 8, "one": np.ones(1), "half": np.full(1, 0.5),
        "cubic": np.full(1, 0.044715), "root": np.full(1, 0.7978845),
    }  # fmt: skip
    graph = helper.make_graph(
        made, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 8, 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


GELU = [
    ("Mul", ["c", "c"], "square"), ("Mul", ["square", "c"], "cube"), ("Mul", ["cube", "cubic"], "scaled"),
    ("Add", ["c", "scaled"], "sum"), ("Mul", ["sum", "root"], "inner"), ("Tanh", ["inner"], "tanh"),
    ("Add", ["tanh", "one"], "outer"), ("Mul", ["outer", "half"], "phi"), ("Mul", ["c", "phi"], "gelu"),
]  # fmt: skip
CONV, LAST = ("Conv", ["x", "w"], "c"), ("Conv", ["gelu", "w"], "y")


@pytest.mark.parametrize(
    ("nodes", "floats"),
    [
        ([CONV, *GELU, LAST], [result for _, _, result in GELU]),
        ([CONV, ("Add", ["c", "x"], "sum"), ("Relu", ["sum"], "r"), ("Conv", ["r", "w"], "y")], []),
        ([CONV, ("Relu", ["c"], "r"), ("Add", ["r", "one"], "y")], ["r", "y"]),
        (
            [CONV, ("GlobalAveragePool", ["c"], "p"), ("Conv", ["p", "w"], "s"), ("Sigmoid", ["s"], "gate"),
             ("Mul", ["c", "gate"], "m"), ("Conv", ["m", "w"], "y")],
            ["gate"],
        ),
        (
            [CONV, ("Sigmoid", ["c"], "scores"), ("Conv", ["x", "w"], "boxes"), ("Concat", ["boxes", "scores"], "y")],
            ["scores", "y"],
        ),
        ([("Identity", ["x"], "i"), ("Mul", ["i", "x"], "m"), ("Conv", ["m", "w"], "y")], ["i", "m"]),
    ],
    ids=["gelu", "residual", "end", "gate", "head", "square"],
)  # fmt: skip
def test_what_stays_in_floats(nodes, floats):
    assert in_floats(model(nodes, ["y"])) == floats


@pytest.mark.parametrize("method", ["onnxruntime", "nncf"])
def test_a_norm_and_a_gelu_keep_their_digits(tmp_path: Path, method: str) -> None:
    """A norm by ``mean(x*x) - mean(x)**2`` of values with an offset, each step of which in 8 bits loses everything."""
    if method == "nncf":
        pytest.importorskip("nncf")
    nodes = [
        CONV, ("Add", ["c", "eight"], "o"), ("GlobalAveragePool", ["o"], "mean"), ("Mul", ["o", "o"], "o2"),
        ("GlobalAveragePool", ["o2"], "mean2"), ("Mul", ["mean", "mean"], "m2"), ("Sub", ["mean2", "m2"], "var"),
        ("Sqrt", ["var"], "std"), ("Sub", ["o", "mean"], "centred"), ("Div", ["centred", "std"], "n"),
        ("Conv", ["n", "w"], "y"),
    ]  # fmt: skip
    made = model(nodes, ["y"])
    made.graph.initializer.append(numpy_helper.from_array(np.float32([8]), "eight"))
    source, target, data = tmp_path / "float.onnx", tmp_path / "int8.onnx", tmp_path / "data.npy"
    onnx.save(made, source)
    samples = np.random.default_rng(1).standard_normal((12, 8, 8, 8)).astype(np.float32)
    np.save(data, samples)
    result = tvmopt.quantize(source, target, data=data, method=method, preset="mixed")
    (decibels,) = result.outputs.values()
    assert decibels is not None and decibels > 25
    written = onnx.load(target)
    exact, found = (run_ort(one, {"x": samples[:1]})[0] for one in (made, written))
    assert np.square(exact - found).sum() < 10**-2.5 * np.square(exact).sum()
    read = {name for node in written.graph.node for name in node.input}
    assert all(t.name in read for t in written.graph.initializer), "scales that nobody reads"
    assert "DequantizeLinear" not in {n.op_type for n in written.graph.node if "y" in n.output}, "the output is rounded"


def test_what_only_an_excluded_product_reads_is_in_floats_too() -> None:
    nodes = [("Relu", ["x"], "r"), ("Conv", ["r", "w"], "c"), ("Relu", ["c"], "s"), ("Conv", ["s", "w"], "y")]
    assert in_floats(model(nodes, ["y"])) == []
    assert in_floats(model(nodes, ["y"]), ["y"]) == ["s", "y"]
    assert in_floats(model(nodes, ["y"]), ["c", "y"]) == ["r", "c", "s", "y"]
