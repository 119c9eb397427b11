"""Weights inside of a model's own file: what is left there, what is read whole, and that both are the same model."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.importer.onnx_check import model, value
from tvmopt import api
from tvmopt.errors import ModelError
from tvmopt.importer import load
from tvmopt.importer.external import LARGE, array_of
from tvmopt.importer.inside import without_weights
from tvmopt.runtime.model import Model

loading = import_module("tvmopt.importer.load")
node = helper.make_node


@pytest.fixture(autouse=True)
def every_file(monkeypatch):
    """Files of any size are read without their weights."""
    monkeypatch.setattr(loading, "WHOLE", 0)


def summed(*arrays) -> onnx.ModelProto:
    """A model that adds up its weights."""
    names = [f"w{i}" for i in range(len(arrays))]
    sums = [node("Add", ["x" if not i else f"s{i - 1}", n], [f"s{i}"]) for i, n in enumerate(names)]
    shapes = (value("x", arrays[0].shape), value(f"s{len(arrays) - 1}", arrays[0].shape))
    return model(sums, [shapes[0]], [shapes[1]], dict(zip(names, arrays, strict=True)))


def places(found) -> list[bool]:
    """Of each weight whether it was left in the file."""
    return [t.data_location == TensorProto.EXTERNAL for t in found.graph.initializer]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8", "int64", "bool", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["m.onnx", "mo.onnx", "mod.onnx", "ä model.onnx"])
def test_large_weights_stay_in_the_models_file(tmp_path, dtype, name):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = 4 if dtype == "int4" else 8 * kind.itemsize
    rng, least = np.random.default_rng(0), LARGE * 8 // bits
    arrays = [rng.integers(0, 2, n).astype(kind) for n in (least, least - 8, least + 9)]
    made, path = summed(*arrays), tmp_path / name
    made.graph.name = "n" * (3 + len(name))  # weights begin at any byte of a number
    onnx.save(made, path)
    found = load(path, mapped=True)
    assert places(found) == [True, False, True] and places(load(path)) == [False] * 3
    for tensor, array in zip(found.graph.initializer, arrays, strict=True):
        assert array_of(tensor).dtype == array.dtype
        np.testing.assert_array_equal(array_of(tensor), array)


def test_all_but_the_weights_is_as_in_the_file(tmp_path):
    made = summed(np.ones(LARGE, "float32"), np.ones(3, "float32"))
    made.graph.initializer[0].doc_string = "of the weight"
    made.metadata_props.add(key="k", value="v")
    made.graph.metadata_props.add(key="of", value="the graph")
    onnx.save(made, tmp_path / "m.onnx")
    found = load(tmp_path / "m.onnx", mapped=True)
    tensor = found.graph.initializer[0]
    data = array_of(tensor).tobytes()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = data
    assert found == made


def test_a_link_as_in_a_cache_of_models(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    onnx.save(summed(np.ones(LARGE, "float32")), tmp_path / "blobs" / "1234")
    (tmp_path / "snapshot" / "m.onnx").symlink_to("../blobs/1234")
    found = load(tmp_path / "snapshot" / "m.onnx", mapped=True)
    assert places(found) == [True] and array_of(found.graph.initializer[0]).sum() == LARGE


def test_a_small_model_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.undo()
    onnx.save(summed(np.ones(LARGE, "float32")), tmp_path / "m.onnx")
    assert places(load(tmp_path / "m.onnx", mapped=True)) == [False]


def lies(made: onnx.ModelProto) -> bytes:
    made.graph.initializer[0].dims[0] += 1
    return made.SerializeToString()


def twice(made: onnx.ModelProto) -> bytes:
    made.graph.initializer[0].float_data.append(1)
    return made.SerializeToString()


def negative(made: onnx.ModelProto) -> bytes:
    made.graph.initializer[0].dims.extend([-1, -1])
    return made.SerializeToString()


def untyped(made: onnx.ModelProto) -> bytes:
    made.graph.initializer[0].data_type = 99
    return made.SerializeToString()


@pytest.mark.parametrize("change", [lies, twice, negative, untyped])
def test_weights_that_lie_are_refused_as_ever(tmp_path, change):
    path = tmp_path / "m.onnx"
    path.write_bytes(change(summed(np.ones(LARGE, "float32"))))
    words = []
    for mapped in (False, True):
        with pytest.raises(ModelError) as caught:
            load(path, mapped=mapped)
        words.append(str(caught.value))
    assert words[0] == words[1] and "initialiser 'w0'" in words[0]


def test_a_model_in_two_pieces_is_read_whole(tmp_path):
    """Protobuf joins the fields of messages that come twice."""
    made = summed(np.ones(LARGE, "float32"))
    other = onnx.ModelProto()
    other.graph.doc_string = "more of the graph"
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString() + other.SerializeToString())
    found = load(tmp_path / "m.onnx", mapped=True)
    assert places(found) == [False] and found.graph.doc_string == "more of the graph"


def test_every_damage_is_refused_or_read(tmp_path):
    """Cut off anywhere near the weight's ends, or with another byte there: no exception but ours."""
    whole, path = summed(np.ones(LARGE, "float32")).SerializeToString(), tmp_path / "m.onnx"
    at = whole.index(np.ones(8, "float32").tobytes())
    edges = [*range(at + 8), *range(at + 4 * LARGE - 4, len(whole))]
    rng = np.random.default_rng(0)
    for place in edges:
        changed = bytearray(whole)
        changed[place] = rng.integers(256)
        for content in (whole[:place], bytes(changed)):
            path.write_bytes(content)
            with suppress(ModelError):
                for tensor in load(path, mapped=True).graph.initializer:
                    array_of(tensor)


def test_a_file_without_large_weights_is_read_whole(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(summed(np.ones(3, "float32")), path)
    assert without_weights(path, LARGE) is None
    path.write_bytes(b"")
    assert without_weights(path, LARGE) is None
    made = summed(np.ones(LARGE, "float32"))
    del made.graph.initializer[0].dims[:]
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(["a" * LARGE], object), "w0"))
    path.write_bytes(made.SerializeToString())
    assert without_weights(path, LARGE) is None


def test_such_a_model_is_compiled_and_verified(tmp_path):
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((256, 256)).astype("float32") / 16 for _ in range(2)]
    products = [node("MatMul", ["x", "w0"], ["h"]), node("MatMul", ["h", "w1"], ["y"])]
    made = model(products, [value("x", (3, 256))], [value("y", (3, 256))], dict(w0=weights[0], w1=weights[1]))
    onnx.save(made, tmp_path / "m.onnx")
    done = api.compile(tmp_path / "m.onnx")
    assert done.report.accuracy["verified"]
    x = rng.standard_normal((3, 256)).astype("float32")
    np.testing.assert_allclose(Model(done.artifact)(x), x @ weights[0] @ weights[1], atol=1e-4)
