"""One way through for CPUs and GPUs: what a request says is what is compiled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.compiler.small import silu
from tests.cuda import needs_toolkit
from tvmopt.analysis.comparator import Array
from tvmopt.compiler.driver import compile_model
from tvmopt.compiler.request import Request
from tvmopt.debug.blame import blame_tvmopt
from tvmopt.debug.check import Finding, Numbers
from tvmopt.runtime.artifact import read
from tvmopt.targets import Machine

TARGETS = ["x86-64-v3", pytest.param("nvidia-h100", marks=needs_toolkit)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product and a SiLU, which one pass puts together from two operators."""
    return silu(tmp_path_factory.mktemp("model") / "silu.onnx", depth=40)


FUSION = "tvmopt.FuseActivations"


@dataclass(frozen=True)
class Recorded(Numbers):
    """A check that keeps the hash of each experiment's library, and finds only one of them right."""

    seen: ClassVar[dict[str, str]] = {}

    def __call__(self, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Finding:
        way = str([self.options.get(name) for name in ("generic", "without")])
        if way not in self.seen:
            artifact, _ = compile_model(Request(path, Machine.load(self.target), self.precision, **dict(self.options)))
            self.seen[way] = hashlib.sha256(artifact.library).hexdigest()
        return Finding() if self.options.get("without") == (FUSION,) else Finding("numbers", "wrong")


@pytest.mark.parametrize("target", TARGETS)
def test_experiments_compile_different_code(model: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` compiles without one thing at a time; code that stays the same would blame the wrong one."""
    monkeypatch.setattr(Recorded, "seen", {})
    check = Recorded(target, options={"records": False})
    check(model, onnx.load(model), {})
    blame = blame_tvmopt(check, model, onnx.load(model), {}, ["product"], lambda stage: None)
    assert (blame.kind, blame.name) == ("pass", FUSION)
    plain = Recorded.seen.pop(str([None, None]))
    for way in ([("*",), None], [None, (FUSION,)], [None, ("FuseOps",)]):
        assert Recorded.seen[str(way)] != plain, way
    assert str([None, ("tvmopt.UnrollRecurrence",)]) not in Recorded.seen, "a stage that did nothing is not tried"


@pytest.mark.parametrize("target", TARGETS)
def test_values_become_constants(model: Path, target: str) -> None:
    """Also where another process compiles: an input that is given at compile time is none of the module's."""
    x = np.random.default_rng(1).standard_normal((33, 40), dtype=np.float32)
    artifact, _ = compile_model(Request(model, Machine.load(target), values={"x": x}))
    assert artifact.manifest.inputs == ()
    other, _ = compile_model(Request(model, Machine.load(target), values={"x": x + 1}))
    assert any((a != b).any() for a, b in zip(artifact.weights, other.weights, strict=True))


@pytest.mark.parametrize("target", TARGETS)
def test_refit_goes_the_same_way(model: Path, target: str, tmp_path: Path) -> None:
    """The same code with another model's weights, for each kind of machine, bound inputs included."""
    proto = onnx.load(model)
    proto.graph.node.append(helper.make_node("Mul", ["y", "gain"], ["z"], name="gain"))
    proto.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, [24]))
    proto.graph.output[0].name = "z"
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(proto, first)
    changed = np.random.default_rng(2).standard_normal((40, 24), dtype=np.float32)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(changed, "w"))
    onnx.save(proto, second)
    gain = {"gain": np.arange(24, dtype=np.float32)}
    old = tvmopt.compile(first, target=target, values=gain, verify=False, output=tmp_path / "a.tvmopt")
    fitted = tvmopt.refit(tmp_path / "a.tvmopt", second, verify=False)
    fresh = tvmopt.compile(second, target=target, values=gain, verify=False)
    assert fitted.artifact.library == old.artifact.library == fresh.artifact.library
    for ours, expected in zip(fitted.artifact.weights, fresh.artifact.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))
    assert read(tmp_path / "a.tvmopt").manifest.options["values"]["gain"]["shape"] == [24]


def test_weights_that_layers_share_are_stored_once(tmp_path: Path) -> None:
    """Three products with one matrix, transposed or not, and two convolutions with one window; after `refit`, too. A
    matrix of equal numbers is one of its own: other weights may tell them apart."""
    random = np.random.default_rng(0)
    square = random.standard_normal((32, 32), dtype=np.float32)
    window = random.standard_normal((32, 32, 3, 3), dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["a1"]),
        helper.make_node("MatMul", ["a1", "w"], ["b"]),
        helper.make_node("Gemm", ["b", "w"], ["c"], transB=1),
        helper.make_node("Relu", ["c"], ["c1"]),
        helper.make_node("Gemm", ["c1", "w"], ["d"], transB=1),
        helper.make_node("MatMul", ["d", "twin"], ["e"]),
        helper.make_node("Conv", ["z", "k"], ["f"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["f"], ["f1"]),
        helper.make_node("Conv", ["f1", "k"], ["g"], pads=[1, 1, 1, 1]),
    ]
    weights = {"w": square, "twin": square, "k": window}
    kinds = [("x", [5, 32]), ("z", [1, 32, 9, 9]), ("e", [5, 32]), ("g", [1, 32, 9, 9])]
    x, z, e, g = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in kinds)
    graph = helper.make_graph(nodes, "g", [x, z], [e, g], [numpy_helper.from_array(w, n) for n, w in weights.items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(proto, first)
    made = tvmopt.compile(first, target="x86-64-v3", output=tmp_path / "a.tvmopt")
    sizes = sorted(np.asarray(w).size for w in made.artifact.weights)
    assert sizes[:3] == [square.size] * 3 and len(sizes) == 4, sizes  # it, its transpose, its twin, and the window
    for tensor in proto.graph.initializer:
        array = random.standard_normal(list(tensor.dims), dtype=np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, second)
    fitted = tvmopt.refit(tmp_path / "a.tvmopt", second)
    assert fitted.artifact.library == made.artifact.library
    half = tvmopt.compile(first, target="znver4", precision="bf16", verify=False)
    assert len(half.artifact.weights) == 4
