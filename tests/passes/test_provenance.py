"""Every ONNX node is named by the kernel that does its work, whatever the passes made of it, by its own name."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvmopt import pipeline
from tvmopt.importer import import_model
from tvmopt.passes import CancelDuplicates, EliminateIdentities
from tvmopt.passes.provenance import Provenance
from tvmopt.report import DecisionLog
from tvmopt.targets import Machine

node = helper.make_node
RNG = np.random.default_rng(0)


def kernels(nodes, inputs, weights, output, **options):
    """The nodes of every call of every kernel, by kernel."""
    return {k.name: k.nodes for k in lowered(nodes, inputs, weights, output, **options).kernels}


def lowered(nodes, inputs, weights, output, **options):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()]
    results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", values, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return pipeline.lower(import_model(model).module, Machine.load("znver5"), **options)


def f32(*dims):
    return RNG.standard_normal(dims).astype(np.float32)


def named(found):
    return {name for sites in found.values() for site in sites for name in site}


def norm(channels):
    return {k: np.abs(f32(channels)) + 0.5 for k in ("scale", "shift", "mean", "variance")}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_convolution_that_batch_norm_is_folded_into(precision) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="/stem/conv/Conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], name="/stem/bn/BatchNorm"),
        node("Relu", ["n"], ["y"], name="/stem/act.1/Relu:0"),
    ]
    found = kernels(nodes, {"x": [1, 3, 20, 20]}, {"w": f32(16, 3, 3, 3), **norm(16)}, "y", precision=precision)
    whole = ("/stem/conv/Conv", "/stem/bn/BatchNorm", "/stem/act.1/Relu:0")
    assert any(whole in sites for sites in found.values()), found
    assert named(found) == set(whole)


def test_convolutions_through_a_whole_layout_change() -> None:
    """Each node stays with its own kernel: no name travels with the transposes."""
    nodes, weights, last = [], {}, "x"
    for i in range(4):
        weights |= {f"w{i}": f32(16, 16, 3, 3)}
        weights |= {f"{k}{i}": v for k, v in norm(16).items()}
        statistics = [f"{k}{i}" for k in ("scale", "shift", "mean", "variance")]
        nodes += [
            node("Conv", [last, f"w{i}"], [f"c{i}"], name=f"/{i}/Conv", pads=[1, 1, 1, 1]),
            node("BatchNormalization", [f"c{i}", *statistics], [f"n{i}"], name=f"/{i}/Norm"),
            node("Relu", [f"n{i}"], [f"r{i}"], name=f"/{i}/Relu"),
        ]
        last = f"r{i}"
    nodes.append(node("GlobalAveragePool", [last], ["y"], name="/Pool"))
    found = kernels(nodes, {"x": [1, 16, 24, 24]}, weights, "y")
    heavy = [site for sites in found.values() for site in sites if len(site) > 1 or site == ("/Pool",)]
    for i in range(4):
        assert (f"/{i}/Conv", f"/{i}/Norm", f"/{i}/Relu") in heavy
    assert ("/Pool",) in heavy and named(found) == {n.name for n in nodes}


def test_a_tower_of_open_size() -> None:
    """Where all variables get other types, as at the end of open sizes' way, none takes over its readers' nodes."""
    nodes = [node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2])]
    weights, last = {}, "half"
    for i in range(3):
        nodes += [
            node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], pads=[1, 1, 1, 1]),
            node("Add", [f"c{i}", last], [f"a{i}"]),
            node("Relu", [f"a{i}"], [f"r{i}"]),
        ]
        weights |= {f"w{i}": f32(16, 16, 3, 3), f"b{i}": f32(16)}
        last = f"r{i}"
    found = kernels(nodes, {"x": [1, 16, "rows", 66]}, weights, last)
    assert max(len(site) for sites in found.values() for site in sites) == 3
    assert named(found) >= {f"{kind}{i}" for kind in "cr" for i in range(3)}


def test_layer_norm_from_its_pieces() -> None:
    weights = {"two": np.float32(2), "eps": np.float32(1e-5), "gamma": f32(64), "beta": f32(64)}
    nodes = [
        node("ReduceMean", ["x"], ["m"], name="ln/mean", axes=[-1]),
        node("Sub", ["x", "m"], ["d"], name="ln/sub"),
        node("Pow", ["d", "two"], ["s"], name="ln/pow"),
        node("ReduceMean", ["s"], ["v"], name="ln/mean.1", axes=[-1]),
        node("Add", ["v", "eps"], ["e"], name="ln/eps"),
        node("Sqrt", ["e"], ["r"], name="ln/sqrt"),
        node("Div", ["d", "r"], ["n"], name="ln/div"),
        node("Mul", ["n", "gamma"], ["g"], name="ln/gamma"),
        node("Add", ["g", "beta"], ["y"], name="ln/beta"),
    ]
    found = kernels(nodes, {"x": [8, 64]}, weights, "y")
    assert [sites for sites in found.values()] == [(tuple(n.name for n in nodes),)]


def attention(prefix, x, out):
    names = [f"{prefix}/{w}" for w in ("q", "k", "v", "scores", "scale", "softmax", "values")]
    return [
        *(node("MatMul", [x, f"w{w}"], [f"{prefix}{w}"], name=n) for w, n in zip("qkv", names, strict=False)),
        *(node("Reshape", [f"{prefix}{w}", "heads"], [f"{prefix}{w}h"], name=f"{prefix}/{w}h") for w in "qkv"),
        node("Transpose", [f"{prefix}qh"], [f"{prefix}qt"], name=f"{prefix}/qt", perm=[0, 2, 1, 3]),
        node("Transpose", [f"{prefix}kh"], [f"{prefix}kt"], name=f"{prefix}/kt", perm=[0, 2, 3, 1]),
        node("Transpose", [f"{prefix}vh"], [f"{prefix}vt"], name=f"{prefix}/vt", perm=[0, 2, 1, 3]),
        node("MatMul", [f"{prefix}qt", f"{prefix}kt"], [f"{prefix}s"], name=names[3]),
        node("Mul", [f"{prefix}s", "scale"], [f"{prefix}c"], name=names[4]),
        node("Softmax", [f"{prefix}c"], [f"{prefix}p"], name=names[5], axis=-1),
        node("MatMul", [f"{prefix}p", f"{prefix}vt"], [f"{prefix}o"], name=names[6]),
        node("Transpose", [f"{prefix}o"], [f"{prefix}ot"], name=f"{prefix}/ot", perm=[0, 2, 1, 3]),
        node("Reshape", [f"{prefix}ot", "flat"], [out], name=f"{prefix}/or"),
    ]


@pytest.mark.parametrize("rows", [8, 48])
def test_attention_and_its_projections(rows) -> None:
    """With few rows the three projections are one product: its kernel has all three names."""
    weights = {
        **{f"w{w}": f32(64, 64) for w in "qkv"},
        "heads": np.array([1, rows, 4, 16], np.int64),
        "flat": np.array([1, rows, 64], np.int64),
        "scale": np.float32(0.25),
    }
    nodes = attention("a", "x", "y")
    found = kernels(nodes, {"x": [1, rows, 64]}, weights, "y")
    sites = [site for all_sites in found.values() for site in all_sites]
    if rows < 32:
        assert any({"a/q", "a/k", "a/v"} <= set(site) for site in sites), found
    else:
        assert all(any(f"a/{w}" in site for site in sites) for w in "qkv"), found
    assert any({"a/scores", "a/scale", "a/softmax", "a/values"} <= set(site) for site in sites), found


def test_equal_nodes_are_one_and_keep_both_names() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("MatMul", ["x", "w"], ["b"], name="second"),
        node("Sigmoid", ["b"], ["c"], name="gate"),
        node("Softmax", ["a"], ["d"], name="soft"),
        node("Mul", ["c", "d"], ["y"], name="product"),
    ]
    sites = kernels(nodes, {"x": [8, 64]}, {"w": f32(64, 64)}, "y")
    assert named(sites) == {n.name for n in nodes}
    assert any({"first", "second"} <= set(site) and "soft" not in site for all_ in sites.values() for site in all_)


def test_a_gate_and_an_identity() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="fc"),
        node("Sigmoid", ["a"], ["s"], name="act/sigmoid"),
        node("Mul", ["a", "s"], ["m"], name="act/mul"),
        node("Identity", ["m"], ["i"], name="drop"),
        node("Mul", ["i", "one"], ["o"], name="times one"),
        node("Add", ["o", "x"], ["y"], name="residual"),
    ]
    sites = kernels(nodes, {"x": [8, 64]}, {"w": f32(64, 64), "one": np.float32(1)}, "y")
    assert named(sites) >= {n.name for n in nodes} - {"drop"}  # the importer itself removes Identity


def test_a_winograd_convolution_and_a_transposed_one() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="/conv", pads=[1, 1, 1, 1]),
        node("ConvTranspose", ["a", "t"], ["b"], name="/up", strides=[2, 2]),
        node("Relu", ["b"], ["y"], name="/relu"),
    ]
    found = kernels(nodes, {"x": [1, 64, 28, 28]}, {"w": f32(64, 64, 3, 3), "t": f32(64, 16, 2, 2)}, "y")
    assert named(found) == {"/conv", "/up", "/relu"}, found


def test_decisions_are_about_nodes() -> None:
    log = DecisionLog()
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="/stem/conv.0", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"], name="/stem/bn.0"),
    ]
    lowered(nodes, {"x": [1, 3, 8, 8]}, {"w": f32(8, 3, 3, 3), **norm(8)}, "y", log=log)
    assert [d.node for d in log if d.stage == "tvmopt.FoldBatchNorm"] == ["/stem/bn.0"]


def test_names_that_tvm_gives_too_are_told_apart() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="lv"),
        node("Softmax", ["a"], ["b"], name="lv1"),
        node("MatMul", ["b", "w"], ["y"], name="gv"),
    ]
    sites = kernels(nodes, {"x": [8, 64]}, {"w": f32(64, 64)}, "y")
    assert sorted(itertools.chain.from_iterable(sites.values())) == [("gv",), ("lv",), ("lv1",)]


def chain(*steps):
    """A module of one function: each step is a name and a value made of the last."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            last = x
            for name, step in steps:
                last = builder.emit(step(last), name)
            out = builder.emit_output(last)
        builder.emit_func_output(out)
    return builder.get()


def test_a_pass_of_anybody_is_followed() -> None:
    """A pass that says nothing of names, and renames what it makes as TVM's builder does."""

    @relax.transform.function_pass(opt_level=0, name="user.Double")
    class Double:
        def transform_function(self, func, module, context):
            @relax.expr_functor.mutator
            class Rewrite(relax.PyExprMutator):
                def visit_call_(self, call):
                    call = self.visit_expr_post_order(call)
                    if call.op.name != "relax.negative":
                        return call
                    return self.builder_.emit(relax.op.subtract(self.builder_.emit(relax.op.zeros_like(call.args[0])),
                                                                call.args[0]))  # fmt: skip

            return Rewrite().visit_expr(func)

    module = chain(("a", relax.op.exp), ("b", relax.op.negative), ("c", relax.op.tanh))
    provenance = Provenance(module, {"a": "/a", "b": "/b", "c": "/c"})
    after = provenance.through([Double()], module, DecisionLog())
    by_op = {b.value.op.name: provenance.of(b.var) for b in after["main"].body.blocks[0].bindings
             if isinstance(b.value, relax.Call)}  # fmt: skip
    assert by_op["relax.exp"] == ("/a",) and by_op["relax.tanh"] == ("/c",)
    assert by_op["relax.subtract"] == by_op["relax.zeros_like"] == ("/b",)


def test_what_is_read_instead_takes_over() -> None:
    module = chain(
        ("a", relax.op.exp), ("b", lambda v: relax.op.add(v, relax.const(np.float32(0)))), ("c", relax.op.tanh)
    )
    provenance = Provenance(module, {"a": "/a", "b": "/b", "c": "/c"})
    after = provenance.through([EliminateIdentities(), CancelDuplicates()], module, DecisionLog())
    bindings = after["main"].body.blocks[0].bindings
    assert [provenance.of(b.var) for b in bindings if isinstance(b.value, relax.Call)] == [("/a", "/b"), ("/c",)]


def test_nothing_is_compared_when_a_pass_changes_nothing(monkeypatch) -> None:
    module = chain(("a", relax.op.exp), ("b", relax.op.tanh))
    provenance = Provenance(module, {})
    monkeypatch.setattr(provenance, "_kept", None)  # would be called
    assert provenance.through([CancelDuplicates()], module, DecisionLog())["main"].same_as(module["main"])
    assert isinstance(module, tvm.IRModule)
