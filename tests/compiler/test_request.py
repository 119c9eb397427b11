"""What a compile is asked for survives the way into another process."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tvmopt.compiler.dump import Dumps
from tvmopt.compiler.request import Request
from tvmopt.targets import Machine


@pytest.mark.parametrize("target", ["cpu", "sapphirerapids", "nvidia-h100"])
def test_every_field_arrives(target: str) -> None:
    """A field that :meth:`to_dict` forgets would be compiled with its default, in silence."""
    request = Request(
        "m.onnx", Machine.load(target), "fp32", {"x": (1, 3)}, {"rate": 16000, "axes": [0, 1]}, True, "off", "int8",
        "a name", False, False, Path("store.db"), ("tvmopt.FusePad",), ("k0", "k1"),
        Dumps((("FuseOps", "/a"),), "/b", (("k0", "/c"),)), {"x": "image:resize=256"},
            {"y": "scores:top-k=5"}, {"y": ["a", "b"]}, Path("first.onnx"),
    )  # fmt: skip
    defaults = Request("m.onnx", Machine.load("x86-64-v3"))
    given = [name for name in request.__dataclass_fields__ if name not in ("source", "precision")]
    assert all(getattr(request, name) != getattr(defaults, name) for name in given), "a new field needs a value here"
    arrived = Request.from_dict(json.loads(json.dumps(request.to_dict())))
    assert arrived.shapes == {"x": [1, 3]} and arrived.store == "store.db" and arrived.first == "first.onnx"
    for name in given:
        if name not in ("shapes", "store", "first"):
            assert getattr(arrived, name) == getattr(request, name), name


@pytest.mark.parametrize(
    "array",
    [
        np.array([np.nan, np.inf, -0.0], np.float32),
        np.array([[1.5, -2.0]], ml_dtypes.bfloat16),
        np.array(7, np.int64),
        np.zeros((2, 0), np.float16),
        np.array([True, False]),
        np.arange(12).reshape(3, 4)[:, ::2],
    ],
    ids=lambda array: f"{array.dtype.name}{list(array.shape)}",
)
def test_arrays_arrive_bit_by_bit(array: np.ndarray) -> None:
    request = Request("m.onnx", Machine.load("cpu"), values={"v": array})
    arrived = Request.from_dict(json.loads(json.dumps(request.to_dict()))).values["v"]
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    assert arrived.tobytes() == array.tobytes()
