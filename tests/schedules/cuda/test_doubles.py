"""float64 through the whole pipeline for a GPU is computed in float64: against NumPy, and no float32 in the code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from tests.schedules.cuda.harness import array, close, pipelined
from tvmopt.toolchain.ptxas import compile_source

EPSILON = 9.999999747378752e-06
"""1e-5 as ONNX stores it, in float32: 0.000009999999747 has ten digits of it."""


def computed(build: Callable[..., relax.Expr], *inputs: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The output and the families."""
    out, source, used = pipelined(build, inputs, "fp32")
    kernels = source.split('extern "C"', 1)[1]
    assert not re.search(r"\bfloat\b|[0-9]f\b", kernels)
    if shutil.which("nvcc"):
        compile_source(source, "sm_90a")
    return out, used


def affine(channels: int) -> tuple[np.ndarray, np.ndarray]:
    return array((channels,), "float64", 1, 1), array((channels,), "float64", 1, 2)


@pytest.mark.parametrize("shape", [(2, 60), (3, 5, 33), (1, 2048), (9, 2)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, (gamma, _) = array(shape, "float64"), affine(shape[-1])
    out, used = computed(lambda bb, x, g: relax.op.nn.rms_norm(x, g, [-1], EPSILON), x, gamma)
    assert used == ["rows"]
    close(out, x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gamma)


@pytest.mark.parametrize("shape", [(2, 60), (3, 5, 33)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    x, (gamma, beta) = array(shape, "float64") + 100, affine(shape[-1])
    out, used = computed(lambda bb, x, g, b: relax.op.nn.layer_norm(x, g, b, [-1], EPSILON), x, gamma, beta)
    assert used == ["rows"]
    centred = x - x.mean(-1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * gamma + beta
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_and_instance_norm(groups: int) -> None:
    """TVM's own forms are of float32 and float16 only, and abort."""
    x, (gamma, beta) = array((3, 4, 2, 7), "float64"), affine(4)

    def build(bb: relax.BlockBuilder, x: relax.Expr, g: relax.Expr, b: relax.Expr) -> relax.Expr:
        if groups == 4:
            return relax.op.nn.instance_norm(x, g, b, 1, [2, 3], EPSILON)
        return relax.op.nn.group_norm(x, g, b, groups, 1, [2, 3], EPSILON)

    out, used = computed(build, x, gamma, beta)
    assert "rows" in used
    parts = x.reshape(3, groups, -1)
    centred = parts - parts.mean(-1, keepdims=True)
    value = (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)).reshape(x.shape)
    close(out, value * gamma[:, None, None] + beta[:, None, None])


@pytest.mark.parametrize("log", [False, True])
def test_softmax(log: bool) -> None:
    x = array((7, 45), "float64", 3)
    out, used = computed(lambda bb, x: (relax.op.nn.log_softmax if log else relax.op.nn.softmax)(x, -1), x)
    assert used == ["rows"]
    wide = np.exp(x - x.max(-1, keepdims=True))
    share = wide / wide.sum(-1, keepdims=True)
    close(out, np.log(share) if log else share)


@pytest.mark.parametrize(("channels", "outputs"), [(8, 8), (3, 6)])
def test_depthwise(channels: int, outputs: int) -> None:
    x, w = array((1, 9, 9, channels), "float64"), array((outputs, 3, 3, 1), "float64", 1, 1)

    def build(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        return relax.op.nn.conv2d(
            x, relax.const(w, "float64"), padding=1, groups=channels, data_layout="NHWC", kernel_layout="OHWI"
        )

    out, _ = computed(build, x)
    padded = np.pad(np.repeat(x, outputs // channels, -1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    close(out, np.einsum("nyxokl,okl->nyxo", taps, w[..., 0]))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("axes", [(0, 1), (1,), (0, 2)])
def test_norms_over_other_axes(axes: tuple[int, ...], dtype: str) -> None:
    """No kernel of rows takes them, and TVM's own aborts."""
    x = array((5, 6, 7), dtype)
    sizes = tuple(x.shape[axis] for axis in axes)
    gamma, beta = array(sizes, dtype, 1, 1), array(sizes, dtype, 1, 2)

    def build(bb: relax.BlockBuilder, x: relax.Expr, g: relax.Expr, b: relax.Expr) -> relax.Expr:
        centred = bb.emit(relax.op.nn.layer_norm(x, g, b, axes, EPSILON))
        return relax.op.nn.rms_norm(centred, g, axes, EPSILON)

    out, source, _ = pipelined(build, [x, gamma, beta], "fp32")
    assert dtype != "float64" or not re.search(r"\bfloat\b|[0-9]f\b", source.split('extern "C"', 1)[1])
    wide, g, b = (a.astype("float64") for a in (x, gamma, beta))
    g, b = (np.expand_dims(a, [axis for axis in range(3) if axis not in axes]) for a in (g, b))
    wide = wide - wide.mean(axes, keepdims=True)
    wide = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + EPSILON) * g + b
    exact = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + EPSILON) * g
    np.testing.assert_allclose(out.astype("float64"), exact, atol=1e-12 if dtype == "float64" else 0.1)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_instance_norm_of_channels_last(dtype: str) -> None:
    x = array((2, 5, 6, 4), dtype)
    gamma, beta = array((4,), dtype, 1, 1), array((4,), dtype, 1, 2)

    def build(bb: relax.BlockBuilder, x: relax.Expr, g: relax.Expr, b: relax.Expr) -> relax.Expr:
        return relax.op.nn.instance_norm(x, g, b, 3, [1, 2], EPSILON)

    out, _, _ = pipelined(build, [x, gamma, beta], "fp32")
    wide, g, b = (a.astype("float64") for a in (x, gamma, beta))
    wide = wide - wide.mean((1, 2), keepdims=True)
    exact = wide / np.sqrt((wide**2).mean((1, 2), keepdims=True) + EPSILON) * g + b
    np.testing.assert_allclose(out.astype("float64"), exact, atol=1e-12 if dtype == "float64" else 0.1)
