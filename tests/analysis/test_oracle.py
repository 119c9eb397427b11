"""The oracle against ONNX's own expected results, and where double precision shows."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.importer.onnx_check import model, run_ort, value
from tvmopt.analysis.oracle import evaluate
from tvmopt.analysis.oracle.evaluate import Oracle
from tvmopt.analysis.oracle.overflow import Undecided
from tvmopt.analysis.oracle.products import integer_product
from tvmopt.analysis.oracle.table import OPERATORS
from tvmopt.analysis.oracle.tiles import conv_by_tiles, has_tiles
from tvmopt.analysis.oracle.values import UNLIMITED, Arithmetic, Call, Unfit, Unsupported, limit

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # onnx computes overflows while it makes its cases
    from onnx.backend.test.loader import load_model_tests

    CASES = load_model_tests(kind="node")

OUTSIDE = {
    "bernoulli": "random",
    "test_if_opt": "optional sequences",
    "test_optional_has_element_empty_optional_input": "optional inputs of a graph",
}


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _agree(name: str, found: Any, expected: Any, rtol: float) -> None:
    if isinstance(expected, list):
        for a, b in zip(found, expected, strict=True):
            _agree(name, a, b, rtol)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, name
    if expected.dtype.kind in "OUSiub":
        assert np.array_equal(found, expected), name
        return
    half = expected.dtype.itemsize < 4
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        found.astype(wide), expected.astype(wide), max(rtol, 1e-2 * half), 1e-3 if half else 1e-4, err_msg=name
    )


def test_every_operator_of_onnx_s_suite() -> None:
    wrong = []
    for case in CASES:
        if any(word in case.name for word in OUTSIDE):
            continue
        try:
            oracle = Oracle(case.model)
            for given, expected in case.data_sets:
                feeds = {v.name: _array(a) for v, a in zip(case.model.graph.input, given, strict=False)}
                found = oracle.run(feeds)
                for output, value in zip(case.model.graph.output, expected, strict=True):
                    _agree(case.name, found[output.name], _array(value), case.rtol)
        except Exception as error:  # all that fail are told at once
            wrong.append(f"{case.name}: {type(error).__name__} {str(error).strip()[:200]}")
    assert not wrong, "\n".join(wrong)


def _model(nodes: list[Any], inputs: dict[str, list[int]], **initializers: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_sums_are_exact_where_float32_is_not() -> None:
    model = _model([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], {"x": [3]})
    x = np.array([1e8, 1.0, -1e8], np.float32)
    assert Oracle(model).run({"x": x})["y"] == 1.0


@pytest.mark.parametrize("length", [16, 33, 4096])
def test_transforms_of_an_offset_keep_their_digits(length: int) -> None:
    """What stands beside an offset of 1e6 is lost in float32, and must not be in the oracle."""
    rng = np.random.default_rng(length)
    x = (1e6 + rng.standard_normal((2, 2 * length))).astype(np.float32)
    window = np.hanning(length).astype(np.float32)
    nodes = [
        helper.make_node("STFT", ["x", "step", "w"], ["y"]),
        helper.make_node("Unsqueeze", ["x", "last"], ["u"]),
        helper.make_node("DFT", ["u"], ["z"], axis=1, onesided=1),
    ]
    typed = helper.make_tensor_value_info
    weights = {"step": np.array(length // 4 + 1), "w": window, "last": np.array([2])}
    graph = helper.make_graph(
        nodes, "g", [typed("x", 1, x.shape)], [typed(n, 1, None) for n in "yz"],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = Oracle(made).run({"x": x})
    framed, whole = (found[name] for name in "yz")
    starts = range(0, length + 1, length // 4 + 1)
    expected = np.stack([np.fft.rfft(x[:, s : s + length].astype(np.float64) * window) for s in starts], 1)
    np.testing.assert_allclose(framed[..., 0] + 1j * framed[..., 1], expected, atol=1e-12 * 1e6 * length)
    expected = np.fft.rfft(x.astype(np.float64))
    np.testing.assert_allclose(whole[..., 0] + 1j * whole[..., 1], expected, atol=1e-12 * 1e6 * 2 * length)


def test_large_weights_are_widened_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once they would be twice the file, beside it."""
    sizes, number = 512, 12
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((sizes, sizes)).astype(np.float32) / 16 for i in range(number)}
    nodes = [helper.make_node("MatMul", [f"h{i}" if i else "x", f"w{i}"], [f"h{i + 1}"]) for i in range(number)]
    nodes.append(helper.make_node("Add", [f"h{number}", "w0"], ["y"]))
    model, x = _model(nodes, {"x": [sizes, sizes]}, **weights), rng.standard_normal((sizes, sizes)).astype(np.float32)
    expected = x.astype(np.float64)
    for array in weights.values():
        expected = expected @ array
    monkeypatch.setattr(evaluate, "HELD", 1 << 22)
    tracemalloc.start()
    try:
        found = Oracle(model).run({"x": x})["y"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found, expected + weights["w0"], rtol=1e-12)
    assert peak < number * 8 * sizes**2 * 0.8, f"{peak >> 20} MB"


def test_a_large_weight_may_be_an_output_and_stand_outside_a_loop() -> None:
    w = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["b"]), helper.make_node("Identity", ["go"], ["on"])], "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, []),
         helper.make_tensor_value_info("a", 1, [128, 256])],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("b", 1, [128, 256])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    found = Oracle(_model([loop], {"x": [128, 256]}, n=np.array(5), w=w)).run({"x": w}, ["y", "w"])
    np.testing.assert_allclose(found["y"], 6 * w.astype(np.float64), rtol=1e-12)
    assert found["w"].dtype == np.float64 and np.array_equal(found["w"], w)


def test_casts_between_real_types_round_nothing() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=10), helper.make_node("Cast", ["h"], ["y"], to=1)]
    x = np.array([1.0001], np.float32)
    assert Oracle(_model(nodes, {"x": [1]})).run({"x": x})["y"] == np.float64(x[0])
    assert Oracle(_model(nodes, {"x": [1]}), Arithmetic(np.float32, stores=True)).run({"x": x})["y"] == 1.0


@pytest.mark.parametrize(("to", "largest"), [(10, 65504.0), (1, float(np.finfo(np.float32).max))])
def test_what_the_declared_type_cannot_hold_is_infinite(to: int, largest: float) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=to), helper.make_node("Add", ["c", "c"], ["y"])]
    x = np.array([largest, -largest, 1.0], np.float32)
    assert np.array_equal(Oracle(_model(nodes, {"x": [3]})).run({"x": x})["y"], [np.inf, -np.inf, 2.0])


def test_integers_wrap_around() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=3), helper.make_node("Add", ["c", "c"], ["y"])]
    found = Oracle(_model(nodes, {"x": [2]})).run({"x": np.array([100, 3], np.float32)})["y"]
    assert found.dtype == np.int8 and found.tolist() == [-56, 6]


def test_powers_of_integers_keep_all_digits_beside_negative_ones() -> None:
    """One negative exponent made float64 of all of them."""
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=7), helper.make_node("Pow", ["i", "i"], ["y"])]
    found = Oracle(_model(nodes, {"x": [4]})).run({"x": np.array([15, -2, -1, 0], np.float32)})["y"]
    assert found.tolist() == [15**15, 0, -1, 1]


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-(2**63), -4, 0, 3, 2**63 - 1])
def test_a_diagonal_as_far_away_as_an_index_goes(k: int, upper: int) -> None:
    """NumPy: Python int too large to convert to C long."""
    nodes = [helper.make_node("Trilu", ["x", "k"], ["y"], upper=upper)]
    x = np.ones((3, 4), np.float32)
    found = Oracle(_model(nodes, {"x": [3, 4]}, k=np.array(k, np.int64))).run({"x": x})["y"]
    row, column = np.indices(x.shape)
    np.testing.assert_array_equal(found, (column - row >= k) if upper else (column - row <= k))


def test_inner_tensors_are_seen_and_replaced() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])]
    oracle, seen = Oracle(_model(nodes, {"x": [2]})), []

    def observe(name: str, value: Any) -> Any:
        seen.append(name)
        return value._replace(array=value.array + 1) if name == "a" else None

    assert oracle.run({"x": np.array([-1, 2], np.float32)}, observe=observe)["y"].tolist() == [-1, -3]
    assert seen == ["a", "y"]


def test_a_body_sees_the_tensors_around_it() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("c", 9))]
        + [helper.make_tensor_value_info("s", 1, [2])],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("t", 1, [2])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    found = Oracle(_model([loop], {"x": [2]}, n=np.array(3))).run({"x": np.array([1, 2], np.float32)})["y"]
    assert found.tolist() == [4, 8]


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum"])
def test_a_run_that_rounds_adds_one_after_the_other(operator: str) -> None:
    """Sums in pairs would make the run more exact than any engine is, and right kernels wrong beside it."""
    x = (1 + np.random.default_rng(0).random((1, 8, 160, 160))).astype(np.float32)
    typed = helper.make_tensor_value_info
    node = helper.make_node(operator, ["x", "a"], ["y"])
    graph = helper.make_graph(
        [node], "g", [typed("x", 1, x.shape)], [typed("y", 1, None)], [numpy_helper.from_array(np.array([2, 3]), "a")]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    exact = np.asarray(Oracle(made).run({"x": x})["y"])
    rounds = np.asarray(Oracle(made, Arithmetic(np.float32)).run({"x": x})["y"])
    assert 1e-6 < np.abs(rounds / exact - 1).max() < 1e-3


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 0, 1, 3]])
@pytest.mark.parametrize("size", [(3, 3), (4, 7), (6, 6), (17, 9)])
def test_a_convolution_in_tiles(size: tuple[int, int], pads: list[int]) -> None:
    """The same numbers as by the definition, for images that tiles do not divide."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, *size)).astype("f"), rng.standard_normal((7, 5, 3, 3)).astype("f")
    bias = rng.standard_normal(7).astype("f")
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads)
    (exact,) = Oracle(_model([node], {"x": list(x.shape)}, w=w, b=bias)).run({"x": x}, ["y"]).values()
    call = Call(node, 11, {"pads": pads}, [None] * 3, Arithmetic(np.float32), lambda *_: [])
    assert has_tiles(call, x, w)
    found = conv_by_tiles(call, x, w, bias)
    assert found.dtype == np.float32 and np.abs(found - exact).max() < 1e-4


def test_a_small_channel_beside_a_large_one_keeps_its_digits() -> None:
    x = np.array([1e12, 3.0, 1e12, 5.0, 0.25, 7.0]).reshape(1, 6, 1)
    for size in (1, 3):
        value = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, [1, 6, 1]) for name in "xy"]
        node = helper.make_node("LRN", ["x"], ["y"], alpha=1.0, beta=1.0, bias=0.0, size=size)
        found = Oracle(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]))).run({"x": x})["y"]
        squares = np.pad(x.reshape(-1) ** 2, size // 2)
        windows = np.lib.stride_tricks.sliding_window_view(squares, size).sum(-1)
        np.testing.assert_allclose(found.reshape(-1), x.reshape(-1) / (windows / size), 1e-12)


@pytest.mark.parametrize(
    "image, block, frame",
    [
        ([8, 12], [3, 3], {"pads": [1, 1, 1, 1]}),
        ([7, 9], [2, 3], {"strides": [2, 1], "dilations": [3, 2], "pads": [0, 1, 2, 3]}),
        ([9], [4], {"strides": [3]}),  # the last element is in no block
        ([4, 5, 6], [1, 2, 3], {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 0, 1]}),
    ],
)
def test_blocks_are_put_into_an_image_without_a_loop_over_its_elements(
    image: list[int], block: list[int], frame: dict[str, list[int]]
) -> None:
    """onnx.reference takes 40 us for each element of a block: four minutes for 256 images of 3x8x12."""
    assert ("ai.onnx", "Col2Im") in OPERATORS
    count = len(image)
    pads = frame.get("pads", [0] * 2 * count)
    every = zip(image, block, frame.get("strides", [1] * count), frame.get("dilations", [1] * count), strict=True)
    places = [(n + pads[i] + pads[count + i] - d * (k - 1) - 1) // s + 1 for i, (n, k, s, d) in enumerate(every)]
    x = np.random.default_rng(0).standard_normal((2, 3 * int(np.prod(block)), int(np.prod(places))))
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], **frame)
    sizes = {"image": np.array(image, np.int64), "block": np.array(block, np.int64)}
    made = model([node], [value("x", x.shape, TensorProto.DOUBLE)], [value("y", None, TensorProto.DOUBLE)], sizes)
    found, expected = Oracle(made).run({"x": x})["y"], ReferenceEvaluator(made).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected, 1e-12, 1e-12)


@pytest.mark.parametrize("number", [0.0, 2.0])
def test_a_scalar_has_no_places(number: float) -> None:
    """ONNX says so; NumPy and onnxruntime take it for a list of one number."""
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float x) => (int64[n, m] y) { y = NonZero(x) }'
    )
    assert Oracle(made).run({"x": np.float32(number)})["y"].shape == (0, int(number != 0))


def test_an_optional_value_is_itself() -> None:
    nodes = [
        helper.make_node("Optional", ["x"], ["o"]),
        helper.make_node("OptionalGetElement", ["o"], ["y"]),
        helper.make_node("OptionalHasElement", ["o"], ["there"]),
    ]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 4]) for name in "xy")
    there = helper.make_tensor_value_info("there", onnx.TensorProto.BOOL, [])
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y, there]), opset_imports=[helper.make_opsetid("", 18)]
    )
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = Oracle(made).run({"x": given})
    assert np.array_equal(found["y"], given) and found["there"] is not None and bool(found["there"])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "opset", "out"),
    [
        ("CumSum", [(0, 6), 0], {"exclusive": 1}, 17, (0, 6)),
        ("CumSum", [(0, 6), 0], {"exclusive": 1, "reverse": 1}, 17, (0, 6)),
        ("Hardmax", [(6, 0)], {"axis": 1}, 17, (6, 0)),
        ("Softmax", [(0, 6)], {"axis": 1}, 11, (0, 6)),
        ("ConvTranspose", [(0, 3, 9, 9), (3, 8, 3, 3)], {"strides": [2, 2]}, 17, (0, 8, 19, 19)),
        ("GridSample", [(0, 3, 5, 5), (0, 4, 4, 2)], {}, 20, (0, 3, 4, 4)),
        ("GroupNormalization", [(0, 4, 3, 3), (4,), (4,)], {"num_groups": 2}, 21, (0, 4, 3, 3)),
        ("GatherND", [(0, 5), np.zeros((0, 2, 1), np.int64)], {"batch_dims": 1}, 17, (0, 2)),
    ],
)  # fmt: skip
def test_operators_of_nothing(op: str, shapes: list[Any], attributes: dict[str, Any], opset: int, out: Any) -> None:
    """Where values select nothing, there are no images, no rows and no elements along an axis."""
    arrays = [np.ones(s, np.float32) if isinstance(s, tuple) else np.asarray(s) for s in shapes]
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    graph = helper.make_graph([helper.make_node(op, [*feeds], ["y"], **attributes)], "g", infos,
                              [helper.make_tensor_value_info("y", 1, None)])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    for run in (Oracle(model), Undecided(model)):
        assert run.run(feeds)["y"].shape == out


@pytest.mark.parametrize("to", [onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT])
def test_a_cast_to_its_own_type_limits_nothing(to: int) -> None:
    """An engine that keeps a product of float16 in a wider register has no such cast: Attention's body writes one
    behind its scores. A cast of float32 to float16 is asked for, and overflows in every engine."""
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"]), helper.make_node("Cast", ["y"], ["z"], to=10)]
    x, z = helper.make_tensor_value_info("x", to, [2]), helper.make_tensor_value_info("z", 10, [2])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [z]), opset_imports=[helper.make_opsetid("", 21)])
    given = {"x": np.array([2, 1000], np.float16 if to == onnx.TensorProto.FLOAT16 else np.float32)}
    assert Oracle(model).run(given)["z"].tolist() == [4, np.inf]
    wide = 1e6 if to == onnx.TensorProto.FLOAT16 else np.inf
    assert Oracle(model, UNLIMITED).run(given)["z"].tolist() == [4, wide]


@pytest.mark.parametrize("nodes", [
    [helper.make_node("Gather", ["x", "c"], ["y"], axis=7)],
    [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")],
    [helper.make_node("Reshape", ["x", "sizes"], ["y"])],
])  # fmt: skip
def test_operands_that_do_not_fit_are_no_defect_of_numpy(nodes) -> None:
    """A damaged model cannot be evaluated; that is all that a user of `verify` may see of it."""
    values = {"c": np.ones(40, bool), "sizes": np.array([[3], [4]])}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(Unfit, match=nodes[0].op_type):
        Oracle(model).run({"x": np.ones((3, 5), np.float32)})


@pytest.mark.parametrize("trips", [0, 2])
def test_a_loop_of_no_step_has_the_shape_that_its_body_declares(trips: int) -> None:
    """onnxruntime has [0, 0] of no step."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Abs", ["s"], ["t"]),
         helper.make_node("Identity", ["t"], ["scan"])],
        "b", [value("i", 7, []), value("c", 9, []), value("s", 1, [3])],
        [value("go", 9, []), value("t", 1, [3]), value("scan", 1, [3])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    graph = helper.make_graph(
        [loop], "g", [value("n", 7, []), value("x", 1, [3])], [value("y", 1, [3]), value("z", 1, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    found = Oracle(model).run({"n": np.array(trips), "x": -np.ones(3, np.float32)})
    assert found["z"].shape == (trips, 3)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[-2, 1], [1, -2], [-1, -1], [2, -2], [-2, 2]])
def test_pads_that_cut_do_so_first(mode, pads):
    """The oracle repeated elements that were cut: a right model of doubles was refused."""
    made = model(
        [helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)], [value("x", (5,))], [value("y", None)],
        {"p": np.array(pads)}, 21,
    )  # fmt: skip
    x = np.arange(1, 6, dtype=np.float32)
    np.testing.assert_array_equal(Oracle(made).run({"x": x})["y"], run_ort(made, {"x": x})[0])


def test_a_loop_of_more_trips_than_anybody_waits_for_is_not_evaluated() -> None:
    """The length of a range, divided by a step of 0, made 2^63 trips: the judge never ended."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["s", "s"], ["t"])], "body",
        [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("s", (1,))],
        [value("on", (), TensorProto.BOOL), value("t", (1,))],
    )  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["n"], ["trips"], to=TensorProto.INT64),
        helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body),
    ]
    oracle, x = Oracle(_model(nodes, {"x": [1], "n": []})), np.ones(1, np.float32)
    assert oracle.run({"x": x, "n": np.float32(10)})["y"] == 1024
    with pytest.raises(Unsupported, match="262,144 nodes"):
        oracle.run({"x": x, "n": np.float32(1e9)})
    assert oracle.run({"x": x, "n": np.float32(3)})["y"] == 8


@pytest.mark.parametrize("indices", [False, True])
def test_a_window_far_larger_than_its_image(indices: bool) -> None:
    """Its 2^40 places were looked at one by one; those of a few lie inside the image."""
    window = {"kernel_shape": [(1 << 20) + 1] * 2, "pads": [1 << 19] * 4}  # three by two of them, each with all pixels
    pool = helper.make_node("MaxPool", ["x"], ["y", "i"] if indices else ["y"], **window)
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 2)).astype(np.float32)
    found = Oracle(_model([pool], {"x": [1, 1, 3, 2]})).run({"x": x}, ["y", "i"] if indices else ["y"])
    np.testing.assert_array_equal(found["y"], np.full((1, 1, 3, 2), x.max()))
    assert not indices or (found["i"] == x.argmax()).all()


@pytest.mark.parametrize(("stride", "pads"), [(1, [0, 0]), (2, [0, 0]), (3, [1, 1]), (2, [4, 0])])
@pytest.mark.parametrize(("size", "kernel"), [(1, 1), (1, 5), (2, 5), (5, 2), (5, 5)])
def test_a_transposed_convolution_uses_all_its_weights(size: int, kernel: int, stride: int, pads: list[int]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, size)), rng.standard_normal((2, 3, kernel))
    whole = np.zeros((1, 3, (size - 1) * stride + kernel))
    for i in range(size):
        whole[..., i * stride : i * stride + kernel] += np.einsum("nc,cok->nok", x[..., i], w)
    expected = whole[..., pads[0] : whole.shape[-1] - pads[1]]
    if not expected.shape[-1]:
        return
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride], pads=pads)
    oracle = Oracle(_model([node], {"x": [1, 2, size]}, w=w.astype(np.float32)))
    found = oracle.run({"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 255, 256, 257, 513])
@pytest.mark.parametrize(
    "shapes", [((3, "k"), ("k", 5)), (("k",), ("k",)), ((2, 3, "k"), ("k",)), (("k",), (2, "k", 4))]
)
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
def test_products_of_integers_are_exact(kind: Any, shapes: Any, columns: int) -> None:
    """Those of bytes are added up in float32, 256 at a time: more would not be exact."""
    rng, info = np.random.default_rng(0), np.iinfo(kind)
    a, b = (rng.choice([info.min, info.max], [columns if n == "k" else n for n in s]).astype(kind) for s in shapes)
    for zero in (info.min, info.max):
        found = integer_product(a, b, np.array(zero, kind), np.array(zero, kind))
        wide = [array.astype(np.int64) - int(zero) for array in (a, b)]
        assert found.dtype == np.float64 and np.array_equal(found, np.matmul(*wide))


@pytest.mark.parametrize("exponent", [3, 4, 5, 6])
def test_powers_of_real_numbers_by_products(exponent: int) -> None:
    x = np.array([0.0, -0.0, 1, -1, 1.5, -2.25, 1e200, -1e200, 1e-50, np.inf, -np.inf, np.nan, 7.3e5])
    made = model([helper.make_node("Pow", ["x", "e"], ["y"])], [value("x", x.shape, TensorProto.DOUBLE)],
                 [value("y", x.shape, TensorProto.DOUBLE)], {"e": np.array(float(exponent))})  # fmt: skip
    found = Oracle(made).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        expected = np.power(x, float(exponent))
    np.testing.assert_allclose(found, expected, rtol=2e-15)
    assert np.array_equal(np.signbit(found), np.signbit(expected))


def test_a_type_has_no_number_above_its_largest_one() -> None:
    """What is infinite or no number stays beside those that become infinite, and where none does."""
    largest = float(np.finfo(np.float32).max)
    for given, expected in (
        ([np.inf, 1, np.nan, -np.inf], [np.inf, 1, np.nan, -np.inf]),
        ([np.inf, 1e39, np.nan, -1e39], [np.inf, np.inf, np.nan, -np.inf]),
        ([1e300, -1, largest * (1 + 1e-9)], [np.inf, -1, largest]),
    ):
        np.testing.assert_array_equal(limit(np.array(given), np.dtype(np.float32)), expected)
