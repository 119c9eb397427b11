"""The TensorRT runner against stand-ins of its API: its calls, and what it reads back."""

import ctypes
import enum
import json
import sys
import types

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvmopt.bench.records import Job
from tvmopt.bench.runners import make
from tvmopt.errors import InputError, MissingDependency, ModelError

LOG = []


class Runtime(types.ModuleType):
    """A stand-in of cuda.bindings.runtime whose device memory is host memory."""

    devices = 1

    def __init__(self):
        super().__init__("cuda.bindings.runtime")
        self.memory, self.captured = [], None

    def cudaGetDeviceCount(self):
        return (0, self.devices) if self.devices else (100, 0)

    def cudaMalloc(self, n):
        self.memory.append(np.zeros(n, np.uint8))
        return 0, self.memory[-1].ctypes.data

    cudaMallocHost = cudaMalloc

    def cudaStreamCreate(self):
        return 0, 7

    def cudaMemcpyAsync(self, to, source, n, kind, stream):
        LOG.append("h2d" if kind == 1 else "d2h")
        ctypes.memmove(to, source, n)
        return (0,)

    def cudaStreamSynchronize(self, stream):
        LOG.append("sync")
        return (0,)

    def cudaStreamBeginCapture(self, stream, mode):
        LOG.append("capture")
        return (0,)

    def cudaStreamEndCapture(self, stream):
        return 0, "graph"

    def cudaGraphInstantiate(self, graph, flags):
        return 0, "executable"

    def cudaGraphLaunch(self, graph, stream):
        LOG.append("launch")
        Context.last.execute_async_v3(stream)
        return (0,)


class Context:
    last = None

    def __init__(self):
        self.address, Context.last = {}, self

    def set_input_shape(self, name, shape):
        self.shape = shape

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address):
        self.address[name] = address

    def execute_async_v3(self, stream):
        LOG.append("run")
        n = int(np.prod(self.shape))
        x, y = ((ctypes.c_float * n).from_address(self.address[name]) for name in "xy")
        for i in range(n):
            y[i] = max(x[i], 0.0)
        return True


class Config:
    def __init__(self):
        self.flags = set()
        LOG.append(self)

    def set_memory_pool_limit(self, pool, size):
        self.workspace = size

    def set_flag(self, flag):
        self.flags.add(flag)

    def clear_flag(self, flag):
        self.flags.discard(flag)

    def create_timing_cache(self, data):
        self.cache = bytes(data)
        return self

    def set_timing_cache(self, cache, ignore_mismatch):
        pass

    def get_timing_cache(self):
        return types.SimpleNamespace(serialize=lambda: b"timings")

    def add_optimization_profile(self, profile):
        self.profile = profile


class Builder:
    def __init__(self, logger):
        pass

    def create_network(self, flags):
        self.flags = flags
        LOG.append(("network", flags))
        return types.SimpleNamespace(num_inputs=1, get_input=lambda i: types.SimpleNamespace(name="x", shape=(-1, 9)))

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return types.SimpleNamespace(set_shape=lambda *shapes: LOG.append(("profile", shapes)))

    def build_serialized_network(self, network, config):
        return b"plan"


class Engine:
    num_io_tensors = 2

    def get_tensor_name(self, i):
        return "xy"[i]

    def get_tensor_mode(self, name):
        return "in" if name == "x" else "out"

    def get_tensor_dtype(self, name):
        return "float"

    def create_execution_context(self):
        return Context()

    def create_engine_inspector(self):
        layer = {"Outputs": [{"Format/Datatype": "Half"}]}
        text = json.dumps({"Layers": [layer, layer, {"Outputs": [{"Format/Datatype": "Float"}]}]})
        return types.SimpleNamespace(get_engine_information=lambda form: text)


def _tensorrt(version, parses=True):
    trt = types.ModuleType("tensorrt")
    trt.__version__ = version
    trt.Logger = type("Logger", (), {"ERROR": 1, "__init__": lambda self, level: None})
    trt.Builder = Builder
    names = "EXPLICIT_BATCH" if version < "9" and not version.startswith("1") else "EXPLICIT_BATCH STRONGLY_TYPED"
    trt.NetworkDefinitionCreationFlag = enum.IntEnum("Flag", names, start=0)
    flags = "TF32 REFIT" if version.startswith("11") else "FP16 INT8 BF16 TF32 REFIT"
    trt.BuilderFlag = enum.IntEnum("BuilderFlag", flags, start=0)
    trt.MemoryPoolType = types.SimpleNamespace(WORKSPACE=0)
    trt.ProfilingVerbosity = types.SimpleNamespace(DETAILED=2)
    trt.LayerInformationFormat = types.SimpleNamespace(JSON=1)
    trt.TensorIOMode = types.SimpleNamespace(INPUT="in")
    trt.nptype = lambda dtype: np.float32
    trt.Runtime = lambda logger: types.SimpleNamespace(deserialize_cuda_engine=lambda plan: Engine())
    trt.OnnxParser = lambda network, logger: types.SimpleNamespace(
        parse=lambda data: parses,
        parse_from_file=lambda path: parses,
        num_errors=1,
        get_error=lambda i: "no plugin for Foo",
    )
    trt.Refitter = lambda engine, logger: types.SimpleNamespace(refit_cuda_engine=lambda: LOG.append("refit"))
    trt.OnnxParserRefitter = lambda refitter, logger: types.SimpleNamespace(refit_from_file=lambda path: True)
    return trt


@pytest.fixture
def stand_ins(monkeypatch):
    LOG.clear()
    runtime = Runtime()
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)

    def install(version="10.9.0", **options):
        monkeypatch.setitem(sys.modules, "tensorrt", _tensorrt(version, **options))
        return runtime

    return install


@pytest.fixture
def job(tmp_path):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, 9]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")

    def make_job(precision="fp32", **options):
        plan = tmp_path / "m.plan"
        return Job("tensorrt", str(tmp_path / "m.onnx"), str(plan), 1, 1, precision, {"x": (3, 9)}, options)

    return make_job


def _built(job):
    runner = make(job)
    from pathlib import Path

    runner.build(Path(job.prepared))
    return next(entry for entry in LOG if isinstance(entry, Config))


def test_builder_flags_of_version_10(stand_ins, job):
    stand_ins()
    config = _built(job("fp16", workspace="64"))
    flags = sys.modules["tensorrt"].BuilderFlag
    assert config.flags == {flags.FP16}
    assert config.workspace == 64 << 20
    assert ("network", 0) in LOG  # explicit batch is the only kind
    assert ("profile", ("x", (3, 9), (3, 9), (3, 9))) in LOG


def test_explicit_batch_is_asked_for_in_version_8(stand_ins, job):
    stand_ins("8.6.1")
    _built(job())
    assert ("network", 1) in LOG


def test_version_11_is_strongly_typed_and_refuses_a_precision_flag(stand_ins, job):
    stand_ins("11.0.0")
    _built(job())
    assert ("network", 2) in LOG
    with pytest.raises(InputError, match="strongly typed"):
        _built(job("fp16"))


def test_the_timing_cache_is_kept_and_used_again(stand_ins, job):
    stand_ins()
    assert _built(job()).cache == b""
    LOG.clear()
    assert _built(job()).cache == b"timings"


def test_a_model_that_does_not_parse_is_an_error_with_the_parsers_words(stand_ins, job):
    stand_ins(parses=False)
    with pytest.raises(ModelError, match="no plugin for Foo"):
        _built(job())


X = np.linspace(-1, 1, 27, dtype=np.float32).reshape(3, 9)


def _loaded(job):
    _built(job)
    runner = make(job)
    facts = runner.load()
    runner.bind({"x": X})
    LOG.clear()
    return runner, facts


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, ["launch", "run", "sync"]),
        ({"cuda_graph": "off"}, ["run", "sync"]),
        ({"transfers": "included", "cuda_graph": "off"}, ["h2d", "run", "d2h", "sync"]),
    ],
)
def test_a_run_does_what_the_row_says(stand_ins, job, options, calls):
    stand_ins()
    runner, facts = _loaded(job(**options))
    runner.run()
    assert calls == LOG
    np.testing.assert_array_equal(runner.outputs()["y"], np.maximum(X, 0))
    assert facts["CUDA graph"] == options.get("cuda_graph", "on")
    assert ("included" in facts["transfers"]) == (options.get("transfers") == "included")


def test_the_precision_is_read_back_from_the_layers(stand_ins, job):
    stand_ins()
    _, facts = _loaded(job("fp16"))
    assert (facts["asked"], facts["precision"]) == ("fp16", "Half 2, Float 1")


def test_refit_is_timed(stand_ins, job):
    stand_ins()
    config = _built(job(refit="on"))
    assert sys.modules["tensorrt"].BuilderFlag.REFIT in config.flags
    runner = make(job(refit="on"))
    assert runner.load()["refit"].endswith("ms")
    assert "refit" in LOG


def test_each_caller_has_a_context_of_its_own(stand_ins, job):
    stand_ins()
    runner, _ = _loaded(job(cuda_graph="off"))
    first = Context.last
    runner.caller()()
    assert Context.last is not first


def test_transfer_times(stand_ins, job):
    stand_ins()
    runner, _ = _loaded(job())
    assert set(runner.transfers()) == {"host to device", "device to host"}


def test_without_package_or_device_it_says_what_to_install(stand_ins, job, monkeypatch):
    runtime = stand_ins()
    runtime.devices = 0
    with pytest.raises(MissingDependency, match="no CUDA device"):
        _built(job())
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependency, match="tensorrt") as caught:
        make(job()).load()
    assert "pypi.nvidia.com" in caught.value.fix
