"""Functions that CUDA has of float32 only, of 16 bits: the code compiles, and their values."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from tests.schedules.cuda.harness import array, pipelined
from tvmopt.toolchain.ptxas import compile_source

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nearbyint": np.rint, "round": np.rint, "cosh": np.cosh, "sinh": np.sinh, "asin": np.arcsin, "acos": np.arccos,
    "asinh": np.arcsinh, "atanh": np.arctanh, "log1p": np.log1p,
}  # fmt: skip


def source_of(names: list[str], x: np.ndarray) -> tuple[np.ndarray, str]:
    """The sum of all of these functions of x, and the code."""

    def build(bb: relax.BlockBuilder, var: relax.Expr) -> relax.Expr:
        def total(a: te.Tensor) -> te.Tensor:
            return te.compute(a.shape, lambda *i: sum(getattr(tirx, name)(a(*i)) for name in names), name="total")

        return bb.call_te(total, var)

    out, source, _ = pipelined(build, [x], "fp32")
    return out, source


@pytest.mark.parametrize("shape", [(7,), (1 << 15, 8)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions(dtype: str, shape: tuple[int, ...]) -> None:
    """Alone and in vectors."""
    x = np.clip(array(shape, dtype, 0.4), -0.9, 0.9).astype(array((1,), dtype).dtype)
    for name, exact in FUNCTIONS.items():
        out, source = source_of([name], x)
        assert f"h{name}" not in source
        wide = exact(x.astype("float64"))
        limit = 1e-3 if dtype == "float16" else 8e-3
        np.testing.assert_allclose(out.astype("float64"), wide, rtol=limit, atol=limit)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nvcc_takes_them(dtype: str) -> None:
    _, source = source_of(list(FUNCTIONS), array((7,), dtype))
    compile_source(source, "sm_90a")
