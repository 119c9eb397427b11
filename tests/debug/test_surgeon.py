"""extract, fold, sanitize: what is written computes the same, and bad requests are told in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import tvmopt
from tests.debug.nets import info, model, outputs, residual, saved, weight
from tvmopt.debug.extract import extract
from tvmopt.debug.files import save
from tvmopt.debug.fold import fold
from tvmopt.debug.graph import infer_types
from tvmopt.debug.reduce import reduce
from tvmopt.debug.sanitize import sanitize
from tvmopt.errors import InputError, ModelError
from tvmopt.importer.protos import static_shape

X = np.random.default_rng(1).standard_normal((1, 3, 9, 9)).astype("f4")


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return saved(residual(), tmp_path / "net.onnx")


def operators(path: Path) -> list[str]:
    return [n.op_type for n in onnx.load(path).graph.node]


# -- extract -----------------------------------------------------------------------------------------------


def test_extract_between_tensors_computes_the_same(net: Path, tmp_path: Path) -> None:
    whole = residual()
    del whole.graph.output[:]
    whole.graph.output.extend([info("r1", 1, 8, 9, 9), info("a3", 1, 8, 9, 9)])
    r1, a3 = outputs(saved(whole, tmp_path / "marked.onnx"), {"x": X})
    done = extract(net, inputs=["r1"], outputs=["a3"], output=tmp_path / "part.onnx")
    assert done.inputs == ("r1 float32[1,8,9,9]",)  # from shape inference
    assert done.nodes == (9, 4)
    np.testing.assert_allclose(outputs(done.path, {"r1": r1})[0], a3, atol=1e-6)  # other fusions, other rounding
    onnx.checker.check_model(str(done.path), full_check=True)


def test_extract_by_nodes_and_by_node_name(net: Path, tmp_path: Path) -> None:
    done = extract(net, nodes=["conv2", "relu2"], output=tmp_path / "nodes.onnx")
    assert operators(done.path) == ["Conv", "Relu"]
    assert [o.split()[0] for o in done.outputs] == ["r2"]
    done = extract(net, outputs=["relu1"], output=tmp_path / "named.onnx")
    assert operators(done.path) == ["Conv", "Relu"]


def test_extract_cuts_a_weight_into_an_input(net: Path, tmp_path: Path) -> None:
    done = extract(net, inputs=["x", "w1:8x3x3x3:float32"], outputs=["c1"], output=tmp_path / "w.onnx")
    assert [i.split()[0] for i in done.inputs] == ["x", "w1"]


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        ({"outputs": ["r9"]}, "no tensor or node 'r9'", "did you mean"),
        ({"inputs": ["r2"], "outputs": ["a3"]}, "also depend on 'x'", "--inputs x"),
        ({"inputs": ["r2"], "outputs": ["r1"]}, "also depend on 'x'", ""),
        ({"inputs": ["x", "r2"], "outputs": ["r1"]}, "no output depends on 'r2'", ""),
        ({"inputs": ["r1"], "outputs": ["r1"]}, "no node between", ""),
        ({"inputs": ["r1:1xqx3"], "outputs": ["a3"]}, "no shape", ""),
        ({"inputs": ["r1:1x8x9x9:float33"], "outputs": ["a3"]}, "no element type", ""),
        ({"nodes": ["conv7"]}, "no tensor or node 'conv7'", "conv"),
        ({"nodes": ["conv2"], "outputs": ["y"]}, "exclude each other", ""),
    ],
)
def test_extract_refuses(net: Path, tmp_path: Path, arguments: dict[str, list[str]], what: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        extract(net, **arguments, output=tmp_path / "no.onnx")
    assert what in error.value.what and fix in error.value.fix
    assert not (tmp_path / "no.onnx").exists()


def test_extract_from_a_subgraph_capture(tmp_path: Path) -> None:
    """A branch reads `w` and `r` of the outer graph: they come along."""
    branch = helper.make_graph([helper.make_node("Mul", ["r", "w"], ["m"])], "then", [], [info("m", 4)])
    other = helper.make_graph([helper.make_node("Neg", ["r"], ["n"])], "else", [], [info("n", 4)])
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=branch, else_branch=other),
        helper.make_node("Abs", ["i"], ["y"], name="abs"),
    ]
    net = model(nodes, [info("x", 4), info("c", kind=TensorProto.BOOL)], [info("y", 4)], [weight("w", 4)])
    done = extract(net, inputs=["r", "c"], outputs=["i"], output=tmp_path / "if.onnx")
    r = np.arange(4, dtype="f4")
    w = numpy_helper.to_array(net.graph.initializer[0])
    assert np.array_equal(outputs(done.path, {"r": r, "c": np.array(True)})[0], r * w)


def test_external_data_stays_beside_the_model(tmp_path: Path) -> None:
    net = model(
        [helper.make_node("MatMul", ["x", "a"], ["m"]), helper.make_node("MatMul", ["m", "b"], ["y"])],
        [info("x", 2, 64)], [info("y", 2, 64)], [weight("a", 64, 64), weight("b", 64, 64)],
    )  # fmt: skip
    path = save(net, tmp_path / "net.onnx", external=True)
    assert (tmp_path / "net.onnx.data").stat().st_size >= 2 * 64 * 64 * 4
    x = np.ones((2, 64), "f4")
    whole = outputs(path, {"x": x})[0]
    done = extract(path, inputs=["m"], output=tmp_path / "part.onnx")
    assert (tmp_path / "part.onnx.data").stat().st_size == 64 * 64 * 4
    assert done.bytes > 64 * 64 * 4
    np.testing.assert_allclose(
        outputs(done.path, {"m": x @ numpy_helper.to_array(net.graph.initializer[0])})[0], whole, rtol=1e-5
    )
    done = sanitize(path, output=tmp_path / "clean.onnx")
    assert np.array_equal(outputs(done.path, {"x": x})[0], whole)
    for over in (path, tmp_path / "net.onnx.data"):
        with pytest.raises(InputError, match=r"would replace .*, which is read"):
            sanitize(path, output=over)


@pytest.mark.parametrize("operation", [extract, fold, sanitize, reduce])
def test_no_operation_writes_over_its_model(net: Path, tmp_path: Path, operation: Callable[..., object]) -> None:
    before = net.read_bytes()
    with pytest.raises(InputError, match=r"would replace .*, which is read"):
        operation(net, output=tmp_path / "." / "net.onnx")
    assert net.read_bytes() == before


def test_reduce_does_not_write_over_its_inputs(net: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", x=X)
    with pytest.raises(InputError, match=r"would replace .*small\.npz, which is read"):
        reduce(net, inputs=tmp_path / "small.npz", output=tmp_path / "small.onnx")


def test_nothing_is_left_behind_when_writing_fails(net: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for output in (folder, tmp_path / "none" / "x.onnx"):
        with pytest.raises(InputError):
            sanitize(net, output=output)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "net.onnx"]
    assert not list(folder.iterdir())


# -- fold --------------------------------------------------------------------------------------------------


def shape_arithmetic(*dims: int | str) -> onnx.ModelProto:
    """y = x reshaped to [shape(x)[0], -1], times a constant chain."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "minus"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["two", "two"], ["four"]),
        helper.make_node("Mul", ["r", "four"], ["y"]),
    ]
    stored = [
        numpy_helper.from_array(np.array([0], "i8"), "zero"),
        numpy_helper.from_array(np.array([-1], "i8"), "minus"),
    ]
    return model(nodes, [info("x", *dims)], [info("y", None, None)], stored)


def test_fold_static_and_open_shapes(tmp_path: Path) -> None:
    done = fold(shape_arithmetic(2, 3, 4), output=tmp_path / "static.onnx")
    assert operators(done.path) == ["Reshape", "Mul"]
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    assert np.array_equal(outputs(done.path, {"x": x})[0], 4 * x.reshape(2, 12))
    left = fold(shape_arithmetic("n", 3, 4), output=tmp_path / "open.onnx")
    assert "Shape" in operators(left.path) and operators(left.path).count("Mul") == 1
    assert np.array_equal(outputs(left.path, {"x": x})[0], 4 * x.reshape(2, 12))
    bound = fold(shape_arithmetic("n", 3, 4), shape={"x": (2, 3, 4)}, output=tmp_path / "bound.onnx")
    assert operators(bound.path) == ["Reshape", "Mul"]


def test_fold_leaves_what_would_grow(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Expand", ["one", "big"], ["e"], "expand"),
        helper.make_node("Add", ["x", "e"], ["y"]),
    ]
    stored = [
        numpy_helper.from_array(np.ones(1, "f4"), "one"),
        numpy_helper.from_array(np.array([1 << 12], "i8"), "big"),
    ]
    net = model(nodes, [info("x", 1 << 12)], [info("y", 1 << 12)], stored)
    kept = fold(net, limit=1 << 10, output=tmp_path / "kept.onnx")
    assert operators(kept.path) == ["Expand", "Add"] and "expand" in kept.changes[0]
    assert operators(fold(net, output=tmp_path / "folded.onnx").path) == ["Add"]


def test_fold_keeps_quantization(tmp_path: Path) -> None:
    stored = [
        numpy_helper.from_array(np.ones((4, 4), "i1"), "q"),
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    net = model(nodes, [info("x", 4, 4)], [info("y", 4, 4)], stored)
    assert operators(fold(net, output=tmp_path / "q.onnx").path) == ["DequantizeLinear", "MatMul"]


# -- sanitize ----------------------------------------------------------------------------------------------


def untidy() -> onnx.ModelProto:
    """Unsorted, unnamed and twice the same name; dead nodes, idle nodes, unused weights, weights as inputs."""
    nodes = [
        helper.make_node("Relu", ["i"], ["r"], name="same"),
        helper.make_node("Identity", ["m"], ["i"], name="same"),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Cast", ["r"], ["k"], to=TensorProto.FLOAT),
        helper.make_node("Dropout", ["k"], ["d"]),
        helper.make_node("Abs", ["m"], ["dead"]),
        helper.make_node("Identity", ["d"], ["y"]),
    ]
    inputs = [info("x", 2, 4), info("w", 4, 4)]
    return model(nodes, inputs, [info("y", 2, 4)], [weight("w", 4, 4), weight("unused", 3)])


def test_sanitize(tmp_path: Path) -> None:
    source = saved(untidy(), tmp_path / "untidy.onnx")
    done = sanitize(source, output=tmp_path / "tidy.onnx")
    tidy = onnx.load(done.path)
    assert [n.op_type for n in tidy.graph.node] == [
        "MatMul",
        "Relu",
        "Identity",
    ]  # the last one makes an output
    names = [n.name for n in tidy.graph.node]
    assert all(names) and len(set(names)) == len(names)
    assert [v.name for v in tidy.graph.input] == ["x"] and [t.name for t in tidy.graph.initializer] == ["w"]
    assert {v.name for v in tidy.graph.value_info} == {"m", "r"}
    x = np.random.default_rng(0).standard_normal((2, 4)).astype("f4")
    w = numpy_helper.to_array(tidy.graph.initializer[0])
    np.testing.assert_allclose(outputs(done.path, {"x": x})[0], np.maximum(x @ w, 0), atol=1e-6)
    again = sanitize(done.path, output=tmp_path / "again.onnx")
    assert again.changes == ()


def test_sanitize_converts_the_opset(net: Path, tmp_path: Path) -> None:
    done = sanitize(net, opset=18, output=tmp_path / "new.onnx")
    assert onnx.load(done.path).opset_import[0].version == 18
    assert np.array_equal(outputs(done.path, {"x": X})[0], outputs(net, {"x": X})[0])
    with pytest.raises(InputError, match="no opset 999"):
        sanitize(net, opset=999, output=tmp_path / "no.onnx")
    strange = model([helper.make_node("Strange", ["x"], ["y"], domain="my.own")], [info("x", 1)], [info("y", 1)])
    strange.opset_import.append(helper.make_opsetid("my.own", 1))
    try:
        sanitize(strange, opset=13, output=tmp_path / "strange.onnx")
    except ModelError as error:
        assert "opset 13" in error.what


def ir_3(listed: bool) -> onnx.ModelProto:
    """A model of IR 3 with a weight too large to be shown to the conversion; `listed` as an input, as IR 3 wants it."""
    net = model(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])],
        [info("x", 2, 96)], [info("y", 2, 96)], [weight("w", 96, 96), weight("b", 96)], opset=8,
    )  # fmt: skip
    net.ir_version = 3
    if listed:
        net.graph.input.extend([info("w", 96, 96), info("b", 96)])
    return net


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("extracted", [True, False])
def test_converting_the_opset_keeps_every_weight(tmp_path: Path, listed: bool, extracted: bool) -> None:
    source = ir_3(listed)
    x = np.random.default_rng(2).standard_normal((2, 96)).astype("f4")
    if extracted:
        source = onnx.load(extract(source, output=tmp_path / "part.onnx").path)
        onnx.checker.check_model(source)
    done = sanitize(source, opset=18, output=tmp_path / "new.onnx")
    new = onnx.load(done.path)
    onnx.checker.check_model(new)
    assert [v.name for v in new.graph.input] == ["x"] and new.opset_import[0].version == 18
    w, b = (numpy_helper.to_array(t) for t in ir_3(listed).graph.initializer)
    assert {t.name for t in new.graph.initializer} == {"w", "b"}
    np.testing.assert_allclose(outputs(done.path, {"x": x})[0], x @ w + b, atol=1e-5)


def test_types_are_inferred_without_the_weights() -> None:
    types = infer_types(residual())
    assert static_shape(types["a3"]) == (1, 8, 9, 9)
    assert static_shape(types["w2"]) == (6, 8, 3, 3)


# -- the command -------------------------------------------------------------------------------------------


def test_commands(net: Path, tmp_path: Path) -> None:
    done = tvmopt("surgeon", "extract", net, "-i", "r1", "-t", "a3", "-o", tmp_path / "c.onnx")
    assert done.returncode == 0, done.stderr
    assert "4 nodes (of 9)" in done.stdout and "input r1 float32[1,8,9,9]" in done.stdout
    done = tvmopt("surgeon", "sanitize", net, "-o", tmp_path / "s.onnx", "--json")
    assert json.loads(done.stdout)["nodes"] == [9, 9]
    done = tvmopt("surgeon", "fold", net, "-o", tmp_path / "f.onnx")
    assert done.returncode == 0
    done = tvmopt("surgeon", "extract", net, "-t", "nothing", "-o", tmp_path / "n.onnx")
    assert done.returncode == 2 and "no tensor or node" in done.stderr and "fix:" in done.stderr
    done = tvmopt("surgeon", "extract", tmp_path / "missing.onnx", "-o", tmp_path / "n.onnx")
    assert done.returncode == 2 and "cannot be read" in done.stderr
