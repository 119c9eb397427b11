"""Models as onnxruntime quantises them - for checks of the judge, and of the importer's Q/DQ.

Calibrated on two random inputs: the scales are those of real activations, whatever the model was trained for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

WAYS = {
    "qdq-tensor-u8s8": ("QDQ", False, "QUInt8", "QInt8"),
    "qdq-channel-u8s8": ("QDQ", True, "QUInt8", "QInt8"),
    "qdq-channel-s8s8": ("QDQ", True, "QInt8", "QInt8"),
    "qdq-tensor-u8u8": ("QDQ", False, "QUInt8", "QUInt8"),
    "operators-channel-u8s8": ("QOperator", True, "QUInt8", "QInt8"),
}
"""Format, whether each channel of a weight has a scale of its own, type of activations, type of weights."""


def quantise(source: Path, target: Path, way: str, shapes: dict[str, list[int]] | None = None) -> None:
    """Write a quantised model of one float input.

    Args:
        shapes: of inputs with open dimensions.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    logging.getLogger().setLevel(logging.ERROR)
    model = onnx.load(source, load_external_data=False)
    weights = {t.name for t in model.graph.initializer}
    (value,) = (v for v in model.graph.input if v.name not in weights)
    shape = (shapes or {}).get(value.name) or [d.dim_value for d in value.type.tensor_type.shape.dim]

    class Feeds(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[int] = iter(range(2))

        def get_next(self) -> dict[str, Any] | None:
            seed = next(self.left, None)
            if seed is None:
                return None
            return {value.name: np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)}

    form, channels, activations, kinds = WAYS[way]
    quantize_static(
        str(source), str(target), Feeds(), quant_format=QuantFormat[form], per_channel=channels,
        activation_type=QuantType[activations], weight_type=QuantType[kinds],
    )  # fmt: skip
