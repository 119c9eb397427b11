"""Results of 8, 16 and 32 bits whose rows LLVM vectorizes under a mask: a store of one lane was as wide as four."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import tvmopt
from tvmopt.lowering.masked_stores import overruns

STORE = "  tail call void @llvm.masked.store.v4i16.p0(<4 x i16> %106, ptr align 8 %107, <4 x i1> <{}>), !dbg !48"


class Library:
    """Code of LLVM's, as far as it is looked at."""

    def __init__(self, text: str) -> None:
        self.text = text

    def inspect_source(self, kind: str) -> str:
        assert kind == "ll"
        return self.text


@pytest.mark.parametrize(
    ("lanes", "wrong"), [("1000", True), ("0010", True), ("1100", False), ("1110", False), ("1111", False)]
)
def test_a_mask_of_one_lane_is_found(lanes: str, wrong: bool) -> None:
    mask = ", ".join(f"i1 {('false', 'true')[int(lane)]}" for lane in lanes)
    text = "\n".join(["entry:", STORE.format(mask), "  ret void"])
    assert overruns(Library(text)) == wrong
    assert not overruns(Library(text.replace("i16", "f32"))) and not overruns(Library(""))


@pytest.mark.parametrize("stored", ["bfloat16", "uint8", "int16"])
@pytest.mark.parametrize("width", [14, 17, 23, 29, 41])
def test_no_row_writes_into_the_next(width: int, stored: str) -> None:
    """A convolution with stride 3 and four channels: rows of 4, 5, 7, 9 and 13 numbers, unrolled by channels."""
    rng = np.random.default_rng(width)
    kind = ml_dtypes.bfloat16
    x, w, b = (rng.integers(0, 3, shape).astype(kind) for shape in ((1, 16, 9, width), (4, 16, 3, 3), (4,)))
    to = {"bfloat16": 16, "uint8": 2, "int16": 5}[stored]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["t"], strides=[3, 3]),
        helper.make_node("LeakyRelu", ["t"], ["u"]),
        helper.make_node("Cast", ["u"], ["y"], to=to),
    ]
    inputs = [helper.make_tensor_value_info(n, 16, a.shape) for n, a in (("x", x), ("b", b))]
    output = helper.make_tensor_value_info("y", to, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(w, "w")]),
        opset_imports=[helper.make_opsetid("", 22)], ir_version=10,
    )  # fmt: skip
    found = tvmopt.compile(model, verify=False, records=False).model.run({"x": x, "b": b})["y"]
    rows, columns = found.shape[2:]
    right = np.zeros((1, 4, rows, columns)) + b.astype("f")[:, None, None]
    for i, j in np.ndindex(3, 3):
        part = x.astype("f")[:, :, i : i + 3 * rows - 2 : 3, j : j + 3 * columns - 2 : 3]
        right += np.einsum("nchw,oc->nohw", part, w.astype("f")[:, :, i, j])
    rounded = right.astype(kind).astype("f")
    np.testing.assert_array_equal(found.astype("f"), rounded if stored == "bfloat16" else rounded.astype(stored))
