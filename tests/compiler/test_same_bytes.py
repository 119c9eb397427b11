"""The same model makes the same artifact, whatever addresses its compile had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

COMPILE = (
    "import sys, tvmopt; tvmopt.compile(sys.argv[1], output=sys.argv[2], verify=False, cache=False, records=False)"
)


def pictures() -> onnx.ModelProto:
    """Convolutions with strides over two pictures of open size, and sums between them: sizes that are no dimension of a
    kernel's tensors, which it gets as numbers."""
    rng = np.random.default_rng(0)
    nodes, weights, inputs, results = [], [], [], []
    for picture in ("x", "z"):
        x = picture
        inputs.append(helper.make_tensor_value_info(x, 1, [f"n{x}", 3, f"height{x}", f"width{x}"]))
        for k, channels in enumerate((3, 8, 8, 8, 8, 8)):
            name = f"{picture}{k}"
            weight = rng.standard_normal((8, channels, 3, 3)).astype("float32")
            weights.append(numpy_helper.from_array(weight, f"w{name}"))
            made = {"strides": [1 + (k < 5)] * 2, "pads": [1, 1, 1, 1]}
            nodes.append(helper.make_node("Conv", [x, f"w{name}"], [f"c{name}"], **made))
            nodes.append(helper.make_node("Softmax", [f"c{name}"], [f"s{name}"], axis=3))
            nodes.append(helper.make_node("Softmax", [f"s{name}"], [f"t{name}"], axis=2))
            nodes.append(helper.make_node("Add", [f"c{name}", f"t{name}"], [f"y{name}"]))
            x = f"y{name}"
        results.append(helper.make_tensor_value_info(x, 1, None))
    graph = helper.make_graph(nodes, "pictures", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_open_sizes_make_the_same_bytes(tmp_path: Path) -> None:
    """Three processes, each of which has its own addresses."""
    onnx.save(pictures(), tmp_path / "model.onnx")
    found = set()
    for k in range(3):
        file = tmp_path / f"{k}.tvmopt"
        subprocess.run([sys.executable, "-c", COMPILE, str(tmp_path / "model.onnx"), str(file)], check=True)
        found.add(file.read_bytes())
    assert len(found) == 1
