"""What this machine can do at most, measured once: the roofs of `profile` and the floors of `bench`.

A small C program (``peaks.c`` beside this file) is compiled with the machine's own instruction set, run,
and its figures kept in the user's cache directory. Arithmetic peaks come from chains of independent FMAs
(dot-product and tile instructions for bf16 and int8), bandwidths from reading and from STREAM's triad over
arrays of a chosen size. Without a C compiler NumPy gives lower bounds, and the result says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path

import numpy as np

from tvmopt.errors import TvmoptError
from tvmopt.scheduling.cuda_tile import tensor_rate
from tvmopt.targets import Machine
from tvmopt.toolchain.linking import build

VERSION = 3  # of peaks.c and of what is declared: a change measures anew


@dataclass(frozen=True)
class Peaks:
    """Measured limits for a number of threads.

    Attributes:
        machine: the processor's name.
        threads: threads used.
        flops: operations a second by precision (``fp32``, ``bf16``, ``int8``, ...), a multiply-add counting
            two; instructions that the processor lacks are left out.
        bandwidth: bytes a second, by level: ``l2``, ``l3``, ``dram`` (reads), ``triad`` (STREAM, from memory).
        l2, l3: bytes of these caches (L2: all threads').
        source: ``"measured"``, ``"numpy"`` for the lower bounds taken without a C compiler, or ``"declared"``.
        raised: which figures are higher than that, because the machine's description (``"declared"``) or a kernel
            (``"observed"``) had more.
    """

    machine: str
    threads: int
    flops: dict[str, float]
    bandwidth: dict[str, float]
    l2: int
    l3: int
    source: str
    raised: dict[str, str] = field(default_factory=dict)

    def at_least(self, flops: Mapping[str, float], bandwidth: Mapping[str, float], by: str) -> Peaks:
        """The peaks with these figures where they are higher: what something else had is no more than the roof."""
        more = {k: v for k, v in flops.items() if v > self.flops.get(k, 0.0)}
        wider = {k: v for k, v in bandwidth.items() if v > self.bandwidth.get(k, 0.0)}
        raised = {**self.raised, **dict.fromkeys((*more, *wider), by)}
        return replace(self, flops={**self.flops, **more}, bandwidth={**self.bandwidth, **wider}, raised=raised)

    def level(self, working_set: float) -> str:
        """Where a working set of this size lies: ``l2``, ``l3`` or ``dram``."""
        return "l2" if working_set <= self.l2 else "l3" if working_set <= self.l3 else "dram"

    def compute(self, precision: str = "fp32") -> float:
        """Peak operations a second: the tile unit's where there is one, fp32's where unknown."""
        names = {"bf16": ("amx-bf16", "bf16"), "int8": ("amx-int8", "int8")}.get(precision, (precision,))
        return max([self.flops[n] for n in names if n in self.flops] or [self.flops["fp32"]])

    def reach(self, working_set: float) -> float:
        """Bandwidth, bytes a second, of a working set of this size that is used again and again."""
        return self.bandwidth[self.level(working_set)]

    def floor(self, flops: float, nbytes: float, precision: str = "fp32") -> float:
        """Seconds below which no implementation that does `flops` operations on `nbytes` can come.

        ``max(flops / peak, bytes / bandwidth)``. An algorithm with fewer operations (Winograd) is not bound
        by it.
        """
        return max(flops / self.compute(precision), nbytes / self.reach(nbytes))


def measure_peaks(threads: int = 1, *, cache: Path | None = None, again: bool = False) -> Peaks:
    """The machine's peaks with `threads` threads: from the cache, else measured (some 6 s).

    Args:
        cache: folder; default ``$XDG_CACHE_HOME/tvmopt``.
        again: measure even if the cache has them, and keep the larger of each two figures: what else runs
            can only make a peak look lower.
    """
    path = _place(threads, cache)
    known = _read(path)
    if known and not again:
        return known
    peaks = _measure(machine_name(), threads, *cache_sizes())
    if known and known.source == peaks.source:
        peaks = replace(
            peaks, flops=_larger(peaks.flops, known.flops), bandwidth=_larger(peaks.bandwidth, known.bandwidth),
            raised=known.raised,
        )  # fmt: skip
    peaks = peaks.at_least(_declared(threads), {}, "declared")
    _keep(peaks, path)
    return peaks


def gpu_peaks(machine: Machine) -> Peaks:
    """What the description of a GPU promises: nothing is measured. The peak of 16 bits is that of its tensor cores,
    of which `mma.sync` reaches half on Hopper and later (scheduling/cuda_tile.py); fp32 is three products of tf32.

    >>> h100 = gpu_peaks(Machine.load("nvidia-h100"))
    >>> round(h100.flops["fp16"] / 1e12), round(h100.compute("fp32") / 1e12), h100.level(40e6), h100.reach(1e9) / 1e12
    (1071, 178, 'l2', 3.35)
    """
    rates = {"fp16": "float16", "bf16": "bfloat16", "tf32": "tf32", "fp32": "float32"}
    clock, whole = machine.cores * machine.ghz * 1e9, 2 if int(machine.mcpu.strip("sm_af")) >= 90 else 1
    flops = {name: 2 * whole * tensor_rate(machine, dtype) * clock for name, dtype in rates.items()}
    flops["fp32"] = max(flops["fp32"], machine.peak_flops)
    bandwidth = {"l2": machine.l2_rate * clock, "dram": machine.bandwidth}
    return Peaks(machine.name, 1, flops, bandwidth, machine.l2, machine.l2, "declared")


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory, measured now (a second or so)."""
    with tempfile.TemporaryDirectory(prefix="tvmopt-peaks-") as folder:
        run = _program(Path(folder), threads) or _numpy
        return run("read", beyond(cache_sizes()[1]))


def beyond(l3: int) -> int:
    """Bytes that are in memory and not in an L3 cache of this size: 8 times as many, but no more than 1 GiB where that
    is twice as many. A virtual machine sees the L3 of all its host's cores.

    >>> beyond(16 << 20) >> 20, beyond(480 << 20) >> 20
    (128, 1024)
    """
    return min(8 * l3, max(2 * l3, 1 << 30))


def remember(peaks: Peaks, *, cache: Path | None = None) -> None:
    """Keep peaks that a kernel has raised, for profiles and floors to come."""
    _keep(peaks, _place(peaks.threads, cache))


def _declared(threads: int) -> dict[str, float]:
    """What the description of this machine promises; nothing where only its instruction set is known."""
    machine = Machine.load("cpu")
    if machine.kind != "llvm" or machine.name.startswith("x86-64"):
        return {}
    mine = machine.with_cores(min(threads, machine.cores))
    return {"fp32": mine.peak_flops, **({"amx-bf16": mine.peak_tiles} if mine.peak_tiles else {})}


def _place(threads: int, cache: Path | None) -> Path:
    key = hashlib.sha256(f"{VERSION} {machine_name()} {os.cpu_count()} {cache_sizes()}".encode()).hexdigest()[:12]
    return (cache or cache_folder()) / f"peaks-{key}-{threads}.json"


def _keep(peaks: Peaks, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(asdict(peaks), indent=1))
        part.replace(path)
    except OSError:
        pass  # a read-only home: measure again next time


def _read(path: Path) -> Peaks | None:
    try:
        return Peaks(**json.loads(path.read_text()))
    except (ValueError, TypeError, OSError):
        return None  # not there, damaged, or of an older version


def _larger(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {key: max(a.get(key, 0.0), b.get(key, 0.0)) for key in {**a, **b}}


def cache_folder() -> Path:
    """Where tvmopt keeps what it measured."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmopt"


def machine_name() -> str:
    """The processor's name, as the kernel tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cache_sizes() -> tuple[int, int]:
    """(L2 a core, L3) in bytes, from sysfs; usual sizes where it has none."""
    found = {2: 1 << 20, 3: 16 << 20}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if level in found and text[:-1].isdigit():
            found[level] = int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    return found[2], found[3]


def _measure(name: str, threads: int, l2: int, l3: int) -> Peaks:
    sizes = {  # read: half of what fits, twice what the caches hold
        "l2": ("read", threads * l2 // 2),
        "l3": ("read", max(l3 // 2, threads * l2 * 2)),
        "dram": ("read", beyond(l3)),
        "triad": ("triad", beyond(l3)),
    }
    with tempfile.TemporaryDirectory(prefix="tvmopt-peaks-") as folder:
        run = _program(Path(folder), threads)
        source = "measured" if run else "numpy"
        run = run or _numpy
        flops = {kind: run(kind, 0) for kind in ("fp32", "bf16", "int8", "amx-bf16", "amx-int8")}
        bandwidth = {level: run(kind, size) for level, (kind, size) in sizes.items()}
    return Peaks(name, threads, {k: v for k, v in flops.items() if v > 0}, bandwidth, threads * l2, l3, source)


def _program(folder: Path, threads: int) -> Callable[[str, int], float] | None:
    """The compiled measuring program as a function, or None without a working compiler."""
    code, binary = folder / "peaks.c", folder / "peaks"
    code.write_bytes((resources.files("tvmopt.analysis") / "peaks.c").read_bytes())
    try:
        build(code, binary, "-O3", "-march=native", "-ffp-contract=fast", "-pthread")
    except (TvmoptError, OSError, subprocess.SubprocessError):
        return None

    def run(kind: str, size: int) -> float:
        try:
            done = subprocess.run(
                [str(binary), kind, str(threads), str(size)], check=True, capture_output=True, timeout=60
            )
            return float(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            # no such instructions, or a busy machine did not keep the time limit: memory is there in any case
            return _numpy(kind, size) if size else 0.0

    return run if run("fp32", 0) > 0 else None


def _numpy(kind: str, size: int) -> float:
    """Lower bounds without a compiler: NumPy's BLAS, a sum, an addition."""
    if kind == "fp32":
        a = np.ones((768, 768), np.float32)
        return 2 * 768.0**3 / _best(lambda: a @ a)
    if kind in ("read", "triad"):
        data = np.ones(max(size // 4, 1024), np.float32)
        if kind == "read":
            return data.nbytes / _best(data.sum)
        part = len(data) // 3
        a, b, c = data[:part], data[part : 2 * part], data[2 * part : 3 * part]
        return 12.0 * part / _best(lambda: np.add(b, c, out=a))
    return 0.0


def _best(call: Callable[[], object], repeats: int = 10) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
