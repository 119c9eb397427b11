"""Asking the operating system for AMX tiles, once a process - for `Model` and the tuner, before code that uses them.

Linux gives a process the 8 KB of tile state a thread on request only (since 5.16); without it the first tile
instruction is a SIGILL. The permission holds for all threads, also those that exist already. Each kernel configures the
tiles of the thread it runs on, and releases them, by itself (:mod:`tvmopt.schedules.cpu._amx.lower`).
"""

from __future__ import annotations

import ctypes
import os
import platform

from tvmopt.errors import ArtifactError
from tvmopt.targets.detect import host_arch

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux: arch/x86/include/uapi/asm/prctl.h


def use_tiles(where: str) -> None:
    """Ask for tiles; asking again costs one system call.

    Args:
        where: what needs them, for the message.

    Raises:
        ArtifactError: the system gives none; why is told.
    """
    reason = request()
    if reason:
        raise ArtifactError(
            f"the operating system does not give this process AMX tiles: {reason}.",
            where=where,
            fix="run it on Linux 5.16 or later on a processor with amx_tile and amx_bf16 (a container's seccomp "
            "profile must allow arch_prctl), or compile the model without tiles: tvmopt compile ... --precision fp32",
        )


def request() -> str:
    """Ask for tiles: an empty string, or why there are none."""
    if platform.system() != "Linux" or host_arch() != "x86_64":
        return f"it is {platform.system()} on {host_arch()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0:
        return ""
    return f"arch_prctl(ARCH_REQ_XCOMP_PERM, {_XTILEDATA}): {os.strerror(ctypes.get_errno())}"
