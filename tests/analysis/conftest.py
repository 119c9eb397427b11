"""A small model, compiled and profiled once a file, and a browser: for the profiles and for their pages."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.browser import chromium
from tvmopt.analysis.peaks import Peaks
from tvmopt.analysis.profile import profile

PEAKS = Peaks("m", 1, {"fp32": 100e9, "int8": 400e9}, {"l2": 80e9, "l3": 40e9, "dram": 10e9}, 1 << 20, 1 << 24, "x")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    import tvmopt

    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((256, 256), dtype=np.float32),
        "v": rng.standard_normal((256, 9), dtype=np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "v"], ["c"], "second"),
        helper.make_node("Softmax", ["c"], ["y"], "soft"),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [128, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [128, 9])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    folder = tmp_path_factory.mktemp("profile")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    tvmopt.compile(folder / "m.onnx", output=folder / "m.tvmopt", verify=False)
    return folder / "m.tvmopt"


@pytest.fixture(scope="module")
def found(artifact):
    return profile(artifact, threads=1, runs=10, seconds=1.0, peaks=PEAKS)


@pytest.fixture(scope="module")
def browser():
    with chromium() as driven:
        yield driven
