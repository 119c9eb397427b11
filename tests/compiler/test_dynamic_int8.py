"""Dynamically quantized convolutions of pictures of open size, as onnxruntime's quantizer writes them: of bytes, in the
tiles of their families, with the scales and the bias in steps of them computed where they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value

node = helper.make_node
SIZES = (5, 7, 8, 9, 15, 17, 32, 33)


def quantized(
    *kernel: int, channels: int = 24, out: int = 20, zero: int = 128, bias: bool = True, **attributes: Any
) -> onnx.ModelProto:
    """x [1, channels, 6, t], or [1, channels, t], in bytes; a ConvInteger; the bias, in steps of what it gives."""
    random = np.random.default_rng(len(kernel) + channels)
    each = channels // attributes.get("group", 1)
    weight = random.integers(0, 256, (out, each, *kernel)).astype(np.uint8)
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("Mul", ["s", "ws"], ["step"]),
        node("ConvInteger", ["q", "w", "z", "wz"], ["c"], **attributes),
        node("Div", ["b", "step"], ["steps"]),
        node("Floor", ["steps"], ["whole"]),
        node("Cast", ["whole"], ["numbers"], to=TensorProto.INT32),
        node("Reshape", ["numbers", "shape"], ["upright"]),
        node("Add", ["c", "upright"], ["sum"]),
        node("Cast", ["sum" if bias else "c"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "step"], ["scaled"]),
        node("Relu", ["scaled"], ["y"]),
    ]
    constants = {
        "w": weight, "ws": np.float32(0.01), "wz": np.array(zero, np.uint8),
        "b": random.standard_normal(out).astype(np.float32), "shape": np.array([1, out, *[1] * len(kernel)]),
    }  # fmt: skip
    shape = (1, channels, 6, "t") if len(kernel) == 2 else (1, channels, "t")
    return model(nodes, [value("x", shape)], [value("y", None)], constants)


@pytest.mark.parametrize(
    "made, family",
    [
        (quantized(1, 1), "gemm"),
        (quantized(1, 1, bias=False, channels=3), "gemm"),
        (quantized(3, 3, pads=[1, 1, 1, 1]), "conv2d"),
        (quantized(3, 3, pads=[1, 1, 1, 1], bias=False, zero=7, out=16), "conv2d"),
        (quantized(3, 5, pads=[0, 2, 1, 2], strides=[2, 1], channels=8, out=33), "conv2d"),
        (quantized(3, 3, dilations=[2, 1], pads=[2, 1, 2, 1], zero=0), "conv2d"),
        (quantized(1, channels=16), "gemm"),
        (quantized(3, pads=[1, 1], channels=7), ""),
        (quantized(3, 3, pads=[1, 1, 1, 1], group=24, out=24), ""),
        (quantized(3, 3, auto_pad="SAME_UPPER"), ""),
    ],
)
def test_dynamically_quantized_convolutions_of_open_width(made: onnx.ModelProto, family: str) -> None:
    result = tvmopt.compile(made, threads=2, verify=False)
    if family:
        found_families = {k.family.removeprefix("amx_") for k in result.report.kernels if "conv" in k.name}
        assert family in found_families, found_families
    rank = len(made.graph.input[0].type.tensor_type.shape.dim)
    channels = made.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    for size in SIZES:
        shape = (1, channels, 6, size) if rank == 4 else (1, channels, size)
        x = np.random.default_rng(size).standard_normal(shape).astype(np.float32)
        found, expected = result.model.run({"x": x})["y"], run_ort(made, {"x": x})[0]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, 1e-6, 1e-6 * float(np.abs(expected).max()))
