"""to_relax: names, tuples, constants, If, refusals - numbers against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax.analysis import well_formed

from tests.importer.onnx_check import check, model, value
from tvmopt.errors import UnsupportedOp
from tvmopt.importer import import_model
from tvmopt.importer.protos import attributes
from tvmopt.importer.provenance import Names
from tvmopt.importer.relax import has_converter, to_relax

node = helper.make_node


def bindings(imported):
    return [b for block in imported.module["main"].body.blocks for b in block.bindings]


def test_names_are_identifiers_and_lead_back_to_the_node():
    made = model(
        [
            node("Gemm", ["gpu_0/x:0", "w", "b"], ["h"], name="fc/gemm.1"),
            node("Relu", ["h"], ["h2"]),
            node("Relu", ["h2"], ["1"], name="fc/gemm:1"),
        ],
        [value("gpu_0/x:0", (7, 9))],
        [value("1", (7, 8))],
        {"w": np.ones((9, 8), "float32"), "b": np.arange(8, dtype="float32")},
    )
    imported = check(made)
    assert [p.name for p in imported.module["main"].params] == ["gpu_0_x_0"]
    names = [b.var.name for b in bindings(imported)]
    assert set(names) == {"fc_gemm_1", "h2", "fc_gemm_1_2", "gv"}
    assert names.index("fc_gemm_1") == 0 and names.count("fc_gemm_1") > 1  # Gemm is several calls, all named
    assert imported.nodes["fc_gemm_1"] == "fc/gemm.1" and imported.nodes["fc_gemm_1_2"] == "fc/gemm:1"
    well_formed(imported.module)


def test_one_output_is_still_a_tuple_and_num_input_counts_unused_inputs():
    made = model([node("Relu", ["x"], ["y"])], [value("x", (3,)), value("unused", (2,))], [value("y", (3,))])
    main = to_relax(made).module["main"]
    assert isinstance(main.ret_ty, relax.TupleType) and len(main.params) == 2
    assert int(main.attrs["num_input"]) == 2


def test_an_initialiser_listed_as_input_is_a_constant():
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", (3,)), value("w", (3,))],
        [value("y", (3,))],
        {"w": np.ones(3, "float32")},
    )
    assert [s.name for s in check(made).inputs] == ["x"]


def test_input_and_constant_as_outputs():
    made = model(
        [node("Identity", ["x"], ["y"]), node("Identity", ["w"], ["z"])],
        [value("x", (3,))],
        [value("y", (3,)), value("z", (2,))],
        {"w": np.ones(2, "float32")},
    )
    check(made)


def test_several_outputs():
    made = model(
        [node("Split", ["x", "sizes"], ["a", "b", "c"], axis=1), node("Add", ["a", "c"], ["d"])],
        [value("x", (2, 7))],
        [value("d", (2, 2)), value("b", (2, 3))],
        {"sizes": np.array([2, 3, 2])},
    )
    check(made)


def test_shapes_become_constants():
    made = model(
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["g"]), node("Mul", ["s", "g"], ["y"])],
        [value("x", (5, 7))],
        [value("y", (2,), TensorProto.INT64)],
        {"i": np.array(1)},
    )
    check(made)


def test_if_with_two_outputs_and_outer_values():
    then = helper.make_graph(
        [node("Relu", ["x"], ["t1"], name="then/relu"), node("Neg", ["t1"], ["t2"])],
        "then",
        [],
        [value("t1", (3,)), value("t2", (3,))],
    )
    other = helper.make_graph(
        [node("Mul", ["x", "x"], ["e1"], name="else/mul"), node("Add", ["e1", "h"], ["e2"])],
        "else",
        [],
        [value("e1", (3,)), value("e2", (3,))],
    )
    made = model(
        [
            node("Exp", ["x"], ["h"]),
            node("If", ["c"], ["a", "b"], name="if", then_branch=then, else_branch=other),
            node("Sub", ["a", "b"], ["y"]),
        ],
        [value("c", (1,), TensorProto.BOOL), value("x", (3,))],
        [value("y", (3,))],
    )
    x = np.array([-1, 0, 2], "float32")
    for c in (True, False):
        imported = check(made, {"c": np.array([c]), "x": x})
    assert "then_relu" in imported.module.script() and "else_mul" in imported.module.script()
    well_formed(imported.module)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Min", "Max"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic_operators_are_binary_chains(op, count):
    names = ["a", "b", "c"][:count]
    shapes = [(2, 9), (9,), (2, 1)][:count]
    inputs = [value(n, s) for n, s in zip(names, shapes, strict=True)]
    imported = check(model([node(op, names, ["y"])], inputs, [value("y", (2, 9))]))
    assert "stack" not in imported.module.script()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("bounds", [("", ""), ("lo", ""), ("", "hi"), ("lo", "hi")])
def test_clip_is_maximum_and_minimum(dtype, bounds):
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(
        [node("Clip", ["x", *bounds], ["y"])],
        [value("x", (17,), elem)],
        [value("y", (17,), elem)],
        {"lo": np.array(-3, dtype), "hi": np.array(4, dtype)},
    )
    imported = check(made, {"x": np.arange(-8, 9).astype(dtype)})
    assert "call_tir" not in imported.module.script()


def test_clip_by_attributes():
    made = model([node("Clip", ["x"], ["y"], min=0.0, max=6.0)], [value("x", (9,))], [value("y", (9,))], opset=6)
    check(made, {"x": np.linspace(-3, 9, 9).astype("float32")})


def test_dropout_is_the_identity():
    made = model(
        [node("Dropout", ["x"], ["y", "m"])],
        [value("x", (3,))],
        [value("y", (3,)), value("m", (3,), TensorProto.BOOL)],
    )
    check(made)


def test_all_refusals_at_once_with_name_and_domain():
    made = model(
        [
            node("Foo", ["x"], ["a"], name="n1", domain="com.acme"),
            node("Relu", ["a"], ["b"]),
            node("Bar", ["b"], ["y"], name="n2", domain="com.acme"),
        ],
        [value("x", (3,))],
        [value("y", (3,))],
        domains={"com.acme": 3},
    )
    made.graph.value_info.append(value("a", (3,)))
    with pytest.raises(UnsupportedOp) as caught:
        to_relax(made)
    text = str(caught.value)
    assert "com.acme::Foo" in text and "'n1' (opset 3)" in text and "com.acme::Bar" in text


def test_domains_are_told_apart():
    assert has_converter("", "Gelu") and has_converter("com.microsoft", "FastGelu")
    assert not has_converter("", "FastGelu") and not has_converter("com.acme", "Relu")


def test_attributes_are_python_values():
    made = node("X", [], [], s="text", i=3, f=0.5, ints=[1, 2], strings=["a", "b"])
    assert attributes(made) == {"s": "text", "i": 3, "f": 0.5, "ints": (1, 2), "strings": ("a", "b")}
    empty = helper.make_attribute("axes", [], attr_type=7)
    made.attribute.append(empty)
    assert attributes(made)["axes"] == ()


def test_names_are_distinct():
    names = Names()
    assert [names.fresh(n) for n in ("a/b", "a.b", "1", "", "a_b_2")] == [
        "a_b",
        "a_b_2",
        "v_1",
        "v",
        "a_b_2_2",
    ]


@pytest.mark.parametrize("name", ["main", "main_1", "packed", "__tvm_ffi_main", "int", "nan", "ä b\n:/", "", "x" * 500])
def test_any_name_of_node_and_tensor(name):
    made = model(
        [node("Relu", [name or "x"], ["h"], name=name), node("Neg", ["h"], ["y"], name=name)],
        [value(name or "x", (3,))],
        [value("y", (3,))],
    )
    check(import_model(made).model)


def test_the_default_domain_has_two_names():
    function = helper.make_function(
        "d", "F", ["p"], ["q"], [node("Relu", ["p"], ["q"], domain="ai.onnx")], [helper.make_opsetid("ai.onnx", 17)]
    )
    nodes = [node("F", ["x"], ["h"], domain="d"), node("Neg", ["h"], ["y"], domain="ai.onnx")]
    made = model(nodes, [value("x", (3,))], [value("y", (3,))], domains={"d": 1}, functions=[function])
    assert [n.op_type for n in import_model(made).model.graph.node] == ["Relu", "Neg"]


def test_nothing_is_printed(capfd, recwarn):
    made = model([node("Conv", ["x", "w"], ["y"])], [value("x", (1, 3))], [value("y", (1,))], {"w": np.ones((1,))})
    with pytest.raises(UnsupportedOp):
        to_relax(made)
    assert capfd.readouterr().out == "" and not recwarn.list


def test_an_empty_output_is_made_at_run_time():
    made = model(
        [node("Identity", ["e"], ["y"]), node("Relu", ["x"], ["z"])],
        [value("x", (3,))],
        [value("y", (0, 2)), value("z", (3,))],
        {"e": np.zeros((0, 2), "float32")},
    )
    assert "R.zeros" in check(made).module.script()
