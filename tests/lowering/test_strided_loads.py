"""Vectors at a stride are vectors of neighbours taken apart: the same numbers, and none behind the last."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvmopt.lowering.strided_loads import StridedLoads
from tvmopt.pipeline import compile_kernels
from tvmopt.targets import Machine


def reading(stride: int, lanes: int, dtype: str) -> Any:
    """y[i, l] = x[i, 1 + l * stride] of two rows, whose last number is read."""
    width = 2 + (lanes - 1) * stride

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((2, width), dtype), y: T.Buffer((2, lanes), dtype)):
        for i in range(2):
            for j in T.vectorized(lanes):
                with T.sblock("copy"):
                    a, b = T.axis.remap("SS", [i, j])
                    y[a, b] = x[a, 1 + b * stride]

    return kernel.with_attr("global_symbol", "kernel")


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_the_numbers_are_the_same(stride: int, lanes: int, dtype: str) -> None:
    built = compile_kernels(tvm.IRModule({"kernel": reading(stride, lanes, dtype)}), Machine.load("cpu"))
    width = 2 + (lanes - 1) * stride
    x = np.arange(2 * width).reshape(2, width).astype(dtype)
    y = tvm.runtime.tensor(np.zeros((2, lanes), dtype))
    built["kernel"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x[:, 1::stride])


def vectorized(stride: int, dtype: str = "float32", target: str = "llvm") -> str:
    module = tvm.IRModule({"kernel": reading(stride, 8, dtype).with_attr("target", tvm.target.Target(target))})
    steps = (tvm.s_tir.transform.ConvertBlocksToOpaque(), tvm.s_tir.transform.LowerOpaqueBlock())
    for one in (*steps, tirx.transform.FlattenBuffer(), tirx.transform.VectorizeLoop(), StridedLoads):
        module = one(module)
    return str(module.script())


def test_four_byte_numbers_at_a_small_stride_are_taken_apart_on_cpus() -> None:
    assert "Shuffle" in vectorized(2) and "Shuffle" in vectorized(4, "int32")
    for text in (vectorized(1), vectorized(5), vectorized(2, "float64"), vectorized(2, "float32", "cuda")):
        assert "Shuffle" not in text and "Ramp" in text
