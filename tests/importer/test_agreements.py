"""Which sizes an operator takes for equal: no other ones reach its kernel, which would read beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.dims import Dim, at, holds
from tvmopt.errors import InputError, ModelError, UnsupportedOp
from tvmopt.importer import prepare
from tvmopt.importer.open_model import read
from tvmopt.importer.open_shapes.agreements import OTHER_DOMAINS, RULES
from tvmopt.importer.protos import open_shape
from tvmopt.importer.relax import has_converter

INT64, INT32, UINT8, INT8, BOOL = (
    TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL,
)  # fmt: skip
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)


@dataclass
class Case:
    """An operator whose inputs have the size "n", and the sizes among `SIZES` that fit the other inputs."""

    op: str
    inputs: dict[str, Any]
    fit: tuple[int, ...]
    opset: int = 21
    attrs: dict[str, Any] | None = None
    domain: str = ""

    def model(self, n: int | str = "n") -> ModelProto:
        """The operator alone; an array is a constant, a shape may have an element type in front."""
        weights, inputs = {}, []
        for name, given in self.inputs.items():
            if isinstance(given, np.ndarray):
                weights[name] = given
            else:
                kind, shape = given if len(given) == 2 and isinstance(given[1], tuple) else (TensorProto.FLOAT, given)
                inputs.append(value(name, tuple(n if size == "n" else size for size in shape), kind))
        results = ["y", "z"] if self.op in ("CausalConvWithState", "LinearAttention", "Split") else ["y"]
        node = helper.make_node(self.op, list(self.inputs), results, domain=self.domain, **(self.attrs or {}))
        domains = {self.domain: 1} if self.domain else None
        result = model([node], inputs, [value("y", None)], weights, self.opset, domains)
        kinds = {"ConvInteger": INT32, "MatMulInteger": INT32, "NonMaxSuppression": INT64}
        kinds |= dict.fromkeys(("QLinearConv", "QLinearMatMul", "QuantizeLinear"), UINT8)
        result.graph.output[0].type.tensor_type.elem_type = kinds.get(self.op, TensorProto.FLOAT)
        return result


def case(
    op: str, fit: Any, opset: int = 21, attrs: dict[str, Any] | None = None, domain: str = "", **inputs: Any
) -> Any:
    fit = fit if isinstance(fit, tuple) else (fit,)
    return pytest.param(Case(op, inputs, fit, opset, attrs, domain), id=f"{op}-{'-'.join(k for k in inputs)}-{fit[0]}")


MS, ML = "com.microsoft", "ai.onnx.ml"
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
LINEAR = HEADS | {"update_rule": "linear"}
LOSS = {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
GROUPED = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}


def lstm(batch: int | str) -> dict[str, Any]:
    """Inputs of a DynamicQuantizeLSTM beside its data, which has 9 columns."""
    ones = {"w": np.ones((1, 9, 32), np.int8), "r": np.ones((1, 8, 32), np.int8)}
    states = {"b": (1, 64), "l": (INT32, (batch,)), "h": (1, batch, 8), "c": (1, batch, 8), "p": (1, 24)}
    direction = {"ws": np.ones(1, np.float32), "wz": np.zeros(1, np.int8)}
    return {**ones, **states, **direction, "rs": np.ones((1, 32), np.float32), "rz": np.zeros((1, 32), np.int8)}


def grouped(**other: Any) -> dict[str, Any]:
    """Inputs of a GroupQueryAttention without a cache; heads of 4 elements, 4 tokens."""
    caches = {"pk": (2, 2, 0, 4), "pv": (2, 2, 0, 4)}
    usual = {"q": (2, 4, 16), "k": (2, 4, 8), "v": (2, 4, 8), **caches, "l": (INT32, (2,)), "t": (INT32, (1,)),
             "c": (9, 2), "s": (9, 2), "p": (INT64, (2, 4))}  # fmt: skip
    return usual | other


CASES = [
    case("AffineGrid", 2, t=("n", 2, 3), s=np.array([2, 3, 4, 4])),
    case("Attention", 4, opset=23, q=(2, 3, 5, 4), k=(2, 3, 7, "n"), v=(2, 3, 7, 6)),
    case("Attention", 7, opset=23, attrs=HEADS, q=(2, 5, 8), k=(2, 7, 8), v=(2, "n", 8)),
    case("Attention", 2, opset=23, attrs=HEADS, q=("n", 5, 8), k=(2, 7, 8), v=(2, 7, 8)),
    case("Attention", (2, 4, 6, 8, 12, 16), opset=23, attrs=HEADS, q=(2, 5, 8), k=(2, 7, 8), v=(2, 7, "n")),
    case("Attention", SIZES, opset=23, q=(2, 3, 5, 4), k=(2, 3, 7, 4), v=(2, 3, 7, "n")),
    case("Attention", 3, opset=23, q=(2, 3, 5, 4), k=(2, 3, 7, 4), v=(2, "n", 7, 6)),
    case("Attention", 5, opset=23, q=(2, 3, 5, 4), k=(2, 3, 7, 4), v=(2, 3, 7, 6), m=("n", 7)),
    case("Attention", 4, opset=23, attrs=HEADS | {"q_num_heads": 4}, q=(2, 5, 8), k=(2, 7, "n"), v=(2, 7, 6)),
    case("BatchNormalization", 6, x=(1, "n", 17), a=(6,), b=(6,), c=(6,), d=(6,)),
    case("CausalConvWithState", 4, opset=27, x=(2, "n", 8), w=(4, 1, 3)),
    case("CausalConvWithState", 2, opset=27, x=(2, 4, 8), w=(4, 1, 3), b=(4,), p=("n", 4, 2)),
    case("Clip", 1, x=(5, 3), low=("n",)),
    case("Col2Im", 9, x=(1, 12, "n"), a=np.array([4, 4]), b=np.array([2, 2])),
    case("Conv", 6, x=(1, "n", 17), w=(4, 6, 5)),
    case("Conv", 6, x=(1, 6, 17), w=(4, "n", 5)),
    case("Conv", 6, attrs={"group": 2}, x=(1, "n", 17), w=(4, 3, 5)),
    case("Conv", 7, x=(1, 6, 17), w=("n", 6, 5), b=(7,)),
    case("ConvInteger", 6, x=(UINT8, (1, "n", 17)), w=(INT8, (4, 6, 5))),
    case("ConvTranspose", 6, x=(1, "n", 17), w=(6, 4, 5), b=(4,)),
    case("ConvTranspose", 5, attrs={"kernel_shape": [5]}, x=(1, 6, 17), w=(6, 4, "n")),
    case("ConvTranspose", 7, x=(1, 6, 17), w=(6, "n", 5), b=(7,)),
    case("DeformConv", 7, x=(1, 6, 17, 17), w=("n", 6, 5, 5), o=(1, 50, 13, 13), b=(7,)),
    case("DeformConv", 1, x=(1, 6, 17, 17), w=(4, 6, 5, 5), o=("n", 50, 13, 13)),
    case("DepthToSpace", (4, 8, 12, 16), attrs={"blocksize": 2}, x=(1, "n", 3, 3)),
    case("DequantizeLinear", 6, x=(UINT8, (2, "n")), s=(6,), z=(UINT8, (6,))),
    case("DequantizeLinear", (4, 5, 6), attrs={"block_size": 3}, x=(UINT8, (2, "n")), s=(2, 2)),
    case("Det", 3, x=(2, "n", 3)),
    case("Einsum", 5, attrs={"equation": "ij,jk->ik"}, x=(2, "n"), w=(5, 4)),
    case("Einsum", 5, attrs={"equation": "...j,jk->...k"}, x=(3, 2, "n"), w=(5, 4)),
    case("Einsum", 5, attrs={"equation": "ii->i"}, x=(5, "n")),
    case("GRU", 12, attrs={"hidden_size": 4}, x=(7, 1, 8), w=(1, "n", 8), r=(1, 12, 4)),
    case("GatherElements", (7, 8, 9, 12, 16), attrs={"axis": 1}, x=("n", 5), i=(INT64, (7, 3))),
    case("GatherElements", (1, 2, 3), attrs={"axis": 1}, x=(3, 5), i=(INT64, ("n", 3))),
    case("GatherND", 7, attrs={"batch_dims": 1}, x=("n", 5), i=(INT64, (7, 1))),
    *(case(f"Global{kind}Pool", SIZES, x=(1, 3, "n", 4)) for kind in ("Average", "Lp", "Max")),
    case("GridSample", 2, x=("n", 3, 7, 7), g=(2, 5, 5, 2)),
    case("GroupNormalization", 6, attrs={"num_groups": 3}, x=(1, "n", 17), a=(6,), b=(6,)),
    case("InstanceNormalization", 6, x=(1, "n", 17), a=(6,), b=(6,)),
    case("LSTM", 16, attrs={"hidden_size": 4}, x=(7, 1, 8), w=(1, "n", 8), r=(1, 16, 4)),
    case("LayerNormalization", 5, x=(1, 7, "n"), a=(5,)),
    case("LayerNormalization", 6, attrs={"axis": 1}, x=(1, "n", 5), a=(6, 5)),
    case("LinearAttention", 4, opset=27, attrs=LINEAR, q=(2, 4, 8), k=(2, "n", 8), v=(2, 4, 6)),
    case("LinearAttention", 2, opset=27, attrs=LINEAR, q=(2, 4, 8), k=(2, 4, 8), v=(2, 4, 6), p=("n", 2, 4, 3)),
    case("LinearAttention", 8, opset=27, attrs=LINEAR, q=(2, 4, 8), k=(2, 4, "n"), v=(2, 4, 6)),
    case("MatMulInteger", 5, x=(UINT8, (2, "n")), w=(UINT8, (5, 4))),
    case("MatMulInteger", 3, x=(UINT8, ("n", 5)), w=(UINT8, (5, 4)), zx=(UINT8, (3,)), zw=(UINT8, (4,))),
    case("MaxRoiPool", 5, x=(2, 3, 7, 7), r=(4, "n"), attrs={"pooled_shape": [2, 2]}),
    case("MaxUnpool", 4, attrs={"kernel_shape": [2], "strides": [2]}, x=(2, 3, "n"), i=(INT64, (2, 3, 4))),
    *(case(op, 4, x=("n", 5), t=(INT64, (4,))) for op in sorted(LOSS)),
    case("NonMaxSuppression", 6, x=(1, "n", 4), s=(1, 2, 6)),
    case("NonMaxSuppression", 2, x=("n", 6, 4), s=(2, 2, 6)),
    case(
        "QLinearConv", 6, x=(UINT8, (1, "n", 17)), s=(), z=(UINT8, ()), w=(INT8, (4, 6, 5)), ws=(4,), wz=(INT8, (4,)),
        ys=(), yz=(UINT8, ()),
    ),
    case(
        "QLinearMatMul", 5, x=(UINT8, (2, "n")), s=(), z=(UINT8, ()), w=(UINT8, (5, 4)), ws=(), wz=(UINT8, ()), ys=(),
        yz=(UINT8, ()),
    ),
    case("QuantizeLinear", 6, x=(2, "n"), s=(6,), z=(UINT8, (6,))),
    case("QuantizeLinear", (4, 5, 6), attrs={"block_size": 3}, x=(2, "n"), s=(2, 2)),
    case("RMSNormalization", 5, opset=23, x=(4, "n"), a=(5,)),
    case("RNN", 4, attrs={"hidden_size": 4}, x=(7, 1, 8), w=(1, "n", 8), r=(1, 4, 4)),
    case("Reshape", (4, 8, 12, 16), x=("n", 3), s=np.array([4, -1])),
    case("ReverseSequence", 4, x=(5, "n", 3), l=(INT64, (4,))),
    case("RoiAlign", 2, x=(2, 3, 7, 7), r=("n", 4), i=(INT64, (2,))),
    case("RotaryEmbedding", 4, opset=23, x=(2, 3, 5, "n"), c=(2, 5, 2), s=(2, 5, 2)),
    case("RotaryEmbedding", 5, opset=23, x=(2, 3, 5, 4), c=(2, "n", 2), s=(2, 5, 2)),
    case("RotaryEmbedding", 5, opset=23, x=(2, 3, "n", 4), c=(9, 2), s=(9, 2), p=(INT64, (2, 5))),
    case("RotaryEmbedding", 9, opset=23, x=(2, 3, 5, 4), c=(9, 2), s=("n", 2), p=(INT64, (2, 5))),
    case("RotaryEmbedding", 8, opset=23, attrs={"num_heads": 2}, x=(2, 5, "n"), c=(2, 5, 2), s=(2, 5, 2)),
    case("Scatter", 7, opset=10, attrs={"axis": 1}, x=(8, 5), i=(INT64, ("n", 3)), u=(7, 3)),
    case("ScatterElements", 7, attrs={"axis": 1}, x=(8, 5), i=(INT64, ("n", 3)), u=(7, 3)),
    case("ScatterElements", (7, 8, 9, 12, 16), attrs={"axis": 1}, x=("n", 5), i=(INT64, (7, 3)), u=(7, 3)),
    case("ScatterND", 3, x=(4, 5), i=(INT64, ("n", 1)), u=(3, 5)),
    case("ScatterND", 5, x=(4, "n"), i=(INT64, (3, 1)), u=(3, 5)),
    case("Split", 6, x=("n", 3), s=np.array([2, 4])),
    case("Split", (2, 4, 6, 8, 12, 16), opset=17, x=("n", 3)),
    case("Squeeze", 1, x=(3, "n"), a=np.array([1])),
    case("SwiGLU", 4, opset=28, x=("n", 5), y=(4, 5)),
    case("TensorScatter", 2, opset=24, c=("n", 3, 8, 5), u=(2, 3, 4, 5), i=(INT64, (2,))),
    case("TensorScatter", (4, 5, 6, 7, 8, 9, 12, 16), opset=24, c=(2, 3, "n", 5), u=(2, 3, 4, 5)),
    case("TensorScatter", (1, 2, 3, 4, 5, 6, 7, 8), opset=24, c=(2, 3, 8, 5), u=(2, 3, "n", 5)),
    case("TensorScatter", 5, opset=24, c=(2, 3, 8, 5), u=(2, 3, 4, "n")),
    case("TensorScatter", 2, opset=24, c=(2, 3, 8, 5), u=(2, 3, 4, 5), i=(INT64, ("n",))),
    case("Attention", 8, attrs={"num_heads": 2}, domain=MS, x=(2, 3, "n"), w=(8, 24), b=(24,)),
    case("BiasGelu", 5, domain=MS, x=(3, "n"), b=(5,)),
    case("EmbedLayerNormalization", (1, 2, 3, 4, 5, 6), domain=MS, i=(INT32, (2, "n")), s=(INT32, (2, "n")), w=(10, 8),
         p=(6, 8), t=(2, 8), g=(8,), b=(8,)),
    case("FastGelu", 5, domain=MS, x=(3, "n"), b=(5,)),
    case("FusedMatMul", 5, domain=MS, x=(3, "n"), w=(5, 4)),
    case("FusedMatMul", 5, attrs={"transA": 1, "transB": 1}, domain=MS, x=("n", 3), w=(4, 5)),
    case("GatherBlockQuantized", 8, attrs={"block_size": 16}, domain=MS, x=(UINT8, ("n", 16)), i=(INT64, (3,)),
         s=(8, 2)),
    case("GatherBlockQuantized", 2, attrs={"block_size": 16}, domain=MS, x=(UINT8, (8, 16)), i=(INT64, (3,)),
         s=(8, "n")),
    case("GatherBlockQuantized", 8, attrs={"block_size": 16}, domain=MS, x=(UINT8, (8, 16)), i=(INT64, (3,)), s=(8, 2),
         z=(UINT8, ("n", 1))),
    case("GroupQueryAttention", 4, attrs=GROUPED, domain=MS, **grouped(k=(2, "n", 8), v=(2, "n", 8))),
    case("GroupQueryAttention", 2, attrs=GROUPED, domain=MS, **grouped(l=(INT32, ("n",)))),
    case("GroupQueryAttention", 9, attrs=GROUPED, domain=MS, **grouped(s=("n", 2))),
    case("GroupQueryAttention", 4, attrs=GROUPED, domain=MS, **grouped(q=(2, 4, 16), p=(INT64, (2, "n")))),
    case("FeatureVectorizer", 7, domain=ML, attrs={"inputdimensions": [3, 2]}, x=("n", 3), b=(7, 2)),
    case("Imputer", 5, attrs={"imputed_value_floats": [1.0] * 5}, domain=ML, x=(3, "n")),
    case("BiasAdd", 5, domain=MS, x=(2, 3, "n"), b=(5,), s=(2, 3, "n")),
    case("DynamicQuantizeLSTM", 9, domain=MS, attrs={"hidden_size": 8}, x=(5, 1, "n"), **lstm(1)),
    case("DynamicQuantizeLSTM", 3, domain=MS, attrs={"hidden_size": 8}, x=(5, "n", 9), **lstm(3)),
    case("DynamicQuantizeLSTM", 4, domain=MS, attrs={"hidden_size": 8}, x=(5, 4, 9), **lstm("n")),
    case("LayerNormalization", 8, domain=MS, x=(3, "n"), g=(8,)),
    case("RotaryEmbedding", (8, 16), domain=MS, x=(2, 3, "n"), p=(INT64, (2, 3)), c=(9, 4), s=(9, 4)),
    case("MatMulBnb4", 16, domain=MS, attrs={"K": 16, "N": 8, "block_size": 16, "quant_type": 1}, x=(3, "n"),
         b=np.ones(64, np.uint8), a=np.ones(8, np.float32)),
    case("MatMulNBits", 16, domain=MS, attrs={"K": 16, "N": 8, "bits": 4, "block_size": 16}, x=(3, "n"),
         b=np.ones((8, 1, 8), np.uint8), s=np.ones(8, np.float32)),
    case("MultiHeadAttention", 8, domain=MS, attrs={"num_heads": 2}, q=(2, 3, "n"), k=(2, 5, 8), v=(2, 5, 6)),
    case("MultiHeadAttention", (2, 4, 6, 8, 12, 16), domain=MS, attrs={"num_heads": 2}, q=(2, 3, 8), k=(2, 5, 8),
         v=(2, 5, "n")),
    case("MultiHeadAttention", 5, domain=MS, attrs={"num_heads": 2}, q=(2, 3, 8), k=(2, "n", 8), v=(2, 5, 8)),
    case("SkipLayerNormalization", 8, domain=MS, x=(2, 3, "n"), s=(2, 3, "n"), g=(8,), b=(8,)),
    case("SkipSimplifiedLayerNormalization", 8, domain=MS, x=(2, 3, "n"), s=(2, 3, "n"), g=(8,)),
    case("QAttention", 8, attrs={"num_heads": 2}, domain=MS, x=(UINT8, (2, 3, "n")), w=(UINT8, (8, 24)), b=(24,), s=(),
         v=()),
    case("Scaler", 5, attrs={"offset": [1.0] * 5, "scale": [2.0]}, domain=ML, x=(3, "n")),
    case("SpaceToDepth", (2, 4, 6, 8, 12, 16), attrs={"blocksize": 2}, x=(1, 2, 4, "n")),
]  # fmt: skip


def taken(made: ModelProto) -> tuple[int, ...]:
    """The sizes `n` that a prepared model takes."""
    prepared = prepare(made, has_converter=has_converter)
    known, found = read(prepared), []
    before = {v.name: open_shape(v.type) for v in made.graph.input}
    for n in SIZES:
        inside = all(r.min <= n <= r.max for name, r in known.ranges.items() if name == "n")
        fits = all(
            at((size,), {"n": n}) == (n if isinstance(was, Dim) else was,)
            for v in prepared.graph.input
            for size, was in zip(open_shape(v.type) or (), before[v.name] or (), strict=True)
        )
        if inside and fits and all(holds(c, {"n": n}) for c in known.conditions):
            found.append(n)
    return tuple(found)


@pytest.mark.parametrize("one", CASES)
def test_only_sizes_that_agree_are_taken(one: Case) -> None:
    assert taken(one.model()) == one.fit


@pytest.mark.parametrize("one", CASES)
def test_the_same_sizes_are_taken_where_they_are_numbers(one: Case) -> None:
    """A constant of one length for four rows was read beyond its end: nobody looked where no size is open."""
    prepare(one.model(one.fit[0]), has_converter=has_converter)
    for n in [n for n in SIZES if n > 1 and n not in one.fit][:2]:  # one element is spread by some
        with pytest.raises((ModelError, UnsupportedOp)):
            prepare(one.model(n), has_converter=has_converter)


@pytest.mark.parametrize("one", [c for c in CASES if c.values[0].fit != (1,)])  # which any number spreads
def test_the_same_sizes_are_taken_where_a_later_node_makes_them_numbers(one: Case) -> None:
    """GatherElements read beyond its input: it had been asked while the size was open."""
    prepare(_known_later(one, one.fit[0]), has_converter=has_converter)
    for n in [n for n in SIZES if n > 1 and n not in one.fit][:1]:
        with pytest.raises((ModelError, UnsupportedOp)):
            prepare(_known_later(one, n), has_converter=has_converter)


def _known_later(one: Case, n: int) -> ModelProto:
    """The operator, and an addition behind it that takes the axis "n" of another input for `n`."""
    made = one.model()
    made.graph.input.append(value("later", ("n",)))
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(n, np.float32), "zeros"))
    made.graph.node.append(helper.make_node("Add", ["later", "zeros"], ["known"]))
    made.graph.output.append(value("known", None))
    return made


def test_every_rule_is_tested() -> None:
    tested = {(one.values[0].domain, one.values[0].op) for one in CASES}
    assert tested == {("", op) for op in RULES} | set(OTHER_DOMAINS)


@pytest.mark.parametrize("one", [
    case("Conv", 0, x=("n", 7, 17), w=(4, 6, 5)),
    case("Conv", 0, x=("n", 6, 17), w=(4, 6, 5), b=(5,)),
    case("DeformConv", 0, x=("n", 7, 17, 17), w=(4, 6, 5, 5), o=("n", 50, 13, 13)),
    case("InstanceNormalization", 0, x=("n", 7, 17), a=(6,), b=(6,)),
    case("Einsum", 0, attrs={"equation": "ij,jk->ik"}, x=("n", 6), w=(5, 4)),
    case("CumSum", 0, x=("n", 3), a=np.array(2)),
    case("Softmax", 0, attrs={"axis": 2}, x=("n", 3)),
    case("DequantizeLinear", 0, x=(UINT8, ()), s=("n",)),
    case("GatherElements", 0, x=(), i=(INT64, ("n",))),
    case("Col2Im", 0, x=(1, 12, "n"), a=np.array([4, 4]), b=np.array([0, 2])),
    case("GlobalAveragePool", 0, x=("n", 3, 0, 4)),
    case("ReverseSequence", 0, attrs={"time_axis": 1, "batch_axis": 1}, x=("n", 4), l=(INT64, (4,))),
])  # fmt: skip
def test_numbers_beside_an_open_size_must_agree_too(one: Case) -> None:
    """The rules for known shapes do not look at a model whose batch is open."""
    with pytest.raises(ModelError, match="does not fit its inputs"):
        prepare(one.model())


CALLED = ("Conv-x-w-6", "GridSample-x-g-2", "ReverseSequence-x-l-4")
"""A kernel that reads beyond its picture, its grid, its lengths."""


@pytest.mark.parametrize("one", [c for c in CASES if c.id in CALLED and "n" in c.values[0].inputs["x"]])
def test_a_call_of_other_sizes_is_refused(one: Case) -> None:
    compiled = tvmopt.compile(one.model(), threads=1, verify=False).model
    feeds = {i.name: np.zeros(i.shape, i.dtype) for i in compiled.inputs}
    assert compiled.run(feeds)
    for n in set(SIZES) - set(one.fit):
        feeds["x"] = np.zeros([n if d == "n" else d for d in one.inputs["x"]], np.float32)
        with pytest.raises(InputError):
            compiled.run(feeds)


def test_a_convolution_has_whole_groups_of_weights() -> None:
    """Seven filters in three groups were taken, the last of them for one of no group."""
    made = model(
        [helper.make_node("Conv", ["x", "w"], ["y"], group=3)],
        [value("x", (1, 6, 17)), value("w", ("n", 2, 5))],
        [value("y", None)],
    )
    compiled = tvmopt.compile(made, shape={"n": "3..9@6"}, threads=1, verify=False).model
    x, w = np.ones((1, 6, 17), np.float32), np.ones((9, 2, 5), np.float32)
    np.testing.assert_array_equal(compiled.run({"x": x, "w": w})["y"], np.full((1, 9, 13), 10))
    with pytest.raises(InputError, match="and here n = 7"):
        compiled.run({"x": x, "w": w[:7]})


@pytest.mark.parametrize("nodes", [
    [helper.make_node("Add", ["f", "b"], ["y"])],
    [helper.make_node("MatMul", ["f", "m"], ["y"])],
    [helper.make_node("Softmax", ["f"], ["g"]), helper.make_node("Add", ["g", "b"], ["h"]),
     helper.make_node("ReduceSum", ["h"], ["y"], keepdims=0)],
])  # fmt: skip
def test_sizes_that_values_decide_are_not_taken_for_numbers(nodes: list[Any]) -> None:
    """Nothing could be checked before the call: the kernel would multiply with rows that are not there."""
    first = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["f"], to=1)]
    inputs = [value("x", (5, 6)), value("b", (4,)), value("m", (4, 5))]
    with pytest.raises(UnsupportedOp, match="is decided by values"):
        prepare(model([*first, *nodes], inputs, [value("y", None)]))


def test_what_is_selected_of_an_axis_is_no_longer_than_it() -> None:
    """Values decide how many rows remain, but never more than there are: the kernel reads no row beyond them."""
    constants = {"zero": np.array([0]), "one": np.array([1]), "shape": np.array([1, 3])}
    nodes = [
        helper.make_node("NonZero", ["mask"], ["found"]),
        helper.make_node("Squeeze", ["found", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "one"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["index"]),
        helper.make_node("GatherElements", ["x", "index"], ["y"], axis=1),
    ]
    made = model(nodes, [value("mask", ("n",)), value("x", ("n", 40))], [value("y", None)], constants)
    compiled = tvmopt.compile(made, threads=1, verify=False).model
    x = np.arange(200, dtype=np.float32).reshape(5, 40)
    for mask in ([0, 1, 1, 0, 1], [1] * 5, [0] * 5):
        index = np.broadcast_to(np.flatnonzero(mask)[:, None], (sum(mask), 3))
        found = compiled.run({"mask": np.array(mask, np.float32), "x": x})["y"]
        np.testing.assert_array_equal(found, np.take_along_axis(x[: len(index)], index, 1))


def test_a_condition_of_compress_may_be_longer_than_an_open_axis() -> None:
    """What it says behind the end of the axis is of nothing, as in onnxruntime."""
    made = model(
        [helper.make_node("Compress", ["x", "c"], ["y"], axis=0)],
        [value("x", ("n", 3)), value("c", (5,), BOOL)],
        [value("y", None)],
    )
    compiled = tvmopt.compile(made, threads=1).model
    c = np.array([True, False, True, True, True])
    for n in (1, 2, 3, 4, 5, 8):
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        np.testing.assert_array_equal(compiled.run({"x": x, "c": c})["y"], x[:5][c[:n]])


FLOAT = TensorProto.FLOAT
LIMITS: dict[str, Any] = {"most": np.int64(3), "overlap": np.float32(0.5), "least": np.float32(0.1)}
RANKS: dict[str, tuple[dict[str, tuple[int, tuple[Any, ...]]], dict[str, Any], dict[str, Any]]] = {
    "NonMaxSuppression": ({"x": (FLOAT, (1, "n", 4, 1)), "s": (FLOAT, (1, 1, "n"))}, LIMITS, {}),
    "DequantizeLinear": (
        {"x": (UINT8, (2, "n", 3)), "s": (FLOAT, ("n",)), "z": (UINT8, ("n", 1))}, {}, {"axis": 1}
    ),
    "LSTM": (
        {"x": (FLOAT, ("t", 2, 5)), "w": (FLOAT, (1, 12, 5, 1)), "r": (FLOAT, (1, 12, 3))}, {}, {"hidden_size": 3}
    ),
    "BatchNormalization": (
        {"x": (FLOAT, ("n", 4, 3)), **{k: (FLOAT, (4, 1)) for k in ("s", "b", "m", "v")}}, {}, {}
    ),
}  # fmt: skip
"""An input of one axis too many: its inputs, constants, attributes."""


@pytest.mark.parametrize("op", RANKS)
def test_an_axis_too_many_is_refused_beside_open_sizes_too(op: str) -> None:
    inputs, constants, attrs = RANKS[op]
    nodes = [helper.make_node(op, [*inputs, *constants], ["y"], name="n", **attrs)]
    made = model(nodes, [value(k, s, t) for k, (t, s) in inputs.items()], [value("y", None)], constants, opset=21)
    with pytest.raises(ModelError) as error:
        tvmopt.compile(made, verify=False)
    assert op in error.value.what and "node 'n'" in error.value.where
