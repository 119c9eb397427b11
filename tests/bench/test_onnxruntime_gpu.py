"""onnxruntime's CUDA and TensorRT providers against stand-ins of its API: data on the device, no silent fallback."""

import sys
import types
from importlib import import_module

import numpy as np
import onnx
import pytest

from tvmopt.bench.records import Job
from tvmopt.bench.runners import make
from tvmopt.bench.runners.onnxruntime import half_precision
from tvmopt.errors import InputError, MissingDependency

LOG = []
X = np.linspace(-1, 1, 27, dtype=np.float32).reshape(3, 9)


class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(array, device, index):
        LOG.append(("to", device))
        return array


class Binding:
    def __init__(self):
        self.inputs = {}

    def bind_ortvalue_input(self, name, value):
        self.inputs[name] = value

    def bind_output(self, name, device, index):
        LOG.append(("output on", device))

    def synchronize_outputs(self):
        LOG.append("sync")

    def copy_outputs_to_cpu(self):
        return [np.maximum(self.inputs["x"], 0)]


class Session:
    used = ("CUDAExecutionProvider", "CPUExecutionProvider")

    def __init__(self, model, options, providers):
        LOG.append(providers)

    def get_providers(self):
        return list(self.used)

    def get_outputs(self):
        return [types.SimpleNamespace(name="y")]

    def io_binding(self):
        return Binding()

    def run_with_iobinding(self, binding):
        LOG.append("run")

    def run(self, names, feeds):
        return [np.maximum(feeds["x"], 0)]


class Anything:
    def __getattr__(self, name):
        return lambda *args: None


@pytest.fixture
def gpu_onnxruntime(monkeypatch):
    LOG.clear()
    import_module("onnxruntime.transformers.float16")  # the real one, before the stand-in takes its package's name
    ort = types.ModuleType("onnxruntime")
    ort.get_available_providers = lambda: [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    ort.SessionOptions = Anything
    ort.GraphOptimizationLevel = types.SimpleNamespace(ORT_ENABLE_ALL=99)
    ort.InferenceSession, ort.OrtValue = Session, OrtValue
    monkeypatch.setitem(sys.modules, "onnxruntime", ort)
    monkeypatch.setattr(Session, "used", ("CUDAExecutionProvider", "CPUExecutionProvider"))


def _cuda_job(engine="onnxruntime-cuda", precision="fp32", **options):
    return Job(engine, "m.onnx", precision=precision, options=options)


def test_onnxruntime_cuda_keeps_data_on_the_device(gpu_onnxruntime):
    runner = make(_cuda_job(cuda_graph="on"))
    facts = runner.load()
    [(provider, options)] = LOG[0]
    assert (provider, options["enable_cuda_graph"], options["use_tf32"]) == (
        "CUDAExecutionProvider",
        "1",
        "0",
    )
    assert facts["transfers"] == "excluded, data on the device; CUDA graph"
    runner.bind({"x": X})
    runner.run()
    assert LOG[-2:] == ["run", "sync"]
    np.testing.assert_array_equal(runner.outputs()["y"], np.maximum(X, 0))
    assert set(runner.transfers()) == {"host to device", "device to host"}


def test_a_silent_fallback_of_the_provider_is_an_error(gpu_onnxruntime, monkeypatch):
    monkeypatch.setattr(Session, "used", ("CPUExecutionProvider",))
    with pytest.raises(MissingDependency, match="fell back from CUDAExecutionProvider to CPUExecutionProvider"):
        make(_cuda_job()).load()


def test_the_tensorrt_provider_allows_fp16_only_when_asked(gpu_onnxruntime, monkeypatch):
    monkeypatch.setattr(Session, "used", ("TensorrtExecutionProvider", "CUDAExecutionProvider"))
    for precision, allowed in (("fp32", False), ("fp16", True)):
        LOG.clear()
        facts = make(_cuda_job("onnxruntime-tensorrt", precision)).load()
        [(provider, options)] = LOG[0]
        assert (provider, options["trt_fp16_enable"]) == ("TensorrtExecutionProvider", allowed)
        assert facts["precision"] == f"{precision} allowed"


def test_fp16_is_a_converted_model(gpu_onnxruntime, tmp_path, monkeypatch):
    path = _linear(tmp_path)
    given = []
    monkeypatch.setattr(Session, "__init__", lambda self, model, options, providers: given.append(model))
    facts = make(Job("onnxruntime-cuda", str(path), precision="fp16")).load()
    make(Job("onnxruntime-cuda", str(path), precision="fp32")).load()
    assert facts["precision"].startswith("fp16, converted by onnxruntime")
    assert given[1] == str(path)
    model = onnx.load_from_string(given[0])
    assert {i.data_type for i in model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    assert [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)] == [1, 1]


def test_a_converted_model_computes_the_same(tmp_path):
    import onnxruntime

    session = onnxruntime.InferenceSession(half_precision(str(_linear(tmp_path))), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == np.float32
    assert np.abs(y - x).max() < 2e-3


def test_a_model_that_cannot_be_converted_says_so(gpu_onnxruntime, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(InputError, match="float16 converter fails"):
        make(Job("onnxruntime-cuda", str(path), precision="fp16")).load()


def _linear(folder):
    """y = x @ w, 16x16."""
    value = onnx.helper.make_tensor_value_info
    w = onnx.numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    x, y = (value(name, onnx.TensorProto.FLOAT, [16, 16]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "linear", [x], [y], [w])
    path = folder / "linear.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_precision_the_provider_cannot_be_asked_for_is_refused(gpu_onnxruntime):
    with pytest.raises(InputError, match="own dtypes"):
        make(_cuda_job(precision="bf16")).load()
    with pytest.raises(InputError, match="needs its data on the device"):
        make(_cuda_job(cuda_graph="on", transfers="included"))
