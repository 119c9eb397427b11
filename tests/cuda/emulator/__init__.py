"""Run generated CUDA on the CPU - for tests of GPU schedules where there is no GPU.

    run(scheduled_function, Machine.load("nvidia-h100"), [x, w], [y])         # y is written
    load(cuda_source).launch("kernel", [x, y, n], grid=(4,), block=(128,))    # written by hand
    with emulated():                                                          # anything TVM builds
        executable = relax.build(module, target=...)
    relax.VirtualMachine(executable, tvm.cpu())["main"](...)

TVM's own host code runs (built for the CPU, its device checks left out) and calls the emulated kernels by
name, so launch dimensions, workspaces and several kernels a function are all TVM's. Kernels are the CUDA C++
that nvcc would get, compiled by g++ against `shim.h`. `run` and `launch` go through several thread orders,
with asynchronous copies arriving early and late; results that differ are a :class:`Race`.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import mmap
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda import device
from tests.cuda.emulator.ptx import translate

HERE = Path(__file__).parent
MODES = ((0, False), (1, True), (2, True))
"""(thread order, late copies): in order; reversed; shuffled. See `run_block` in shim.h."""
_FLAGS = [
    *("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-mf16c", "-mfma"),
    *("-ffp-contract=fast", "-fexpensive-optimizations"),
    "-fsanitize=alignment,bounds",
]
"""A product and a sum are rounded once, as by nvcc. What the sanitizers find goes to functions of `shim.h`, so that no
library of theirs is needed."""
_serial = itertools.count()


class Race(AssertionError):
    """Results depend on the order of threads, or on when a copy arrived: a barrier or a wait is missing."""


class Fault(AssertionError):
    """What a GPU would hang or trap on: threads at different barriers, a misaligned access; or a place beyond the end
    of an array of a thread or a block."""


@dataclass
class Library:
    """Emulated kernels of one CUDA source.

    Attributes:
        source: the CUDA C++ as TVM wrote it.
        parameters: kernel name -> the sizes of its parameters as C types.
        launches: (kernel, grid, block, dynamic shared bytes) of every launch so far.
    """

    source: str
    parameters: dict[str, list[str]]
    library: Any
    launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)

    def launch(
        self,
        name: str,
        arguments: Sequence[Any],
        grid: Sequence[int],
        block: Sequence[int],
        shared: int = 0,
        modes: Sequence[tuple[int, bool]] = MODES,
    ) -> None:
        """Run `name` over arrays (changed in place) and numbers, once a mode; all must give the same bits.

        Raises:
            Race: they do not. Fault: a deadlock, a misaligned access, a warp that diverged.
        """
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        before = [a.copy() for a in arrays]
        first: list[np.ndarray] | None = None
        for mode in modes:
            for array, old in zip(arrays, before, strict=True):
                array[...] = old
            self.launch_once(name, [_pointer(a) for a in arguments], grid, block, shared, mode)
            if first is None:
                first = [a.copy() for a in arrays]
                continue
            for k, (array, kept) in enumerate(zip(arrays, first, strict=True)):
                if array.tobytes() != kept.tobytes():
                    wrong = np.flatnonzero(array.reshape(-1).view("uint8") != kept.reshape(-1).view("uint8"))
                    raise Race(
                        f"{name}: array {k} differs between thread orders {modes[0]} and {mode}, "
                        f"first at byte {int(wrong[0])}, in {wrong.size} bytes"
                    )

    def launch_once(
        self,
        name: str,
        arguments: Sequence[int],
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        mode: tuple[int, bool],
    ) -> None:
        """One run in one thread order; `arguments` are addresses and integers."""
        full = [tuple([*map(int, d), 1, 1][:3]) for d in (grid, block)]
        self.launches.append((name, full[0], full[1], shared))
        slots = (ctypes.c_uint64 * max(1, len(arguments)))(*[int(a) & (2**64 - 1) for a in arguments])
        dims = (ctypes.c_uint * 6)(*full[0], *full[1])
        kernel = getattr(self.library, f"emu_launch_{name}")
        message = kernel(slots, dims, ctypes.c_int(shared), int(mode[0]), int(mode[1]))
        if message:
            raise Fault(f"{name}: {message.decode()}")


def _pointer(value: Any) -> int:
    return int(value.ctypes.data) if isinstance(value, np.ndarray) else int(value)


def load(source: str) -> Library:
    """Compile CUDA C++ for the CPU.

    Raises:
        RuntimeError: g++ refused it: the emulator lacks something. UnknownInstruction: PTX it does not know.
    """
    parameters = _kernels(source)
    text = _program(source, parameters)
    cache = Path(tempfile.gettempdir()) / f"tvmopt-cuda-emulator-{os.getuid()}"
    cache.mkdir(exist_ok=True, mode=0o700)
    headers = "".join((HERE / name).read_text() for name in ("shim.h", "tensor.h"))
    key = hashlib.sha256("".join((text, headers, *_FLAGS)).encode()).hexdigest()[:20]
    library = cache / f"{key}.so"
    if not library.exists():
        program, part = cache / f"{key}.cpp", cache / f"{key}.{os.getpid()}.part"
        program.write_text(text)
        command = ["g++", *_FLAGS, "-shared", "-fPIC", f"-I{HERE}", str(program), "-o", str(part)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line][:8]
            raise RuntimeError(f"g++ refused {program}:\n" + "\n".join(errors or [done.stderr[:2000]]))
        part.replace(library)
    loaded = ctypes.CDLL(str(library))
    for name in parameters:
        getattr(loaded, f"emu_launch_{name}").restype = ctypes.c_char_p
    loaded.emu_use_stacks.restype = ctypes.c_size_t
    size = loaded.emu_use_stacks(None)
    loaded.emu_use_stacks(ctypes.byref(ctypes.c_char.from_buffer(_stacks(size))))
    return Library(source, parameters, loaded)


@cache
def _stacks(size: int) -> mmap.mmap:
    """The stacks of a block's threads, which all libraries of the process use in turn."""
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__(?:launch_bounds|cluster_dims)__\([^)]*\)\s*)*(\w+)\s*\(([^)]*)\)'
)


def _kernels(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for match in _KERNEL.finditer(source):
        types = []
        for parameter in filter(None, (p.strip() for p in match[2].split(","))):
            words = parameter.replace("*", " * ").replace("__restrict__", " ").replace("const", " ").split()
            types.append(" ".join(words[:-1]))
        found[match[1]] = types
    return found


def _program(source: str, parameters: dict[str, list[str]]) -> str:
    source = re.sub(r"#\s*include\s*<[^>]*>", "", source)
    source = re.sub(
        r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+|alignas\(\d+\)\s+)?([\w ]+?)\s+(\w+)\[\];",
        r"static \1* const \2 = reinterpret_cast<\1*>(emu::dynamic_shared);",
        source,
    )
    source = re.sub(r"__shared__\s+(alignas\(\d+\))", r"\1 __shared__", source)  # g++ wants alignas first
    launchers = "".join(_launcher(name, types) for name, types in parameters.items())
    head = '#define __CUDA_ARCH__ 900\n#define __CUDACC_VER_MAJOR__ 13\n#include "tensor.h"\n'
    return f"{head}{translate(source)}\n{launchers}"


def _launcher(name: str, types: list[str]) -> str:
    loads = ", ".join(
        f"({kind})slots_[{k}]" if "*" in kind else f"emu_scalar<{kind}>(slots_[{k}])" for k, kind in enumerate(types)
    )
    return f"""
static void emu_body_{name}() {{ {name}({loads}); }}
extern "C" const char* emu_launch_{name}(uint64_t* slots, unsigned* d, int shared, int order, int late) {{
  slots_ = slots;
  return emu_grid(emu_body_{name}, d, shared, order, late);
}}
"""


@dataclass
class Emulation:
    """What was built under :func:`emulated`, and how its kernels run.

    Attributes:
        mode: the thread order, and whether asynchronous copies arrive late.
        libraries: one a CUDA source.
    """

    mode: tuple[int, bool] = MODES[0]
    libraries: list[Library] = field(default_factory=list)

    @property
    def sources(self) -> str:
        return "\n".join(library.source for library in self.libraries)

    def register(self, mod: Any, library: Library) -> None:
        """A packed function a kernel: its arguments, then the launch dimensions that the host computes."""
        import tvm_ffi

        self.libraries.append(library)
        for var, func in mod.functions_items():
            name = str(func.attrs.get("global_symbol", var.name_hint))
            tags = [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
            count = len(func.params)

            def call(*arguments: Any, name: str = name, tags: list[str] = tags, count: int = count) -> None:
                given = dict(zip(tags, map(int, arguments[count : count + len(tags)]), strict=True))
                dims = [[given.get(f"{kind}Idx.{axis}", 1) for axis in "xyz"] for kind in ("block", "thread")]
                shared = given.get("tirx.use_dyn_shared_memory", 0)
                values = [_address(a) for a in arguments[:count]]
                library.launch_once(name, values, dims[0], dims[1], shared, self.mode)

            tvm_ffi.register_global_func(name, call, override=True)


@contextmanager
def emulated() -> Iterator[Emulation]:
    """Within: whatever TVM builds for CUDA is built for the emulator; a VM then runs on `tvm.cpu()`."""
    module = import_module("tvm.tirx.build")  # the name in the package is a function
    original = module.codegen_build
    emulation = Emulation()

    def build(mod: Any, target: Any) -> Any:
        if target.kind.name != "cuda":
            return original(_for_cpu(mod), target)
        emulation.register(mod, load(_source(mod, target)))
        return None

    module.codegen_build = build
    try:
        yield emulation
    finally:
        module.codegen_build = original


def run(func: Any, machine: Any, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Emulation:
    """Build one scheduled PrimFunc for `machine` and run it in every mode; `outputs` are written in place. Where
    there is such a GPU, its results are the last to be written.

    Raises:
        Race, Fault: see there. Outputs are filled with 0x7F beforehand: what is not written shows.
    """
    import tvm

    serial = next(_serial)
    names = {"main": f"emu{serial}"}
    func = func.with_attr("global_symbol", names["main"])
    target = machine.tvm_target()
    with target, emulated() as emulation:
        built = tvm.compile(tvm.IRModule({names["main"]: func}), target=target)
    first: list[bytes] | None = None
    for mode in MODES:
        emulation.mode = mode
        for out in outputs:
            out.reshape(-1).view("uint8")[...] = 0x7F
        given = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in (*inputs, *outputs)]
        built[names["main"]](*given)
        for out, tensor in zip(outputs, given[len(inputs) :], strict=True):
            out[...] = tensor.numpy()
        now = [out.tobytes() for out in outputs]
        if first is None:
            first = now
        elif now != first:
            wrong = [k for k, (a, b) in enumerate(zip(now, first, strict=True)) if a != b]
            raise Race(f"output {wrong[0]} differs between thread orders {MODES[0]} and {mode}")
    if device.is_here(machine):
        device.run(func, machine, inputs, outputs)
    return emulation


def _source(mod: Any, target: Any) -> str:
    import tvm

    with target:
        return str(tvm.get_global_func("target.build.cuda")(mod, target).inspect_source())


def _address(value: Any) -> int:
    if isinstance(value, ctypes.c_void_p):
        return int(value.value or 0)
    return int(value or 0)


def _for_cpu(mod: Any) -> Any:
    """Host code whose tensors and workspaces are the CPU's."""
    import tvm
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    def call(node: Any) -> Any:
        name = getattr(node.op, "name", "")
        if name == "tirx.tvm_call_packed_lowered" and str(node.args[0].value) == "__tvm_set_device":
            return tirx.const(0, "int32")
        if name.endswith(("TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace")):
            return ir.Call(node.op, [tirx.const(1, "int32"), *node.args[1:]], node.attrs, ret_ty=node.ty)
        return node

    mod = tirx.transform.SkipAssert()(mod)
    functions = {var: func.with_body(structural_map(func.body, (ir.Call, call))) for var, func in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)
