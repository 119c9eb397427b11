"""Converters against onnxruntime: what real models use beyond ONNX's own suite, with fresh random inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import compare, model, random_inputs, run_ort, run_relax, value
from tvmopt.importer.prepare import prepare
from tvmopt.importer.relax import to_relax

RNG = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 4, 17), (6, 4, 3), {"pads": [1, 2], "strides": [2]}),
    "1d_same": ((1, 4, 15), (6, 2, 4), {"auto_pad": "SAME_LOWER", "group": 2, "strides": [2]}),
    "2d_same_upper": ((1, 3, 9, 8), (5, 3, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "2d_dilated": ((1, 4, 16, 15), (8, 1, 3, 3), {"group": 4, "dilations": [2, 3], "pads": [2, 0, 1, 3]}),
    "3d": ((1, 2, 7, 8, 9), (3, 2, 3, 2, 1), {"pads": [1, 0, 0, 1, 1, 0], "strides": [1, 2, 2]}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(name: str) -> None:
    x, w, attrs = CONVOLUTIONS[name]
    compare("Conv", [normal(*x), normal(*w), normal(w[0])], weights=(1, 2), **attrs)


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((1, 4, 9), (4, 3, 4), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    "2d_group": ((1, 4, 7, 8), (4, 3, 3, 3), {"group": 2, "strides": [2, 2], "output_padding": [1, 0]}),
    "2d_same": ((1, 3, 5, 6), (3, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "2d_shape": ((1, 3, 5, 6), (3, 4, 3, 3), {"output_shape": [10, 12], "strides": [2, 2]}),
    "2d_dilated": ((1, 3, 5, 6), (3, 4, 2, 3), {"dilations": [2, 2], "pads": [1, 0, 0, 1]}),
    "3d": ((1, 2, 3, 4, 5), (2, 3, 2, 2, 3), {"strides": [2, 1, 2], "pads": [0, 1, 1, 0, 0, 1]}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name: str) -> None:
    x, w, attrs = TRANSPOSED[name]
    compare(
        "ConvTranspose",
        [normal(*x), normal(*w), normal(w[1] * attrs.get("group", 1))],
        weights=(1, 2),
        **attrs,
    )


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_average_pool(count: int, ceil: int) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    compare("AveragePool", [normal(1, 3, 8, 9)], count_include_pad=count, ceil_mode=ceil, opset=19, **attrs)


def test_max_pool_with_indices() -> None:
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    compare("MaxPool", [normal(2, 3, 8, 9)], 2, out_types=(TensorProto.FLOAT, TensorProto.INT64), **attrs)
    compare("MaxPool", [normal(2, 3, 17)], 2, kernel_shape=[2], out_types=(TensorProto.FLOAT, TensorProto.INT64))


RECURRENT = [("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {})]


@pytest.mark.parametrize(("op", "gates", "extra"), RECURRENT)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent(op: str, gates: int, extra: dict[str, Any], direction: str) -> None:
    """Sequence lengths at run time, initial states, bias; peepholes and clip for LSTM."""
    steps, batch, size, hidden, d = 5, 3, 7, 8, 1 + (direction == "bidirectional")
    state = normal(d, batch, hidden)
    inputs = [
        normal(steps, batch, size),
        normal(d, gates * hidden, size) * 0.3,
        normal(d, gates * hidden, hidden) * 0.3,
        normal(d, 2 * gates * hidden) * 0.3,
        np.array([5, 2, 3], np.int32),
        state,
    ]
    outputs = 2
    if op == "LSTM":
        inputs += [normal(d, batch, hidden), normal(d, 3 * hidden) * 0.3]
        outputs = 3
    compare(op, inputs, outputs, (1, 2, 3), hidden_size=hidden, direction=direction, **extra)


def test_lstm_without_options() -> None:
    compare("LSTM", [normal(1, 1, 7), normal(1, 32, 7), normal(1, 32, 8)], 3, (1, 2), hidden_size=8)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("RNN", 1)])  # of a GRU onnxruntime dies
def test_a_recurrence_of_no_steps(op, gates):
    """Its outputs are none, its last state is the first."""
    weights = [normal(1, gates * 8, 7), normal(1, gates * 8, 8)]
    compare(op, [np.zeros((0, 2, 7), "f"), *weights], 2, (1, 2), hidden_size=8)


@pytest.mark.parametrize("kind", ["scores", "boxes"])
def test_boxes_and_scores_that_are_no_numbers(kind):
    """A score that is NaN is above no threshold, and leaves the order of the others alone."""
    rng = np.random.default_rng(0)
    boxes, scores = rng.random((1, 17, 4)).astype("f"), rng.random((1, 2, 17)).astype("f")
    (scores if kind == "scores" else boxes)[0, 1, 3] = np.nan
    limits = [np.array([5]), np.float32([0.5]), np.float32([0.1])]
    compare("NonMaxSuppression", [boxes, scores, *limits], 1, (2, 3, 4), out_types=(TensorProto.INT64,))


@pytest.mark.parametrize("c", [(), (9,), (8, 1), (8, 9), (1, 9)])
def test_gemm(c: tuple[int, ...]) -> None:
    compare("Gemm", [normal(7, 8), normal(9, 7), normal(*c)], transA=1, transB=1, alpha=0.5, beta=2.0)


@pytest.mark.parametrize("alpha", [float("inf"), float("-inf"), 1e38])
@pytest.mark.parametrize("weights", [(), (1,)])
def test_gemm_of_a_huge_alpha(alpha: float, weights: tuple[int, ...]) -> None:
    """A times alpha first: inf - inf. Sums of the huge finite one do not cancel: what is left of those only rounds."""
    small = [normal(5, 8) * np.float32(0.1), normal(8, 9) * np.float32(0.1), normal(9)]
    if np.isfinite(alpha):
        small = [np.abs(a) for a in small]
    compare("Gemm", small, 1, weights, alpha=alpha)


RESIZES = [
    ("nearest", "asymmetric", {"nearest_mode": "floor"}),
    ("nearest", "half_pixel", {"nearest_mode": "round_prefer_ceil"}),
    ("nearest", "align_corners", {}),
    ("linear", "half_pixel", {}),
    ("linear", "align_corners", {}),
    ("linear", "asymmetric", {}),
    ("linear", "pytorch_half_pixel", {}),
    ("cubic", "half_pixel", {}),
    ("cubic", "align_corners", {"cubic_coeff_a": -0.5}),
    ("linear", "half_pixel", {"antialias": 1}),
]


@pytest.mark.parametrize(("mode", "transform", "extra"), RESIZES)
@pytest.mark.parametrize("size", [(1, 2, 14, 15), (1, 2, 4, 9), (1, 2, 21, 5)])
def test_resize(mode: str, transform: str, extra: dict[str, Any], size: tuple[int, ...]) -> None:
    inputs = [normal(1, 2, 7, 9), None, None, np.array(size, np.int64)]
    compare("Resize", inputs, weights=(3,), opset=18, mode=mode, coordinate_transformation_mode=transform, **extra)


@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 1.7)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_by_scales(mode: str, scales: tuple[float, ...]) -> None:
    inputs = [normal(1, 2, 7, 9), None, np.array(scales, np.float32)]
    compare("Resize", inputs, weights=(2,), mode=mode)


@pytest.mark.parametrize("size", [(9, 1), (1, 9)])
def test_resize_beside_an_axis_of_one_element(size: tuple[int, int]) -> None:
    inputs = [normal(1, 2, *size), None, np.array([1, 1, *(3 if n > 1 else 1 for n in size)], np.float32)]
    compare("Resize", inputs, weights=(2,), mode="linear", coordinate_transformation_mode="align_corners")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_to_one_element(mode: str) -> None:
    """pytorch_half_pixel takes the first element there."""
    inputs = [normal(1, 2, 2, 9), None, np.array([1, 1, 0.5, 1.7], np.float32)]
    compare("Resize", inputs, weights=(2,), mode=mode, coordinate_transformation_mode="pytorch_half_pixel")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    pads = np.array([0, 1, 2, 0, 2, 1], np.int64)
    compare("Pad", [normal(2, 4, 5), pads], weights=(1,), mode=mode, opset=19)
    cut = np.array([0, -1, 2, 0, 0, -2], np.int64)
    if mode == "constant":
        compare("Pad", [normal(2, 4, 5), cut, np.float32(3)], weights=(1, 2), mode=mode, opset=19)


def test_slice_with_negative_steps() -> None:
    begin, end, axes, steps = ([-1, 3], [-9, 0], [1, -1], [-2, -1])
    arrays = [np.array(v, np.int64) for v in (begin, end, axes, steps)]
    compare("Slice", [normal(2, 7, 5), *arrays], weights=(1, 2, 3, 4))


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_both_meanings(op: str, opset: int) -> None:
    compare(op, [normal(2, 3, 7)], opset=opset, axis=1)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_of_both_meanings_in_a_branch(op: str, opset: int, taken: bool) -> None:
    """ONNX's converter to newer opsets changes what Hardmax means, there as well."""
    result = value("r", (2, 3, 7))
    branches = [
        helper.make_graph([helper.make_node(kind, ["x"], ["r"], **given)], kind, [], [result])
        for kind, given in ((op, {"axis": 1}), ("Neg", {}))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [value("x", (2, 3, 7)), value("c", (), TensorProto.BOOL)]
    made = model([node], inputs, [value("y", (2, 3, 7))], opset=opset)
    feeds = {"x": normal(2, 3, 7), "c": np.array(taken)}
    found = tvmopt.compile(made).model.run(feeds)["y"]
    np.testing.assert_allclose(found, run_ort(made, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp"])
def test_reductions(op: str) -> None:
    compare(op, [normal(3, 4, 5), np.array([-1, 0], np.int64)], weights=(1,), opset=18, keepdims=0)
    compare(op, [normal(3, 4, 5)], opset=18, noop_with_empty_axes=1)
    compare(op, [normal(3, 4, 5)], opset=18)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceLogSum", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.filterwarnings("error")
def test_reductions_of_no_integers(op: str, dtype: str) -> None:
    """The mean was the lowest number of the type, with a warning of NumPy's about a NaN that becomes an integer."""
    info = np.iinfo(dtype)
    expected = {"ReduceMean": 0, "ReduceProd": 1, "ReduceMin": info.max}.get(op, info.min)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], keepdims=0)],
        "g",
        [helper.make_tensor_value_info("x", kind, [2, 0, 3])],
        [helper.make_tensor_value_info("y", kind, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert tvmopt.compile(model, verify=False, records=False).model(np.zeros((2, 0, 3), dtype)) == expected


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_mean_of_integers_is_divided_towards_zero(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    array = np.array([[-7, 2, -3, 1], [9, 9, 9, -1]], dtype)
    compare("ReduceMean", [array, np.array([1])], weights=(1,), opset=18, out_types=(kind,))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int64"])
def test_sign_of_integers(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = np.iinfo(dtype)
    compare("Sign", [np.array([0, 1, 7, info.min, info.max], dtype)], out_types=(kind,))


@pytest.mark.parametrize("op", ["Cosh", "Sinh"])
def test_hyperbolic_functions_over_their_whole_range(op: str) -> None:
    near = np.linspace(-2, 2, 401)
    x = np.concatenate([np.linspace(-89.2, 89.2, 101), near, [0, 1e-30, np.inf, -np.inf, np.nan]]).astype(np.float32)
    compare(op, [x], tolerance=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_det(n: int) -> None:
    compare("Det", [normal(2, n, n)], tolerance=1e-4)


def test_group_normalization_and_norms() -> None:
    compare("LpNormalization", [normal(3, 7)], p=1, axis=0)
    compare("LayerNormalization", [normal(2, 7, 9), normal(9), normal(9)], axis=-1)
    compare("LayerNormalization", [normal(2, 7, 9), normal(7, 9)], axis=1)
    compare("InstanceNormalization", [normal(2, 3, 7, 9), normal(3), normal(3)])
    compare("InstanceNormalization", [normal(1, 8, 17), normal(8), normal(8)], epsilon=0.1)


def test_integer_products() -> None:
    a = RNG.integers(0, 255, (7, 9)).astype(np.uint8)
    w = RNG.integers(-128, 127, (9, 8)).astype(np.int8)
    zero = RNG.integers(-20, 20, 8).astype(np.int8)
    compare("MatMulInteger", [a, w, np.uint8(3), zero], weights=(1, 3), out_types=(TensorProto.INT32,))
    x = RNG.integers(0, 255, (1, 3, 8, 7)).astype(np.uint8)
    k = RNG.integers(0, 255, (4, 3, 3, 3)).astype(np.uint8)
    arrays = [x, k, np.uint8(7), np.uint8(9)]
    compare("ConvInteger", arrays, weights=(1,), pads=[1, 1, 0, 1], out_types=(TensorProto.INT32,))


@pytest.mark.parametrize("weights", [(1,), (1, 3)])
@pytest.mark.parametrize(("zero", "zeros"), [(0, 0), (7, 128), (255, 1), (3, 255), (128, 100)])
def test_integer_products_of_bytes(zero: int, zeros: int, weights: tuple[int, ...]) -> None:
    """Constant weights of any zero point, per tensor and per channel; borders hold the data's zero point."""
    own = np.uint8(zero)

    def weight(count: int) -> np.ndarray:
        shifted = np.minimum(zeros + np.arange(count) % 3, 255).astype(np.uint8)
        return shifted if zeros else np.uint8(zeros)

    a = RNG.integers(0, 256, (2, 5, 33)).astype(np.uint8)
    w = RNG.integers(0, 256, (33, 17)).astype(np.uint8)
    compare("MatMulInteger", [a, w, own, weight(17)], weights=weights, out_types=(TensorProto.INT32,))
    for groups, each in ((1, 5), (5, 1), (1, 5)):
        for image, kernel, pads in (((9, 8), (3, 3), [1, 2, 0, 1]), ((17,), (5,), [2, 2]), ((6, 7), (1, 1), [0] * 4)):
            x = RNG.integers(0, 256, (2, 5, *image)).astype(np.uint8)
            k = RNG.integers(0, 256, (10, each, *kernel)).astype(np.uint8)
            given = [x, k, own, np.uint8(zeros)]
            compare(
                "ConvInteger", given, weights=weights, pads=pads, group=groups, out_types=(TensorProto.INT32,)
            )  # fmt: skip


def test_dynamic_quantize_linear() -> None:
    types = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8)
    compare("DynamicQuantizeLinear", [normal(7, 9)], 3, out_types=types)


def test_quantized_conv_by_channel() -> None:
    x = RNG.integers(0, 255, (1, 3, 8, 7)).astype(np.uint8)
    k = RNG.integers(-128, 127, (4, 3, 3, 3)).astype(np.int8)
    scale = (RNG.random(4) * 0.02 + 0.01).astype(np.float32)
    inputs = [
        x,
        np.float32(0.02),
        np.uint8(120),
        k,
        scale,
        np.zeros(4, np.int8),
        np.float32(0.1),
        np.uint8(99),
    ]
    inputs.append(RNG.integers(-500, 500, 4).astype(np.int32))
    compare("QLinearConv", inputs, weights=(1, 2, 3, 4, 5, 6, 7, 8), out_types=(TensorProto.UINT8,))


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (1, 3, 1, 1), (9,), (8, 9)])
def test_prelu(slope: tuple[int, ...]) -> None:
    compare("PRelu", [normal(2, 3, 8, 9), normal(*slope)], weights=(1,))


MS = "com.microsoft"


def test_gelus() -> None:
    compare("Gelu", [normal(3, 9)], domain=MS)
    compare("BiasGelu", [normal(3, 9), normal(9)], domain=MS)
    compare("FastGelu", [normal(3, 9), normal(9)], domain=MS)
    compare("QuickGelu", [normal(3, 9)], domain=MS, alpha=1.702)


def test_skip_layer_normalization() -> None:
    x = [normal(2, 7, 16), normal(2, 7, 16), normal(16), normal(16), normal(16)]
    compare("SkipLayerNormalization", x, domain=MS, epsilon=1e-5)
    x = [normal(2, 7, 16), normal(2, 7, 16), normal(16), normal(16)]
    compare("SkipSimplifiedLayerNormalization", x, domain=MS, epsilon=1e-5)


def test_simplified_layer_normalization() -> None:
    compare("SimplifiedLayerNormalization", [normal(2, 7, 16), normal(16)], epsilon=1e-5, axis=-1)


def test_embed_layer_normalization() -> None:
    ids, segments = (RNG.integers(0, n, (2, 7)).astype(np.int32) for n in (30, 2))
    mask = (RNG.random((2, 7)) > 0.3).astype(np.int32)
    tables = [normal(30, 16), normal(9, 16), normal(2, 16), normal(16), normal(16)]
    types = (TensorProto.FLOAT, TensorProto.INT32)
    compare(
        "EmbedLayerNormalization",
        [ids, segments, *tables, mask],
        2,
        (2, 3, 4, 5, 6),
        MS,
        out_types=types,
        epsilon=1e-5,
    )


def test_fused_matmul() -> None:
    compare("FusedMatMul", [normal(2, 9, 7), normal(2, 8, 9)], domain=MS, transA=1, transB=1, alpha=0.25)


@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_nbits(zeros: bool) -> None:
    n, k, block = 8, 48, 16
    packed = RNG.integers(0, 255, (n, k // block, block // 2)).astype(np.uint8)
    inputs = [normal(5, k), packed, normal(n * k // block)]
    if zeros:
        inputs.append(RNG.integers(0, 255, n * 2).astype(np.uint8))
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    compare("MatMulNBits", inputs, 1, tuple(range(1, len(inputs))), MS, tolerance=1e-3, **attrs)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    angles = RNG.random((32, 4)) * 6
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    positions = RNG.integers(0, 32, (2, 7)).astype(np.int64)
    compare("RotaryEmbedding", [normal(2, 7, 24), positions, *caches], domain=MS, interleaved=interleaved)
    start = np.array([3], np.int64)
    compare("RotaryEmbedding", [normal(2, 3, 7, 8), start, *caches], domain=MS, interleaved=interleaved)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", ["none", "flags", "lengths"])
def test_ms_attention(unidirectional: int, mask: str) -> None:
    given: Any = {"none": None, "flags": np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)}.get(
        mask, np.array([7, 4], np.int32)
    )
    inputs = [normal(2, 7, 16), normal(16, 48) * 0.3, normal(48)] + ([given] if given is not None else [])
    compare("Attention", inputs, 1, (1, 2), MS, num_heads=4, unidirectional=unidirectional)


def test_ms_attention_with_past() -> None:
    inputs = [normal(2, 3, 16), normal(16, 48) * 0.3, normal(48), None, normal(2, 2, 4, 5, 4)]
    compare("Attention", inputs, 2, (1, 2), MS, num_heads=4, unidirectional=1)


def test_multi_head_attention() -> None:
    q, k, v = normal(2, 5, 16), normal(2, 7, 16), normal(2, 7, 24)
    compare("MultiHeadAttention", [q, k, v, normal(56)], 1, (3,), MS, num_heads=4)
    extra = normal(1, 4, 5, 7)
    compare("MultiHeadAttention", [q, k, v, None, None, extra], 1, (), MS, num_heads=4, scale=0.3)


def test_group_query_attention() -> None:
    angles = RNG.random((32, 8)) * 6
    caches = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    lengths, total = np.array([6, 6], np.int32), np.array(7, np.int32)
    q, k, v = normal(2, 7, 64), normal(2, 7, 32), normal(2, 7, 32)
    inputs = [q, k, v, None, None, lengths, total, *caches]
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    compare("GroupQueryAttention", inputs, 3, (6, 7, 8), MS, **attrs)


def test_quantised_elementwise() -> None:
    a, c = (RNG.integers(0, 255, (3, 9)).astype(np.uint8) for _ in range(2))
    scales = [np.float32(0.02), np.uint8(120)]
    inputs = [a, *scales, c, np.float32(0.03), np.uint8(100), np.float32(0.05), np.uint8(128)]
    for op in ("QLinearAdd", "QLinearMul"):
        compare(op, inputs, 1, (1, 2, 4, 5, 6, 7), MS, out_types=(TensorProto.UINT8,))


def test_low_precision_weights_are_folded() -> None:
    """An int4 weight behind DequantizeLinear, by blocks (as quantised language models have it)."""
    import ml_dtypes

    w = RNG.integers(-8, 7, (32, 8)).astype(ml_dtypes.int4)
    scale = normal(2, 8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    initial = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(scale, "s")]
    graph = helper.make_graph(nodes, "g", [value("x", (3, 32))], [value("y", (3, 8))], initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    inputs = random_inputs(made)
    expected = inputs["x"] @ (w.astype(np.float32) * np.repeat(scale, 16, 0))
    np.testing.assert_allclose(run_relax(to_relax(prepare(made)), inputs)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_det_of_an_offset(n: int, offset: float) -> None:
    """The products that cancel are in float64."""
    x = normal(2, n, n) + np.float32(offset)
    node = helper.make_node("Det", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", x.shape)], [value("y", (2,))])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    (found,) = run_relax(to_relax(prepare(made)), {"x": x})
    np.testing.assert_allclose(found, np.linalg.det(x.astype("float64")), rtol=1e-5)
