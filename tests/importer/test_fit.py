"""Nodes that contradict their inputs are refused by name; unusual valid ones are not.

onnxruntime refuses the same, but for scales of 0 and NaN and windows larger than the image: there it makes numbers up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, run_relax, value
from tvmopt.errors import ModelError
from tvmopt.importer import import_model

node = helper.make_node
F, I64 = TensorProto.FLOAT, TensorProto.INT64


def ones(*shape: int) -> Any:
    return np.ones(shape, "float32")


def one_node(op: str, shape: tuple[int, ...], weights: dict[str, Any], attrs: dict[str, Any], **more: Any) -> Any:
    """A model of one node that reads input x and these weights; an empty name leaves an input out."""
    opset, dtype, outputs = more.get("opset", 17), more.get("dtype", F), more.get("outputs", ["y"])
    names = ["x", *weights]
    made = model(
        [node(op, [n if not n.startswith("_") else "" for n in names], outputs, name="the node", **attrs)],
        [value("x", shape, dtype)],
        [],
        {k: v for k, v in weights.items() if not k.startswith("_")},
        opset=opset,
    )
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return made


def recurrent(op: str, **changed: Any) -> Any:
    """An LSTM, GRU or RNN of 5 steps, batch 2, input 7, hidden 6, with weights of other shapes as `changed` says."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    shapes = {"w": (1, gates * 6, 7), "r": (1, gates * 6, 6), "b": (1, 2 * gates * 6), "l": (2,), "h": (1, 2, 6)}
    if op == "LSTM":
        shapes |= {"c": (1, 2, 6), "p": (1, 18)}
    weights = {k: ones(*changed.get(k, s)) for k, s in shapes.items()}
    weights["l"] = np.full(shapes["l"], changed.get("length", 5), "int32")
    attrs = {"hidden_size": 6, **({"direction": changed["direction"]} if "direction" in changed else {})}
    return one_node(op, (5, 2, 7), weights, attrs)


def _quantised(**changed: float) -> dict[str, Any]:
    """What a QLinearConv reads besides its input; a scale as `changed` says."""
    scales = {n: np.float32(changed.get(n, 0.1)) for n in ("xs", "ws", "ys")}
    zero, w = np.uint8(3), np.ones((2, 1, 2, 2), "uint8")
    return {"xs": scales["xs"], "xz": zero, "w": w, "ws": scales["ws"], "wz": zero, "ys": scales["ys"], "yz": zero}


CONV = {"w": ones(4, 2, 3, 3), "b": ones(4)}
DEFORMED = {"w": ones(1, 2, 2, 2), "o": ones(1, 8, 2, 2)}
ROTARY = {"c": ones(9, 2), "s": ones(9, 2), "p": np.zeros((2, 3), "int64")}
LINEAR = {"k": ones(2, 4, 8), "v": ones(2, 4, 6)}
HEADS = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
STATE = {"w": ones(4, 1, 3), "b": ones(4), "p": ones(2, 4, 3)}
STATED = {"outputs": ["y", "z"], "opset": 27}


def linear(says: str, attrs: dict[str, Any] | None = None, **changed: Any) -> tuple[Any, str]:
    return one_node("LinearAttention", (2, 4, 8), LINEAR | changed, HEADS | (attrs or {}), **STATED), says


DAMAGED = {
    "LinearAttention tokens": linear("K has shape", k=ones(2, 5, 8)),
    "LinearAttention heads": linear("do not divide into 4 heads", {"q_num_heads": 4, "kv_num_heads": 4}),
    "LinearAttention groups": linear("q_num_heads is 2", {"kv_num_heads": 3}),
    "LinearAttention widths": linear("a head of Q has 4 elements and one of K 3", k=ones(2, 4, 6)),
    "LinearAttention state": linear("past_state has shape", p=ones(2, 2, 3, 4)),
    "LinearAttention ranks": linear("each has 3 dimensions", k=ones(2, 2, 4, 4)),
    "CausalConvWithState": (
        one_node("CausalConvWithState", (2, 3, 8), {"w": ones(4, 1, 3)}, {}, **STATED),
        "are not .batch, channels, length",
    ),
    "CausalConvWithState state": (
        one_node("CausalConvWithState", (2, 4, 8), STATE, {}, **STATED),
        "past_state has shape",
    ),
    "TensorScatter": (
        one_node("TensorScatter", (2, 3, 8, 5), {"u": ones(3, 3, 4, 5)}, {}, opset=24), "does not fit into a cache"
    ),
    "TensorScatter length": (
        one_node("TensorScatter", (2, 3, 8, 5), {"u": ones(2, 3, 9, 5)}, {}, opset=24), "does not fit into a cache"
    ),
    "TensorScatter axis": (
        one_node("TensorScatter", (2, 3, 8), {"u": ones(1, 3, 8)}, {"axis": 0}, opset=24), "that of the batches"
    ),
    "TensorScatter places": (
        one_node("TensorScatter", (2, 3, 8, 5), {"u": ones(2, 3, 4, 5), "i": np.array([1])}, {}, opset=24),
        "write_indices have shape",
    ),
    "LSTM R": (recurrent("LSTM", r=(6, 24, 1)), "R has shape"),
    "LSTM W": (recurrent("LSTM", w=(1, 24, 8)), "W has shape"),
    "LSTM B": (recurrent("LSTM", b=(1, 24)), "B has shape"),
    "LSTM state": (recurrent("LSTM", h=(2, 1, 6)), "initial_h has shape"),
    "LSTM cell": (recurrent("LSTM", c=(1, 2, 5)), "initial_c has shape"),
    "LSTM peepholes": (recurrent("LSTM", p=(1, 12)), "P has shape"),
    "LSTM lengths": (recurrent("LSTM", length=6), "sequence_lens"),
    "LSTM directions": (recurrent("LSTM", direction="bidirectional"), "W has shape"),
    "GRU R": (recurrent("GRU", r=(1, 12, 6)), "R has shape"),
    "GRU B": (recurrent("GRU", b=(2, 36)), "B has shape"),
    "RNN W": (recurrent("RNN", w=(2, 6, 7)), "W has shape"),
    "RotaryEmbedding": (one_node("RotaryEmbedding", (1, 2, 3, 4), ROTARY, {}, opset=23), "its positions have shape"),
    "OneHot": (one_node("OneHot", (3,), {"d": np.array(0), "v": ones(2)}, {}, dtype=I64), "depth"),
    "OneHot values": (one_node("OneHot", (3,), {"d": np.array(4), "v": ones(3)}, {}, dtype=I64), "two"),
    "pool": (one_node("AveragePool", (1, 1, 1, 3, 3), {}, {"kernel_shape": [2, 1, 2], "strides": [2, 2, 2]}), "larger"),
    "pool pads": (one_node("MaxPool", (1, 1, 9), {}, {"kernel_shape": [2], "pads": [2, 0]}), "smaller than the kernel"),
    "an empty image": (one_node("GlobalAveragePool", (1, 2, 0, 3), {}, {}), "nothing to pool"),
    "Conv window": (one_node("Conv", (1, 2, 2, 9), CONV, {}), "larger than the padded image"),
    "Conv channels": (one_node("Conv", (1, 3, 9, 9), CONV, {}), "channels do not match"),
    "Conv group": (one_node("Conv", (1, 6, 9, 9), CONV, {"group": 3}), "divide into 3 groups"),
    "Conv bias": (one_node("Conv", (1, 2, 9, 9), {**CONV, "b": ones(3)}, {}), "bias has shape"),
    **{
        f"DeformConv {name}": (
            one_node("DeformConv", (1, 2, 3, 3), DEFORMED, {name: [1, 1, 1]}, opset=22),
            f"3 {name} for 2 axes",
        )
        for name in ("pads", "strides", "dilations")
    },
    "ConvTranspose": (one_node("ConvTranspose", (1, 2, 9, 9), CONV, {}), "channels do not match"),
    "ConvTranspose padding": (
        one_node("ConvTranspose", (1, 3, 9, 9), CONV, {"output_padding": [1, (1 << 63) - 1], "output_shape": [10, 8]}),
        "output_padding are",
    ),
    "Gemm C": (one_node("Gemm", (3, 4), {"b": ones(4, 5), "c": ones(4)}, {}), "does not broadcast"),
    "BatchNorm": (
        one_node("BatchNormalization", (1, 4, 3), {"s": ones(4), "b": ones(4), "m": ones(3), "v": ones(4)}, {}),
        "one number a channel",
    ),
    "LayerNorm": (one_node("LayerNormalization", (2, 4), {"s": ones(3)}, {}), "does not broadcast"),
    "Split": (one_node("Split", (6,), {"s": np.array([3, 4])}, {}, outputs=["y", "z"]), "add up"),
    "Slice": (
        one_node("Slice", (6,), {"s": np.array([0]), "e": np.array([6]), "a": np.array([0]), "t": np.array([0])}, {}),
        "step is 0",
    ),
    "Slice axes": (
        one_node("Slice", (6, 2), {"s": np.array([0, 0]), "e": np.array([6, 1]), "a": np.array([0, -2])}, {}),
        "twice",
    ),
    "Tile": (one_node("Tile", (6,), {"r": np.array([-1])}, {}), "negative"),
    "TopK": (one_node("TopK", (6,), {"k": np.array([7])}, {}, outputs=["y", "z"]), "K is 7"),
    "Pad": (one_node("Pad", (3,), {"p": np.array([-2, -2])}, {}), "cut"),
    "DepthToSpace": (one_node("DepthToSpace", (1, 6, 2, 2), {}, {"blocksize": 2}), "divide"),
    "perm": (one_node("Transpose", (2, 3), {}, {"perm": [0, 0]}), "perm"),
    "ReduceSum axis": (one_node("ReduceSum", (2, 3), {"a": np.array([2])}, {}), "axis 2|out of range|axes"),
    "CumSum": (one_node("CumSum", (2, 3), {"a": np.array(2)}, {}), "axis 2"),
    "Softmax": (one_node("Softmax", (2, 3), {}, {"axis": 2}), "axis"),
    "scale 0": (one_node("QuantizeLinear", (4,), {"s": np.float32(0), "z": np.uint8(0)}, {}), "scales are positive"),
    "scale NaN": (one_node("QuantizeLinear", (4,), {"s": np.float32(np.nan)}, {}), "scales are positive"),
    "scale inf": (one_node("QuantizeLinear", (4,), {"s": np.float32(np.inf)}, {}), "scales are positive"),
    "scale of a weight": (
        one_node("DequantizeLinear", (2,), {"s": np.array([1, np.nan], "f")}, {"axis": 0}, dtype=TensorProto.INT8),
        "scales are finite",
    ),
    **{
        f"scale of {what} {number}": (
            one_node("QLinearConv", (1, 1, 3, 3), _quantised(**{what: number}), {}, dtype=TensorProto.UINT8), words
        )
        for what, number, words in (
            ("xs", -np.inf, "finite"), ("ws", np.nan, "finite"), ("ys", 0, "positive"), ("ws", -3.4e38, "float32"),
        )
    },
    "scales": (one_node("DequantizeLinear", (2, 4), {"s": ones(3)}, {"axis": 1}, dtype=TensorProto.INT8), "3 scales"),
    "Resize": (one_node("Resize", (1, 1, 4, 4), {"_r": 0, "_s": 0, "z": np.array([1, 1, 0, 4])}, {}), "positive"),
    "Resize of half a region": (
        one_node(
            "Resize", (1, 1, 5, 6), {"r": np.zeros(4, "f"), "z": np.array([1, 1, 2, 2.3], "f")},
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
        ),
        "4 numbers for 4 axes",
    ),
    "ScatterElements": (
        one_node("ScatterElements", (3, 3), {"i": np.zeros((2, 2), "int64"), "u": ones(2, 1)}, {}), "updates",
    ),
    "ScatterND": (one_node("ScatterND", (3, 3), {"i": np.zeros((2, 1), "int64"), "u": ones(2, 2)}, {}), "updates"),
    "type": (one_node("Add", (3,), {"y2": np.ones(3, "int64")}, {}), "one type"),
    "no such type": (one_node("Exp", (3,), {}, {}, dtype=TensorProto.UINT8), "cannot be uint8"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_nodes_are_refused_with_their_name(name: str) -> None:
    made, words = DAMAGED[name]
    with pytest.raises(ModelError, match=words) as caught:
        import_model(made)
    assert "the node" in str(caught.value) and "fix:" in str(caught.value)


@pytest.mark.parametrize(
    "name", [n for n in DAMAGED if not n.startswith("scale ") and n not in ("pool", "an empty image")]
)
def test_onnxruntime_refuses_them_too(name: str) -> None:
    made, _ = DAMAGED[name]
    feeds = {}
    for given in made.graph.input:
        kind = given.type.tensor_type
        feeds[given.name] = ones(*(d.dim_value for d in kind.shape.dim)).astype(
            helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        run_ort(made, feeds)


VALID = {
    "a scale that varies over other axes": one_node("LayerNormalization", (2, 3, 4), {"s": ones(3, 1)}, {}),
    "a pool of which the window is larger": one_node(
        "MaxPool", (1, 1, 3), {}, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    ),
    "C of one row": one_node("Gemm", (3, 4), {"b": ones(4, 5), "c": ones(1, 5)}, {}),
    "scale and zero point of one element": one_node("QuantizeLinear", (4,), {"s": ones(1), "z": np.uint8(0)}, {}),
    "a pad that cuts everything": one_node("Pad", (3,), {"p": np.array([-1, -1])}, {}),
    "an axis twice": one_node("ReduceSum", (2, 3), {"a": np.array([0, -2])}, {}),
    "Squeeze of a negative axis": one_node("Squeeze", (2, 1), {"a": np.array([-1])}, {}),
}


@pytest.mark.parametrize("name", VALID)
def test_unusual_valid_nodes(name: str) -> None:
    made = VALID[name]
    shape = tuple(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    for got, expected in zip(run_relax(import_model(made), {"x": x}), run_ort(made, {"x": x}), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_of_no_channels_is_its_bias(bias: bool) -> None:
    weights = {"w": np.zeros((4, 0, 3, 3), "float32"), **({"b": np.arange(4, dtype="float32")} if bias else {})}
    made = one_node("Conv", (1, 0, 5, 5), weights, {"pads": [1, 1, 1, 1]})
    (got,) = run_relax(import_model(made), {"x": np.zeros((1, 0, 5, 5), "float32")})
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(4.0)[:, None, None] * bias, (1, 4, 5, 5)))


@pytest.mark.parametrize(("op", "since"), [("Mod", 10), ("BitShift", 11), ("BitwiseAnd", 18)])
def test_an_operator_younger_than_the_opset_takes_its_own_types_only(op: str, since: int) -> None:
    """Booleans reached the compiler, which ended in an error of TVM's or took the process with it."""
    for opset in (7, since):
        graph = helper.make_graph(
            [helper.make_node(op, ["x", "y"], ["z"], **({"direction": "LEFT"} if op == "BitShift" else {}))], "g",
            [value("x", (2,), TensorProto.BOOL), value("y", (2,), TensorProto.BOOL)],
            [value("z", (2,), TensorProto.BOOL)],
        )  # fmt: skip
        with pytest.raises(ModelError, match=f"(?s){op} does not fit its inputs.*cannot be bool"):
            import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


@pytest.mark.parametrize(
    ("inputs", "outputs", "attributes", "says"),
    [
        (["x"], ["z"], {}, "BitShift takes 2 inputs, not 1"),
        (["x", "y", "x"], ["z"], {"direction": "LEFT"}, "BitShift takes 2 inputs, not 3"),
        (["x", "y"], ["z", "u"], {"direction": "LEFT"}, "BitShift takes 1 outputs, not 2"),
        (["x", "y"], ["z"], {}, "BitShift lacks its attribute 'direction'"),
        (["x", "y"], ["z"], {"direction": "UP"}, "'direction' of BitShift is 'UP'"),
        (["x", "y"], ["z"], {"direction": "LEFT", "axis": 1}, "has no attribute 'axis'"),
    ],
)
def test_an_operator_younger_than_the_opset_fits_its_first_schema(inputs, outputs, attributes, says) -> None:
    """Arity and attributes went to the converter as they were."""
    for opset in (7, 11):
        graph = helper.make_graph(
            [helper.make_node("BitShift", inputs, outputs, **attributes)], "g",
            [value(n, (2,), TensorProto.UINT8) for n in ("x", "y")], [value("z", (2,), TensorProto.UINT8)],
        )  # fmt: skip
        with pytest.raises(ModelError, match=says):
            import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


@pytest.mark.parametrize("scale", [0.0, -1.5, float("inf")])
def test_the_scale_of_an_attention_has_a_root(scale: float) -> None:
    """A negative one gave numbers here, and NaN by ONNX's definition."""
    made = one_node(
        "Attention", (1, 1, 4, 8), {"k": ones(1, 1, 6, 8), "v": ones(1, 1, 6, 8)}, {"scale": scale}, opset=23
    )
    with pytest.raises(ModelError, match="its scale is"):
        import_model(made)


@pytest.mark.parametrize("softcap", [float("nan"), float("inf")])
def test_the_softcap_of_an_attention_is_a_number(softcap: float) -> None:
    """NaN was taken for none."""
    attributes = {"softcap": softcap}
    made = one_node("Attention", (1, 1, 4, 8), {"k": ones(1, 1, 6, 8), "v": ones(1, 1, 6, 8)}, attributes, opset=23)
    with pytest.raises(ModelError, match="its softcap is"):
        import_model(made)


@pytest.mark.parametrize("kind", [TensorProto.UINT8, 5])
def test_a_type_to_compute_in_is_a_real_one(kind: int) -> None:
    scaled = one_node("QuantizeLinear", (4,), {"s": np.float32(0.1), "z": np.uint8(0)}, {"precision": kind}, opset=23)
    weighed = {"k": ones(1, 1, 6, 8), "v": ones(1, 1, 6, 8)}
    for made in (scaled, one_node("Attention", (1, 1, 4, 8), weighed, {"softmax_precision": kind}, opset=23)):
        with pytest.raises(ModelError, match="the number of no real type"):
            import_model(made)


@pytest.mark.parametrize("side", [2, 3])
def test_regions_of_an_empty_image(side: int) -> None:
    """TVM's TypeError, in the simplifier of loops that clamp to an axis of nothing."""
    shape = tuple(0 if axis == side else size for axis, size in enumerate((1, 1, 10, 10)))
    rois = {"r": ones(3, 4), "b": np.zeros(3, np.int64)}
    with pytest.raises(ModelError, match="nothing to pool"):
        import_model(one_node("RoiAlign", shape, rois, {"output_height": 5, "output_width": 5}))


def test_more_axes_than_numpy_has() -> None:
    """A run ended in an error of DLPack's when the result was handed over."""
    made = one_node("Reshape", (2, 3), {"s": np.array([2, 3] + [1] * 63)}, {})
    with pytest.raises(ModelError, match="65 dimensions"):
        import_model(made)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0, 1e30, 1e-30), "at most 2,147,483,647"),
        ((0, np.inf, 1), "its limit is inf"),
        ((0, 3, np.nan), "its delta is nan"),
    ],
)
def test_a_range_beyond_all_memory_is_refused(ends: tuple[float, float, float], words: str) -> None:
    """Its oracle counted to 1e60 in a loop; without verification it was empty."""
    weights = dict(zip("sld", (np.array(v, "f") for v in ends), strict=True))
    made = model([node("Range", ["s", "l", "d"], ["y"], "the node")], [], [value("y", None)], weights)
    with pytest.raises(ModelError, match="Range does not fit") as caught:
        tvmopt.compile(made)
    assert words in str(caught.value) and "the node" in str(caught.value)
