"""TVM's helpers of float16: out of every kernel that has no float16, and right where there is one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvmopt
from tvmopt.cache import Kernels
from tvmopt.compiler import kernels
from tvmopt.lowering.half_helpers import NAMES, renamed, uses_half
from tvmopt.targets import Machine

SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33)


def cast_and_back(size: int) -> onnx.ModelProto:
    """float32 -> float16 -> float32, and a Relu of float32 alone."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    outputs = [value(name, TensorProto.FLOAT, [size]) for name in "yz"]
    outputs.insert(1, value("h", TensorProto.FLOAT16, [size]))
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [size])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("target", ["cpu", "x86-64-v2"])
@pytest.mark.parametrize("size", SIZES)
def test_float16_is_right(size: int, target: str) -> None:
    """Without F16C, as x86-64-v2 is, LLVM calls TVM's helpers: no kernel may get those that do nothing."""
    x = np.resize(
        np.array([0.0, -0.0, 1.0, 65504, 65520, 1e-8, 6e-8, 1 / 3, np.inf, -np.inf, np.nan], np.float32), size
    )
    outputs = tvmopt.compile(cast_and_back(size), target=target, verify=False, cache=False).model.run({"x": x})
    np.testing.assert_array_equal(outputs["h"], x.astype(np.float16))
    np.testing.assert_array_equal(outputs["y"], x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(outputs["z"], np.where(np.isnan(x), x, np.maximum(x, 0)))


def test_they_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object files of kernels without float16 are smaller by the helpers, and link together."""
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path / "kept"))
    found: dict[str, bytes] = {}
    real = kernels.objects

    def objects(*args: object) -> dict[str, bytes]:
        found.update(real(*args))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(kernels, "objects", objects)
    tvmopt.compile(cast_and_back(1000), verify=False, cache=False)
    with_half = {name for name, data in found.items() if b".text.tvm.fp16.conv" in data}
    assert with_half and len(with_half) < len(found)
    for name, data in found.items():
        assert (b"\0unused_trunc\0" in data) == (name not in with_half)
    assert Kernels.default().folder == tmp_path / "kept" / "kernels"


def test_names_have_the_same_length() -> None:
    assert all(len(old) == len(new) for old, new in NAMES.items())


def test_bfloat16_is_not_float16() -> None:
    assert uses_half('{"dtype":"float16"}') and uses_half('{"dtype":"float16x8"}')
    assert not uses_half('{"dtype":"bfloat16x8"}') and not uses_half('{"dtype":"float32"}')


def test_only_strong_symbols_get_another_name() -> None:
    """A file of one table of symbols: TVM's own helpers are weak, and stay."""
    names = b"\0__truncsfhf2\0__extendhfsf2\0"
    symbols = b"".join(
        struct.pack("<IBBHQQ", names.index(name + b"\0"), bind << 4 | 2, 0, 1, 0, 1)
        for name, bind in ((b"__truncsfhf2", 1), (b"__extendhfsf2", 2))
    )
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 1, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 3, 0)
    places = 64 + 3 * 64
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 1, 24)
        for kind, at, size, link in ((0, 0, 0, 0), (2, places, 48, 2), (3, places + 48, len(names), 0))
    )
    made = renamed(header + table + symbols + names)
    assert made[places + 48 :] == b"\0unused_trunc\0__extendhfsf2\0"
    assert made[places + 4] >> 4 == 2 and made[places + 24 + 4] >> 4 == 2
    assert Machine.load("cpu").kind == "llvm"
