"""load: what is read and what is refused - paths, damaged files, tensors that lie, external data."""

from __future__ import annotations

import contextlib
import os

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.importer.onnx_check import model, run_ort, value
from tvmopt.compiler.request import source_hash
from tvmopt.errors import ModelError
from tvmopt.importer import import_model, load
from tvmopt.importer.external import LARGE, array_of
from tvmopt.importer.tensors import all_tensors, tensor_problem

node = helper.make_node


def small(weight=None) -> onnx.ModelProto:
    weight = np.arange(6, dtype="float32").reshape(2, 3) if weight is None else weight
    return model([node("Add", ["x", "w"], ["y"])], [value("x", (2, 3))], [value("y", (2, 3))], {"w": weight})


def refused(source) -> str:
    with pytest.raises(ModelError) as caught:
        load(source)
    return str(caught.value)


def external(tmp_path, **entries) -> str:
    """The path of a model whose weight is external, with these entries."""
    made = small()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=text))
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(made.SerializeToString())
    (path.parent / "w.bin").write_bytes(np.arange(10, dtype="float32").tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    return str(path)


def test_path_bytes_and_proto_are_the_same(tmp_path):
    made = small()
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    assert load(path) == load(str(path)) == load(path.read_bytes()) == load(made) == made


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "none.onnx", "No such file"),
        (lambda p: p, "it is a folder"),
        (lambda p: p / "fifo", "not a regular file"),
        (lambda p: p / "empty", "empty"),
        (lambda p: p / "text", "not an ONNX protobuf"),
        (lambda p: p / "other", "no graph"),
        (lambda p: p / "own.ort", "onnxruntime's own format"),
        (lambda p: 17, "not int"),
    ],
)
def test_what_is_not_a_model(tmp_path, make, words):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello, world")
    (tmp_path / "own.ort").write_bytes(b"\x18\0\0\0ORTM" + bytes(64))
    (tmp_path / "other").write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    assert words in refused(make(tmp_path))


def test_every_truncation_is_refused_or_read():
    data = small().SerializeToString()
    for length in range(len(data)):
        with contextlib.suppress(ModelError):
            load(data[:length])


def test_names_must_be_text():
    data = bytearray(small().SerializeToString())
    data[data.index(b"Add")] = 0xFF
    assert "not text" in refused(bytes(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.dims.append(1 << 40), "but holds 24 bytes"),
        (lambda t: t.dims.append(-1), "negative"),
        (lambda t: setattr(t, "data_type", 99), "99"),
        (lambda t: setattr(t, "data_type", TensorProto.STRING), "strings as raw bytes"),
        (lambda t: setattr(t, "raw_data", b"123"), "holds 3 bytes"),
        (lambda t: t.float_data.append(1), "twice"),
        (lambda t: t.segment.SetInParent(), "segments"),
    ],
)
def test_tensors_that_lie(change, words):
    made = small()
    change(made.graph.initializer[0])
    assert words in refused(made)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint64", "int8", "bool", "float16", "complex64"])
def test_typed_fields_are_counted(dtype):
    array = np.ones((3, 5), dtype)
    elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = helper.make_tensor("t", elem_type, array.shape, array.reshape(-1).tolist())
    assert tensor_problem(tensor) == ""
    tensor.dims[0] = 4
    assert "values" in tensor_problem(tensor)


def test_all_bad_tensors_are_listed():
    made = small()
    for name in ("a", "b", "c"):
        made.graph.initializer.append(TensorProto(name=name, data_type=1, dims=[2], raw_data=b"1"))
    text = refused(made)
    assert all(f"initialiser '{n}'" in text for n in "abc")


def test_tensors_are_found_everywhere():
    inner = helper.make_graph([node("Constant", [], ["t"], value=numpy_helper.from_array(np.ones(2)))], "b", [], [])
    made = small()
    made.graph.node.append(node("If", ["c"], ["z"], name="if", then_branch=inner, else_branch=inner))
    places = [where for where, _ in all_tensors(made)]
    assert len(places) == 3 and any("then_branch" in place for place in places)


def test_external_data_is_read(tmp_path):
    loaded = load(external(tmp_path, location="w.bin", offset="8", length="24"))
    assert numpy_helper.to_array(loaded.graph.initializer[0])[0, 0] == 2
    run_ort(loaded, {"x": np.ones((2, 3), "float32")})


def test_external_data_as_onnx_saves_it(tmp_path):
    made = small(np.random.default_rng(0).random((2, 3)).astype("float32"))
    expected = run_ort(made, {"x": np.ones((2, 3), "float32")})
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    np.testing.assert_array_equal(run_ort(load(path), {"x": np.ones((2, 3), "float32")}), expected)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "/etc/passwd"}, "leaves the model's folder"),
        ({"location": "../secret.bin"}, "leaves the model's folder"),
        ({"location": "sub/../../secret.bin"}, "leaves the model's folder"),
        ({"location": "C:\\secret.bin"}, "leaves the model's folder"),
        ({"location": "link.bin"}, "leaves the model's folder"),
        ({"location": "folder/secret.bin"}, "leaves the model's folder"),
        ({"location": "fifo"}, "not a regular file"),
        ({"location": ""}, "location"),
        ({}, "location"),
        ({"location": "a\0b"}, "location"),
        ({"location": "missing.bin"}, "No such file"),
        ({"location": "."}, "not a regular file"),
        ({"location": "w.bin", "offset": "20"}, "has 40 bytes"),
        ({"location": "w.bin", "offset": "-4"}, "offset"),
        ({"location": "w.bin", "offset": "9" * 40}, "offset"),
        ({"location": "w.bin", "length": "23"}, "needs 24 bytes"),
        ({"location": "w.bin", "length": "1e3"}, "length"),
    ],
)
def test_external_data_that_is_refused(tmp_path, entries, words):
    path = external(tmp_path, **entries)
    folder = os.path.dirname(path)
    os.symlink(tmp_path / "secret.bin", f"{folder}/link.bin")
    os.symlink(tmp_path, f"{folder}/folder")
    os.mkfifo(f"{folder}/fifo")
    assert words in refused(path)


@pytest.mark.parametrize("location", ["fifo", "zeros", "/dev/zero", "../../../dev/zero", "link.bin", "/etc/passwd"])
def test_no_hash_is_made_of_what_is_refused(tmp_path, location):
    """To compile hashes the model's files beside the import: it waited for the end of a pipe, or of /dev/zero."""
    path = external(tmp_path, location=location)
    folder = os.path.dirname(path)
    os.symlink(tmp_path / "secret.bin", f"{folder}/link.bin")
    os.symlink("/dev/zero", f"{folder}/zeros")
    os.mkfifo(f"{folder}/fifo")
    with pytest.raises(ValueError, match=r"folder|plain file"):
        source_hash(path)
    with pytest.raises(ModelError, match=r"folder|regular file"):
        tvmopt.compile(path)


def test_a_link_inside_the_folder_is_fine(tmp_path):
    path = external(tmp_path, location="link.bin", length="24")
    os.symlink("w.bin", f"{os.path.dirname(path)}/link.bin")
    load(path)


def test_external_data_of_a_model_without_folder(tmp_path):
    with open(external(tmp_path, location="w.bin"), "rb") as file:
        assert "has no folder" in refused(file.read())


def in_files(tmp_path, *arrays) -> str:
    """The path of a model whose weights are external; its nodes add them up."""
    names = [f"w{i}" for i in range(len(arrays))]
    sums = [node("Add", ["x" if not i else f"s{i - 1}", n], [f"s{i}"]) for i, n in enumerate(names)]
    shapes = (value("x", arrays[0].shape), value(f"s{len(arrays) - 1}", arrays[0].shape))
    made = model(sums, [shapes[0]], [shapes[1]], dict(zip(names, arrays, strict=True)))
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return str(path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8", "int64", "bool", "int4", "float8_e4m3fn"])
def test_large_weights_stay_in_their_file(tmp_path, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = 4 if dtype == "int4" else 8 * kind.itemsize
    rng = np.random.default_rng(0)
    least = LARGE * 8 // bits
    arrays = [rng.integers(0, 2, n).astype(kind) for n in (least, least - 8, least + 9)]
    path = in_files(tmp_path, *arrays)
    read, mapped = (load(path, mapped=mapped).graph.initializer for mapped in (False, True))
    assert [t.data_location for t in mapped] == [TensorProto.EXTERNAL, TensorProto.DEFAULT, TensorProto.EXTERNAL]
    for tensor, own, array in zip(mapped, read, arrays, strict=True):
        assert array_of(tensor).dtype == array_of(own).dtype == array.dtype
        np.testing.assert_array_equal(array_of(tensor), array)
        np.testing.assert_array_equal(array_of(own), array)


def test_a_mapped_weight_holds_when_its_name_is_new_and_ends_with_its_file(tmp_path):
    """The file may have another name by the time that a weight is looked at; one that is cut short is an error."""
    path = in_files(tmp_path, np.ones(LARGE, "float32"))
    tensor = load(path, mapped=True).graph.initializer[0]
    view = array_of(tensor)
    os.rename(tmp_path / "m.data", tmp_path / "other")
    assert view.sum() == LARGE
    with pytest.raises(ModelError, match="has changed while it was used"):
        array_of(tensor)
    (tmp_path / "m.data").write_bytes(bytes(LARGE))
    with pytest.raises(ModelError, match="has changed while it was used"):
        array_of(tensor)


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "link"])
def test_a_weight_that_would_stay_is_refused_like_any_other(tmp_path, location):
    (tmp_path / "in").mkdir()
    path = in_files(tmp_path / "in", np.ones(LARGE, "float32"))
    (tmp_path / "in" / "m.data").rename(tmp_path / "m.data")
    os.symlink(tmp_path / "m.data", tmp_path / "in" / "link")
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data[0].value = location
    onnx.save(made, path)
    with pytest.raises(ModelError, match="leaves the model's folder"):
        load(path, mapped=True)


def test_external_terabytes_are_refused_before_reading(tmp_path):
    path = external(tmp_path, location="w.bin")
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].dims.extend([1 << 20, 1 << 20])
    onnx.save(made, path)
    assert "memory" in refused(path)


def test_the_callers_model_is_left_alone(tmp_path):
    made = model([node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])], [value("x", (3,))], [value("y", (3,))])
    before = made.SerializeToString()
    sorted_model = load(made)
    assert [n.op_type for n in sorted_model.graph.node] == ["Neg", "Relu"]
    assert made.SerializeToString() == before


@pytest.mark.slow
def test_models_above_two_gigabytes(tmp_path):
    """Protobuf's limit is 2 GB: 2.3 GB of external weights are read, prepared and imported."""
    rows = 36
    path = tmp_path / "m.onnx"
    made = model(
        [node("Gather", ["w", "i"], ["g"]), node("ReduceSum", ["g"], ["y"], keepdims=0)],
        [value("i", (2,), TensorProto.INT64)],
        [value("y", ())],
    )
    weight = made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[rows, 1 << 24])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.append(onnx.StringStringEntryProto(key="location", value="w.bin"))
    onnx.save(made, path)
    with open(tmp_path / "w.bin", "wb") as file:  # sparse: zeros that take no room on disk, and one 1 a row
        file.truncate(rows << 26)
        for row in range(rows):
            file.seek(row << 26)
            file.write(np.float32(row).tobytes())
    imported = import_model(path)
    assert imported.outputs[0].shape == () and imported.inputs[0].shape == (2,)
    assert len(imported.model.graph.initializer[0].raw_data) == rows << 26
