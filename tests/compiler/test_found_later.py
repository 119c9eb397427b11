"""What a long run of the fuzzer found in models that are valid: each failed to compile, or was wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import tvmopt


def run(text: str, feeds: dict[str, np.ndarray], opset: int = 17, **weights: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a model in ONNX's text form."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    return tvmopt.compile(model, verify=False, records=False).model.run(feeds)


@pytest.mark.parametrize("op", ["Or", "And", "Xor"])
@pytest.mark.parametrize("size", [1, 7, 16, 45])
def test_a_condition_that_is_read_twice(op: str, size: int) -> None:
    """It is named once, in a buffer of booleans, of which TVM's vectorizer made bytes."""
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    text = f"""g (float[{size}] x) => (float[{size}] y)
        {{ a = Greater(x, z) o = {op}(a, a) r = Relu(x) y = Where(o, r, one) }}"""
    found = run(text, {"x": x}, z=np.float32(0), one=np.float32(1))["y"]
    np.testing.assert_array_equal(found, np.where((x > 0) & (op != "Xor"), np.maximum(x, 0), 1))


def test_infinite_factors_of_constants_and_at_zero() -> None:
    x = np.float32([2, 0, -1])
    found = run("g () => (float[3] y) { y = LeakyRelu<alpha: float = inf>(x) }", {}, x=x)["y"]
    assert found.tolist() == [2, 0, -np.inf]
    found = run("g (float[3] x) => (float[3] y) { y = Selu<alpha: float = inf, gamma: float = 3>(x) }", {"x": x})["y"]
    np.testing.assert_array_equal(found, np.float32([6, np.nan, -np.inf]))


def test_an_empty_output_called_main() -> None:
    text = "g (float[3,4,5] x) => (int64[0] main) { main = Shape<start: int = 2, end: int = 1>(x) }"
    assert run(text, {"x": np.zeros((3, 4, 5), np.float32)})["main"].shape == (0,)


def test_a_causal_convolution_of_nothing_hands_on_what_is_past() -> None:
    text = """g (float[2,4,0] x, float[4,1,4] w, float[4] b, float[2,4,3] p) => (float[2,4,0] y, float[2,4,3] q)
        { y, q = CausalConvWithState(x, w, b, p) }"""
    shapes = {"x": (2, 4, 0), "w": (4, 1, 4), "b": (4,), "p": (2, 4, 3)}
    feeds = {n: np.random.default_rng(0).standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    found = run(text, feeds, 27)
    assert found["y"].shape == (2, 4, 0)
    np.testing.assert_array_equal(found["q"], feeds["p"])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_an_infinite_loss_of_a_class_that_is_ignored_is_zero(weighted: bool, reduction: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    x[:, 0], target = np.inf, np.int64([[3, 1, 3, 2]] * 3)  # class 0 is read for those that are ignored
    extra = {"w": np.float32([1, 2, 3, 4, 5])} if weighted else {}
    result = "float[3,4]" if reduction == "none" else "float"
    text = f"""g (float[3,5,4] x, int64[3,4] t) => ({result} y) {{ y = NegativeLogLikelihoodLoss
        <ignore_index: int = 3, reduction: string = "{reduction}">(x, t{", w" if weighted else ""}) }}"""
    found = run(text, {"x": x, "t": target}, **extra)["y"]
    factors = np.where(target == 3, 0, extra["w"][target] if weighted else 1)
    picked = np.where(target == 3, 0, -np.take_along_axis(x, target[:, None], 1)[:, 0])
    losses = picked * factors
    np.testing.assert_allclose(found, losses if reduction == "none" else losses.sum() / factors.sum(), rtol=1e-5)


def test_a_bias_of_one_number_is_that_of_every_part() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((33, 3)).astype(np.float32), rng.standard_normal((3, 3)).astype(np.float32)
    text = """g (float[33,3] x) => (float[33,1] a, float[33,1] b)
        { p = Gemm(x, w, c) a, r, s = Split<axis: int = 1>(p) b = Relu(s) }"""
    found = run(text, {"x": x}, 13, w=w, c=np.float32([-1.5]))
    np.testing.assert_allclose(found["a"], (x @ w)[:, :1] - 1.5, atol=1e-5)
    np.testing.assert_allclose(found["b"], np.maximum((x @ w)[:, 2:] - 1.5, 0), atol=1e-5)


def test_places_of_a_grid_are_sums_that_no_precision_shortens() -> None:
    """In bf16 a matrix product of the corners would be: 1000 - 1001 is 0 there."""
    from tvmopt.importer import import_model

    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[1,2,3] t) => (float[1,7,17,2] y) '
        "<int64[4] s = {1,6,7,17}> { y = AffineGrid<align_corners: int = 1>(t, s) }"
    )
    assert "matmul" not in import_model(model).module["main"].script()
    theta = (1000 + np.random.default_rng(0).standard_normal((1, 2, 3))).astype(np.float32)
    y = tvmopt.compile(model, verify=False, records=False).model.run({"t": theta})["y"]
    expected = ReferenceEvaluator(model).run(None, {"t": theta.astype(np.float64)})[0]
    np.testing.assert_allclose(y, expected, atol=3e-4)


@pytest.mark.parametrize("width", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("pictures", [1, 33, 144])
def test_short_rows_that_are_stored_again(pictures: int, width: int) -> None:
    """Behind a loop over 32 or more LLVM took `i & 7` for places that lie behind each other: 56 % were wrong."""
    x = np.random.default_rng(0).standard_normal((pictures, 3, width)).astype(np.float32)
    for index in (np.repeat([0, 1, 2], [8, 7, 1]), np.repeat([2, 0], [16, 16]), np.repeat([1, 2, 1], [32, 4, 9])):
        text = f"""g (float[{pictures},3,{width}] x) => (float[{pictures},{len(index)},{width}] y)
            {{ y = Gather<axis: int = 1>(x, i) }}"""
        np.testing.assert_array_equal(run(text, {"x": x}, i=index)["y"], x[:, index])
    text = f"""g (float[{pictures},3,{width}] x) => (float[{pictures},17,{width}] y)
        {{ y = Pad<mode: string = "edge">(x, pads) }}"""
    found = run(text, {"x": x}, pads=np.int64([0, 6, 0, 0, 8, 0]))["y"]
    np.testing.assert_array_equal(found, np.pad(x, ((0, 0), (6, 8), (0, 0)), "edge"))


@pytest.mark.parametrize("length", [7, 15, 31, 33])
def test_the_mean_of_equal_numbers_is_that_number(length: int) -> None:
    """A product with the reciprocal of the length rounds once more."""
    x = np.full((3, length), 999.5, np.float32)
    found = run(f"g (float[3,{length}] x) => (float[3,1] y) {{ y = ReduceMean<axes: ints = [1]>(x) }}", {"x": x})["y"]
    assert (found == 999.5).all()


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stored", ["int64", "uint64"])
def test_a_transposed_convolution_that_is_stored_in_64_bits(kernel: int, stored: str) -> None:
    """Its loops count in 64 bits; TVM's LoopPartition put a zero of 32 into the one trip that is left of a loop."""
    rng = np.random.default_rng(kernel)
    x, w = (rng.integers(0, 9, shape).astype("f") for shape in ((1, 8, 16, 16), (8, 16, kernel, kernel)))
    to = helper.np_dtype_to_tensor_dtype(np.dtype(stored))
    text = f"""g (float[1,8,16,16] x) => ({stored}[1,16,N,M] y)
        {{ t = ConvTranspose<strides: ints = [3, 3]>(x, w) y = Cast<to: int = {to}>(t) }}"""
    right = np.zeros((1, 16, 45 + kernel, 45 + kernel), np.int64)
    for i, j in np.ndindex(kernel, kernel):
        right[:, :, i : i + 46 : 3, j : j + 46 : 3] += np.einsum("nchw,co->nohw", x, w[:, :, i, j]).astype(np.int64)
    np.testing.assert_array_equal(run(text, {"x": x}, w=w)["y"], right)
