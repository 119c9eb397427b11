"""What onnxruntime's own documentation shows in Python: the same code on both engines, or a refusal that names it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import onnxruntime.backend as their_backend
import onnxruntime.datasets as their_datasets
import pytest

import tvmopt.onnxruntime as ours
from tvmopt.errors import TvmoptError

X = np.random.default_rng(0).random((3, 4, 5), np.float32)
CLASSES = ("InferenceSession", "SessionOptions", "RunOptions", "IOBinding", "OrtValue", "OrtDevice", "NodeArg",
           "ModelMetadata")  # fmt: skip
IRIS = np.array([0.385741144, 1.38054061, -2.13145, -0.992804825, 0.642774522, -1.7489388])
ENGINES = pytest.mark.parametrize("ort", [theirs, ours], ids=["onnxruntime", "tvmopt"])


def public(thing: Any) -> list[str]:
    """Names of its interface, without the modules that it happens to import."""
    return [n for n in dir(thing) if not n.startswith("_") and not inspect.ismodule(getattr(thing, n, None))]


# -- every name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", public(theirs))
def test_every_name_is_there_or_refused(name: str) -> None:
    try:
        found = getattr(ours, name)
    except AttributeError as error:
        assert f"onnxruntime.{name}" in str(error) and "docs/how-to/onnxruntime.md" in str(error)
        assert not hasattr(ours, name), "programs ask so what there is"
    else:
        assert callable(found) == callable(getattr(theirs, name))


@pytest.mark.parametrize("owner", CLASSES)
def test_every_name_of_a_class_is_there_or_refused(owner: str) -> None:
    known = getattr(ours, owner)
    made = known() if owner in ("SessionOptions", "RunOptions", "OrtDevice") else known
    fields = set(getattr(known, "__dataclass_fields__", ()))
    refused = []
    for name in set(public(getattr(theirs, owner))) - fields:
        try:
            getattr(made, name)
        except AttributeError as error:
            refused.append(name)
            assert f"{owner}.{name}" in str(error) and "docs/how-to/onnxruntime.md" in str(error)
    assert not set(refused) & {
        "run",
        "io_binding",
        "get_inputs",
        "enable_profiling",
        "bind_input",
        "numpy",
        "terminate",
    }


@pytest.mark.parametrize("owner", [ours.SessionOptions, ours.RunOptions])
def test_an_option_that_there_is_not_is_refused_when_it_is_set(owner: Any) -> None:
    with pytest.raises(AttributeError, match="intra_op_thread_count"):
        owner().intra_op_thread_count = 2
    options = owner()
    options.log_severity_level = 3
    assert options.log_severity_level == 3
    with pytest.raises(AttributeError, match="no attribute '_x'"):
        _ = options._x


def test_exceptions_have_the_names_of_theirs() -> None:
    state = theirs.capi.onnxruntime_pybind11_state
    for name, kind in vars(state).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            found = getattr(ours.capi.onnxruntime_pybind11_state, name)
            assert issubclass(found, TvmoptError)


# -- "load and predict", "metadata", "common errors", "backend" --------------------------------------------------------


def example(name: str = "sigmoid.onnx") -> str:
    path = ours.datasets.get_example(name)
    assert Path(path) == Path(their_datasets.get_example(name))
    return str(path)


@ENGINES
def test_load_and_predict(ort: Any) -> None:
    session = ort.InferenceSession(example(), providers=ort.get_available_providers())
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("x", [3, 4, 5], "tensor(float)")
    assert (made.name, made.shape, made.type) == ("y", [3, 4, 5], "tensor(float)")
    (found,) = session.run([made.name], {given.name: X})
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-X)), rtol=1e-5)


@ENGINES
def test_the_classifier_that_onnxruntime_ships(ort: Any) -> None:
    """It names no opset of ai.onnx and has more coefficients than its intercepts use."""
    session = ort.InferenceSession(example("logreg_iris.onnx"), providers=["CPUExecutionProvider"])
    x = np.array([[1, 2], [-3, 4], [50, -6]], np.float32)
    label, rows = session.run(None, {"float_input": x})
    rows_wanted = 1 / (1 + np.exp(-(x @ IRIS.reshape(3, 2).T + [0.2496292, 0.582027793, -0.941616654])))
    assert label.tolist() == rows_wanted.argmax(1).tolist()
    rows_wanted /= rows_wanted.sum(1, keepdims=True)
    np.testing.assert_allclose([[row[n] for n in range(3)] for row in rows], rows_wanted, atol=1e-6)


@ENGINES
def test_metadata(ort: Any) -> None:
    meta = ort.InferenceSession(example("mul_1.onnx"), providers=["CPUExecutionProvider"]).get_modelmeta()
    model = onnx.load(example("mul_1.onnx"))
    told = (meta.producer_name, meta.domain, meta.graph_name, meta.description, meta.custom_metadata_map)
    assert told == (model.producer_name, model.domain, model.graph.name, model.doc_string, {})
    assert meta.version == (model.model_version if model.HasField("model_version") else 2**63 - 1)


@ENGINES
def test_common_errors(ort: Any) -> None:
    session = ort.InferenceSession(example(), providers=["CPUExecutionProvider"])
    wrong = ort.capi.onnxruntime_pybind11_state.InvalidArgument
    with pytest.raises(wrong, match="Unexpected input data type"):
        session.run(["y"], {"x": X.astype(np.float64)})
    with pytest.raises((wrong, ValueError), match="misspelled"):
        session.run(["misspelled"], {"x": X})
    with pytest.raises((wrong, ValueError), match="misspelled"):
        session.run(["y"], {"misspelled": X})
    for shape in ((60,), (12, 5), (1, 3, 4, 5), (3, 4, 6)):
        with pytest.raises(wrong, match=r"Invalid rank|invalid dimensions"):
            session.run(None, {"x": np.zeros(shape, np.float32)})


@pytest.mark.parametrize(("backend", "ort"), [(their_backend, theirs), (ours.backend, ours)])
def test_backend(backend: Any, ort: Any) -> None:
    model = onnx.load(example())
    assert backend.supports_device(ort.get_device()) and backend.is_compatible(model)
    for given in (model, example(), ort.InferenceSession(example(), providers=["CPUExecutionProvider"])):
        prepared = backend.prepare(given, ort.get_device())
        for inputs in (X, [X]):
            np.testing.assert_allclose(prepared.run(inputs)[0], 1 / (1 + np.exp(-X)), rtol=1e-5)
    np.testing.assert_allclose(backend.run(model, [X], "CPU")[0], 1 / (1 + np.exp(-X)), rtol=1e-5)


def test_what_a_backend_refuses() -> None:
    wrong = ours.capi.onnxruntime_pybind11_state.InvalidArgument
    with pytest.raises(wrong, match="'CUDA'"):
        ours.backend.prepare(example(), "CUDA")
    with pytest.raises(wrong, match="no option 'beams'"):
        ours.backend.prepare(example(), "CPU", beams=2)
    with pytest.raises(wrong, match="1 inputs, and 2"):
        ours.backend.prepare(example(), "CPU", log_severity_level=3).run([X, X])


def test_profiling_is_refused_with_what_to_use_instead() -> None:
    options = ours.SessionOptions()
    with pytest.raises(TvmoptError, match="profiling") as refused:
        options.enable_profiling = True
    assert refused.value.fix == "tvmopt profile MODEL"


# -- the API summary: OrtValue, IOBinding ------------------------------------------------------------------------------


@ENGINES
def test_an_ort_value(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert (value.device_name(), value.shape(), value.data_type(), value.is_tensor()) == (
        "cpu", [3, 4, 5], "tensor(float)", True,
    )  # fmt: skip
    np.testing.assert_array_equal(value.numpy(), X)
    (found,) = ort.InferenceSession(example(), providers=["CPUExecutionProvider"]).run(["y"], {"x": value})
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-X)), rtol=1e-5)
    mirrored = ort.OrtValue.ortvalue_from_numpy(X.T, "cpu", 0, -1).numpy()  # its address is that of ordered elements
    assert mirrored.flags.c_contiguous and (mirrored == X.T).all()
    value = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
    value.update_inplace(data=X)
    copy = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32, "cpu", 0, -1, None)
    if ort is ours:  # theirs copies between devices only
        ort.copy_tensors([value], [copy])
        np.testing.assert_array_equal(copy.numpy(), X)
        with pytest.raises(TvmoptError, match="1 tensors are to be copied into 0"):
            ort.copy_tensors([value], [])
    with pytest.raises(Exception, match=r"size|tensor's type and shape"):
        copy.update_inplace(X[0])
    with pytest.raises(Exception, match="OrtValue"):
        ort.OrtValue.ortvalue_from_numpy(np.array(["a"]))
    assert ort.OrtDevice.make("cpu", 0, -1).device_type() == 0
    bits = np.array([0x3F80, 0x4000], np.uint16)
    half = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    assert (half.data_type(), half.element_type()) == ("tensor(bfloat16)", onnx.TensorProto.BFLOAT16)


@ENGINES
@pytest.mark.parametrize("scenario", range(1, 6))
def test_a_scenario_of_io_binding(ort: Any, scenario: int) -> None:
    session = ort.InferenceSession(example(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    x = ort.OrtValue.ortvalue_from_numpy(X)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3, 4, 5], np.float32)
    into = {"device_id": 0, "element_type": np.float32, "shape": [3, 4, 5]}
    if scenario == 1:
        binding.bind_cpu_input("x", X)
    elif scenario == 5:
        binding.bind_ortvalue_input("x", x)
    else:
        binding.bind_input(name="x", device_type=x.device_name(), buffer_ptr=x.data_ptr(), **into)
    if scenario == 3:
        binding.bind_output(name="y", device_type=y.device_name(), buffer_ptr=y.data_ptr(), **into)
    elif scenario == 5:
        binding.bind_ortvalue_output("y", y)
    else:
        binding.bind_output("y", *(["cpu"] if scenario == 4 else []))
    binding.synchronize_inputs()
    session.run_with_iobinding(binding, ort.RunOptions())
    binding.synchronize_outputs()
    found = {3: y.numpy, 4: lambda: binding.get_outputs()[0].numpy(), 5: y.numpy}
    result = found.get(scenario, lambda: binding.copy_outputs_to_cpu()[0])()
    np.testing.assert_allclose(result, 1 / (1 + np.exp(-X)), rtol=1e-5)


# -- what programs get wrong, and what they read though it is not the interface --------------------------------------


@ENGINES
def test_arguments_of_other_types(ort: Any) -> None:
    session = ort.InferenceSession(example(), providers=["CPUExecutionProvider"])
    for source in (1, None, bytearray(b"x"), onnx.load(example())):
        with pytest.raises(TypeError):
            ort.InferenceSession(source)
    with pytest.raises(TypeError):
        ort.InferenceSession(example(), {"intra_op_num_threads": 1})
    with pytest.raises(TypeError):
        ort.SessionOptions().intra_op_num_threads = "2"
    with pytest.raises(TypeError):
        ort.SessionOptions().logid = 2
    with pytest.raises(TypeError):
        session.run("y", {"x": X})
    for feeds in (None, [X]):
        with pytest.raises((TypeError, AttributeError)):
            session.run(None, feeds)
    options = ort.SessionOptions()
    options.intra_op_num_threads = -1  # as 0
    assert ort.InferenceSession(example(), options, providers=["CPUExecutionProvider"]).run(None, {"x": X})


@ENGINES
def test_what_optimum_reads(ort: Any) -> None:
    session = ort.InferenceSession(example(), providers=["CPUExecutionProvider"])
    assert session._model_path == example() and session._providers == ["CPUExecutionProvider"]
    assert [session._inputs_meta[0].name, session._outputs_meta[0].name] == ["x", "y"]


def test_numbers_of_the_other_byte_order() -> None:
    """onnxruntime takes their bytes as they are."""
    session = ours.InferenceSession(example())
    (found,) = session.run(None, {"x": X.astype(">f4")})
    np.testing.assert_array_equal(found, session.run(None, {"x": X})[0])


# -- options of sessions and runs --------------------------------------------------------------------------------------


@ENGINES
def test_options_are_taken(ort: Any) -> None:
    ort.set_default_logger_severity(3)
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level, options.logid = 3, "me"
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    providers = [("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})]
    session = ort.InferenceSession(example(), sess_options=options, providers=providers)
    assert session.get_providers() == ["CPUExecutionProvider"] and session.get_session_options().logid == "me"
    run = ort.RunOptions()
    run.log_severity_level = 3
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert session.run(None, {"x": X}, run)[0].shape == X.shape
    run.terminate = True
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="terminate flag being set"):
        session.run(None, {"x": X}, run)
    with pytest.raises(Exception, match="nothing"):
        options.get_session_config_entry("nothing")


def test_the_examples_modules_are_ours_in_the_place_of_onnxruntime() -> None:
    code = (
        "import tvmopt.onnxruntime; tvmopt.onnxruntime.install()\n"
        "import onnxruntime.backend as backend\n"
        "from onnxruntime import datasets, get_device\n"
        "from onnxruntime.datasets import get_example\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument\n"
        "from onnxruntime.capi.onnxruntime_inference_collection import IOBinding, InferenceSession, OrtValue\n"
        "assert InferenceSession is tvmopt.onnxruntime.InferenceSession\n"
        "assert backend.__name__ == 'tvmopt.onnxruntime.backend', backend\n"
        "print(get_example('mul_1.onnx'), backend.supports_device(get_device()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [example("mul_1.onnx"), "True"]
