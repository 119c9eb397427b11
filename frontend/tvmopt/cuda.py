"""Compile for NVIDIA GPUs, with or without one in the machine - for `--target cuda`.

TVM's CUDA part loads only where libcuda and libcudart do; without them `tvm.compile` keeps CUDA *source* and
says nothing. Here a child process gets a stand-in for the driver library (a stub built with the C compiler,
whose functions all fail) on its loader path, so that nvcc is really called and a kernel that it refuses is an
error now.

The stages are those of `pipeline.py`; kernels that no family in `schedules/cuda` takes get TVM's dlight, and
the report says so. Fast math is off: TVM turns it on by default.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmopt import children
from tvmopt.errors import MissingDependency, ScheduleError, TvmoptError
from tvmopt.ptxas import Recorder, recording, unfit
from tvmopt.report import DecisionLog, Report
from tvmopt.targets import Machine

if TYPE_CHECKING:
    from tvmopt.compiling import Progress, Request
    from tvmopt.runtime.artifact import Artifact
    from tvmopt.tuning.logs import RecordLookup

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


@dataclass(frozen=True)
class Toolkit:
    """What compiles CUDA here: `nvcc` (a path) or, if that is empty, NVRTC; `cudart`: libcudart's folder."""

    nvcc: str
    cudart: str


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
    missing = []
    if not nvcc and not _has_nvrtc():
        missing.append("a CUDA compiler (nvcc, or NVRTC with cuda-bindings)")
    if not cudart and not ctypes.util.find_library("cudart"):
        missing.append("libcudart.so.13")
    if missing:
        raise MissingDependency(
            f"compiling for CUDA needs {' and '.join(missing)}.",
            where="looked on PATH, in $CUDA_HOME, /usr/local/cuda* and this Python's packages",
            fix="install NVIDIA's CUDA 13 toolkit, or: pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime",
        )
    return Toolkit(nvcc, cudart)


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
    from tvmopt.linking import find_cc

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmopt"
    name = f"cuda-stub-{hashlib.sha256(_STUB.encode()).hexdigest()[:12]}"
    for base in (cache, Path(tempfile.gettempdir()) / f"tvmopt-{os.getuid()}"):
        folder = base / name
        library = folder / "libcuda.so.1"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid != os.getuid():
                continue  # somebody else's: not to be loaded
            if not library.exists():
                part = folder / f".{os.getpid()}.part"
                flags = ["-shared", "-fPIC", "-w", "-x", "c", "-", "-Wl,-soname,libcuda.so.1", "-o"]
                command = [find_cc(), *flags, str(part)]
                done = subprocess.run(command, input=_STUB, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise TvmoptError(f"the CUDA stub cannot be built: {done.stderr[:300]}", where=" ".join(command))
                part.replace(library)
            return folder
    raise TvmoptError("no folder for the CUDA stub can be written.", where=str(cache), fix="set XDG_CACHE_HOME")


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
    if toolkit.nvcc:
        variables["PATH"] = f"{Path(toolkit.nvcc).parent}:{os.environ.get('PATH', '')}"
    return variables


def compile_cuda(request: Request, progress: Progress | None) -> tuple[Artifact, Report]:
    """Compile in a child process; see the module's text.

    Raises:
        MissingDependency: no CUDA compiler, libcudart or C compiler.
    """
    from tvmopt.compiling import as_file
    from tvmopt.errors import InputError
    from tvmopt.runtime.artifact import read

    if request.values:
        raise InputError("values are not taken with --target cuda yet.", where=request.machine.name)
    toolkit = find_toolkit()
    with as_file(request.source) as model, tempfile.TemporaryDirectory(prefix="tvmopt-cuda-") as folder:
        arguments = {
            "model": str(model),
            "machine": request.machine.as_dict(),
            "precision": request.precision,
            "exact": request.exact,
            "cuda_graph": request.cuda_graph,
            "shapes": {name: list(shape) for name, shape in request.shapes.items()},
            "name": request.name,
            "records": request.records,
            "store": None if request.store is None else str(request.store),
            "output": str(Path(folder) / "out.tvmopt"),
        }
        answer = children.call("tvmopt.cuda:in_child", arguments, progress=progress, environment=environment(toolkit))
        return read(Path(folder) / "out.tvmopt"), Report.from_dict(answer)


def in_child(
    *,
    model: str,
    machine: dict[str, Any],
    precision: str,
    exact: bool,
    cuda_graph: bool,
    shapes: dict[str, Any],
    name: str,
    records: bool,
    store: str | None,
    output: str,
    progress: Progress,
) -> dict[str, Any]:
    """The child's part: compile, write the artifact, return the report."""
    from tvmopt.compiling import Progressed, Request, make_manifest, make_report, record_lookup
    from tvmopt.flow import plan
    from tvmopt.importer import import_model
    from tvmopt.linking import export
    from tvmopt.runtime.artifact import Artifact

    gpu = Machine(**{**machine, "features": tuple(machine["features"])})
    request = Request(
        model, gpu, precision, shapes, exact=exact, name=name, cuda_graph=cuda_graph, records=records, store=store
    )
    stages = Progressed(progress)
    with stages.stage("importing"):
        imported = import_model(model, shapes)

    import tvm

    if tvm.get_global_func("device_api.cuda", allow_missing=True) is None:
        raise MissingDependency(
            "TVM's CUDA part cannot be loaded.",
            where=f"libtvm_runtime_cuda.so, with {os.environ['LD_LIBRARY_PATH']}",
            fix="it needs libcudart.so.13: install NVIDIA's CUDA 13 toolkit",
        )
    lookup = record_lookup(request)
    made = _with_records(request, imported, stages, lookup)
    made.recorder.check()
    lowered = made.lowered
    lowered.kernels = tuple(
        replace(k, launches=tuple(launch.as_dict() for launch in made.recorder.of(k.name))) for k in lowered.kernels
    )
    notes = lookup.tell(lowered.log) if lookup else ()
    with stages.stage("linking"):
        library = export(made.executable)
    report = make_report(
        request,
        imported,
        lowered,
        made.weights,
        stages.seconds,
        plan(lowered, gpu, imported),
        (*notes, *_warnings(lowered), *made.recorder.warnings()),
    )
    manifest = make_manifest(request, imported, made.structure, report, lookup.used_lines() if lookup else ())
    Artifact.build(manifest, library, made.weights).save(output)
    return report.as_dict()


@dataclass(frozen=True)
class _Built:
    """A lowered module, its weights and its structure's hash; the executable, and what the CUDA compiler said of it."""

    lowered: Any
    weights: Any
    structure: str
    executable: Any
    recorder: Recorder


def _with_records(request: Request, imported: Any, stages: Any, lookup: RecordLookup | None) -> _Built:
    """Build; once more without those records whose kernels this GPU cannot launch, that spill, or do not compile."""
    try:
        made = _machine_code(request, imported, stages, lookup)
    except ScheduleError as error:
        if lookup is None or not lookup.used:
            raise
        lookup.ignored |= {r.key: (r, error.what.replace("\n", " ")[:200]) for r, _ in lookup.used}
    else:
        if lookup is None or not _refuse_records(made, request.machine, lookup):
            return made
    lookup.used.clear()
    return _machine_code(request, imported, stages, lookup)


def _machine_code(request: Request, imported: Any, stages: Any, lookup: RecordLookup | None) -> _Built:
    from tvmopt import pipeline
    from tvmopt.linking import structure_hash
    from tvmopt.passes.lift_constants import lift_constants

    gpu = request.machine
    with stages.stage("optimizing"):
        lowered = pipeline.lower(
            imported.module, gpu, DecisionLog(), lookup, exact=request.exact, precision=request.precision
        )
        lowered.module, weights = lift_constants(lowered.module)
        structure = structure_hash(lowered.module, gpu.tvm_target())
    with stages.stage("generating code"):
        with recording(gpu, compiler()) as recorder:
            executable = pipeline.build(lowered, gpu, request.cuda_graph)
        if lowered.kernels and not recorder.binaries:
            raise ScheduleError(
                "TVM made no machine code for the GPU.",
                where=str(request.source),
                fix="please report it with the model",
            )
    return _Built(lowered, weights, structure, executable, recorder)


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
    """For :func:`tvmopt.ptxas.recording`, in a process with :func:`environment`: nvcc, or "" where NVRTC compiles."""
    return "nvcc" if os.environ.get("TVM_CUDA_COMPILE_MODE") == "nvcc" else ""


def _refuse_records(made: _Built, machine: Machine, lookup: RecordLookup) -> int:
    """Turn down the records whose kernels cannot be launched or spill; how many."""
    from tvmopt.scheduling.discover import families
    from tvmopt.scheduling.normalize import normalize

    count = 0
    for kernel in made.lowered.kernels:
        problems = unfit(made.recorder.of(kernel.name), machine) if kernel.source == "tuned" else []
        if problems:
            family = next(f for f in families(machine.kind) if kernel.family == f.NAME)
            lookup.refused(normalize(made.lowered.unscheduled[kernel.name]), family, "; ".join(problems))
            count += 1
    return count


def _warnings(lowered: Any) -> tuple[str, ...]:
    """What a user must know: kernels that no family of ours scheduled, by rule and number."""
    rules = Counter(k.family for k in lowered.kernels if k.family.startswith("dlight."))
    if not rules:
        return ()
    told = ", ".join(f"{number} by {rule}" for rule, number in sorted(rules.items()))
    return (f"no family of tvmopt scheduled {rules.total()} of {len(lowered.kernels)} kernels: {told}",)
