"""What of com.microsoft's operators does not fit together is refused by name: no schema of ONNX's looks at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_state

import tvmopt
from tests.importer.onnx_check import model, run_ort, run_relax, runner, value
from tvmopt.errors import InputError, ModelError
from tvmopt.importer.check import checked_import
from tvmopt.importer.contrib_schemas import _entries, contrib_schema
from tvmopt.importer.load import load
from tvmopt.importer.prepare import prepare
from tvmopt.importer.relax import has_converter, to_relax

MS = "com.microsoft"
RNG = np.random.default_rng(5)
MEMORY = (1 << 31) - 1


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def codes(*shape: int) -> Any:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def int32(*numbers: Any) -> Any:
    return np.array(numbers, np.int32)


class Node:
    """A node; inputs whose numbers are in `constants` are initialisers, the others inputs of the model."""

    def __init__(
        self, op: str, *inputs: Any, outputs: int = 1, kind: int = 1, constants: Any = (), **attrs: Any
    ) -> None:
        names = ["" if x is None else f"i{i}" for i, x in enumerate(inputs)]
        arrays = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
        weights = {f"i{i}": arrays.pop(f"i{i}") for i in constants}
        self.feeds, results = arrays, [f"o{i}" for i in range(outputs)]
        node = helper.make_node(op, names, results, name="the_node", domain=MS, **attrs)
        given = [value(n, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype)) for n, x in arrays.items()]
        self.proto = model([node], given, [value(r, None, kind) for r in results], weights, 21, {MS: 1})

    def refused(self) -> ModelError:
        with pytest.raises(ModelError) as caught:
            checked_import(prepare(load(self.proto), has_converter=has_converter))
        return caught.value


def grouped(past: int = 5, tokens: int = 3, batch: int = 1, depth: int = 16, **more: Any) -> Node:
    """GroupQueryAttention; `more`: attributes, and inputs by number (i5) or by their place (constants)."""
    total, shared = past + tokens, (batch, tokens, 2 * depth)
    inputs = [normal(batch, tokens, 4 * depth), normal(*shared), normal(*shared)]
    inputs += [normal(batch, 2, past, depth) if past else None for _ in range(2)]
    inputs += [int32(*[total - 1] * batch), int32(total), normal(32, depth // 2), normal(32, depth // 2), None, None]
    for i in range(len(inputs)):
        inputs[i] = more.pop(f"i{i}", inputs[i])
    return Node("GroupQueryAttention", *inputs, outputs=3, **{"num_heads": 4, "kv_num_heads": 2, **more})


def test_the_table_is_what_onnxruntime_says() -> None:
    told = {s.name: s for s in onnxruntime_state.get_all_operator_schema() if s.domain == MS}
    for name in _entries():
        ours, theirs = contrib_schema(name), told[name]
        assert ours is not None
        for side in ("inputs", "outputs"):
            for one, other in zip(getattr(ours, side), getattr(theirs, side), strict=True):
                tensors = {kind for kind in other.types if kind.startswith("tensor(")}
                assert (one.name, set(one.types), one.is_homogeneous) == (other.name, tensors, other.isHomogeneous)
                assert one.option.name == str(other.option).rpartition(".")[2]
        given = {n: (a.type.name, a.required) for n, a in ours.attributes.items()}
        assert given == {n: (str(a.type).rpartition(".")[2], a.required) for n, a in theirs.attributes.items()}


X, W = (2, 5, 12), (12, 96)
MISFITS = {
    "an attribute is missing": lambda: Node("Attention", normal(*X), normal(*W)),
    "attribute of another type": lambda: Node("Attention", normal(*X), normal(*W), num_heads="4"),
    "no such attribute": lambda: Node("Gelu", normal(3), beta=1.0),
    "no lengths": lambda: grouped(i5=None),
    "lengths of another type": lambda: grouped(i5=np.float32([7])),
    "rows of the sine": lambda: grouped(do_rotary=1, i8=normal(4, 8)),
    "no tables": lambda: grouped(do_rotary=1, i7=None, i8=None),
    "width of the tables": lambda: grouped(do_rotary=1, i7=normal(32, 16), i8=normal(32, 16)),
    "a key alone": lambda: grouped(i2=None),
    "a past key alone": lambda: grouped(i4=None),
    "past of other heads": lambda: grouped(i3=normal(1, 4, 5, 16), i4=normal(1, 4, 5, 16)),
    "other tokens": lambda: grouped(i1=normal(1, 4, 32), i2=normal(1, 4, 32)),
    "lengths of two batches": lambda: grouped(i5=int32(7, 7)),
    "no total": lambda: grouped(i6=np.zeros(0, np.int32)),
    "bias of two batches": lambda: grouped(i10=normal(2, 4, 3, 8)),
    "heads": lambda: grouped(num_heads=3),
    "not causal": lambda: grouped(causal=0),
    "a constant length": lambda: grouped(i5=int32(3), constants=(5,)),
    "a constant negative length": lambda: grouped(i5=int32(-1), constants=(5,)),
    "a constant total": lambda: grouped(past=0, i6=int32(9), constants=(6,)),
    "lengths of other batches": lambda: Node(
        "Attention", normal(1, *X[1:]), normal(*W), None, int32(5, 1, 2), num_heads=4
    ),
    "mask of one batch": lambda: Node("Attention", normal(*X), normal(*W), None, int32([1] * 5), num_heads=4),
    "sizes of q, k, v": lambda: Node(
        "Attention", normal(*X), normal(*W), num_heads=4, qkv_hidden_sizes=[32, 32, 16]
    ),
    "past of three": lambda: Node(
        "Attention", normal(*X), normal(*W), None, None, normal(3, 2, 4, 3, 8), outputs=2, num_heads=4
    ),
    "four in one": lambda: Node("MultiHeadAttention", normal(2, 5, 4, 4, 8), num_heads=4),
    "keys of one batch": lambda: Node(
        "MultiHeadAttention", normal(2, 5, 32), normal(1, 4, 7, 8), normal(1, 4, 7, 8), num_heads=4
    ),
    "an output nobody computes": lambda: Node(
        "MultiHeadAttention", normal(2, 5, 32), normal(2, 7, 32), normal(2, 7, 32), outputs=4, num_heads=4
    ),
    "rows of scales": lambda: table(scales=normal(4, 2)),
    "blocks of scales": lambda: table(scales=normal(8, 1)),
    "rows of zero points": lambda: table(zeros=codes(4, 1)),
    "no zero points": lambda: table(zeros=codes(8, 0)),
    "negative blocks": lambda: table(block_size=-16),
    "no bits": lambda: table(bits=0),
    "three bits": lambda: table(bits=3),
    "no such axis": lambda: table(quantize_axis=5),
    "short blobs": lambda: packed(codes(5, 2, 4)),
    "long blobs": lambda: packed(codes(5, 2, 16)),
    "groups of scales": lambda: packed(codes(5, 2, 8), normal(5)),
    "zero points": lambda: packed(codes(5, 2, 8), zeros=codes(3)),
    "more batches of bias": lambda: Node(
        "MatMulNBits", normal(2, 3, 32), codes(5, 2, 8), normal(10), None, None, normal(4, 2, 3, 5),
        constants=(1, 2, 5), K=32, N=5, block_size=16,
    ),
    "tables of no positions": lambda: Node(
        "RotaryEmbedding", normal(2, 5, 32), np.ones((2, 5), np.int64), normal(16, 1), normal(16, 1), num_heads=4,
        rotary_embedding_dim=4,
    ),
    "no heads to turn": lambda: Node(
        "RotaryEmbedding", normal(2, 5, 32), np.ones((2, 5), np.int64), normal(16, 2), normal(16, 2),
        rotary_embedding_dim=4,
    ),
    "segments without a table": lambda: embedded(i4=None),
    "mask of other tokens": lambda: embedded(i7=np.ones((2, 5), np.int32)),
    "columns of gamma": lambda: embedded(i5=normal(1)),
    "softmax along no axis": lambda: Node(
        "QLinearSoftmax", codes(2, 5), *(np.float32(1), np.uint8(0)) * 2, kind=2, constants=(1, 2, 3, 4), axis=5,
        opset=13,
    ),
    "concat of half a group": lambda: Node(
        "QLinearConcat", np.float32(1), np.uint8(0), codes(3), np.float32(1), kind=2, axis=0
    ),
    "slices of none": lambda: Node("UnfoldTensor", normal(3, 4), size=2, step=0),
    "slices of an axis beyond": lambda: Node("UnfoldTensor", normal(3, 4), dim=2, size=2),
    "no such axis to insert": lambda: Node("ExpandDims", normal(3, 4), np.int32(9), constants=(1,)),
    "clip of nothing": lambda: Node("FusedConv", normal(1, 3, 7, 7), normal(4, 3, 3, 3), activation="Clip"),
    "clip of three": lambda: Node(
        "FusedConv", normal(1, 3, 7, 7), normal(4, 3, 3, 3), activation="Clip", activation_params=[0.0, 1.0, 2.0]
    ),
    "leaks of three": lambda: Node(
        "FusedConv", normal(1, 3, 7, 7), normal(4, 3, 3, 3), activation="LeakyRelu", activation_params=[0.1, 0.2, 0.3]
    ),
    "no such padding": lambda: Node("FusedConv", normal(1, 3, 7, 7), normal(4, 3, 3, 3), auto_pad="NONE"),
    "no such mode": lambda: Node("GridSample", normal(1, 2, 5, 5), normal(1, 3, 3, 2), mode="area"),
    "scales of rows": lambda: Node(
        "QAttention", codes(2, 5, 12), codes(12, 96), normal(96), normal(5), np.float32(1), num_heads=4
    ),
    "scales of other columns": lambda: Node(
        "QAttention", codes(2, 5, 12), codes(12, 96), normal(96), np.float32(1), normal(95), num_heads=4
    ),
    "distances of cubes": lambda: Node("CDist", normal(2, 3, 4), normal(5, 4)),
    "groups below zero": lambda: Node(
        "GroupNorm", normal(1, 3, 3, 10), normal(10), normal(10), groups=-1, activation=0
    ),
    "halves of 17": lambda: Node("BiasSplitGelu", normal(2, 5, 17), normal(17)),
    "pictures without axes": lambda: Node("QLinearGlobalAveragePool", codes(5), *(np.float32(1), np.uint8(0)) * 2,
                                          kind=2),
}  # fmt: skip


def table(scales: Any = None, zeros: Any = None, **attrs: Any) -> Node:
    """GatherBlockQuantized of 8 rows of 32 numbers."""
    scales = normal(8, 2) if scales is None else scales
    zeros = codes(8, 1) if zeros is None else zeros
    inputs = codes(8, 16), np.array([1, 7, 0]), scales, zeros
    return Node("GatherBlockQuantized", *inputs, constants=(0, 2, 3), **{"block_size": 16, **attrs})


def packed(weight: Any, scales: Any = None, zeros: Any = None) -> Node:
    """MatMulNBits of 32 rows and 5 columns."""
    inputs = [normal(3, 32), weight, normal(10) if scales is None else scales]
    inputs += [] if zeros is None else [zeros]
    return Node("MatMulNBits", *inputs, constants=range(1, len(inputs)), K=32, N=5, block_size=16)


def embedded(**other: Any) -> Node:
    """EmbedLayerNormalization of two texts of seven tokens, 16 columns."""
    ids = np.ones((2, 7), np.int32)
    inputs = [ids, ids, normal(11, 16), normal(9, 16), normal(2, 16), normal(16), normal(16), None]
    inputs = [other.get(f"i{i}", x) for i, x in enumerate(inputs)]
    made = Node("EmbedLayerNormalization", *inputs, outputs=2)
    made.proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT32
    return made


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_by_name(name: str) -> None:
    error = MISFITS[name]().refused()
    assert "the_node" in f"{error.what} {error.where}"
    assert "Error" not in error.what.replace("TypeInferenceError", "")


def test_a_chain_of_calls_checks_each() -> None:
    """Lengths and totals of a run: what onnxruntime refuses is refused, before and after calls that are right."""
    node = grouped()
    compiled = tvmopt.compile(node.proto, threads=1, verify=False, records=False).model
    right = run_ort(node.proto, node.feeds)[0]
    for name, wrong in [("i5", v) for v in (-1, 0, 3, 8, MEMORY, ~MEMORY)] + [("i6", v) for v in (-1, 0, 5, 9, MEMORY)]:
        with pytest.raises(InputError, match=f"is out of range(.|\n)*node 'the_node', input '{name}'"):
            compiled.run(node.feeds | {name: int32(wrong)})
        np.testing.assert_allclose(compiled.run(node.feeds)["o0"], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("numbers", [(3, 1), (2, 2)])
def test_lengths_of_a_prompt(numbers: tuple[int, int]) -> None:
    """Without a cache a batch may be shorter than the others; padding is masked."""
    node = grouped(past=0, batch=2, tokens=4, i5=int32(*numbers))
    run = runner(to_relax(prepare(node.proto)))
    expected = run_ort(node.proto, node.feeds)
    for got, theirs, seen in zip(run(node.feeds)[0], expected[0], numbers, strict=True):
        np.testing.assert_allclose(got[: seen + 1], theirs[: seen + 1], rtol=1e-4, atol=1e-5)


def test_open_lengths_of_a_run_are_checked() -> None:
    node = grouped()
    shapes = {"i0": (1, "s", 64), "i1": (1, "s", 32), "i2": (1, "s", 32), "i3": (1, 2, "p", 16), "i4": (1, 2, "p", 16)}
    for given in node.proto.graph.input:
        if given.name in shapes:
            given.CopyFrom(value(given.name, shapes[given.name]))
    ranges = {"s": "1..8", "p": "1..16"}
    compiled = tvmopt.compile(node.proto, shape=ranges, threads=1, verify=False, records=False).model
    right = run_ort(node.proto, node.feeds)[0]
    np.testing.assert_allclose(compiled.run(node.feeds)["o0"], right, rtol=1e-4, atol=1e-5)
    for name, wrong in (("i5", -1), ("i5", 3), ("i5", 8), ("i6", 7), ("i6", MEMORY)):
        with pytest.raises(InputError, match=f"is out of range(.|\n)*node 'the_node', input '{name}'"):
            compiled.run(node.feeds | {name: int32(wrong)})


@pytest.mark.parametrize("node", [
    Node("Attention", normal(*X), normal(*W), None, int32(5, 3, 1, 0), num_heads=4),
    Node("Attention", normal(1, *X[1:]), normal(*W), None, int32(4, 1), num_heads=4),
    Node("Attention", normal(*X), normal(*W), None, int32([1], [0]), num_heads=4),
    Node("Attention", normal(*X), normal(*W), None, int32([0]), num_heads=4),
    Node("RotaryEmbedding", normal(1, 1, 32), np.array([3]), normal(16, 4), normal(16, 4)),
    Node("RotaryEmbedding", normal(2, 5, 32), np.array([3]), normal(16, 4), normal(16, 4), num_heads=0),
    embedded(i1=None),
    embedded(i7=np.int32([[1, 2, 3, -1, 0, 5, 9]] * 2)),
    Node("GatherND", normal(4, 5), np.int32([[0, 0], [3, -5]])),
])  # fmt: skip
def test_what_onnxruntime_takes_is_taken(node: Node) -> None:
    for got, theirs in zip(run_relax(to_relax(prepare(load(node.proto))), node.feeds), run_ort(node.proto, node.feeds),
                           strict=True):  # fmt: skip
        assert got.shape == theirs.shape and got.dtype == theirs.dtype
        np.testing.assert_allclose(got, theirs, rtol=1e-4, atol=1e-5)


def test_a_negative_length_of_a_mask_is_refused() -> None:
    node = Node("Attention", normal(*X), normal(*W), None, int32(5, 2), num_heads=4)
    compiled = tvmopt.compile(node.proto, threads=1, verify=False, records=False).model
    for good, wrong in (((6, 0), (-1, 3)), ((5, 2), (2, ~MEMORY))):
        with pytest.raises(InputError, match=r"a length is out of range(.|\n)*'the_node', input 'i3'"):
            compiled.run(node.feeds | {"i3": int32(*wrong)})
        feeds = node.feeds | {"i3": int32(*good)}
        np.testing.assert_allclose(compiled.run(feeds)["o0"], run_ort(node.proto, feeds)[0], rtol=1e-4, atol=1e-5)


def shapes_told(node: Node, outputs: int, *kinds: int) -> tuple[list[Any], list[Any]]:
    """The shapes of the outputs that a Shape behind the node tells, where the file says others, and what they are."""
    graph = node.proto.graph
    expected = run_ort(node.proto, node.feeds)
    names = [f"o{i}" for i in range(outputs)]
    del graph.output[:]
    for i, name in enumerate(names):
        graph.value_info.append(value(name, (3, 77), kinds[i] if i < len(kinds) else TensorProto.FLOAT))
        graph.node.append(helper.make_node("Shape", [name], [f"s{i}"]))
        graph.output.append(value(f"s{i}", None, TensorProto.INT64))
    got = run_relax(to_relax(prepare(load(node.proto))), node.feeds)
    return [tuple(map(int, s)) for s in got], [x.shape for x in expected]


TOLD = [
    (Node("FusedMatMul", normal(3, 1, 7, 6), normal(2, 5, 7), transA=1, transB=1), 1),
    (Node("FusedMatMul", normal(7), normal(7, 5)), 1),
    (Node("FusedMatMul", normal(4, 2, 6), normal(2, 6, 5), transBatchA=1), 1),
    (Node("Attention", normal(*X), normal(*W), None, None, normal(2, 2, 4, 3, 8), outputs=2, num_heads=4), 2),
    (Node("Attention", normal(*X), normal(12, 80), normal(80), num_heads=4, qkv_hidden_sizes=[32, 32, 16]), 1),
    (Node("MultiHeadAttention", normal(2, 5, 32), normal(2, 7, 32), normal(2, 7, 64), outputs=3, num_heads=4), 3),
    (Node("MultiHeadAttention", normal(2, 5, 32), normal(2, 4, 7, 8), normal(2, 4, 7, 8), num_heads=4), 1),
    (Node("QAttention", codes(2, 5, 12), codes(12, 96), normal(96), np.float32(1), np.float32(1), num_heads=4), 1),
    (Node("SkipLayerNormalization", normal(2, 3, 7), normal(2, 3, 7), normal(7), outputs=1), 1),
    (Node("BiasGelu", normal(2, 7), normal(7)), 1),
]


@pytest.mark.parametrize(("node", "outputs"), TOLD)
def test_shapes_are_found_and_not_what_a_file_says(node: Node, outputs: int) -> None:
    told, expected = shapes_told(node, outputs)
    assert told == expected


def test_shapes_of_embedded_tokens_are_found() -> None:
    told, expected = shapes_told(embedded(), 2, TensorProto.FLOAT, TensorProto.INT32)
    assert told == expected
