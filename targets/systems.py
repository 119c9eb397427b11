"""Operating systems: what tvmopt runs on, and for which it makes code. Linux, both - said plainly elsewhere."""

from __future__ import annotations

import re
import sys

from tvmopt.errors import MissingDependency, TargetError

_WORDS = {
    "macOS": "macos|darwin|osx|ios", "Windows": "windows|win32|win64|msvc|mingw",
    "Android": "android", "WebAssembly": "wasm|wasm32|wasm64",
}  # fmt: skip
_NAMES = {"darwin": "macOS", "win32": "Windows", "cygwin": "Windows (Cygwin)"}


def here() -> str:
    """This system's name, where it is one that tvmopt does not run on; else empty."""
    return "" if sys.platform == "linux" else _NAMES.get(sys.platform, sys.platform)


def check_here() -> None:
    """Refuse a system that is not Linux.

    Raises:
        MissingDependency: says what is missing there.
    """
    if here():
        raise MissingDependency(
            f"tvmopt runs on Linux, and this is {here()}: its threads wait by Linux's futexes, its kernels are ELF "
            "libraries for Linux, and what may crash runs in forks.",
            where=f"sys.platform is {sys.platform!r}",
            fix="use Linux: a container (Docker), a virtual machine, or WSL 2 on Windows; on a Mac with an Apple chip "
            "an AArch64 container runs what --target apple-m1 compiles",
        )


def check_target(text: str, where: str = "") -> None:
    """Refuse a target's name, or LLVM's triple, that is of a system other than Linux.

    >>> check_target("apple-m1"), check_target("aarch64-linux-gnu")
    (None, None)

    Raises:
        TargetError: why there is no code for it.
    """
    words = "|".join(f"(?P<{system}>{text})" for system, text in _WORDS.items())
    found = re.search(rf"(?<![a-z])(?:{words})(?![a-z])", text.lower())
    if found is None:
        return
    system = found.lastgroup
    libraries = {"macOS": "Mach-O libraries, with Apple's SDK, which is for Macs only", "Windows": "DLLs"}
    needed = libraries.get(str(system), "libraries of its own")
    raise TargetError(
        f"{text!r} is for {system}, and compiled files are ELF libraries for Linux: {system} needs {needed}, and a "
        "pool of threads that does not wait by Linux's futexes.",
        where=where,
        fix="name a target of Linux: apple-m1 is Linux on Apple's chip, in a container or virtual machine on a Mac, "
        "too; `tvmopt targets list` shows all",
    )
