"""Kernels one by one: which tensor of the model each wrote, and whether it is right, from made-up runs."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.analysis.kernels import check_kernels
from tvmopt.analysis.observe import Seen, fitted
from tvmopt.analysis.oracle.evaluate import Oracle

RNG = np.random.default_rng(0)


def made(nodes, inputs, outputs, values):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def tensors(model, feeds):
    names = [o for n in model.graph.node for o in n.output]
    return {n: a.astype(np.float32) for n, a in Oracle(model).run(feeds, names).items()}


def seen(symbol, array, *nodes):
    return Seen(symbol, nodes, (), array.astype(np.float32))


def chain():
    """A product, its Relu, and a convolution whose kernels are named after the Relu's as well."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], "product"),
        helper.make_node("Relu", ["p"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w", "b"], ["y"], "conv"),
    ]
    values = {
        "a": RNG.standard_normal((16, 24)),
        "w": RNG.standard_normal((8, 12, 1)),
        "b": 1e-5 * RNG.standard_normal(8),
    }
    model = made(nodes, {"x": [1, 12, 16]}, {"y": [1, 8, 24]}, values)
    return model, {"x": RNG.standard_normal((1, 12, 16)).astype(np.float32)}


def test_a_kernel_that_is_named_after_the_next_one_too_is_not_wrong():
    model, feeds = chain()
    made_ = tensors(model, feeds)
    relu = made_["r"].reshape(1, 12, 1, 24).transpose(0, 2, 3, 1)  # Relu of what it is given is the same once more
    run = [seen("relu", relu, "relu", "conv"), seen("conv", made_["y"], "conv")]
    found = check_kernels(model, feeds, {"y": made_["y"]}, run, "fp32")
    assert found.wrong == () and found.compared == 2


def test_a_wrong_kernel_of_two_names_is_found():
    model, feeds = chain()
    made_ = tensors(model, feeds)
    product, relu = made_["p"], made_["r"] * np.float32(1.03)
    after = tensors(model, feeds | {"x": feeds["x"] * np.float32(1.03)})["y"]
    run = [seen("product", product, "product"), seen("relu", relu, "relu", "conv"), seen("conv", after, "conv")]
    found = check_kernels(model, feeds, {"y": after}, run, "fp32")
    assert "relu" in found.kernel and "r" in {o.name for o in found.wrong}


def test_a_kernel_that_is_wrong_beyond_recognition_is_named():
    model, feeds = chain()
    made_ = tensors(model, feeds)
    relu = np.roll(made_["r"], 3, axis=2)
    after = np.roll(made_["y"], 3, axis=2)
    run = [seen("product", made_["p"], "product"), seen("relu", relu, "relu", "conv"), seen("conv", after, "conv")]
    found = check_kernels(model, feeds, {"y": after}, run, "fp32")
    assert "relu" in found.kernel and [k.tensor for k in found.kernels] == ["p", "r", "y"]


def test_a_kernel_that_only_moves_an_input_is_matched_with_it():
    model, feeds = chain()
    made_ = tensors(model, feeds)
    run = [seen("layout", feeds["x"].transpose(0, 2, 1), "product"), seen("product", made_["p"], "product")]
    found = check_kernels(model, feeds, {"y": made_["y"]}, run, "fp32")
    assert [k.tensor for k in found.kernels] == ["x", "p"] and all(k.comparison.ok for k in found.kernels)


def test_a_small_bias_that_the_next_kernel_adds_is_no_error():
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Sigmoid", ["r"], ["y"], "sigmoid"),
    ]
    w, bias = np.repeat(RNG.uniform(0.5, 1.5, (32, 1, 1)), 2, 1), np.full(32, 2e-3)
    model = made(nodes, {"x": [1, 2, 64]}, {"y": [1, 32, 64]}, {"w": w, "b": bias})
    x = np.full((1, 2, 64), -100, np.float32)
    x[:, 1, 32:] = 100 + RNG.uniform(0.05, 0.1, 32)  # what a Relu leaves is little, and the bias is a part of it
    exact = tensors(model, {"x": x})
    plain = exact["c"] - bias.reshape(1, -1, 1)
    run = [
        seen("conv", plain, "conv"), seen("relu", exact["r"], "conv", "relu"), seen("out", exact["y"], "sigmoid"),
    ]  # fmt: skip
    assert check_kernels(model, {"x": x}, {"y": exact["y"]}, run, "fp32").wrong == ()


def test_int8_may_be_kept_as_uint8_128_higher():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        helper.make_node("Neg", ["d"], ["y"], "neg"),
    ]
    model = made(nodes, {"x": [9, 33]}, {"y": [9, 33]}, {"s": np.float32(0.03)})
    model.graph.initializer.append(numpy_helper.from_array(np.int8(-7), "z"))
    feeds = {"x": RNG.standard_normal((9, 33)).astype(np.float32)}
    exact = Oracle(model).run(feeds, ["q", "y"])
    q, y = exact["q"], exact["y"].astype(np.float32)
    shifted = (q.astype(np.int16) + 128).astype(np.uint8)
    found = check_kernels(model, feeds, {"y": y}, [Seen("q", ("quantize",), (), shifted)], "fp32")
    assert found.wrong == () and [k.tensor for k in found.kernels] == ["q"]


def test_a_bias_that_is_an_input_of_one_number() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "a", "c"], ["p"], "product"),
        helper.make_node("Relu", ["p"], ["y"], "relu"),
    ]
    model = made(nodes, {"x": [9, 16], "c": []}, {"y": [9, 8]}, {"a": RNG.standard_normal((16, 8))})
    feeds = {"x": RNG.standard_normal((9, 16)).astype(np.float32), "c": np.float32(0.5)}
    exact = tensors(model, feeds)
    run = [seen("product", exact["p"], "product"), seen("relu", exact["y"], "relu")]
    assert not check_kernels(model, feeds, {"y": exact["y"]}, run, "fp32").wrong


def test_a_kernel_that_moves_an_input_completes_no_tensor_of_the_next_one() -> None:
    """Both are named after the convolution; what the second wrote is what the third must be judged with."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["v"], "conv"), helper.make_node("Sub", ["v", "c"], ["y"], "sub")]
    values = {"w": RNG.standard_normal((8, 12, 1)), "c": np.zeros((1, 8, 24))}
    feeds = {"x": RNG.standard_normal((1, 12, 24)).astype(np.float32)}
    near = tensors(made(nodes, {"x": [1, 12, 24]}, {"y": [1, 8, 24]}, values), feeds)["v"]
    model = made(nodes, {"x": [1, 12, 24]}, {"y": [1, 8, 24]}, values | {"c": near * np.float32(0.9999)})
    wrote = near * (1 + 2e-3 * RNG.standard_normal(near.shape)).astype("f")
    y = wrote - near * np.float32(0.9999)
    run = [seen("turn", feeds["x"].transpose(0, 2, 1), "conv"), seen("conv", wrote, "conv"), seen("sub", y, "sub")]
    found = check_kernels(model, feeds, {"y": y}, run, "bf16")
    assert found.wrong == () and found.compared == 3


def quantised_again():
    """A product that is quantised, transposed, quantised, reshaped, quantised and multiplied, and what it computes from
    the first bytes on: a function of them that gives the last bytes and the output.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], "product"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        helper.make_node("Transpose", ["d"], ["t"], "t", perm=[1, 0]),
        helper.make_node("QuantizeLinear", ["t", "s", "z"], ["q2"], "q2"),
        helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["d2"], "d2"),
        helper.make_node("Reshape", ["d2", "shape"], ["r"], "r"),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q3"], "q3"),
        helper.make_node("DequantizeLinear", ["q3", "s", "z"], ["d3"], "d3"),
        helper.make_node("MatMul", ["d3", "b"], ["y"], "next"),
    ]
    rng = np.random.default_rng(3)
    values = {"s": np.float32(0.05), "a": rng.standard_normal((64, 60)), "b": rng.standard_normal((20, 32))}
    others = [numpy_helper.from_array(np.uint8(131), "z"), numpy_helper.from_array(np.array([240, 20]), "shape")]
    model = made(nodes, {"x": [80, 64]}, {"y": [240, 32]}, values)
    model.graph.initializer.extend(others)
    behind = made(nodes[2:], {"q": [80, 60]}, {"y": [240, 32]}, values)
    behind.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    behind.graph.initializer.extend(others)
    feeds = {"x": 0.2 * rng.standard_normal((80, 64)).astype(np.float32)}
    return model, feeds, lambda first: tuple(Oracle(behind).run({"q": first}, ["q3", "y"]).values())


@pytest.mark.parametrize("step", [0, 1])
def test_a_step_shows_though_all_is_quantised_again(step: int) -> None:
    model, feeds, behind = quantised_again()
    first = Oracle(model).run(feeds, ["q"])["q"].copy()
    first[7, 11] += step
    last, y = behind(first)
    run = [Seen("first", ("product", "q"), (), first), Seen("last", ("d", "t", "q2", "d2", "r", "q3"), (), last)]
    found = check_kernels(model, feeds, {"y": y.astype("f")}, [*run, seen("next", y, "d3", "next")], "fp32")
    assert bool(found.wrong) == bool(step)


@pytest.mark.parametrize("step", [0, 1])
def test_bytes_are_known_though_a_copy_in_tiles_is_named_after_them(step: int) -> None:
    model, feeds, behind = quantised_again()
    first = Oracle(model).run(feeds, ["q"])["q"]
    last, y = behind(first)
    last[5, 3] += step
    y = y + step * np.float32(0.05) * Oracle(model).constants["b"].array[3] * (np.arange(240) == 5)[:, None]
    run = [Seen("first", ("product", "q"), (), first), Seen("copy", ("q", "d"), (), np.pad(first, ((0, 0), (0, 4))))]
    run += [Seen("last", ("d", "t", "q2", "d2", "r", "q3"), (), last), seen("next", y, "d3", "next")]
    found = check_kernels(model, feeds, {"y": y.astype("f")}, run, "fp32")
    assert found.kernels[0].tensor == "q" and bool(found.wrong) == bool(step)


def test_uint8_may_be_kept_as_int8_128_lower() -> None:
    model, feeds, behind = quantised_again()
    first = Oracle(model).run(feeds, ["q"])["q"]
    run = [Seen("first", ("product", "q"), (), (first ^ np.uint8(128)).view(np.int8))]
    found = check_kernels(model, feeds, {"y": behind(first)[1].astype("f")}, run, "fp32")
    assert found.wrong == () and [k.tensor for k in found.kernels] == ["q"]


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_behind_a_tie_follows_the_side_that_was_taken(wrong: bool) -> None:
    """Ties of a quantised product go either way; a comparison of its bytes goes on from those that were written."""
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "t", "z"], ["q"], "product"),
        helper.make_node("Greater", ["q", "c"], ["y"], "compared"),
    ]
    values = {"s": np.float32(0.1), "t": np.float32(0.02), "z": np.int8(0), "b": np.array([[1], [0]], np.int8)}
    int8, info = TensorProto.INT8, helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("a", int8, [64, 2]), info("c", int8, [64, 1])],
        [info("y", TensorProto.BOOL, [64, 1])], [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    a = np.stack([np.arange(64), np.zeros(64)], 1).astype(np.int8)
    up = np.floor(np.arange(64) * 0.5 + 0.5).astype(np.int8)[:, None]  # NumPy, and the oracle, take the even neighbour
    bound = np.minimum(up, np.rint(np.arange(64) * 0.5).astype(np.int8)[:, None])
    greater = up > bound
    greater[2] ^= wrong
    assert greater.sum() > 10
    run = [Seen("product", ("product",), (), up), Seen("compared", ("compared",), (), greater)]
    found = check_kernels(model, {"a": a, "c": bound}, {"y": greater}, run, "fp32")
    assert bool(found.wrong) is wrong


def test_a_layout_is_found_where_a_kernel_keeps_what_its_type_cannot_hold() -> None:
    """The oracle has infinities of float16 where a kernel still has numbers: they tell layouts apart, too."""
    wide = np.random.default_rng(0).standard_normal((3, 17, 5)).astype(np.float32) * 10 ** np.arange(5)
    with np.errstate(over="ignore"):
        exact = (wide * 100).astype(np.float16).astype(np.float64)
    assert np.isinf(exact).any()
    placed, _ = fitted(exact, (wide * 100).transpose(0, 2, 1))
    np.testing.assert_array_equal(placed, wide * 100)


@pytest.mark.parametrize("seed", range(5, 20))
def test_the_layout_of_a_tensor_with_nan_is_that_of_its_nan(seed: int) -> None:
    """Half of the powers of negative numbers are none, and what was left to compare was nearer to another layout's."""
    rng = np.random.default_rng(seed)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.power(rng.standard_normal((4, 2, 7)), 8 * rng.standard_normal((4, 2, 7)))
    placed, _ = fitted(exact, exact.transpose(1, 2, 0))
    assert np.array_equal(placed, exact, equal_nan=True)


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6])
def test_the_layout_of_numbers_that_are_all_alike_is_told_by_what_they_differ_in(mean: float) -> None:
    """Numbers round 1000 in another order are as near to each other as a thousandth of their size."""
    expected = mean + np.random.default_rng(0).standard_normal((1, 5, 2))
    written = expected.transpose(0, 2, 1).astype(np.float32)
    np.testing.assert_allclose(fitted(expected, written)[0], expected, rtol=1e-6, atol=1e-6)


def test_a_layout_that_fits_a_little_better_by_chance_is_not_that_of_a_buffer() -> None:
    """Scores of a million in bfloat16: nothing is left of what tells them apart, and of many one fits another way."""
    rng = np.random.default_rng(0)
    chances = 0
    for _ in range(50):
        expected = 1e6 + 1e3 * rng.standard_normal((1, 3, 1, 5))
        found = expected + 2e3 * rng.standard_normal(expected.shape)
        turned = found.reshape(5, 3).T.reshape(expected.shape)
        chances += np.abs(turned - expected).mean() < np.abs(found - expected).mean()
        np.testing.assert_array_equal(fitted(expected, found)[0], found)
    assert chances > 0


def test_the_numbers_of_an_output_are_that_output_in_16_bits() -> None:
    """asinh(sigmoid(c)) is within the tolerance of sigmoid(c), where rounding x = 1000 leaves no digit of c."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["c"], "product"),
        helper.make_node("Sigmoid", ["c"], ["s"], "sigmoid"),
        helper.make_node("Asinh", ["s"], ["y"], "asinh"),
    ]
    weights = rng.standard_normal((32, 9)).astype(np.float32) / 10
    model = made(nodes, {"x": [7, 32]}, {"y": [7, 9]}, {"a": weights - weights.mean(0)})
    feeds = {"x": (1000 + rng.standard_normal((7, 32))).astype(np.float32)}
    near = {"x": feeds["x"].astype(ml_dtypes.bfloat16).astype(np.float32)}
    written = tensors(model, near)["y"].astype(np.float32)
    run = [seen("all", written, "product", "sigmoid", "asinh"), seen("moved", written.T, "asinh")]
    assert not check_kernels(model, feeds, {"y": written}, run, "bf16").wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_kernel_that_computes_the_sizes_of_a_sum_is_not_the_product_that_it_resembles(wrong: bool) -> None:
    """What a ReduceL1 adds up differs from its input, and what is behind it shows nothing of that but rounding."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["p"], "product"),
        helper.make_node("ReduceL1", ["p"], ["y"], "sum", axes=[1], keepdims=0),
    ]
    values = {"a": rng.standard_normal((15, 16)), "b": rng.standard_normal(16)}
    model = made(nodes, {"x": [31, 15]}, {"y": [31]}, values)
    for _ in range(8):
        feeds = {"x": rng.standard_normal((31, 15)).astype(np.float32)}
        feeds["x"] += (rng.uniform(1, 2) * values["a"].sum(1)).astype(np.float32)  # most of the product is positive
        sizes = np.abs(tensors(model, feeds)["p"]) * np.float32(1 + 0.03 * wrong)
        y = sizes.sum(1, dtype=np.float32)
        run = [seen("sizes", sizes, "product", "sum"), seen("sum", y, "sum")]
        assert bool(check_kernels(model, feeds, {"y": y}, run, "fp32").wrong) is wrong


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_what_is_behind_a_kernel_that_rounds_is_judged_by_what_that_one_wrote(factor: float) -> None:
    """Of a product that cancels in 16 bits no run that rounds leaves a number above an edge, and a kernel does."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((64, 48))
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], "product"),
        helper.make_node("Sub", ["p", "edge"], ["d"], "sub"),
        helper.make_node("Relu", ["d"], ["r"], "relu"),
        helper.make_node("Add", ["r", "one"], ["y"], "add"),
    ]
    values = {"a": columns - columns.mean(0), "edge": np.float32(110), "one": np.float32(1)}
    model = made(nodes, {"x": [32, 64]}, {"y": [32, 48]}, values)
    feeds = {"x": (1000 + rng.standard_normal((32, 64))).astype(np.float32)}
    exact = tensors(model, feeds)
    product = exact["p"] + np.float32(40) * rng.standard_normal((32, 48)).astype(np.float32)
    y = np.maximum(product - 110, 0) * np.float32(factor) + 1
    assert exact["y"].max() == 1 and (y > 1).any()
    run = [seen("product", product, "product"), seen("relu", y, "sub", "relu", "add")]
    assert bool(check_kernels(model, feeds, {"y": y}, run, "bf16").wrong) is (factor != 1)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_a_kernel_turns_round_for_the_last_of_equal_scores_is_known(wrong: bool) -> None:
    nodes = [
        helper.make_node("PRelu", ["x", "x"], ["p"], "prelu"),
        helper.make_node("ArgMin", ["p"], ["a"], "arg", axis=1, keepdims=1, select_last_index=1),
        helper.make_node("Cast", ["a"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Clip", ["f", "low", "high"], ["y"], "clip"),
    ]
    model = made(nodes, {"x": [1, 3, 16]}, {"y": [1, 1, 16]}, {"low": 1, "high": 4})
    x = (1e18 * np.random.default_rng(7).standard_normal((1, 3, 16))).astype(np.float32)
    made_ = tensors(model, {"x": x})
    turned = made_["p"][:, ::-1] * np.float32(1.03 if wrong else 1)
    run = [seen("prelu", turned, "prelu", "arg"), seen("arg", made_["y"], "arg", "cast", "clip")]
    found = check_kernels(model, {"x": x}, {"y": made_["y"]}, run, "fp32")
    assert [k.comparison.ok for k in found.kernels if k.tensor == "p"] == ([] if wrong else [True])


def test_kernels_of_one_node_are_not_the_tensors_before_and_behind_it_that_they_resemble() -> None:
    """A sum of rows in two kernels: what the first takes off the input, and what the second makes of that, fit each
    other; the last kernel adds what was taken off, and the node's result is right."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"], "unsqueeze"),
        helper.make_node("MatMul", ["u", "a"], ["p"], "product"),
        helper.make_node("Transpose", ["p"], ["t"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["p", "t"], ["y"], "square"),
    ]
    values = {"axes": np.int64([0]), "a": rng.standard_normal((8, 8)).astype(np.float32)}
    model = made(nodes, {"x": [5, 8]}, {"y": [1, 5, 5]}, values)
    feeds = {"x": rng.standard_normal((5, 8)).astype(np.float32)}
    exact = tensors(model, feeds)
    less = feeds["x"] - np.float32(0.2)
    run = [
        seen("less", less, "product"),
        seen("product", less @ values["a"], "product"),
        seen("more", exact["p"].astype(np.float32), "product"),
        seen("square", exact["y"].astype(np.float32), "square"),
    ]
    assert not check_kernels(model, feeds, {"y": exact["y"].astype(np.float32)}, run, "fp32").wrong


@pytest.mark.parametrize("at", [None, 0, 1, 2, 3])
def test_a_step_shows_where_a_kernel_quantises_twice(at: int | None) -> None:
    """A few of its first bytes are at an edge, and nobody sees them: that frees the elements made of them, and no
    others."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"], "product"),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        helper.make_node("Add", ["d", "x"], ["t"], "sum"),
        helper.make_node("Relu", ["t"], ["r"], "relu"),
        helper.make_node("QuantizeLinear", ["r", "half", "zero"], ["q2"], "q2"),
        helper.make_node("DequantizeLinear", ["q2", "half", "zero"], ["d2"], "d2"),
        helper.make_node("MatMul", ["d2", "b"], ["y"], "next"),
    ]
    rng = np.random.default_rng(5)
    values = {"s": 0.4, "half": 0.031, "a": rng.standard_normal((96, 96)) / 8, "b": rng.standard_normal((96, 32))}
    model = made(nodes, {"x": [400, 96]}, {"y": [400, 32]}, values)
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.uint8(131), "z"), numpy_helper.from_array(np.uint8(0), "zero")]
    )
    feeds = {"x": rng.standard_normal((400, 96)).astype(np.float32)}
    exact = Oracle(model).run(feeds, ["p", "q2"])
    assert (np.abs(exact["p"] / 0.4 % 1 - 0.5) < 1e-4).any()  # an edge
    bytes_, place = exact["q2"].copy(), exact["p"] / 0.4 % 1
    if at is not None:
        inside = (bytes_ > 8) & (np.abs(place - 0.5) > 0.1)
        row, column = np.argwhere(inside)[rng.integers(inside.sum(), size=4)[at]]
        bytes_[row, column] += 1
    y = (bytes_ * np.float64(np.float32(0.031))) @ Oracle(model).constants["b"].array
    run = [Seen("both", ("product", "q", "d", "sum", "relu", "q2"), (), bytes_), seen("next", y, "d2", "next")]
    found = check_kernels(model, feeds, {"y": y.astype("f")}, run, "fp32")
    assert bool(found.wrong) == (at is not None)
    assert found.kernel.startswith("both") == (at is not None)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_tie_of_bytes_that_a_kernel_does_not_write_is_one_of_those_that_it_does(wrong: bool) -> None:
    """The larger of a quantised product and other bytes resembles the product; ties of it go either way."""
    rng = np.random.default_rng(2)
    values = {"a": rng.integers(0, 16, (40, 8)), "b": rng.integers(0, 14, (8, 30)), "c": rng.integers(0, 6, (40, 30))}
    arrays = {n: v.astype(np.uint8) for n, v in values.items()} | {"z": np.uint8(0)}
    arrays |= {"s": np.float32(0.05), "t": np.float32(0.02), "u": np.float32(0.2)}
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "s", "z", "b", "t", "z", "u", "z"], ["q"], "product"),
        helper.make_node("Max", ["c", "q"], ["y"], "larger"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("a", TensorProto.UINT8, [40, 8])], [info("y", TensorProto.UINT8, [40, 30])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n != "a"],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    total = arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64)
    ties = total % 200 == 100
    q = np.where(ties, (total + 100) // 200, np.rint(total * 0.005)).astype(np.uint8)
    y = np.maximum(arrays["c"], q)
    assert (y != Oracle(model).run({"a": arrays["a"]}, ["y"])["y"]).any()  # a tie
    y[3, 5] += wrong
    names = ("product", "larger")
    run = [Seen("both", names, (), np.ascontiguousarray(y.T)), Seen("moved", names, (), y)]
    found = check_kernels(model, {"a": arrays["a"]}, {"y": y}, run, "fp32")
    assert bool(found.wrong) == wrong


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("last", ["places", "channels"])
def test_windows_that_the_next_kernel_puts_into_a_picture_are_known(channels: int, wrong: bool, last: str) -> None:
    """Of a transposed convolution whose windows do not overlap a kernel writes the product, place by place of the input
    with all places and channels of the window behind each other."""
    weight = RNG.standard_normal((5, channels, 2, 3))
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["t"], "up", strides=[2, 3]),
        helper.make_node("Sigmoid", ["t"], ["y"], "sigmoid"),
    ]
    model = made(nodes, {"x": [1, 5, 4, 7]}, {"y": [1, channels, 8, 21]}, {"w": weight})
    feeds = {"x": RNG.standard_normal((1, 5, 4, 7)).astype(np.float32)}
    made_ = tensors(model, feeds)
    windows = made_["t"].reshape(1, channels, 4, 2, 7, 3)
    product = windows.transpose((0, 2, 4, 1, 3, 5) if last == "places" else (0, 2, 4, 3, 5, 1)).reshape(1, 4, 7, -1)
    if wrong:
        product = product * np.where(np.arange(product.size).reshape(product.shape) % 7, 1, 1.5)
    run = [seen("product", product, "up"), seen("sigmoid", made_["y"], "up", "sigmoid")]
    found = check_kernels(model, feeds, {"y": made_["y"]}, run, "fp32")
    assert found.wrong == () and [k.tensor for k in found.kernels] == ["" if wrong else "t", "y"]
