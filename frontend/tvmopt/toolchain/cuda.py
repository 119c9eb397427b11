"""NVIDIA's CUDA toolkit: where it is, and how a process compiles with it, GPU or not - for `cuda.py` and the tuner.

TVM's CUDA part loads only where libcuda and libcudart do; without them `tvm.compile` keeps CUDA *source* and
says nothing. Where there is no driver, a child process gets a stand-in for its library (a stub built with the C
compiler, whose functions all fail) on its loader path, so that nvcc is really called. Fast math is off: TVM turns
it on by default.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tvmopt.errors import MissingDependency, TvmoptError
from tvmopt.files import private_cache
from tvmopt.targets import Machine
from tvmopt.toolchain.linking import find_cc
from tvmopt.toolchain.ptxas import Recorder, recording

_STUB = "".join(
    f"int {name}(){{return 100;}}\n"  # CUDA_ERROR_NO_DEVICE
    for name in (
        *("cuDeviceGetName", "cuFuncSetAttribute", "cuLaunchKernelEx", "cuModuleGetFunction"),
        *("cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled"),
    )
) + "".join(
    f'int {name}(int e,const char**p){{*p="no driver: this is the stub of tvmopt";return 0;}}\n'
    for name in ("cuGetErrorName", "cuGetErrorString")
)


HEADERS = ("cuda_runtime.h", "crt/host_config.h", "cuda/std/cstdint")
"""What NVRTC needs for TVM's kernels: a header of each of three packages."""

WHEELS = ("cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
"""Python packages that compile CUDA, for `pip install`."""


@dataclass(frozen=True)
class Toolkit:
    """What compiles CUDA here: `nvcc` (a path) or, if that is empty, NVRTC; `cudart`: libcudart's folder; `home`: where
    NVRTC finds the folder `include`, which TVM looks for beside nvcc only."""

    nvcc: str
    cudart: str
    home: str = ""


def find_toolkit() -> Toolkit:
    """nvcc on the path, in $CUDA_HOME or /usr/local/cuda*, else NVRTC from cuda-bindings.

    Raises:
        MissingDependency: neither, or no libcudart.so.13, which TVM's CUDA runtime is linked with.
    """
    folders = _homes()
    nvcc = shutil.which("nvcc") or next((str(f / "bin/nvcc") for f in folders if (f / "bin/nvcc").exists()), "")
    if nvcc:
        folders.insert(0, Path(nvcc).resolve().parent.parent)
    libraries = [f / sub for f in folders for sub in ("lib64", "lib", "targets/x86_64-linux/lib")]
    libraries += _wheel_folders()
    cudart = next((str(folder) for folder in libraries if (folder / "libcudart.so.13").exists()), "")
    missing, home = [], ""
    if not nvcc and not _has_nvrtc():
        missing.append("a CUDA compiler (nvcc, or NVRTC with cuda-bindings)")
    elif not nvcc:
        homes = [*folders, *(library.parent for library in _wheel_folders())]
        home = next((str(h) for h in homes if all(_headers(h, name) for name in HEADERS)), "")
        if not home:
            missing.append(f"the headers {' and '.join(HEADERS)} for NVRTC")
    if not cudart and not ctypes.util.find_library("cudart"):
        missing.append("libcudart.so.13")
    if missing:
        raise MissingDependency(
            f"compiling for CUDA needs {' and '.join(missing)}.",
            where="looked on PATH, in $CUDA_HOME, /usr/local/cuda* and this Python's packages",
            fix=f"install NVIDIA's CUDA 13 toolkit, or: pip install {' '.join(WHEELS)}",
        )
    return Toolkit(nvcc, cudart, home)


def _headers(home: Path, name: str) -> str:
    """The folder below `include` that has a header."""
    return next((str(f) for f in (home / "include", home / "include/cccl") if (f / name).is_file()), "")


def _homes() -> list[Path]:
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
    homes += sorted(map(str, Path("/usr/local").glob("cuda*")), reverse=True)
    return [Path(home) for home in homes if home]


def _wheel_folders() -> list[Path]:
    import sysconfig

    packages = Path(sysconfig.get_paths()["purelib"])
    return [*packages.glob("nvidia/*/lib")]


def _has_nvrtc() -> bool:
    import importlib.util

    with suppress(ImportError, ValueError):
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    return False


def stub_folder() -> Path:
    """A folder with a stub of libcuda.so.1, built once into the user's cache.

    Raises:
        MissingDependency: no C compiler. TvmoptError: it cannot compile ten lines of C.
    """
    folder = private_cache(f"cuda-stub-{hashlib.sha256(_STUB.encode()).hexdigest()[:12]}")
    library = folder / "libcuda.so.1"
    if not library.exists():
        part = folder / f".{os.getpid()}.part"
        flags = ["-shared", "-fPIC", "-w", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o"]
        command = [*find_cc(), *flags, str(part)]
        done = subprocess.run(command, input=_STUB, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TvmoptError(f"the CUDA stub cannot be built: {done.stderr[:300]}", where=" ".join(command))
        part.replace(library)
    return folder


def environment(toolkit: Toolkit) -> dict[str, str]:
    """The child's environment: loader path, compiler, no fast math."""
    paths = [toolkit.cudart] if toolkit.cudart else []
    if not ctypes.util.find_library("cuda"):
        paths.insert(0, str(stub_folder()))
    paths += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    variables = {
        "LD_LIBRARY_PATH": ":".join(paths),
        "TVM_CUDA_COMPILE_MODE": "nvcc" if toolkit.nvcc else "nvrtc",
        "TVM_CUDA_NVCC_NO_FAST_MATH": "1",
        # TVM hands NVRTC --use_fast_math; later options win
        "TVM_CUDA_NVRTC_EXTRA_OPTS": "--ftz=false --prec-div=true --prec-sqrt=true",
    }
    if toolkit.home:
        variables["CUDA_PATH"] = toolkit.home
        variables["TVM_CUDA_NVRTC_EXTRA_OPTS"] += f" -I{_headers(Path(toolkit.home), HEADERS[-1])}"
    if toolkit.nvcc:
        variables["PATH"] = f"{Path(toolkit.nvcc).parent}:{os.environ.get('PATH', '')}"
    return variables


@contextmanager
def compiling_here(machine: Machine) -> Iterator[Recorder]:
    """Within: this process compiles for a GPU of its own as the child process does. It needs the real driver library.

    Raises:
        MissingDependency: no CUDA compiler.
    """
    toolkit = find_toolkit()
    wanted = {name: value for name, value in environment(toolkit).items() if name != "LD_LIBRARY_PATH"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with recording(machine, toolkit.nvcc) as recorder:
            yield recorder
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def compiler() -> str:
    """What :func:`recording` is given in a process with :func:`environment`: nvcc, or "" where NVRTC compiles."""
    return "nvcc" if os.environ.get("TVM_CUDA_COMPILE_MODE") == "nvcc" else ""
