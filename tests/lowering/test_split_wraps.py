"""Loops whose variable wraps around a power of two: split, so that LLVM takes no element for another."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm.script import tirx as T

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.compiler.kernels import loops
from tvmopt.lowering.split_wraps import wraps
from tvmopt.pipeline import compile_kernels
from tvmopt.targets import Machine


def gathering(rows: int, by: int, length: int, columns: int, step: int = 1):
    """A kernel that repeats rows of `by` elements `length` long, each of 18 times one of `rows` further ones."""
    n = rows * columns * by

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((n,), "float32"), y: T.Buffer((length, 18, columns), "float32")):
        for a in range(18):
            for i in range(length):
                for j in range(16):
                    if j < columns:
                        y[i, a, j] = x[a % rows * (columns * by) + j * by + i * step % by]

    return kernel


@pytest.mark.parametrize(
    "rows, by, length, columns, step",
    [
        (6, 8, 16, 10, 1), (5, 8, 32, 10, 1), (3, 4, 16, 10, 1), (6, 8, 20, 9, 1), (6, 2, 7, 9, 1), (6, 8, 16, 10, 3),
        (6, 16, 31, 10, 1), (7, 8, 17, 16, 5),
    ],
)  # fmt: skip
def test_every_element_is_the_one_that_it_repeats(rows, by, length, columns, step):
    """LLVM 22's vectorizer read sixteen elements where eight are."""
    kernel = gathering(rows, by, length, columns, step).with_attr("global_symbol", "kernel")
    built = compile_kernels(tvm.IRModule({"kernel": kernel}), Machine.load("cpu"))
    x = np.arange(rows * columns * by, dtype=np.float32)
    found = tvm.runtime.tensor(np.full((length, 18, columns), np.nan, np.float32))
    built["kernel"](tvm.runtime.tensor(x), found)
    a, i, j = np.meshgrid(np.arange(18), np.arange(length), np.arange(columns), indexing="ij")
    expected = x[a % rows * (columns * by) + j * by + i * step % by].transpose(1, 0, 2)
    np.testing.assert_array_equal(found.numpy(), expected)


def wider(length: int):
    """A kernel that puts the two halves of 18 rows one behind the other, whose places are wider than what it counts."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((36 * length,), "float32"), y: T.Buffer((18, 2 * length), "float32")):
        for a in range(18):
            for i in range(2 * length):
                at = T.Cast("int64", i)
                y[a, i] = x[(at // length) * (18 * length) + a * length + at % length]

    return kernel


@pytest.mark.parametrize("length", [8, 16, 128])
def test_places_that_are_wider_than_what_is_counted(length):
    module = tvm.IRModule({"kernel": wider(length).with_attr("global_symbol", "kernel")})
    machine = Machine.load("cpu")
    assert not wraps(loops(module["kernel"], "kernel", module, machine))
    x = np.arange(36 * length, dtype=np.float32)
    found = tvm.runtime.tensor(np.zeros((18, 2 * length), np.float32))
    compile_kernels(module, machine)["kernel"](tvm.runtime.tensor(x), found)
    np.testing.assert_array_equal(found.numpy(), np.concatenate(list(x.reshape(2, 18, length)), axis=1))


@pytest.mark.parametrize("step, left", [(1, False), (3, True)])
def test_what_cannot_be_split_is_found(step, left):
    module = tvm.IRModule({"kernel": gathering(6, 8, 16, 10, step).with_attr("global_symbol", "kernel")})
    assert wraps(loops(module["kernel"], "kernel", module, Machine.load("cpu"))) is left


@pytest.mark.parametrize("repeats", [[1, 3, 3, 1], [5, 3, 3, 1], [1, 2, 3, 1], [2, 5, 3, 1]])
def test_a_tile_behind_a_transposed_convolution(repeats):
    """Eight of its 24 channels were what lay in memory (fuzz, mutant 152001:15401)."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 8, 2, 2)).astype("f"), "b": rng.standard_normal(8).astype("f")}
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["v"]), helper.make_node("Tile", ["v", "r"], ["y"])]
    made = model(nodes, [value("x", (1, 4, 5, 9))], [value("y", None)], weights | {"r": np.array(repeats)})
    x = rng.standard_normal((1, 4, 5, 9)).astype("f")
    found = tvmopt.compile(made, verify=False, records=False, threads=1).model(x)
    np.testing.assert_allclose(found, run_ort(made, {"x": x})[0], rtol=1e-4, atol=1e-5)
