"""CUDA events and NVTX ranges, against stand-ins of the two libraries."""

import ctypes
import sys
import types

import numpy as np
import pytest

import tvmopt
from tests.runtime.small import small_model
from tvmopt.analysis import recorder
from tvmopt.errors import MissingDependency, TvmoptError
from tvmopt.runtime.cuda_events import EventTimer
from tvmopt.runtime.nvtx import Labels, ranges


class Cudart:
    """Events of a device whose every recorded event comes one millisecond after the one before."""

    def __init__(self, fail=""):
        self.now, self.stamps, self.alive, self.fail = 0, {}, 0, fail

    def _status(self, name):
        return 719 if name == self.fail else 0

    def cudaEventCreate(self, event):
        self.alive += 1
        event._obj.value = self.alive
        return self._status("create")

    def cudaEventRecord(self, event, stream):
        assert stream is None  # the default stream
        self.now += 1
        self.stamps[event.value] = self.now
        return self._status("record")

    def cudaEventSynchronize(self, event):
        assert event.value in self.stamps
        return self._status("wait")

    def cudaEventElapsedTime(self, out, first, last):
        ctypes.cast(out, ctypes.POINTER(ctypes.c_float))[0] = self.stamps[last.value] - self.stamps[first.value]
        return 0

    def cudaEventDestroy(self, event):
        self.alive -= 1
        return 0


class Nvtx(types.ModuleType):
    """The package nvtx, remembering."""

    def __init__(self):
        super().__init__("nvtx")
        self.said, self.depth = [], 0

    def push_range(self, message, domain):
        assert domain == "tvmopt"
        self.depth += 1
        self.said.append(message)

    def pop_range(self, domain):
        self.depth -= 1
        assert self.depth >= 0


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvtx") / "m.tvmopt"
    tvmopt.compile(small_model(), output=path, verify=False)
    return path


def _feeds(model):
    return {i.name: np.zeros(i.shape, i.numpy_dtype) for i in model.inputs}


def test_events_nest_and_are_used_again():
    timer = EventTimer(Cudart())
    for _ in range(2):
        timer.reset()
        timer.begin()
        timer.begin()
        timer.end()
        timer.end()
        timer.begin()
        timer.end()
        assert timer.seconds() == pytest.approx([3e-3, 1e-3, 1e-3])
    assert timer.library.alive == 6
    timer.close()
    assert timer.library.alive == 0


@pytest.mark.parametrize("what", ["create", "record", "wait"])
def test_an_error_of_cuda_is_told(what):
    timer = EventTimer(Cudart(fail=what))
    with pytest.raises(TvmoptError, match="719"):
        timer.begin()
        timer.end()
        timer.seconds()


def test_a_gpu_is_recorded_with_events_and_waited_for_once_a_run(artifact, monkeypatch):
    model = tvmopt.load(artifact)
    gpu = types.SimpleNamespace(
        manifest=types.SimpleNamespace(kind="cuda", report=model.manifest.report),
        arguments=model.arguments, session=model.session, instrumented=model.session,
    )  # fmt: skip
    waits = []
    monkeypatch.setattr(recorder, "_cuda_wait", lambda: lambda: waits.append(1))
    monkeypatch.setattr(recorder, "load_cudart", Cudart)
    found = recorder.Recorder(gpu, _feeds(model))
    waits.clear()
    _, times = found._events()
    assert len(waits) == 1
    kernels = [not name.startswith("vm.builtin.") for name in _names(found)]
    assert times == pytest.approx([1e-3 * kernel for kernel in kernels]) and sum(kernels) > 1
    measured = found.measure(2, 0.01)
    assert measured.instrument == "cuda events"
    assert len(measured.names) == len(measured.times[0])


def _names(found):
    found._python()
    return [symbol for symbol, _, _ in found.events]


def test_ranges_have_the_onnx_names(artifact, monkeypatch):
    nvtx = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    model = tvmopt.load(artifact)
    feeds = _feeds(model)
    for _ in range(2):
        nvtx.said.clear()
        with ranges(model):
            model.run(feeds)
        assert nvtx.depth == 0
        known = {node["name"] for node in model.manifest.report["flow"]["nodes"].values()}
        assert nvtx.said[0] == model.manifest.model
        assert any(name in message for message in nvtx.said[1:] for name in known)
    count = len(nvtx.said)
    model.run(feeds)
    assert len(nvtx.said) == count  # afterwards nothing is instrumented


def test_each_call_of_a_kernel_has_its_own_nodes():
    labels = Labels({"kernels": [{"name": "k", "nodes": [["a", "b"], ["c"]]}],
                     "flow": {"nodes": {"a": {"name": "enc/a:0"}}}})  # fmt: skip
    assert [labels.next("k") for _ in range(3)] == ["enc/a:0 + b [k]", "c [k]", "enc/a:0 + b [k]"]
    assert labels.next("vm.builtin.copy") == "vm.builtin.copy"


def test_run_takes_the_flag_and_says_what_is_missing(artifact, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(MissingDependency, match="pip install nvtx"):
        tvmopt.run(artifact, nvtx=True)
    nvtx = Nvtx()
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    tvmopt.run(artifact, nvtx=True, print_time=True, iterations=2, warmup=0)
    assert nvtx.depth == 0 and len(nvtx.said) > 3
