"""The host, from what the processor says of itself in /proc/cpuinfo and sysfs - for `Machine.load("cpu")`."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tvmopt.targets import cpuid

_FEATURES = {  # /proc/cpuinfo's word -> LLVM's
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512f": "avx512f", "avx512bw": "avx512bw",
    "avx512vl": "avx512vl", "avx512dq": "avx512dq", "avx512_vnni": "avx512vnni", "avx_vnni": "avxvnni",
    "avx512vbmi": "avx512vbmi", "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile", "amx_bf16": "amx-bf16", "amx_int8": "amx-int8",
}  # fmt: skip

_GENERATED = {  # the same of what no schedule asks for and LLVM takes by itself
    "bmi1": "bmi", "bmi2": "bmi2", "abm": "lzcnt", "movbe": "movbe", "avx512cd": "avx512cd",
    "avx512ifma": "avx512ifma", "avx512_vbmi2": "avx512vbmi2", "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq", "gfni": "gfni", "sse4a": "sse4a",
}  # fmt: skip

_LEVEL_3 = ("bmi", "bmi2", "lzcnt", "movbe")
_ICE_LAKE = (*_LEVEL_3, "avx512cd", "avx512ifma", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "gfni")
IMPLIED = {
    "x86-64-v3": _LEVEL_3,
    "x86-64-v4": (*_LEVEL_3, "avx512cd"),
    "sapphirerapids": _ICE_LAKE,
    "znver5": (*_ICE_LAKE, "sse4a"),
}
"""LLVM's name of a processor -> what its code may have of :data:`_GENERATED`. A test compares it with LLVM's list."""

HWCAPS = {  # LLVM's name -> entry of the auxiliary vector, and its bits: Linux, arch/arm64/include/uapi/asm/hwcap.h
    "lse": (16, 1 << 8), "fullfp16": (16, 1 << 9 | 1 << 10), "dotprod": (16, 1 << 20), "sve": (16, 1 << 22),
    "sve2": (26, 1 << 1), "i8mm": (26, 1 << 13), "bf16": (26, 1 << 14),
}  # fmt: skip

_VECTORS = {"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq"}  # what schedules choose tiles by

_LEVELS = (  # the most capable ISA level that the flags contain, and its description
    (("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "amx-tile", "amx-bf16"), "sapphirerapids"),
    (("avx512f", "avx512bw", "avx512vl", "avx512dq"), "x86-64-v4"),
    (("avx2", "fma"), "x86-64-v3"),
    ((), "x86-64-v2"),
)

# (vendor, family, model) -> the machine's file. Intel: SDM vol. 4 table 2-1; AMD: Linux arch/x86/kernel/cpu/amd.c.
_MODELS = {
    ("GenuineIntel", 6, 143): "sapphirerapids",
    ("GenuineIntel", 6, 207): "sapphirerapids",  # Emerald Rapids
    ("AuthenticAMD", 26, None): "znver5",
    **{("AuthenticAMD", 25, model): "znver4" for model in (*range(0x10, 0x20), *range(0x60, 0xB0))},
}

# (implementer, part) of Arm's identification register, as /proc/cpuinfo writes them -> the machine's file. Linux
# arch/arm64/include/asm/cputype.h.
_PARTS = {
    ("0x41", "0xd0b"): "cortex-a76",
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x61", "0x022"): "apple-m1",
    ("0x61", "0x023"): "apple-m1",
}


@dataclass(frozen=True)
class Host:
    """What this machine says of itself; a size is 0 where it says nothing.

    Attributes:
        descriptions: names of TOML files that may describe it, the most specific first.
        features: LLVM's names of its ISA features.
        cores: physical cores this process may use.
        l1d, l2, l3: bytes of data cache.
    """

    descriptions: tuple[str, ...]
    features: tuple[str, ...]
    cores: int
    l1d: int
    l2: int
    l3: int

    @property
    def hides(self) -> frozenset[str]:
        """Features that schedules choose tiles by and that are not here."""
        return frozenset(_VECTORS - set(self.features))


def read_host() -> Host:
    """Look; a container often has fewer cores than the model, and a hypervisor can hide a feature."""
    info = _cpuinfo()
    features = _features(info)
    return Host(
        (*_known(info), _level(features)),
        features,
        usable_cores(),
        _cache_size(1, "Data"),
        _cache_size(2, "Unified"),
        _cache_size(3, "Unified"),
    )


def _features(info: dict[str, str]) -> tuple[str, ...]:
    """LLVM's names of the instructions that are here; AMX only where it is all there."""
    if host_arch() == "aarch64":  # the kernel's word, which an emulator gives too
        return tuple(sorted(name for name, (entry, bits) in HWCAPS.items() if _auxiliary(entry) & bits == bits))
    found = _listed(info, _FEATURES)
    if not {"amx-tile", "amx-bf16"} <= found:
        found = {f for f in found if not f.startswith("amx-")}
    return tuple(sorted(found))


def _listed(info: dict[str, str], names: dict[str, str]) -> set[str]:
    """Which of these instructions the kernel lists and the processor confirms."""
    return {names[f] for f in info.get("flags", "").split() if f in names} - cpuid.absent()


def generated() -> frozenset[str]:
    """What this machine has of the instructions that LLVM takes by itself."""
    return frozenset(_listed(_cpuinfo(), _GENERATED) if host_arch() == "x86_64" else ())


def _auxiliary(entry: int) -> int:
    """An entry of the auxiliary vector that the kernel gives to each process."""
    get = ctypes.CDLL(None).getauxval
    get.restype, get.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(get(entry))


def usable_cores() -> int:
    """Physical cores this process may use: its affinity mask, hyperthreads counted once, at most its CPU quota."""
    return cores_among(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def cores_among(processors: Iterable[int]) -> int:
    """Physical cores among the system's processors: hyperthreads counted once, at most this process's CPU quota."""
    cores = set()
    for cpu in processors:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return max(1, min(len(cores), _quota()))


def _quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Whole processors that the control groups of this process grant (`docker --cpus=2`, systemd's CPUQuota); a large
    number where there is no limit. A group has at most what those above it have."""
    found = [1 << 16]
    for folder, path in groups(root, own, "cpu"):
        for group in (
            path,
            *path.parents,
        ):  # from outside a container the path begins higher: what is not there is skipped
            if (granted := _granted(folder / str(group).lstrip("/"))) is not None:
                found.append(max(1, round(granted)))
    return min(found)


def groups(root: Path, own: Path, controller: str) -> list[tuple[Path, Path]]:
    """Where this process's control groups are that limit processors ("cpu") or memory: the root of the hierarchy, and
    the path in it. Version 2 has one hierarchy, version 1 one for each controller."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    found = [(root, Path("/"))]
    for number, controllers, path in (line for line in lines if len(line) == 3):
        if number == "0":
            found += [(root, Path(path)), (root / "unified", Path(path))]
        elif controller in controllers.split(","):
            found += [(root / name, Path(path)) for name in (controller, controllers)]
    return found


def _granted(group: Path) -> float | None:
    """Processors that one group grants; None where it says nothing, or sets no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((group / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        except OSError:
            return None
    try:
        granted = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return granted if granted > 0 else None  # version 1 writes -1 where there is no limit


def _known(info: dict[str, str]) -> list[str]:
    vendor, family, model = info.get("vendor_id", ""), info.get("cpu family", ""), info.get("model", "")
    part = _PARTS.get((info.get("CPU implementer", ""), info.get("CPU part", "")))
    found = [part] if part else []
    for (v, f, m), name in _MODELS.items():
        if vendor == v and family == str(f) and m in (None, int(model or -1)):
            found.append(name)
    return found


def host_arch() -> str:
    """This machine's instruction set, by Linux's name."""
    found = platform.machine()
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(found, found)


def _level(features: tuple[str, ...]) -> str:
    if host_arch() == "aarch64":
        return "aarch64"
    return next(name for needs, name in _LEVELS if set(needs) <= set(features))


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in first.splitlines())}


def _cache_size(level: int, kind: str) -> int:
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        found = (index / "level").read_text().strip(), (index / "type").read_text().strip()
        if found == (str(level), kind):
            size = (index / "size").read_text().strip()
            return int(size.rstrip("KM")) * {"K": 1024, "M": 1 << 20}.get(size[-1], 1)
    return 0
