"""The drop-in session beside onnxruntime itself: the same calls, the same answers, errors of the same classes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmopt
import tvmopt.onnxruntime as ours
from tvmopt.errors import ModelError, TvmoptError, UnsupportedOp
from tvmopt.onnxruntime import exceptions
from tvmopt.onnxruntime.options import AFFINITIES
from tvmopt.variants import models

X = np.random.default_rng(0).standard_normal((2, 8), np.float32)
value = helper.make_tensor_value_info


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: np.ndarray) -> str:
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests")
    helper.set_model_props(model, {"character": "a\nb"})
    onnx.save(model, path)
    return str(path)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two outputs of x, float32[2, 8]."""
    weights = np.random.default_rng(1).standard_normal((8, 4), np.float32)
    return saved(
        tmp_path_factory.mktemp("fixed") / "fixed.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])],
        [value("x", TensorProto.FLOAT, [2, 8])],
        [value("y", TensorProto.FLOAT, [2, 4]), value("z", TensorProto.FLOAT, [2, 4])],
        w=weights,
    )


@pytest.fixture(scope="module")
def open_(tmp_path_factory: pytest.TempPathFactory) -> str:
    """x, float32[rows, 8], times k, an int64 scalar, that decides a shape too."""
    return saved(
        tmp_path_factory.mktemp("open") / "open.onnx",
        [
            helper.make_node("Unsqueeze", ["k", "zero"], ["ends"]),
            helper.make_node("Slice", ["x", "starts", "ends", "one"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, ["rows", 8]), value("k", TensorProto.INT64, [])],
        [value("y", TensorProto.FLOAT, ["rows", None])],
        zero=np.array([0]), starts=np.array([0]), one=np.array([1]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def session(fixed: str) -> ours.InferenceSession:
    return ours.InferenceSession(fixed, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def reference(fixed: str) -> Any:
    return theirs.InferenceSession(fixed, providers=["CPUExecutionProvider"])


def test_it_says_the_same_of_the_model(session: ours.InferenceSession, reference: Any) -> None:
    for mine, other in (
        (session.get_inputs(), reference.get_inputs()),
        (session.get_outputs(), reference.get_outputs()),
    ):
        assert [(a.name, a.shape, a.type) for a in mine] == [(a.name, a.shape, a.type) for a in other]
    mine, other = session.get_modelmeta(), reference.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "version", "custom_metadata_map"):
        assert getattr(mine, name) == getattr(other, name), name
    assert session.get_providers() == reference.get_providers() == ["CPUExecutionProvider"]


def test_it_gives_the_same_outputs(session: ours.InferenceSession, reference: Any) -> None:
    for names in (None, [], ["z"], ["z", "y"]):
        mine, other = session.run(names, {"x": X}), reference.run(names, {"x": X})
        assert len(mine) == len(other)
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    listed = session.run(["y"], {"x": X.tolist()})[0]
    np.testing.assert_array_equal(listed, session.run(["y"], {"x": np.asfortranarray(X)})[0])


@pytest.mark.parametrize(
    ("names", "feed", "kind"),
    [
        (None, {}, ValueError),
        (None, {"x": X, "q": X}, exceptions.InvalidArgument),
        (["q"], {"x": X}, exceptions.InvalidArgument),
        (None, {"x": X.astype(np.float64)}, exceptions.InvalidArgument),
        (None, {"x": X[0]}, exceptions.InvalidArgument),
        (None, {"x": X[:1]}, exceptions.InvalidArgument),
        (None, {"x": "words"}, exceptions.InvalidArgument),
    ],
)
def test_bad_calls_are_errors_in_both(session: Any, reference: Any, names: Any, feed: Any, kind: type) -> None:
    with pytest.raises(kind):
        session.run(names, feed)
    with pytest.raises(Exception):  # noqa: B017 - of several classes, from one version to the next
        reference.run(names, feed)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(exceptions.NoSuchFile):
        ours.InferenceSession(str(tmp_path / "none.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    with pytest.raises(exceptions.InvalidProtobuf):
        ours.InferenceSession(tmp_path / "bad.onnx")
    with pytest.raises(TvmoptError):
        ours.InferenceSession(b"")


def test_open_dimensions_and_deciding_values(open_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, reference = ours.InferenceSession(open_), theirs.InferenceSession(open_)
    for rows, k in ((2, 1), (3, 2), (2, 1)):
        feed = {"x": np.arange(rows * 8, dtype=np.float32).reshape(rows, 8), "k": np.array(k)}
        np.testing.assert_array_equal(session.run(None, feed)[0], reference.run(None, feed)[0])
    monkeypatch.setattr("tvmopt.api.compile_isolated", lambda *_, **__: pytest.fail("compiled again"))
    again = ours.InferenceSession(open_)
    assert again.run(None, {"x": np.ones((3, 8), np.float32), "k": 2})[0].shape == (3, 2)


def test_one_compile_serves_batches_and_another_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile_(path: Any, **options: Any) -> Any:
        made.append(options["shape"])
        return tvmopt.compile(path, **options)

    monkeypatch.setattr("tvmopt.api.compile_isolated", compile_)
    weights = np.random.default_rng(1).standard_normal((5, 3, 3, 3), np.float32)
    path = saved(
        tmp_path / "batch.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 3, "h", 8])], [value("y", TensorProto.FLOAT, ["n", 5, None, 6])],
        w=weights,
    )  # fmt: skip
    reference = theirs.InferenceSession(path)
    for _ in range(2):  # the second session finds in the cache what the first one compiled, and for which sizes
        session = ours.InferenceSession(path)
        for rows, height in ((1, 8), (3, 8), (16, 8), (2, 9), (17, 31), (1, 8), (32, 3)):
            feed = {"x": np.random.default_rng(0).standard_normal((rows, 3, height, 8), np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], reference.run(None, feed)[0], rtol=1e-3, atol=1e-4)
    shapes = [shape["x"] for shape in made]
    assert shapes == [("?", 3, 8, 8), ("..16", 3, "..2048", 8), ("..32", 3, "..2048", 8)], (
        "for the first picture, another height, a larger batch, and never else"
    )


def test_a_call_beyond_every_bound_grows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile_(path: Any, **options: Any) -> Any:
        made.append(options["shape"]["x"])
        return tvmopt.compile(path, **options)

    monkeypatch.setattr("tvmopt.api.compile_isolated", compile_)
    path = saved(
        tmp_path / "signal.onnx", [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3], strides=[2])],
        [value("x", TensorProto.FLOAT, ["n", 2, "t"])], [value("y", TensorProto.FLOAT, ["n", 2, None])],
    )  # fmt: skip
    session, reference = ours.InferenceSession(path), theirs.InferenceSession(path)
    for length in (9, 33, 2048, 5000, 4097, 3, 9):
        feed = {"x": np.random.default_rng(0).standard_normal((1, 2, length), np.float32)}
        np.testing.assert_array_equal(session.run(None, feed)[0], reference.run(None, feed)[0])
    assert made == [("?", 2, 9), (1, 2, "..2048"), (1, 2, "..8192")]


def test_what_is_refused_open_is_compiled_for_its_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile_(path: Any, **options: Any) -> Any:
        made.append(options["shape"]["x"])
        if "?" in options["shape"]["x"]:
            raise ModelError("no open sizes here")
        return tvmopt.compile(path, **options)

    monkeypatch.setattr("tvmopt.api.compile_isolated", compile_)
    path = saved(
        tmp_path / "refused.onnx", [helper.make_node("Neg", ["x"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", "m"])], [value("y", TensorProto.FLOAT, ["n", "m"])],
    )  # fmt: skip
    for _ in range(2):  # the second session finds in the cache that it was refused
        session = ours.InferenceSession(path)
        for shape in ((1, 2), (2, 2)):
            np.testing.assert_array_equal(session.run(None, {"x": np.ones(shape, np.float32)})[0], -np.ones(shape))
    assert made == [("?", "?"), (1, 2), (2, 2)]


def test_an_open_dimension_gets_its_size_by_name(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "named.onnx", [helper.make_node("Relu", ["x"], ["y"])],
        [value("x", TensorProto.FLOAT, ["rows", 3])], [value("y", TensorProto.FLOAT, ["rows", 3])],
    )  # fmt: skip
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 4)
    session = ours.InferenceSession(path, options)
    assert session.get_inputs()[0].shape == [4, 3]
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    with pytest.raises(exceptions.InvalidArgument, match="invalid dimensions"):
        session.run(None, {"x": x[:2]})


def test_bytes_artifacts_and_threads(fixed: str, session: ours.InferenceSession, tmp_path: Path) -> None:
    expected = session.run(None, {"x": X})
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    made = tvmopt.compile(fixed, output=tmp_path / "m.tvmopt", threads=1, verify=False)
    for source in (Path(fixed).read_bytes(), made.path):
        other = ours.InferenceSession(source, options)
        for a, b in zip(other.run(None, {"x": X}), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert [(i.name, i.shape, i.type) for i in other.get_inputs()] == [("x", [2, 8], "tensor(float)")]
    assert other._artifact.threads == 1


@pytest.mark.parametrize("kind", ["model", "artifact"])
def test_threads_are_bound(fixed: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By onnxruntime's entry, whose processors are counted from 1, and by ours."""
    seen: list[Any] = []
    for module in ("tvmopt.variants.models", "tvmopt.onnxruntime.session"):
        module_load = sys.modules[module].load
        monkeypatch.setattr(
            f"{module}.load",
            lambda *a, _load=module_load, **k: (seen.append(k.get("cores")), _load(*a, **k))[1],
        )
    source = fixed
    if kind == "artifact":
        source = str(tmp_path / "m.tvmopt")
        tvmopt.compile(fixed, output=source, threads=1, verify=False)
        seen.clear()
    here = sorted(os.sched_getaffinity(0))
    for key, text in ((AFFINITIES, f"{here[0] + 1};{here[-1] + 1}"), ("tvmopt.cores", f"{here[0]},{here[-1]}")):
        options = ours.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(key, text)
        ours.InferenceSession(source, options)
    assert seen == [",".join(map(str, sorted({here[0], here[-1]}))), f"{here[0]},{here[-1]}"]


@pytest.mark.parametrize("text", ["0", "a", "1-", "3-1", "1;;2", "-1", "1-99999999"])
def test_processors_that_cannot_be_read(fixed: str, text: str) -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry(AFFINITIES, text)
    with pytest.raises(exceptions.InvalidArgument, match="cannot be read"):
        ours.InferenceSession(fixed, options)


def test_ranges_of_processors_are_counted_from_one() -> None:
    options = ours.SessionOptions()
    options.add_session_config_entry(AFFINITIES, "1-3;8,10")
    assert options.cores == "0,1,2,7,9"


def test_bindings_and_values(session: ours.InferenceSession) -> None:
    expected = session.run(None, {"x": X})
    tensor = ours.OrtValue.ortvalue_from_numpy(X)
    assert (tensor.shape(), tensor.data_type(), tensor.element_type()) == ([2, 8], "tensor(float)", 1)
    np.testing.assert_array_equal(session.run_with_ort_values(["z"], {"x": tensor})[0].numpy(), expected[1])
    place = ours.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32)
    bound = session.io_binding()
    bound.bind_input("x", "cpu", 0, np.float32, X.shape, X.__array_interface__["data"][0])
    bound.bind_output("y")
    bound.bind_ortvalue_output("z", place)
    session.run_with_iobinding(bound)
    np.testing.assert_array_equal(place.numpy(), expected[1])
    np.testing.assert_array_equal(bound.copy_outputs_to_cpu()[0], expected[0])
    with pytest.raises(exceptions.InvalidArgument):
        bound.bind_cpu_input("q", X)
    bound.bind_ortvalue_output("z", ours.OrtValue.ortvalue_from_shape_and_type([2, 5], np.float32))
    with pytest.raises(exceptions.InvalidArgument, match="bound to"):
        session.run_with_iobinding(bound)


def test_asynchronous_runs(session: ours.InferenceSession) -> None:
    told: list[Any] = []
    done = threading.Event()

    def callback(results: Any, data: Any, error: str) -> None:
        told.append((results, data, error))
        if len(told) == 2:
            done.set()

    session.run_async(["z"], {"x": X}, callback, "mine")
    session.run_async(["z"], {}, callback, "bad")
    done.wait()
    by_data = {data: (results, error) for results, data, error in told}
    np.testing.assert_array_equal(by_data["mine"][0][0], session.run(["z"], {"x": X})[0])
    assert "missing" in by_data["bad"][1]


def test_fallback_is_asked_for_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(
        tmp_path / "strings.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", TensorProto.STRING, [1])], [value("y", TensorProto.STRING, [1])],
    )  # fmt: skip
    x = np.array(["a"], object)
    with pytest.raises(ModelError):
        ours.InferenceSession(path).run(None, {"x": x})
    session = ours.InferenceSession(path, fallback=True)
    assert session.run(None, {"x": x})[0].tolist() == ["a"]
    assert "strings.onnx runs in onnxruntime" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("node", "kinds"),
    [
        (helper.make_node("Nonesuch", ["x"], ["y"]), (exceptions.NotImplemented, UnsupportedOp)),
        (helper.make_node("Relu", ["z"], ["y"]), (exceptions.InvalidGraph, ModelError)),
    ],
)
def test_what_cannot_be_compiled_has_both_classes(node: Any, kinds: tuple[type, ...], tmp_path: Path) -> None:
    float_ = TensorProto.FLOAT
    path = saved(tmp_path / "bad.onnx", [node], [value("x", float_, [2])], [value("y", float_, [2])])
    with pytest.raises(kinds[0]) as error:
        ours.InferenceSession(path)
    assert all(isinstance(error.value, kind) for kind in kinds) and error.value.fix
    assert type(error.value).__name__ == kinds[0].__name__


@pytest.mark.parametrize(("patience", "level", "lines"), [(0.0, -1, True), (0.0, 3, False), (1e9, -1, False)])
def test_a_long_compile_is_told(
    patience: float, level: int, lines: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("tvmopt.variants.models.PATIENCE", patience)
    monkeypatch.setenv("TVMOPT_CACHE", str(tmp_path))
    float_ = TensorProto.FLOAT
    path = saved(tmp_path / "long.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x", float_, [2])],
                 [value("y", float_, [2])])  # fmt: skip
    options = ours.SessionOptions()
    options.log_severity_level = level
    ours.InferenceSession(path, options)
    assert ("compiling long.onnx for its first use: " in capsys.readouterr().err) == lines


def test_stages_are_told_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.9, 2.0, 2.1, 3.9, 4.1, 100.0])
    monkeypatch.setattr("tvmopt.variants.models.time.monotonic", lambda: next(clock))
    variants = models.Variants.__new__(models.Variants)
    variants.quiet = False
    progress = variants._told("it")
    for stage in "abcdef":
        progress(stage)
    assert [line[-1] for line in capsys.readouterr().err.splitlines()] == ["b", "e", "f"]


def test_what_is_not_there_is_refused_by_name(session: ours.InferenceSession) -> None:
    with pytest.raises(exceptions.NotImplemented, match="end_profiling"):
        session.end_profiling()
    with pytest.raises(AttributeError, match="SparseTensor"):
        _ = ours.SparseTensor
    options = ours.SessionOptions()
    with pytest.raises(exceptions.NotImplemented):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(exceptions.InvalidArgument, match=r"tvmopt\.presicion"):
        options.add_session_config_entry("tvmopt.presicion", "bf16")
    for name in dir(theirs.InferenceSession):
        known = hasattr(ours.InferenceSession, name) or name in REFUSED
        assert known or name.startswith("_"), f"{name} is neither there nor refused"
    assert not issubclass(exceptions.NotImplemented, UnsupportedOp)


REFUSED = {
    "create_ortvalue_from_shape_and_type", "get_input_epdevices", "get_input_memory_infos", "get_output_memory_infos",
    "get_provider_graph_assignment_info", "get_tuning_results", "release_captured_graph", "run_with_ortvaluevector",
    "set_ep_dynamic_options", "set_tuning_results",
}  # fmt: skip
"""Methods that tell of onnxruntime's own providers and devices."""


def test_programs_that_import_onnxruntime_get_ours() -> None:
    code = """
import onnxruntime as before
import tvmopt.onnxruntime as ours
ours.install()
import onnxruntime
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
assert onnxruntime is ours and before is not ours
assert C.get_available_providers() == ["CPUExecutionProvider"]
assert InvalidArgument is ours.exceptions.InvalidArgument
assert ours.real() is before and __import__("onnxruntime") is ours
ours.uninstall()
assert __import__("onnxruntime") is before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tools_that_change_models_are_onnxruntimes_own(tmp_path: Path) -> None:
    """They are found behind our session, and what they run to calibrate runs on it."""
    code = """
import sys
import numpy as np
import tvmopt.onnxruntime as ours
ours.install()
import onnxruntime.transformers
from onnxruntime.quantization import CalibrationDataReader, calibrate, quantize_static
import onnxruntime.tools.onnx_model_utils
assert calibrate.onnxruntime is ours
class Rows(CalibrationDataReader):
    left = 2
    def get_next(self):
        self.left -= 1
        return {"x": np.full((2, 8), self.left, np.float32)} if self.left >= 0 else None
quantize_static("m.onnx", "q.onnx", Rows())
x = np.random.default_rng(9).random((2, 8), np.float32)
found, expected = (ours.InferenceSession(name).run(None, {"x": x})[0] for name in ("q.onnx", "m.onnx"))
assert 0 < abs(found - expected).max() < 0.1
ours.uninstall()
import onnxruntime.quantization
assert onnxruntime.quantization.calibrate.onnxruntime is not ours
try:
    ours.quantization
except AttributeError as error:
    assert "not part" in str(error)
"""
    weight = np.random.default_rng(0).random((8, 4), np.float32)
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])], [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.save(made, tmp_path / "m.onnx")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
