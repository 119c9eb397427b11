"""Compiling for a GPU where there is none: real machine code, clear errors. Execution has the `cuda` mark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tvmopt
from tests.cuda import needs_toolkit
from tests.runtime.small import expected, small_model
from tvmopt.children import Crash
from tvmopt.compiler.driver import compile_model
from tvmopt.compiler.request import Request
from tvmopt.errors import ArtifactError, MissingDependency, ScheduleError
from tvmopt.runtime.library import cuda_available
from tvmopt.targets import Machine
from tvmopt.toolchain import cuda as cuda_toolkit

FATBIN = bytes.fromhex("50ed55ba")  # the magic number of a fatbin, little endian


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tvmopt.Compiled:
    """The small model with names as Caffe2 wrote them, which are no C identifiers."""
    model = small_model()
    for node in model.graph.node:
        node.input[:] = [f"gpu_0/{name}" if name == "x" else name for name in node.input]
    model.graph.input[0].name = "gpu_0/x"
    onnx.checker.check_model(model)
    path = tmp_path_factory.mktemp("cuda") / "gpu.onnx"
    onnx.save(model, str(path))
    return tvmopt.compile(path, target="nvidia/nvidia-h100", output=path.with_suffix(".tvmopt"))


@needs_toolkit
def test_real_machine_code(compiled: tvmopt.Compiled) -> None:
    assert FATBIN in compiled.artifact.library
    assert b"sm_90" in compiled.artifact.library
    assert (compiled.manifest.kind, compiled.manifest.mcpu) == ("cuda", "sm_90")
    assert compiled.manifest.inputs[0].name == "gpu_0/x"


@needs_toolkit
def test_the_report_says_whose_schedules(compiled: tvmopt.Compiled) -> None:
    fallback = [kernel for kernel in compiled.report.kernels if kernel.family.startswith("dlight.")]
    assert bool(fallback) == any("dlight" in warning for warning in compiled.report.warnings)


@needs_toolkit
def test_the_report_says_what_each_kernel_takes(compiled: tvmopt.Compiled) -> None:
    for kernel in compiled.report.kernels:
        assert kernel.launches, kernel.name
        for launch in kernel.launches:
            assert launch["grid"] > 0 and 0 < launch["threads"] <= 1024
            assert launch["registers"] > 0 and launch["spilled"] == 0 and 0 < launch["occupancy"] <= 1


@needs_toolkit
@pytest.mark.skipif(cuda_available(), reason="there is a GPU")
def test_without_a_gpu(compiled: tvmopt.Compiled) -> None:
    assert compiled.report.accuracy == {"verified": False, "reason": "there is no GPU here"}
    assert compiled.path is not None
    with pytest.raises(ArtifactError, match=r"for an NVIDIA GPU, and none can be used here(.|\n)*nvidia-h100, sm_90"):
        tvmopt.load(compiled.path)


@needs_toolkit
@pytest.mark.cuda
def test_runs(compiled: tvmopt.Compiled) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype("float32")
    np.testing.assert_allclose(compiled.model(x), expected(0, x), rtol=1e-3, atol=1e-4)


def test_no_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_toolkit, "_homes", list)
    monkeypatch.setattr(cuda_toolkit, "_has_nvrtc", lambda: False)
    monkeypatch.setattr(cuda_toolkit, "_wheel_folders", list)
    monkeypatch.setattr(cuda_toolkit.shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda_toolkit.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(
        MissingDependency,
        match=r"nvcc, or NVRTC(.|\n)*libcudart.so.13(.|\n)*install NVIDIA's CUDA 13 toolkit",
    ):
        tvmopt.compile(small_model(), target="cuda")


def _words(path: Path, words: str) -> None:
    """A program that writes some words to stderr and fails."""
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\nprintf '{words}' >&2\nexit 1\n")
    path.chmod(0o755)


@needs_toolkit
def test_a_kernel_that_nvcc_refuses_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TVM made a RuntimeError of it, with which the child ended: all that was told was its exit code."""
    _words(tmp_path / "bin/nvcc", 'k.cu(1): warning: so\\nk.cu(9999): error: no "ushort2" here\\n')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    with pytest.raises(ScheduleError, match=r'refused a kernel:\n    k\.cu\(9999\): error: no "ushort2" here') as told:
        tvmopt.compile(tmp_path / "small.onnx", target="nvidia-h100", records=None)
    assert told.value.where.startswith("kernel '") and "report" in told.value.fix


@needs_toolkit
def test_a_bug_of_the_compiler_is_told_with_its_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The traceback is on stderr, which a server's user never sees."""

    def crash(*_: object, **__: object) -> None:
        raise Crash("exit code 1", "optimizing", bug="InternalError: Check failed: a < b")

    monkeypatch.setattr("tvmopt.compiler.driver.children.call", crash)
    onnx.save(small_model(), str(tmp_path / "small.onnx"))
    words = r"crashed \(exit code 1: InternalError: Check failed: a < b\) while optimizing"
    with pytest.raises(Crash, match=words) as told:
        compile_model(Request(str(tmp_path / "small.onnx"), Machine.load("nvidia-h100")))
    assert told.value.where.endswith("small.onnx") and "report it with the model" in told.value.fix


def test_nvrtc_of_python_packages_needs_its_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TVM looks for them beside nvcc, and ended with a traceback where there was none."""
    library, include = tmp_path / "nvidia/cu13/lib", tmp_path / "nvidia/cu13/include"
    monkeypatch.setattr(cuda_toolkit, "_homes", list)
    monkeypatch.setattr(cuda_toolkit, "_has_nvrtc", lambda: True)
    monkeypatch.setattr(cuda_toolkit, "_wheel_folders", lambda: [tmp_path / "other/lib", library])
    monkeypatch.setattr(cuda_toolkit.shutil, "which", lambda name: None)
    library.mkdir(parents=True)
    (library / "libcudart.so.13").touch()
    for name in ("cuda_runtime.h", "crt/host_config.h", "cccl/cuda/std/cstdint"):
        with pytest.raises(MissingDependency, match=r"needs the headers cuda_runtime\.h") as error:
            cuda_toolkit.find_toolkit()
        assert all(package in error.value.fix for package in cuda_toolkit.WHEELS)
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).touch()
    found = cuda_toolkit.find_toolkit()
    assert found == cuda_toolkit.Toolkit("", str(library), str(tmp_path / "nvidia/cu13"))
    monkeypatch.setattr(cuda_toolkit, "stub_folder", lambda: tmp_path)
    variables = cuda_toolkit.environment(found)
    assert variables["CUDA_PATH"] == found.home and variables["TVM_CUDA_COMPILE_MODE"] == "nvrtc"
    assert variables["TVM_CUDA_NVRTC_EXTRA_OPTS"].endswith(f" -I{include / 'cccl'}")


def test_the_stub_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = cuda_toolkit.stub_folder() / "libcuda.so.1"
    before = library.stat().st_mtime_ns
    assert cuda_toolkit.stub_folder() == library.parent
    assert library.stat().st_mtime_ns == before
    assert [p.name for p in library.parent.iterdir()] == ["libcuda.so.1"]
