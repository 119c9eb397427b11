"""TVM's runtime library, how many threads to use, and loading a compiled library - without TVM's 260 MB compiler,
for `Model`.

`import tvm` is not used for that: it loads the compiler and takes a second or two. `tvm_ffi` finds and loads the small
`libtvm_runtime.so` by itself, and a later `import tvm` in the same process finds it already there.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tvmopt.errors import ArtifactError, InputError, MissingDependency, first_line
from tvmopt.runtime import elf, pool
from tvmopt.runtime.cores import Cores
from tvmopt.runtime.quicken import names_looked_up, quicken
from tvmopt.targets.detect import usable_cores
from tvmopt.targets.systems import check_here
from tvmopt.texts import whole_number


@cache
def ffi() -> Any:
    """The `tvm_ffi` module, with TVM's runtime libraries loaded.

    tvm_ffi imports torch first when it is installed, against a symbol clash seen on Windows only; that costs a second,
    so on Linux it is told there is none (unless torch is loaded already). Nor is there CUDA's Python, which takes
    another 0.03 s: it is for streams as arguments, of which there are none here.

    Raises:
        MissingDependency: this is not Linux, or the libraries cannot be loaded.
    """
    check_here()
    first = sys.platform == "linux" and "tvm_ffi" not in sys.modules
    with _without("torch", "cuda.bindings") if first else nullcontext():
        import tvm_ffi
    from tvm_ffi.libinfo import load_lib_ctypes

    folder = [library_folder()]
    try:
        load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folder)
    except (OSError, RuntimeError) as error:
        raise MissingDependency(
            f"TVM's runtime library cannot be loaded: {error}",
            where=str(folder[0]),
            fix="pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi==0.1.14.post1'; see `tvmopt doctor`",
        ) from error
    with suppress(OSError, RuntimeError):  # sort, topk, argsort, random: only some models call them
        load_lib_ctypes("tvm", "tvm_runtime_extra", "RTLD_LOCAL", extra_lib_paths=folder)
    return tvm_ffi


def load_compiler() -> None:
    """Import `tvm` without the torch that it would load where it is installed, and without its support of GPUs and
    other devices (:func:`tvmopt.targets.devices.load`): that costs a second, and 0.4 s.

    Only `tvm.relax.BasePyModule`, which we do not use, misses torch then.
    """
    ffi()
    alone = _without("torch") if sys.platform == "linux" and "tvm" not in sys.modules else nullcontext()
    with alone, _variable(_DEVICES, "0"), names_looked_up():
        import tvm.relax  # noqa: F401
    quicken()


@cache
def cuda_available() -> bool:
    """Whether TVM's CUDA runtime loads and sees a device (a driver and libcudart must be on the loader's path)."""
    from tvm_ffi.libinfo import load_lib_ctypes

    module = ffi()
    with suppress(OSError, RuntimeError):
        load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[library_folder()])
    if module.get_global_func("device_api.cuda", allow_missing=True) is None:
        return False
    attribute = module.get_global_func("runtime.GetDeviceAttr", allow_missing=True)
    try:
        return bool(attribute(2, 0, 0))  # device type 2 = CUDA, device 0, attribute 0 = kExist
    except Exception:  # the driver's own error type; a broken driver is "no GPU"
        return False


@cache
def cuda_architecture() -> str:
    """The first GPU's architecture, ``"sm_90"``; "" where there is no GPU that can be used."""
    if not cuda_available():
        return ""
    version = ffi().get_global_func("runtime.GetDeviceAttr")(2, 0, 4)  # attribute 4 = kComputeVersion, "9.0"
    return "sm_" + str(version).replace(".", "")


def library_folder() -> Path:
    """The folder of the installed TVM's shared libraries (TVM itself is not imported)."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.origin:
        raise MissingDependency("TVM is not installed.", fix="pip install 'apache-tvm==0.27.0.post1'")
    return Path(spec.origin).parent / "lib"


_DEVICES = "TVM_DEVICE_BACKEND_AUTOLOAD"
"""The environment variable that tells TVM whether to load its support of all devices when it is imported."""


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """An environment variable, set for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _without(*modules: str) -> Iterator[None]:
    """To import one of these, where it is not loaded yet, is an ImportError for a while."""
    absent = [name for name in modules if name not in sys.modules]
    sys.modules |= dict.fromkeys(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


# -- threads ---------------------------------------------------------------------------------------------


def default_threads(wanted: int, cores: Cores | None = None) -> int:
    """Threads to run with: TVM_NUM_THREADS if set, else one for each of the cores that the model was given, else
    `wanted` (the target's cores), at most the cores we may use."""
    text = os.environ.get("TVM_NUM_THREADS", "")
    if not text:
        return cores.count if cores is not None else int(max(1, min(wanted, usable_cores())))
    number = whole_number(text)
    if number is None:
        raise InputError(f"TVM_NUM_THREADS is {text!r}, not a positive number.", fix="unset it, or set it to 1, 2, ...")
    return pool.check_threads(number, "TVM_NUM_THREADS")


# -- a compiled library ----------------------------------------------------------------------------------


def load_library(data: bytes | memoryview, where: str) -> Any:
    """Load a shared library from memory: written to a private temporary file, opened, and deleted at once.

    Raises:
        ArtifactError: it cannot be opened (damaged, or every temporary folder forbids execution).
    """
    problem_of_elf = elf.problem(data)
    if problem_of_elf:
        what, fix = f"the library is damaged: {problem_of_elf}.", "copy the file again, or compile the model again"
        raise ArtifactError(what, where=where, fix=fix)
    module = ffi()
    problem: Exception | None = None
    for folder in _temporary_folders():
        with suppress(OSError), tempfile.TemporaryDirectory(prefix="tvmopt-", dir=folder) as private:
            path = Path(private) / "library.so"
            path.write_bytes(data)
            try:
                loaded = module.load_module(str(path), keep_module_alive=False)  # True: never unloaded
                pool.adopt(str(path))
                return loaded
            except Exception as error:  # tvm_ffi raises RuntimeError, or the class that C++ named
                problem = error
    raise ArtifactError(
        f"the library cannot be loaded: {first_line(problem) if problem else 'no temporary folder'}",
        where=where,
        fix="compile the model again on this machine; a folder that allows execution must be in TMPDIR",
    )


def _temporary_folders() -> list[str]:
    folders = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), os.path.expanduser("~/.cache")]
    return [f for f in folders if f and os.path.isdir(f)]


def arity(library: Any) -> int:
    """How many tensors the compiled model takes: inputs, then weights."""
    return int(library["vm_load_executable"]()["get_function_arity"]("main"))


GRAPH = "vm.builtin.cuda_graph.run_or_capture"


def launch(machine: Any, kernels: Any, arguments: Sequence[Any], *_: Any) -> Any:
    """What the code of a CUDA graph does, without the graph: in place of TVM's :data:`GRAPH`, with its arguments."""
    return ffi().get_global_func("vm.builtin.invoke_closure")(machine, kernels, *arguments)


@contextmanager
def without_graphs() -> Iterator[None]:
    """Within: a virtual machine that is made launches the kernels of its CUDA graphs one by one, for as long as it
    lives; instruments then see them."""
    graph = ffi().get_global_func(GRAPH, allow_missing=True)
    if graph is None:
        yield
        return
    ffi().register_global_func(GRAPH, launch, override=True)
    try:
        yield
    finally:
        ffi().register_global_func(GRAPH, graph, override=True)


class Session:
    """One TVM virtual machine over a library. Never share one between threads: its registers would be corrupted.

    Args:
        graphs: replay CUDA graphs; else see :func:`without_graphs`.
    """

    def __init__(self, library: Any, *, cuda: bool = False, graphs: bool = True) -> None:
        self.module = library["vm_load_executable"]()
        devices = [2, 0, 2] if cuda else []  # device type, index, allocator (2: pooled)
        with nullcontext() if graphs else without_graphs():
            self.module["vm_initialization"](*devices, 1, 0, 2)  # the CPU is always there: it runs shape functions
        self.main: Callable[..., Any] = self.module["main"]

    def set_instrument(self, instrument: Callable[..., int] | None) -> None:
        """Call `instrument(function, symbol, before, result, *arguments)` around every kernel; None stops it."""
        self.module["set_instrument"](instrument)
