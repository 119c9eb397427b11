"""`--precision tf32`: one product of rounded operands where fp32 takes three; numbers in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import pipelined
from tvmopt.compiler.results import precision_notes
from tvmopt.errors import InputError
from tvmopt.targets import Machine
from tvmopt.targets.precision import check

H100 = Machine.load("nvidia-h100")


def rounded(x: np.ndarray) -> np.ndarray:
    """To tf32: ten bits of mantissa, nearest, ties away from zero (`cvt.rna.tf32.f32`)."""
    return ((x.astype("float32").view("uint32") + 0x1000) & 0xFFFFE000).view("float32").astype("float64")


def run(x: np.ndarray, w: np.ndarray, op: str, precision: str, **attrs: object) -> tuple[np.ndarray, str, list[str]]:
    """The output in every thread order, the generated CUDA, the families."""

    def build(bb: relax.BlockBuilder, var: relax.Expr) -> relax.Expr:
        call = relax.op.nn.conv2d if op == "conv2d" else relax.op.matmul
        return call(var, relax.const(w), **attrs)

    return pipelined(build, [x], precision)


@pytest.mark.parametrize(
    ("m", "n", "k", "families"),
    [(9, 7, 15, ["gemm"]), (33, 40, 36, ["gemm"]), (49, 64, 2304, ["gemm", "split_sum"])],
)
def test_product(m: int, n: int, k: int, families: list[str]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((m, k), dtype="float32"), rng.standard_normal((k, n), dtype="float32") / k**0.5
    actual, source, used = run(x, w, "matmul", "tf32")
    exact = x.astype("float64") @ w.astype("float64")
    assert used == families and "tvmopt::tf32," in source and "tvmopt::tf32x3" not in source
    assert np.abs(actual - rounded(x) @ rounded(w)).max() < 3e-6, "operands rounded once, sums cut off"
    assert 2e-5 < np.abs(actual - exact).max() < 2.0**-10 * 4
    full, source, _ = run(x, w, "matmul", "fp32")
    assert "tvmopt::tf32x3" in source and np.abs(full - exact).max() < 3e-6


@pytest.mark.parametrize("k", [8, 100, 768])
def test_sums_are_rounded_to_nearest(k: int) -> None:
    """Of numbers of one sign, where cutting off each sum adds up: 768 products missed the last 5 bits."""
    rng = np.random.default_rng(k)
    x, w = rng.uniform(0.5, 1, (17, k)).astype("float32"), rng.uniform(0.5, 1, (k, 9)).astype("float32")
    full, _, _ = run(x, w, "matmul", "fp32")
    exact = x.astype("float64") @ w.astype("float64")
    assert (np.abs(full - exact) / exact).max() < 2.5e-7


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_no_infinity_and_no_nan_is_lost(precision: str) -> None:
    """The bits of a GPU's own NaN are all set: half a step more would be zero. An infinity stays one."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((17, 24), dtype="float32"), rng.standard_normal((24, 9), dtype="float32")
    w[:, 3] = 1  # no remainder: 0 times infinity would be NaN
    x[2, 5], x[9, 0], x[16, 23] = np.inf, -np.inf, np.uint32(0x7FFFFFFF).view("float32")
    w[7, 8] = np.inf
    actual, _, _ = run(x, w, "matmul", precision)
    with np.errstate(invalid="ignore"):
        exact = x.astype("float64") @ w.astype("float64")
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(exact))
    np.testing.assert_array_equal(actual[np.isinf(exact)], exact[np.isinf(exact)])


def test_convolution() -> None:
    """3x3 over 9x7 pixels of 12 channels: implicit GEMM."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 7, 12), dtype="float32")
    w = rng.standard_normal((24, 3, 3, 12), dtype="float32") / 10
    actual, source, used = run(x, w, "conv2d", "tf32", padding=1, data_layout="NHWC", kernel_layout="OHWI")
    padded = np.pad(rounded(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(padded[:, i : i + 9, j : j + 7] @ rounded(w)[:, i, j].T for i in range(3) for j in range(3))
    assert used == ["conv2d"] and "tvmopt::tf32," in source
    assert np.abs(actual - exact).max() < 5e-6


def test_who_has_it_and_what_is_told() -> None:
    check("tf32", H100)
    with pytest.raises(InputError, match=r"tensor cores of GPUs(.|\n)*bf16"):
        check("tf32", Machine.load("znver5"))
    (note,) = precision_notes("tf32", [])
    assert "11 significant bits" in note
