"""`mentions` finds words everywhere in a model but in its large weights, which it does not look into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tvmopt.fields import LARGE, has_flag, mentions

WORD = b"ZipMap"


def model(weights: dict[str, np.ndarray], op_type: str = "Identity", doc: str = "") -> bytes:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    node = helper.make_node(op_type, ["x"], ["y"])
    graph = helper.make_graph([node], "graph", [x], [y], tensors, doc_string=doc)
    return helper.make_model(graph).SerializeToString()


def with_word(size: int) -> np.ndarray:
    array = np.zeros(size, np.uint8)
    array[size // 2 : size // 2 + len(WORD)] = np.frombuffer(WORD, np.uint8)
    return array


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", False),
        (model({"w": np.zeros(3 * LARGE, np.uint8)}), False),
        (model({"w": np.zeros(LARGE, np.uint8)}, "ZipMap"), True),
        (model({"w": np.zeros(LARGE, np.uint8), "ZipMap": np.zeros(1, np.uint8)}), True),
        (model({"w": np.zeros(LARGE, np.uint8)}, doc="a ZipMap behind"), True),
        (model({"w": with_word(3 * LARGE)}), False),
        (model({"w": with_word(LARGE)}), False),
        (model({"w": with_word(LARGE - 1)}), True),  # of small ones nothing is left out
        (model({"a": with_word(LARGE), "b": with_word(LARGE)}, "ZipMap"), True),
        (model({"w": with_word(LARGE)})[:-9], True),  # cut off: all of it is looked through
        (b"\xff" * 99 + WORD, True),
        (WORD, True),
    ],
)
def test_words_outside_of_large_weights(tmp_path: Path, content: bytes, found: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert mentions(path, WORD) is found


def test_what_cannot_be_read_has_no_flag(tmp_path: Path) -> None:
    assert not any(map(has_flag, (tmp_path, tmp_path / "none.onnx", "a\0b", None, 7, b"use_cache")))
    assert has_flag(b".. use_cache_branch ..")
    with pytest.raises(OSError, match="No such file"):
        mentions(tmp_path / "none.onnx", WORD)
