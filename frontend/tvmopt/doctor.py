"""Is everything here that tvmopt needs? - for `tvmopt doctor`. Looks only; TVM's compiler is never loaded."""

from __future__ import annotations

import ctypes.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from tvmopt.errors import MissingDependency, TvmoptError, first_line
from tvmopt.targets.systems import check_here, here
from tvmopt.texts import whole_number

PINNED = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


@dataclass(frozen=True)
class Check:
    """One thing looked at: `state` "broken" stops tvmopt, "warning" costs speed, "optional" is only missed by some."""

    name: str
    state: Literal["ok", "optional", "warning", "broken"]
    found: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Check]:
    """All checks, in the order a user would mend them; on a system that is not Linux those that can be made there."""
    if here():
        return [*_system(), *_python(), *_pinned(), *_packages()]
    parts: list[Callable[[], list[Check]]] = [
        _system,
        _python,
        _pinned,
        _packages,
        _runtime,
        _compiler,
        _cpu,
        _threads,
        _nodes,
        _memory,
        _cuda,
    ]
    return [check for part in parts for check in part()]


def _system() -> list[Check]:
    try:
        check_here()
    except MissingDependency as error:
        return [Check("system", "broken", here(), f"{error.what} {error.fix}")]
    return [Check("system", "ok", f"{platform.system()} {platform.release()}, {platform.machine()}")]


def _python() -> list[Check]:
    found = sys.version.split()[0]
    return [Check("Python", "ok", found)]


def _pinned() -> list[Check]:
    checks = []
    for name, wanted in PINNED.items():
        found = _version(name)
        if found == wanted:
            checks.append(Check(name, "ok", found))
        else:
            why = "; with another tvm-ffi, TVM's tuner crashes or TVM fails at import" if "ffi" in name else ""
            checks.append(Check(name, "broken", found or "not installed", f"pip install '{name}=={wanted}'{why}"))
    return checks


def _packages() -> list[Check]:
    checks = []
    for line in requires("tvmopt") or ():
        requirement, _, marker = line.partition(";")
        name = requirement.strip().partition(" ")[0]
        for stop in "<>=!~[":
            name = name.partition(stop)[0]
        if "extra" in marker or name in PINNED:
            continue
        found = _version(name)
        fix = "" if found else f"pip install '{requirement.strip()}'"
        checks.append(Check(name, "ok" if found else "broken", found or "not installed", fix))
    return checks


def _runtime() -> list[Check]:
    from tvmopt.runtime import library

    try:
        library.ffi()
    except (TvmoptError, ImportError) as error:
        return [
            Check(
                "TVM runtime library",
                "broken",
                first_line(error),
                "pip install --force-reinstall apache-tvm==0.27.0.post1",
            )
        ]
    return [Check("TVM runtime library", "ok", str(library.library_folder() / "libtvm_runtime.so"))]


def _compiler() -> list[Check]:
    from tvmopt.toolchain.linking import find_cc

    try:
        command = find_cc()
    except TvmoptError as error:
        found = f"{error.what} {error.where}" if "CC" in error.what else error.what
        return [Check("C compiler (links kernels)", "broken", found, error.fix)]
    path, words = " ".join(command), ["-shared", "-fPIC", "-x", "c", "-", "-o", os.devnull]
    try:
        works = subprocess.run([*command, *words], input=b"int f;", capture_output=True, check=False).returncode == 0
    except OSError:
        works = False
    if not works:
        return [
            Check(
                "C compiler (links kernels)",
                "broken",
                f"{path} cannot link",
                "install the C library's headers: libc6-dev or glibc-devel",
            )
        ]
    return [Check("C compiler (links kernels)", "ok", path)]


def _cpu() -> list[Check]:
    from tvmopt.targets import Machine

    machine = Machine.load("cpu")
    checks = [Check("CPU", "ok", f"{machine.name}, {machine.cores} cores, {machine.vector_bits}-bit vectors")]
    features = ", ".join(machine.features) or "none known"
    if machine.vector_bits < 256:
        note = "no AVX2 seen: kernels use 128-bit vectors; a virtual machine may hide the processor's features"
        return [*checks, Check("CPU features", "warning", features, note)]
    return [*checks, Check("CPU features", "ok", features)]


def _threads() -> list[Check]:
    from tvmopt.targets.detect import usable_cores

    cores, text = usable_cores(), os.environ.get("TVM_NUM_THREADS", "")
    if text and (whole_number(text) is None):
        return [Check("threads", "broken", f"TVM_NUM_THREADS={text}", "unset it, or set it to a positive number")]
    if text and int(text) != cores:
        fix = f"TVM_NUM_THREADS={text} wins over the {cores} usable cores; unset it to use them all"
        return [Check("threads", "warning", f"{text} of {cores} cores", fix)]
    return [Check("threads", "ok", f"{cores} (usable cores)")]


def _nodes() -> list[Check]:
    from tvmopt.runtime.cores import nodes, told

    found = nodes()
    if len(found) < 2:
        return []
    listed = "; ".join(f"node{node}: {told(processors)}" for node, processors in found.items())
    fix = "memory of another node is slower: --cores node0 of run, generate and serve keeps a model on one"
    return [Check("NUMA nodes", "ok", listed, fix)]


def _memory() -> list[Check]:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        return []
    found = path.read_text().strip()
    chosen = found.partition("[")[2].partition("]")[0]
    if chosen == "never":
        fix = f"weights in 4 KiB pages cost TLB misses; as root: echo madvise > {path}"
        return [Check("huge pages", "warning", found, fix)]
    return [Check("huge pages", "ok", found)]


def _cuda() -> list[Check]:
    from tvmopt.toolchain.cuda import find_toolkit

    try:
        toolkit = find_toolkit()
        checks = [Check("CUDA compiler", "ok", toolkit.nvcc or f"NVRTC, cuda-bindings {_version('cuda-bindings')}")]
    except MissingDependency as error:
        found = error.what.removeprefix("compiling for CUDA needs ").removesuffix(".")
        checks = [Check("CUDA compiler", "optional", f"missing: {found}", f"only for --target cuda: {error.fix}")]
    driver = ctypes.util.find_library("cuda")
    if driver:
        return [*checks, Check("CUDA driver", "ok", driver)]
    return [
        *checks,
        Check("CUDA driver", "optional", "no libcuda", "only to run on a GPU: install NVIDIA's driver"),
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
