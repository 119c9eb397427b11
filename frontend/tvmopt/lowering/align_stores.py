"""Vectors are stored at whole vectors only, on a GPU - before TVM's vectorizer.

    Before                                              After
    for v in T.vectorized(4):                           for v in T.unroll(4):
        row[t * 4 % 6 + v] = x[t * 4 + v]                   row[t * 4 % 6 + v] = x[t * 4 + v]

A GPU's load or store of 16 bytes ends the process where the address is no multiple of them ("misaligned address").
TVM 0.27 looks at the places of vectors that it loads, and splits what may be misaligned; vectors that it stores it
takes as they are. A CPU stores vectors anywhere.

Applies when   a store's place in a vectorized loop counts one by one, and cannot be shown to begin at a multiple of the
               loop's length: rows in registers whose length the vector does not divide.
Gain           none; such kernels ended the process.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tvmopt.lowering.loops import gpu_pass, unrolled


def _aligned(loop: Any) -> Any:
    """A vectorized loop all of whose stores are aligned stays; another one is unrolled."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    stores: list[Any] = []
    structural_walk(loop.body, ((tirx.BufferStore, stores.append),))
    if all(_at_a_multiple(store.indices[-1], loop) for store in stores):
        return loop
    return unrolled(loop)


def _at_a_multiple(place: Any, loop: Any) -> bool:
    """Whether a place begins at a multiple of the loop's length, or does not count one by one with it."""
    analyzer, lanes = Analyzer(), int(loop.extent)
    first, second = (_with(place, loop.loop_var, n) for n in (0, 1))
    if not analyzer.can_prove(second - first == 1):
        return True
    known = analyzer.modular_set(analyzer.simplify(first))
    return int(known.coeff) % lanes == 0 and int(known.base) % lanes == 0


def _with(place: Any, var: Any, number: int) -> Any:
    """A place where a variable has a value."""
    value = tirx.const(number, var.ty.dtype)
    return structural_map(place, (tirx.Var, lambda other: value if other.same_as(var) else other))


AlignStores = gpu_pass("tvmopt.AlignStores", tirx.For, _aligned)
