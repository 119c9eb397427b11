"""The backend itself: what is compile-time, when it compiles again, sequences, low-bit types, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvmopt.errors import InputError, TvmoptError
from tvmopt.importer.converters.static_inputs import COMPILE_TIME, compile_time_inputs
from tvmopt.importer.lowbits import SMALL_FLOATS, pack, unpack
from tvmopt.onnx_backend import TvmoptBackend, plain_inputs


def tensor(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def make(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 21) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def reduce_model() -> onnx.ModelProto:
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    return make([node], [tensor("x", ["n", 7]), tensor("axes", [1], TensorProto.INT64)], [tensor("y", None)])


def test_compiles_again_only_for_other_shapes_and_other_compile_time_values() -> None:
    rep = TvmoptBackend.prepare(reduce_model())
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    for axis, count in ((0, 1), (1, 2), (0, 2)):
        [y] = rep.run([x, np.array([axis])])
        np.testing.assert_allclose(y, x.sum(axis), rtol=1e-5, atol=1e-6)
        assert len(rep._compiled) == count
    [y] = rep.run({"x": x[:2], "axes": np.array([0])})
    np.testing.assert_allclose(y, x[:2].sum(0), rtol=1e-5, atol=1e-6)
    assert len(rep._compiled) == 3


def test_values_bound_by_prepare_are_no_inputs() -> None:
    rep = TvmoptBackend.prepare(reduce_model(), values={"axes": np.array([1])})
    [y] = rep.run([np.ones((8, 7), np.float32)])
    assert y.tolist() == [7.0] * 8


def test_stock_pipeline_gives_the_same() -> None:
    x = np.arange(14, dtype=np.float32).reshape(2, 7)
    for pipeline in ("stock", "tvmopt"):
        [y] = TvmoptBackend.prepare(reduce_model(), pipeline=pipeline).run([x, np.array([1])])
        assert y.tolist() == x.sum(1).tolist()


def test_data_is_never_compile_time() -> None:
    """A shape computed *from the shape* of the data does not make the data compile-time."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "two"], ["t"]),
        helper.make_node("Expand", ["y", "t"], ["z"]),
    ]
    inputs = [tensor("x", [2, 3]), tensor("y", [1, 1]), tensor("two", [1], TensorProto.INT64)]
    assert compile_time_inputs(make(nodes, inputs, [tensor("z", None)])) == ["two"]
    assert not any(0 in slots for op, slots in COMPILE_TIME.items() if op[1].startswith(("Reduce", "Pad", "TopK")))


def test_compile_time_reaches_into_loop_bodies() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("ReduceSum", ["a", "axes"], ["b"], keepdims=1),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("c", [], TensorProto.BOOL), tensor("a", [2, 2])],
        [tensor("c2", [], TensorProto.BOOL), tensor("b", [2, 2])],
    )
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    inputs = [tensor("m", [], TensorProto.INT64), tensor("x", [2, 2]), tensor("axes", [1], TensorProto.INT64)]
    assert compile_time_inputs(make([node], inputs, [tensor("y", None)])) == ["m", "axes"]


def sequence_model(op: str) -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    inputs = [helper.make_value_info("s", kind), tensor("p", [], TensorProto.INT64)]
    outputs = [tensor("y", None)] if op == "SequenceAt" else [helper.make_value_info("y", kind)]
    return make([helper.make_node(op, ["s", "p"], ["y"])], inputs, outputs)


def test_sequences_in_and_out() -> None:
    parts = [np.full((n, 2), n, np.float32) for n in (1, 7, 8)]
    [one] = TvmoptBackend.prepare(sequence_model("SequenceAt")).run([parts, np.array(-2)])
    assert one.tolist() == parts[1].tolist()
    [rest] = TvmoptBackend.prepare(sequence_model("SequenceErase")).run([parts, np.array(0)])
    assert [r.shape for r in rest] == [(7, 2), (8, 2)]


def test_models_with_plain_inputs_are_not_copied() -> None:
    model = reduce_model()
    assert plain_inputs(model, {"x": np.zeros((1, 7))})[0] is model


@pytest.mark.parametrize("elem", SMALL_FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_small_floats_round_as_ml_dtypes_do(elem: int, saturate: int) -> None:
    """Every code, the midpoints between neighbours, both sides of them, and the specials."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem))
    if dtype.name.startswith("float6"):
        pytest.skip("Cast of float6 is not in ONNX's opset 21")
    codes = np.arange(2 ** ml_dtypes.finfo(dtype).bits, dtype=np.uint8).view(dtype).astype(np.float32)
    finite = np.sort(codes[np.isfinite(codes)])
    middle = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)]
    special = np.array([np.nan, np.inf, -np.inf, 1e-30, -1e-30, 1e30], np.float32)
    x = np.concatenate([finite, middle, *near, special]).astype(np.float32)
    attrs = {} if dtype.name.startswith("float4") else {"saturate": saturate}
    node = helper.make_node("Cast", ["x"], ["y"], to=elem, **attrs)
    opset = 23
    [y] = TvmoptBackend.prepare(make([node], [tensor("x", [x.size])], [tensor("y", None, elem)], opset)).run([x])
    with np.errstate(all="ignore"):
        limit = float(ml_dtypes.finfo(dtype).max)
        expected = (np.clip(x, -limit, limit) if attrs.get("saturate") else x).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float8_e5m2", "float4_e2m1fn", "float32"])
def test_pack_and_unpack(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.array([0, 1, 1, 0], np.float32).astype(dtype)
    packed = pack(array)
    assert packed.dtype.name in ("int8", "uint8", "float32")
    assert unpack(packed, name).dtype == dtype
    assert unpack(packed, name).astype(np.float32).tolist() == [0, 1, 1, 0]


def test_refusals() -> None:
    with pytest.raises(InputError):
        TvmoptBackend.prepare(reduce_model(), device="CUDA")
    with pytest.raises(InputError):
        TvmoptBackend.prepare(reduce_model(), pipeline="fast")
    unknown = make(
        [helper.make_node("ImageDecoder", ["x"], ["y"])],
        [tensor("x", [3], TensorProto.UINT8)],
        [tensor("y", None, TensorProto.UINT8)],
    )
    with pytest.raises(TvmoptError, match="ImageDecoder"):
        TvmoptBackend.prepare(unknown).run([np.zeros(3, np.uint8)])
