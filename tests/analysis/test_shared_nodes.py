"""Kernels that share a node, or leave a bias to the next one: what each of them wrote, from made-up runs."""

import numpy as np
import pytest
from onnx import helper

from tests.analysis.test_kernels import made, seen, tensors
from tvmopt.analysis.kernels import check_kernels


@pytest.mark.parametrize("wrong", [False, True])
def test_the_sizes_of_a_tensor_that_is_mostly_positive_are_not_that_tensor(wrong: bool) -> None:
    """What a pool by the 1-norm adds up is the tensor but for the signs of a few elements."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Concat", ["x", "c"], ["p"], "concat", axis=2),
        helper.make_node("LpPool", ["p"], ["y"], "pool", kernel_shape=[3], strides=[2], p=1),
    ]
    model = made(nodes, {"x": [2, 3, 40]}, {"y": [2, 3, 20]}, {"c": rng.standard_normal((2, 3, 2))})
    feeds = {"x": (10 + rng.standard_normal((2, 3, 40))).astype(np.float32)}
    exact = tensors(model, feeds)
    sizes = np.abs(exact["p"])
    sizes[0, 1] *= np.float32(1 + 0.03 * wrong)
    y = np.stack([sizes[..., k : k + 3].sum(-1) for k in range(0, 40, 2)], -1).astype(np.float32)
    run = [seen("sizes", sizes, "concat", "pool"), seen("pool", y, "pool")]
    assert bool(check_kernels(model, feeds, {"y": y}, run, "fp32").wrong) is wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_small_bias_may_be_an_input_of_the_model(wrong: bool) -> None:
    """Behind the kernel that adds it nothing shows it."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["p"], "conv"),
        helper.make_node("Sigmoid", ["p"], ["y"], "sigmoid"),
    ]
    model = made(nodes, {"x": [1, 4, 16], "w": [16, 4, 1], "b": [16]}, {"y": [1, 16, 16]}, {})
    feeds = {"x": 1000 + rng.standard_normal((1, 4, 16)), "w": 1000 + rng.standard_normal((16, 4, 1))}
    feeds = {n: a.astype(np.float32) for n, a in feeds.items()} | {"b": np.full(16, 320, np.float32)}
    y = tensors(model, feeds)["y"]
    product = np.einsum("oc,ncl->nol", feeds["w"][..., 0].astype(np.float64), feeds["x"])
    product[0, 3] *= 1.03 if wrong else 1
    run = [seen("conv", product, "conv"), seen("sigmoid", y, "sigmoid")]
    found = check_kernels(model, feeds, {"y": y}, run, "fp32")
    assert found.kernels[0].tensor == ("" if wrong else "p") and not found.wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_a_norm_need_not_read_the_mean_that_is_an_output(wrong: bool) -> None:
    """Two kernels compute one mean, each with its own rounding, which numbers round 1000 show."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], "mean", axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"], "less"),
    ]
    model = made(nodes, {"x": [24, 9]}, {"m": [1, 9], "y": [24, 9]}, {})
    feeds = {"x": (1000 + 0.2 * rng.standard_normal((24, 9))).astype(np.float32)}
    mean = tensors(model, feeds)["m"]
    other = np.nextafter(mean, np.float32(2000)) * np.float32(1 + 1e-5 * wrong)
    y = feeds["x"] - np.nextafter(other, np.float32(2000))
    run = [seen("mean", mean, "mean"), seen("mean1", other, "mean"), seen("less", y, "less")]
    assert bool(check_kernels(model, feeds, {"m": mean, "y": y}, run, "fp32").wrong) is wrong


@pytest.mark.parametrize("wrong", [None, 0, 8])
def test_a_norm_need_not_read_what_is_an_output_without_its_mean(wrong: int | None) -> None:
    """One kernel writes x less its mean, another the norm of x: numbers round 100, in two rows nearly equal ones."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["n"], "product"),
        helper.make_node("ReduceMean", ["n"], ["m"], "mean", axes=[-1], keepdims=1),
        helper.make_node("Sub", ["n", "m"], ["d"], "less"),
        helper.make_node("Mul", ["d", "d"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["v"], "variance", axes=[-1], keepdims=1),
        helper.make_node("Add", ["v", "e"], ["w"], "epsilon"),
        helper.make_node("Sqrt", ["w"], ["r"], "root"),
        helper.make_node("Div", ["d", "r"], ["y"], "norm"),
    ]
    model = made(nodes, {"x": [24, 9]}, {"d": [24, 9], "y": [24, 9]}, {"e": np.float32(1e-5), "c": np.float32(1.7)})
    sizes = np.where(np.arange(24) < 2, 1e-3, 1)[:, None]
    feeds = {"x": (100 + sizes * rng.standard_normal((24, 9))).astype(np.float32)}
    n = feeds["x"] * np.float32(1.7)
    exact = n.astype(np.float64) - n.mean(-1, dtype=np.float64, keepdims=True)
    y = exact / np.sqrt(np.square(exact).mean(-1, keepdims=True) + 1e-5)
    if wrong is not None:
        y[wrong] *= 1.03
    d = n - np.nextafter(n.mean(-1, dtype=np.float64, keepdims=True).astype(np.float32), np.float32(0))
    run = [
        seen("product", n, "product"), seen("less", d, "mean", "less"),
        seen("norm", y.astype(np.float32), "square", "variance", "epsilon", "root", "norm"),
    ]  # fmt: skip
    found = check_kernels(model, feeds, {"d": d, "y": y.astype(np.float32)}, run, "fp32")
    assert bool(found.wrong) is (wrong is not None)
