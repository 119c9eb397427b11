"""A wrong kernel far behind the inputs of a 16-bit model: from the numbers before it, rounding explains little."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.analysis.test_judge import bf16, changed, refused
from tvmopt.analysis.kernels import check_kernels
from tvmopt.analysis.observe import observe
from tvmopt.importer import prepare

BLOCKS = 14
SHIFT = 12


def deep(channels: int = 24) -> onnx.ModelProto:
    """Blocks of two 1x1 convolutions with HardSwishes. Each block adds a shift in its middle that its second half takes
    away again: what is left has a larger rounding error than is allowed without a question, as weights have."""
    rng = np.random.default_rng(3)
    nodes, values, last = [], {}, "x"
    for i in range(BLOCKS):
        weights = rng.standard_normal((2, channels, channels, 1, 1)).astype("f") / np.float32(np.sqrt(channels))
        for half, weight in zip("pq", weights, strict=True):
            own = f"{half}{i}"
            shift = SHIFT if half == "p" else 0
            values["w" + own] = weight
            values["b" + own] = (rng.standard_normal(channels) - (SHIFT - shift) * weight.sum((1, 2, 3))).astype("f")
            values["s" + own] = (rng.standard_normal((1, channels, 1, 1)) + shift).astype("f")
            nodes += [
                helper.make_node("Conv", [last, "w" + own, "b" + own], ["c" + own]),
                helper.make_node("HardSwish", ["c" + own], ["h" + own]),
                helper.make_node("Add", ["h" + own, "s" + own], [own]),
            ]
            last = own
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["mean"]),
        helper.make_node("Softmax", ["mean"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 12, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, 1, 1])],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@bf16
def test_five_per_cent_in_a_late_kernel(tmp_path):
    bad = good = deep()
    for name in ("wq12", "bq12", "sq12"):
        bad = changed(bad, name, lambda a: (a * 1.05).astype("f"))
    told = refused(tmp_path, good, bad, "bf16")
    assert "wrong kernel" in told and "q12" in told


@bf16
def test_kernels_that_round_much_are_taken_over():
    """Or what is behind them would be measured from the inputs on."""
    good = deep()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 24, 12, 20)).astype("f")}
    model = tvmopt.compile(good, precision="bf16", verify=False, records=False).model
    outputs, seen = observe(model, feeds)
    named = {o.name: a for o, a in zip(model.outputs, outputs, strict=True)}
    found = check_kernels(prepare(good), feeds, named, seen, "bf16")
    assert not found.wrong
    assert found.compared == len(found.kernels) > 2 * BLOCKS
