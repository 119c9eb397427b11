"""What each CUDA kernel takes of a multiprocessor: threads, registers, shared memory, spills, occupancy - for
reports, and for tests that run without a GPU.

ptxas says registers, static shared memory and spills (`-v`); grid, threads and dynamic shared memory stand in the
host code that TVM generates. Both are collected while TVM builds::

    with recording(machine) as recorder:
        executable = pipeline.build(lowered, machine)
    recorder.launches()      # one Launch a kernel

NVRTC tells no figures: then registers and spills are unknown (-1).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tvmopt.errors import ScheduleError
from tvmopt.targets import Machine

_LAUNCH = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_DYNAMIC = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Usage:
    """What ptxas says of one kernel: registers a thread, bytes of static shared memory, of stack, of spills."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Launch:
    """One kernel as it is launched.

    Attributes:
        name: its symbol.
        grid, threads: blocks, and threads a block (0: not constant).
        registers: a thread (-1: unknown).
        shared: bytes of shared memory a block, static and dynamic.
        spilled: bytes a thread stores because registers did not suffice (-1: unknown).
        occupancy: share of a multiprocessor's threads that fit at once, 0 to 1.
        limit: what bounds the occupancy: ``threads``, ``blocks``, ``registers`` or ``shared memory``.
    """

    name: str
    grid: int
    threads: int
    registers: int
    shared: int
    spilled: int
    occupancy: float
    limit: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse(text: str) -> dict[str, Usage]:
    """The kernels in the output of `ptxas -v`.

    >>> text = '''ptxas info    : Compiling entry function 'k' for 'sm_90'
    ... ptxas info    : Function properties for k
    ...     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 4096 bytes smem'''
    >>> parse(text)
    {'k': Usage(registers=40, shared=4096, stack=8, spill_stores=4, spill_loads=12)}
    """
    found = {}
    for part in re.split(r"Compiling entry function '", text)[1:]:
        name = part.split("'", 1)[0]

        def number(pattern: str, part: str = part) -> int:
            hit = re.search(pattern, part)
            return int(hit[1]) if hit else 0

        found[name] = Usage(
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes smem"),
            number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes spill stores"),
            number(r"(\d+) bytes spill loads"),
        )
    return found


def occupancy(threads: int, registers: int, shared: int, machine: Machine) -> tuple[float, str]:
    """Share of a multiprocessor's threads that run at once, and what bounds it.

    Registers are handed out to warps in units of 256, shared memory to blocks with 1 KiB on top (CUDA C++
    Programming Guide, compute capabilities; CUDA occupancy calculator).

    >>> h100 = Machine.load("nvidia-h100")
    >>> occupancy(256, 32, 0, h100), occupancy(256, 128, 0, h100), occupancy(128, 32, 100_000, h100)
    ((1.0, 'threads'), (0.25, 'registers'), (0.125, 'shared memory'))
    """
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    blocks = {
        "threads": machine.sm_threads // (warps * 32),
        "blocks": machine.sm_blocks,
        "registers": 65536 // per_warp // warps,
        "shared memory": machine.sm_shared // (shared + 1024) if machine.sm_shared else machine.sm_blocks,
    }
    limit = min(blocks, key=lambda kind: blocks[kind])
    return blocks[limit] * warps * 32 / machine.sm_threads, limit


def compile_source(source: str, arch: str, nvcc: str = "nvcc") -> tuple[bytes, dict[str, Usage]]:
    """CUDA C++ as a fatbin with code for `arch`, and what each kernel uses. Fast math is off.

    Raises:
        RuntimeError: nvcc refused it; the text is nvcc's.
    """
    suffix = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory(prefix="tvmopt-nvcc-") as folder:
        out = Path(folder) / "tvm_kernels.fatbin"
        flags = ("-gencode", f"arch=compute_{suffix},code=sm_{suffix}", "--ptxas-options=-v,--register-usage-level=10")
        told = _nvcc(nvcc, ("--fatbin", *flags), source, out)
        return out.read_bytes(), parse(told)


def listings(source: str, arch: str, nvcc: str = "nvcc") -> dict[str, str]:
    """CUDA C++ as `ptx`, and as `sass` where the toolkit has `cuobjdump`; nothing without nvcc.

    Raises:
        RuntimeError: nvcc refused it; the text is nvcc's.
    """
    if not nvcc:
        return {}
    with tempfile.TemporaryDirectory(prefix="tvmopt-nvcc-") as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        _nvcc(nvcc, ("--ptx", f"-arch={arch}"), source, ptx)
        found = {"ptx": ptx.read_text()}
        if disassembler := shutil.which("cuobjdump"):
            _nvcc(nvcc, ("--cubin", f"-arch={arch}", "--ptxas-options=--register-usage-level=10"), source, cubin)
            done = subprocess.run([disassembler, "-sass", str(cubin)], capture_output=True, text=True, check=True)
            found["sass"] = done.stdout
    return found


def _nvcc(nvcc: str, flags: Sequence[str], source: str, out: Path) -> str:
    """What nvcc says while it compiles a source to `out`."""
    code = out.with_suffix(".cu")
    code.write_text(source)
    command = [nvcc, *flags, "-O3", *_LANGUAGE, "-o", str(out), str(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(told)
    return told


_LANGUAGE = (
    *(f"-U__CUDA_NO_{kind}_{what}__" for kind in ("HALF", "BFLOAT16") for what in ("OPERATORS", "CONVERSIONS")),
    *("-U__CUDA_NO_BFLOAT162_OPERATORS__", "-U__CUDA_NO_BFLOAT162_CONVERSIONS__"),
    *("--expt-relaxed-constexpr", "--expt-extended-lambda"),
)


@dataclass
class Recorder:
    """Collects while TVM builds.

    Attributes:
        binaries: bytes of each fatbin or cubin.
        sources: the CUDA C++ of each.
        usage: kernel -> what ptxas says.
        dimensions: kernel -> launch parameter -> value, where constant.
    """

    machine: Machine
    binaries: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)
    tags: dict[str, list[str]] = field(default_factory=dict)
    dimensions: dict[str, dict[str, int]] = field(default_factory=dict)

    def launches(self) -> list[Launch]:
        """One record a kernel, in the order of building."""
        return [self._launch(name) for name in self.tags]

    def of(self, function: str) -> list[Launch]:
        """The kernels that TVM made of one PrimFunc: `<name>_kernel`, `<name>_kernel_1`, ..."""
        return [k for k in self.launches() if re.fullmatch(re.escape(function) + r"_kernel(_\d+)?", k.name)]

    def _launch(self, name: str) -> Launch:
        given = self.dimensions.get(name, {})
        sizes = [given.get(tag, 1) for tag in _LAUNCH]
        grid, threads = sizes[0] * sizes[1] * sizes[2], sizes[3] * sizes[4] * sizes[5]
        if any(tag not in given for tag in self.tags[name] if tag in _LAUNCH[:3]):
            grid = 0
        used = self.usage.get(name)
        shared = (used.shared if used else 0) + given.get(_DYNAMIC, 0)
        share, limit = occupancy(max(threads, 1), used.registers if used else 32, shared, self.machine)
        return Launch(
            name, grid, threads, used.registers if used else -1, shared,
            used.spill_stores if used else -1, round(share, 4), limit,
        )  # fmt: skip

    def check(self) -> None:
        """Every kernel within the machine's limits.

        Raises:
            ScheduleError: all those that could not be launched, each with its figure and the limit.
        """
        problems = [p for launch in self.launches() for p in exceeded(launch, self.machine)]
        if problems:
            raise ScheduleError(
                "kernels exceed the GPU's limits:\n    " + "\n    ".join(problems),
                where=self.machine.name,
                fix="please report it with the model",
            )

    def warnings(self) -> tuple[str, ...]:
        """A line for kernels whose registers spill to memory."""
        spilled = [k for k in self.launches() if k.spilled > 0]
        if not spilled:
            return ()
        told = ", ".join(f"{k.name} ({k.spilled} bytes a thread)" for k in spilled[:5])
        more = f" and {len(spilled) - 5} more" if len(spilled) > 5 else ""
        return (f"registers are spilled to memory in {told}{more}",)


def exceeded(launch: Launch, machine: Machine) -> list[str]:
    """What a launch asks for beyond the machine's limits, in words.

    >>> h100 = Machine.load("nvidia-h100")
    >>> exceeded(Launch("k", 1, 2048, 32, 0, 0, 1.0, "threads"), h100)
    ['k: 2048 threads a block, at most 1024']
    >>> exceeded(Launch("k", 1, 1024, 80, 300_000, 0, 1.0, "threads"), h100)
    ['k: 81920 registers a block, at most 65536', 'k: 300000 bytes of shared memory, at most 232448']
    """
    limits = machine.tvm
    asked = (
        (launch.threads, limits.get("max_threads_per_block", 1024), "threads a block"),
        (
            -(-max(launch.registers, 0) // 8) * 8 * launch.threads,
            limits.get("registers_per_block", 65536),
            "registers a block",
        ),
        (launch.shared, limits.get("max_shared_memory_per_block", 49152), "bytes of shared memory"),
    )
    return [f"{launch.name}: {has} {what}, at most {most}" for has, most, what in asked if has > most]


def unfit(launches: Iterable[Launch], machine: Machine, spills: bool = True) -> list[str]:
    """Why kernels are not worth running: limits they exceed, and registers they spill if `spills`.

    >>> unfit([Launch("k", 1, 128, 255, 0, 64, 0.1, "registers")], Machine.load("nvidia-h100"))
    ['k: spills 64 bytes a thread']
    """
    found = []
    for launch in launches:
        found += exceeded(launch, machine)
        if spills and launch.spilled > 0:
            found.append(f"{launch.name}: spills {launch.spilled} bytes a thread")
    return found


@contextmanager
def recording(machine: Machine, nvcc: str = "") -> Iterator[Recorder]:
    """Within: what TVM builds for CUDA is compiled by `nvcc` (or as TVM does it, if that is empty) and recorded.

    Raises:
        ScheduleError: the CUDA compiler refused a kernel.
    """
    import tvm_ffi
    from tvm.support import nvcc as stock

    recorder = Recorder(machine)
    refused: list[ScheduleError] = []
    module: Any = import_module("tvm.tirx.build")  # the name in the package is a function
    original = module.codegen_build

    def compile_cuda(code: str) -> bytes:
        try:
            if nvcc:
                binary, used = compile_source(code, machine.mcpu, nvcc)
                recorder.usage.update(used)
            else:
                binary = bytes(stock.tvm_callback_cuda_compile(code))
        except RuntimeError as error:
            refused.append(refusal(str(error).rpartition("Compilation error:")[2], code))
            raise refused[-1] from error
        recorder.binaries.append(len(binary))
        recorder.sources.append(code)
        return binary

    def build(mod: Any, target: Any) -> Any:
        if target.kind.name == "cuda":
            for var, func in mod.functions_items():
                name = str(func.attrs.get("global_symbol", var.name_hint))
                recorder.tags[name] = [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
        else:
            for func in mod.functions.values():
                for name, values in host_launches(func).items():
                    tags = recorder.tags.get(name, [])
                    given = zip(tags, values[len(values) - len(tags) :], strict=True)
                    recorder.dimensions[name] = {tag: v for tag, v in given if v is not None}
        try:
            return original(mod, target)
        except Exception as error:
            if refused:  # of which TVM makes an error of its own, with a traceback as its message
                raise refused.pop() from error
            raise

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_cuda, override=True)
    module.codegen_build = build
    try:
        yield recorder
    finally:
        module.codegen_build = original
        tvm_ffi.register_global_func("tvm_callback_cuda_compile", stock.tvm_callback_cuda_compile, override=True)


def refusal(told: str, code: str) -> ScheduleError:
    """The error of a CUDA compiler that refused `code`: its first words, which stand behind hundreds of warnings, and
    the kernel that they are about.

    >>> code = 'extern "C" __global__ void __launch_bounds__(32) add_kernel(float* x) {\\n  x[0] = hnot(1);\\n}'
    >>> refusal('k.cu(1): warning\\nk.cu(2): error: identifier "hnot" is undefined', code).where
    "kernel 'add_kernel'"
    """
    lines = told.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    number = re.search(r"\((\d+)\): error", lines[first]) if lines else None
    above = "\n".join(code.splitlines()[: int(number[1])]) if number else ""
    kernels = re.findall(r"__global__ void (?:__\w+__\([^)]*\) )*(\w+)\(", above)
    return ScheduleError(
        "the CUDA compiler refused a kernel:\n    " + "\n    ".join(lines[first : first + 5]),
        where=f"kernel '{kernels[-1]}'" if kernels else "",
        fix="please report it with the model",
    )


_VALUE = 15
"""The field of TVM's argument slots (`tvm_struct_set`) that holds the value."""


def host_launches(func: Any) -> dict[str, list[int | None]]:
    """The arguments of every packed call in lowered host code, in order; None where one is not a constant."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    slots: dict[int, int | None] = {}
    found: dict[str, list[int | None]] = {}

    def constant(value: Any) -> int | None:
        while isinstance(value, tirx.Cast):
            value = value.value
        return int(value.value) if isinstance(value, tirx.IntImm) else None

    def visit(node: Any) -> None:
        name = getattr(node.op, "name", "")
        if name == "tirx.tvm_struct_set" and int(node.args[2].value) == _VALUE:
            slots[int(node.args[1].value)] = constant(node.args[3])
        elif name == "tirx.tvm_call_packed_lowered":
            first, last = int(node.args[2].value), int(node.args[3].value)
            found[str(node.args[0].value)] = [slots.get(k) for k in range(first, last)]

    from tvm import ir

    structural_walk(func.body, (ir.Call, visit))
    return found
