"""Rows written into a cache: the loops as they are written; LLVM makes the innermost one vectors."""

from __future__ import annotations

from tvm import tirx

from tvmopt.scheduling.blocks import annotated
from tvmopt.targets import Machine


def open_sizes(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc | None:
    """The function as it is; None for one that is no writing of rows."""
    return None if annotated(func, "cache") is None else func
