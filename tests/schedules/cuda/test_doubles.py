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
