"""How much memory this process may still take - for whoever would rather say so than be ended by the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import psutil

from tvmopt.targets.detect import groups

CACHES = {"inactive_file", "active_file", "total_inactive_file", "total_active_file"}
"""Lines of a group's `memory.stat` that count pages of files: the system takes them back where memory is short. The
totals are version 1's, whose other lines leave the groups below out."""


def free_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that are free on this machine, and for this process (`docker --memory`, systemd's MemoryMax)."""
    found = [int(psutil.virtual_memory().available)]
    for folder, path in groups(root, own, "memory"):
        for group in (path, *path.parents):  # what is not there, seen from inside a container, is skipped
            found += _left(folder / str(group).lstrip("/"))
    return max(0, min(found))


def give_back() -> None:
    """Give the system the memory that this process has freed (glibc): between the pieces of what it still uses there
    may be as much again, which it keeps for itself."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _left(group: Path) -> list[int]:
    """What one group leaves; empty where it says nothing, or sets no limit."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):  # "max" is no number
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            wanted = {n for n in CACHES if n.startswith("total_") == ("total_inactive_file" in stat)}
            cached = sum(int(stat.get(name, 0)) for name in wanted)
            return [int((group / limit).read_text()) - int((group / used).read_text()) + cached]
    return []
