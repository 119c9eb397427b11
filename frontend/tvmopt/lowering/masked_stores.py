"""Kernels that LLVM makes store beyond what they should - behind the code generator, on what it made.

    masked.store(trunc <4 x i32> to <4 x i16>, y, <true, false, false, false>)      movl %eax, (y)

A loop of few trips is vectorized with its tail under a mask, and the loops around it are unrolled, so that the mask is
a constant. Where one lane is left of it, LLVM 22 for AVX-512 stores that lane as wide as it was before it was cut to 8,
16 or 32 bits: zeros over its neighbours, and beyond the tensor behind the last element. Such a kernel is generated
again with the vectorizer of loops switched off; what schedules vectorize stays as it is.
"""

from __future__ import annotations

import re
from typing import Any

from tvmopt.lowering.loops import buffers

PLAIN = "-vectorize-loops:bool=0"
"""The option of LLVM that leaves loops as they are."""
_STORE = re.compile(r"@llvm\.masked\.store\.v\d+i(?:8|16|32)\.p0\(.*<\d+ x i1> <([^<>]*)>")


WIDE = ("float32", "float64")
"""Types of numbers that LLVM stores as they are."""


def stores_integers(module: Any) -> bool:
    """Whether a buffer of a kernel holds what LLVM may store as integers of up to 32 bits, as it does all that is
    neither float32 nor float64. Only then its code need be looked through."""
    kernels = (func for _, func in module.functions_items())
    return any(str(buffer.dtype) not in WIDE for func in kernels for buffer in buffers(func.body))


def overruns(library: Any) -> bool:
    """Whether a `tvm.runtime.Module` of LLVM's has a store of integers under a constant mask of one lane."""
    return any(mask.count("true") == 1 for mask in _STORE.findall(library.inspect_source("ll")))
