"""Weights alone: the codes, the nodes, and the result in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.importer.onnx_check import run_ort
from tests.quantization.models import network
from tvmopt.errors import InputError
from tvmopt.operators.codes import unpack
from tvmopt.quantization.weights import quantise_weights, rounded


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [1, 15, 16, 17, 33])
def test_codes_are_the_nearest(bits: int, k: int) -> None:
    rng = np.random.default_rng(k)
    weight = rng.standard_normal((k, 7)).astype(np.float32)
    weight[:, 3] = 0
    codes, scales = rounded(weight, bits, 16)
    groups = -(-k // 16)
    assert codes.shape == (7, groups, 16 * bits // 8) and scales.shape == (7, groups)
    found = unpack(codes.reshape(7, -1), bits, k).astype(np.float64) - 2 ** (bits - 1)
    wide = np.repeat(scales, 16, 1)[:, :k].astype(np.float64)
    assert np.abs(found * wide - weight.T).max() <= np.abs(weight).max() / (2 ** (bits - 1) - 1) / 2 + 1e-6
    assert (np.abs(found * wide - weight.T) <= wide / 2 + 1e-6).all() and not found[3].any()


def test_a_product_becomes_matmul_nbits() -> None:
    exact, made = network(), network()
    assert quantise_weights(made, "int8", 16, []) == ["last"]
    onnx.checker.check_model(made)
    x = {"x": np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    a, b = run_ort(exact, x)[0], run_ort(made, x)[0]
    assert 0 < np.abs(a - b).max() < 0.02 * np.abs(a).max()
    assert "w3" not in {t.name for t in made.graph.initializer}


def test_refusals() -> None:
    for group in (0, 8, 24):
        with pytest.raises(InputError, match="group"):
            quantise_weights(network(), "int4", group, [])
    with pytest.raises(InputError, match="no product"):
        quantise_weights(network(), "int4", 32, ["last"])
