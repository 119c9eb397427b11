"""Winograd over signals of open length, and over open pictures of a known number: right at every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tvmopt
from tests.importer.onnx_check import model, value
from tvmopt.runtime.model import Model

node = helper.make_node
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 34, 63, 65, 100, 257)


def signals(channels: int, outputs: int, taps: int, dilation: int, batch: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """y = LeakyRelu(conv(x) + b), as long as x, its weights and biases."""
    rng = np.random.default_rng(taps)
    w = (rng.standard_normal((outputs, channels, taps)) / np.sqrt(channels * taps)).astype("f")
    b = rng.standard_normal(outputs).astype("f")
    reach = dilation * (taps - 1)
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[reach // 2, reach - reach // 2], dilations=[dilation]),
        node("LeakyRelu", ["c"], ["y"], alpha=0.25),
    ]
    ends = [value("x", (batch, channels, "n"))], [value("y", (batch, outputs, "n"))]
    return model(nodes, *ends, {"w": w, "b": b}), w, b


def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray, dilation: int) -> np.ndarray:
    taps, length = w.shape[2], x.shape[2]
    reach = dilation * (taps - 1)
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (reach // 2, reach - reach // 2)))
    y = sum(np.einsum("oc,ncl->nol", w[:, :, k], padded[:, :, k * dilation :][:, :, :length]) for k in range(taps))
    y = y + b[:, None]
    return np.where(y < 0, 0.25 * y, y)


def compiled(made: Any, threads: int, **shape: Any) -> tuple[Model, list[str]]:
    found = tvmopt.compile(made, shape=shape, records=False, cache=False, verify=False, threads=threads)
    return Model(found.artifact, threads=threads), [kernel.family for kernel in found.report.kernels]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "channels, outputs, taps, dilation, batch",
    [
        (64, 64, 3, 1, 1),
        (32, 48, 5, 1, 1),
        (48, 33, 7, 1, 2),
        (33, 64, 11, 1, "b"),
        (64, 64, 4, 1, 1),
        (64, 96, 3, 2, 1),
        (64, 64, 7, 3, 2),
        (32, 64, 11, 5, "b"),
    ],
)
def test_signals_of_open_length(
    channels: int, outputs: int, taps: int, dilation: int, batch: Any, threads: int
) -> None:
    made, w, b = signals(channels, outputs, taps, dilation, batch)
    shape = {"n": "1..300@200"} | ({"b": "1..4@1"} if batch == "b" else {})
    found, families = compiled(made, threads, **shape)
    assert threads > 2 or "winograd" in families
    for length in LENGTHS:
        count = 1 + length % 3 if batch == "b" else batch
        x = np.random.default_rng(length).standard_normal((count, channels, length)).astype("f")
        want = expected(x, w, b, dilation)
        np.testing.assert_allclose(found.run({"x": x})["y"], want, rtol=0, atol=2e-5)


def test_a_signal_of_few_channels_has_a_panel_for_each_core() -> None:
    """Cores share nothing but panels of a picture of one row: one panel was one core's."""
    made, *_ = signals(32, 32, 11, 1, 1)
    code = tvmopt.compile(made, shape={"n": "1..300@200"}, records=False, cache=False, verify=False, threads=2)
    assert any(w.shape[0] == 2 and w.ndim > 2 for w in code.artifact.weights)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch, taps", [(3, 3), ("b", 3), (1, 5), (2, 5), ("b", 2), (3, 2)])
def test_open_pictures(batch: Any, taps: int, threads: int) -> None:
    """With two threads each task computed all pictures of a known number, beyond the memory of its own."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((64, 64, taps, taps)) / (8 * taps)).astype("f")
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[taps // 2] * 2 + [(taps - 1) // 2] * 2), node("Relu", ["c"], ["y"])]
    ends = [value("x", (batch, 64, "h", "w"))], [value("y", (batch, 64, "h", "w"))]
    shape = {"h": "8..64@32", "w": "8..64@32"} | ({"b": "1..4@1"} if batch == "b" else {})
    found, families = compiled(model(nodes, *ends, {"w": w}), threads, **shape)
    assert "winograd" in families
    for high, wide in ((8, 8), (32, 32), (9, 33), (17, 64)):
        x = rng.standard_normal((3 if batch == "b" else batch, 64, high, wide)).astype("f")
        border = taps // 2, (taps - 1) // 2
        padded = np.pad(x.astype(float), ((0, 0), (0, 0), border, border))
        want = sum(
            np.einsum("oc,nchw->nohw", w[:, :, i, j], padded[:, :, i : i + high, j : j + wide])
            for i in range(taps)
            for j in range(taps)
        )
        np.testing.assert_allclose(found.run({"x": x})["y"], np.maximum(want, 0), rtol=0, atol=4e-5)
