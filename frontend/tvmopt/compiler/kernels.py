"""Machine code of each kernel of a module, on all cores, and from the disk where it was made before - for `llvm.py`.

A kernel is compiled under a name that stands for all, :data:`NAME`, and gets its own in the finished object: a kernel
that another model has under another number, or a model twice, is the same file. So are its tensors, which the kernels
of a loop's body have other names for in every loop: of a model of six loops 49 kernels are compiled in place of 118.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_map

from tvmopt import lowering, operators, pipeline, scheduling
from tvmopt.cache import Kernels
from tvmopt.lowering.half_helpers import renamed, uses_half, without_helpers
from tvmopt.lowering.masked_stores import overruns, stores_integers
from tvmopt.lowering.split_wraps import wraps
from tvmopt.passes import stages
from tvmopt.targets import Machine
from tvmopt.targets.detect import usable_cores

NAME = "kernel".ljust(1000, "_")
"""Stands for a kernel's name in the object that is kept. A kernel whose name is not shorter keeps its own."""


def objects(
    kernels: tvm.IRModule,
    machine: Machine,
    cache: Kernels,
    without: tuple[str, ...] = (),
    failed: dict[str, Exception] | None = None,
) -> dict[str, bytes]:
    """Name of each kernel -> its object file.

    Args:
        kernels: before TVM's own passes of loops.
        without: names of stages to leave out.
        failed: takes the errors of the kernels that cannot be compiled, by name; without it they are raised.
    """

    def vectorized(key: str) -> bytes | Exception:
        try:
            func, symbol = wanted[key]
            return _vectorized(func, symbol, key in half, kernels, machine, without)
        except Exception as error:
            return error

    keys, wanted, length, half = dict[str, str](), dict[str, tuple[Any, str]](), dict[str, int](), set[str]()

    def looked_at(kernel: tuple[str, Any]) -> tuple[str, Any, str]:
        symbol, func = _symbol(kernel[0]), _numbered(kernel[1])
        return symbol, func, tvm.ir.save_json(func.with_attr("global_symbol", symbol))

    ordered = named(kernels)
    with ThreadPoolExecutor(max(1, usable_cores())) as threads:  # TVM and LLVM work without Python's lock
        for (name, _), (symbol, func, text) in zip(ordered, threads.map(looked_at, ordered), strict=True):
            key = keys[name] = _key(text, machine, without)
            wanted[key], length[key] = (func, symbol), len(text)
            if uses_half(text):
                half.add(key)
        found = {key: data for key in wanted if (data := cache.get(key)) is not None}
        missing = sorted(wanted.keys() - found.keys(), key=lambda key: (-length[key], key))  # the longest first
        made = list(threads.map(vectorized, missing))
    errors: dict[str, Exception] = {}
    for key, outcome in zip(missing, made, strict=True):
        try:
            if isinstance(outcome, Exception):
                raise outcome
            found[key] = outcome or _object(compiled(*wanted[key], kernels, machine, without))
            cache.put(key, found[key])
        except Exception as error:
            if failed is None or isinstance(error, OSError | MemoryError):  # those are no fault of the kernel
                raise
            errors[key] = error
    if missing:
        cache.tidy()
    if failed is not None:
        failed.update((name, errors[key]) for name, key in keys.items() if key in errors)
    return {name: _named(found[key], name) for name, key in keys.items() if key in found}


def named(kernels: tvm.IRModule) -> list[tuple[str, Any]]:
    """The kernels of a module, by name, in the order of their names."""
    found = {gvar.name_hint: func for gvar, func in kernels.functions_items()}
    return sorted(found.items())


def compiled(
    func: Any, name: str, whole: tvm.IRModule, machine: Machine, without: tuple[str, ...] = ()
) -> tvm.runtime.Module:
    """LLVM's module of one kernel of `whole`, under a name."""
    return pipeline.generate(loops(func, name, whole, machine, without), machine)


def _vectorized(
    func: Any, name: str, half: bool, whole: tvm.IRModule, machine: Machine, without: tuple[str, ...]
) -> bytes:
    """The kernel's object file; empty where LLVM may not vectorize its loops, which is no matter of one thread."""
    lowered = loops(func, name, whole, machine, without)
    if wraps(lowered):
        return b""
    module = pipeline.generate_once(lowered if half else without_helpers(lowered), machine)
    return b"" if stores_integers(lowered) and overruns(module) else _object(module)


def loops(func: Any, name: str, whole: tvm.IRModule, machine: Machine, without: tuple[str, ...] = ()) -> tvm.IRModule:
    """What the code generator gets of one kernel of `whole`, under a name."""
    alone = tvm.IRModule({name: func.with_attr("global_symbol", name)}, attrs=whole.attrs)
    kept = [one for one in pipeline.loop_stages(machine) if not one.left_out(without)]
    with machine.tvm_target(), pipeline.loop_context(machine):
        lowered = stages.through(kept, alone)
    functions = {  # TVM takes the only function of a module for its entry, and writes a second one
        gvar: one.without_attr("tirx.is_entry_func") for gvar, one in lowered.functions_items()
    }
    return tvm.IRModule(functions, attrs=lowered.attrs)


def _object(module: tvm.runtime.Module) -> bytes:
    if Path("/proc/self/fd").exists():  # in memory: a folder that comes and goes took 3 ms on a busy disk
        descriptor = os.memfd_create("tvmopt-kernel.o")
        try:
            return _written(module, Path(f"/proc/self/fd/{descriptor}"))
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory(prefix="tvmopt-kernel-") as folder:
        return _written(module, Path(folder) / "kernel.o")


def _written(module: tvm.runtime.Module, path: Path) -> bytes:
    module.write_to_file(str(path), "o")
    return renamed(path.read_bytes())


def _numbered(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with numbers in place of its tensors' names; sizes that it is given stand in the types of these."""
    new = [
        tirx.Var(f"tensor{number}", param.ty) if hasattr(param.ty, "shape") else param
        for number, param in enumerate(func.params)
    ]
    known = dict(zip(func.params, new, strict=True))
    body = structural_map(func.body, (tirx.Var, lambda var: known.get(var, var)))
    return tirx.PrimFunc(new, body, func.ret_type, func.attrs)


def _symbol(name: str) -> str:
    """What a kernel is called in its object file."""
    return NAME if len(name) < len(NAME) else name


def _named(data: bytes, name: str) -> bytes:
    """The object with a kernel's real name, padded with zeros: names in it end with one."""
    return data.replace(_symbol(name).encode(), name.encode().ljust(len(NAME), b"\0"))


def _key(text: str, machine: Machine, without: tuple[str, ...]) -> str:
    """Hash of everything that decides the code of a kernel, its name excepted."""
    parts: Mapping[str, Any] = {
        "loops": text,
        "target": str(machine.tvm_target()),
        "config": repr((pipeline.BUILD_CONFIG, pipeline.LEFT_TO_LLVM)),
        "without": repr(without),
        "versions": f"{tvm.__version__} {tvm_ffi.__version__}",
        "our passes": _our_passes(),
    }
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def late() -> list[Path]:
    """Sources of ours that may decide what becomes of loops from here on: passes, what they take from the rooms beside
    theirs, and what TVM's last step asks for intrinsics. All of a room is among them: which of its files run late has
    changed before."""
    rooms = (path for package in (lowering, operators, scheduling) for path in Path(package.__path__[0]).rglob("*.py"))
    return [Path(str(pipeline.__file__)), Path(str(stages.__file__)), *sorted(rooms)]


@cache
def _our_passes() -> str:
    """Hash of these sources."""
    digest = hashlib.sha256()
    for file in late():
        digest.update(file.read_bytes())
    return digest.hexdigest()
