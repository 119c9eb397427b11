"""The machine a benchmark ran on: what someone needs to know to believe its figures, or to repeat them."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tvmopt.analysis.peaks import cache_sizes, machine_name
from tvmopt.targets import detect_host

PACKAGES = (
    "tvmopt", "apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino",
    "tensorrt", "numpy",
)  # fmt: skip
FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, caches, memory, clock, governor, load, kernel, versions - as plain data.

    What the system does not tell (a governor in a container) is ``"not exposed"``, not left out.
    """
    l2, l3 = cache_sizes()
    clock = psutil.cpu_freq()
    return {
        "processor": machine_name(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "threads": os.cpu_count() or 0,
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "features": [f for f in FEATURES if f in _flags()],
        "l2": l2,
        "l3": l3,
        "memory": psutil.virtual_memory().total,
        "clock_mhz": round(clock.current) if clock else "not exposed",
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "turbo": _turbo(),
        "virtual": "hypervisor" in _flags(),
        "load": [round(v, 2) for v in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def slug() -> str:
    """A folder name for the machine, ``amd-ryzen-9-9950x-32t``; where a hypervisor leaves only the maker's name, with
    that of the target: ``amd-epyc-znver5-2t``."""
    name = machine_name().lower()
    if not any(c.isdigit() for c in name):
        name += f" {detect_host().name}"
    words = "".join(c if c.isalnum() else "-" for c in name)
    return "-".join(filter(None, words.split("-"))) + f"-{os.cpu_count()}t"


def versions() -> dict[str, str]:
    """Installed versions of the packages a figure depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def warnings(machine: dict[str, Any]) -> list[str]:
    """What about the machine makes figures doubtful, as sentences."""
    found = []
    if machine["governor"] not in ("performance", "not exposed"):
        found.append(f"the frequency governor is {machine['governor']!r}; 'performance' gives steadier times")
    if machine["load"][0] > 0.3:
        found.append(f"other work was running at the start (load {machine['load'][0]}): stop it for steadier figures")
    if machine["virtual"]:
        found.append("a virtual machine: neighbours and clock changes do not show")
    return found


def _flags() -> set[str]:
    for line in _read("/proc/cpuinfo", "").splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def _turbo() -> str:
    no_turbo = _read("/sys/devices/system/cpu/intel_pstate/no_turbo")
    boost = _read("/sys/devices/system/cpu/cpufreq/boost")
    if no_turbo in ("0", "1"):
        return "on" if no_turbo == "0" else "off"
    return {"1": "on", "0": "off"}.get(boost, "not exposed")


def _read(path: str, default: str = "not exposed") -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default
