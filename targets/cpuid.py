"""What the CPUID instruction says of an x86-64 processor - for `detect`.

The kernel's list in /proc/cpuinfo is that of the machine, also where an emulator runs this process: QEMU's user mode
hands the file on. The instruction is answered by what executes the code.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

_EXTENDED = 0x80000000
"""The first of the leaves that AMD introduced, APM vol. 3, appendix E."""

BITS = {  # LLVM's name -> leaf, subleaf, register (0 eax, 1 ebx, 2 ecx, 3 edx), bit: Intel SDM vol. 2A, CPUID
    "fma": (1, 0, 2, 12), "f16c": (1, 0, 2, 29), "avx2": (7, 0, 1, 5), "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17), "avx512bw": (7, 0, 1, 30), "avx512vl": (7, 0, 1, 31), "avx512vbmi": (7, 0, 2, 1),
    "avx512vnni": (7, 0, 2, 11), "amx-bf16": (7, 0, 3, 22), "avx512fp16": (7, 0, 3, 23), "amx-tile": (7, 0, 3, 24),
    "amx-int8": (7, 0, 3, 25), "avxvnni": (7, 1, 0, 4), "avx512bf16": (7, 1, 0, 5), "movbe": (1, 0, 2, 22),
    "bmi": (7, 0, 1, 3), "bmi2": (7, 0, 1, 8), "avx512ifma": (7, 0, 1, 21), "avx512cd": (7, 0, 1, 28),
    "avx512vbmi2": (7, 0, 2, 6), "gfni": (7, 0, 2, 8), "avx512bitalg": (7, 0, 2, 12),
    "avx512vpopcntdq": (7, 0, 2, 14), "lzcnt": (_EXTENDED + 1, 0, 2, 5), "sse4a": (_EXTENDED + 1, 0, 2, 6),
}  # fmt: skip

_CODE = bytes.fromhex(
    "53"  # push rbx, which belongs to the caller
    "89f8 89f1 4989d0"  # mov eax, edi; mov ecx, esi; mov r8, rdx
    "0fa2"  # cpuid
    "418900 41895804 41894808 4189500c"  # mov [r8], eax; [r8+4], ebx; [r8+8], ecx; [r8+12], edx
    "5b c3"  # pop rbx; ret
)


@cache
def absent() -> frozenset[str]:
    """LLVM's names of the instructions that are not here; empty where the instruction cannot be executed, as some
    systems forbid a program to write code."""
    try:
        access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access)
    except (OSError, ValueError, AttributeError):
        return frozenset()
    page.write(_CODE)
    place = ctypes.c_char.from_buffer(page)
    call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(ctypes.addressof(place))
    try:
        return _absent(call)
    finally:
        del call, place
        page.close()


def _absent(call: Callable[[int, int, int], None]) -> frozenset[str]:
    found: dict[tuple[int, int], tuple[int, ...]] = {}

    def registers(leaf: int, subleaf: int) -> tuple[int, ...]:
        if (leaf, subleaf) not in found:
            values = (ctypes.c_uint32 * 4)()
            call(leaf, subleaf, ctypes.addressof(values))
            found[leaf, subleaf] = tuple(values)
        return found[leaf, subleaf]

    highest, extended = registers(0, 0)[0], registers(_EXTENDED, 0)[0]  # a leaf above answers with another one's words
    subleaves = registers(7, 0)[0] if highest >= 7 else 0

    def here(leaf: int, subleaf: int, register: int, bit: int) -> bool:
        if leaf > (extended if leaf >= _EXTENDED else highest) or (leaf == 7 and subleaf > subleaves):
            return False
        return bool(registers(leaf, subleaf)[register] >> bit & 1)

    return frozenset(name for name, where in BITS.items() if not here(*where))
