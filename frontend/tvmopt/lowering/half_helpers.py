"""TVM's helpers of float16, kept out of the code of kernels that have none - for `compiler/kernels.py`.

TVM writes two weak functions, `__truncsfhf2` and `__extendhfsf2`, into every module that it gives LLVM, which optimises
them and generates their code: two thirds of the 9 ms that a module takes before there is a kernel in it. A module that
defines functions of these names keeps its own, so a kernel without float16 gets two that do nothing. They have other
names in the object file, where nothing calls them.
"""

from __future__ import annotations

import struct
from typing import Any

import tvm
from tvm import tirx

from tvmopt.runtime.elf import HEADER

NAMES = {b"__truncsfhf2": b"unused_trunc", b"__extendhfsf2": b"unused_extend"}
"""The helpers, and what stands in the object file in place of each: names of the same length."""

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOLS, _GLOBAL, _WEAK = 2, 1, 2


def uses_half(text: str) -> bool:
    """Whether a kernel, as JSON of TVM's, has a number of float16."""
    return '"float16' in text


def without_helpers(module: tvm.IRModule) -> tvm.IRModule:
    """The module of a kernel without float16, with functions that do nothing in place of the helpers."""
    functions = dict(module.functions_items())
    target = next(iter(functions.values())).attrs["target"]
    for name in map(bytes.decode, NAMES):
        functions[tvm.ir.GlobalVar(name)] = _nothing(name, target)
    return tvm.IRModule(functions, attrs=module.attrs)


def _nothing(name: str, target: Any) -> tirx.PrimFunc:
    attributes = {"global_symbol": name, "tirx.noalias": True, "target": target}
    return tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32"))).with_attrs(attributes)


def renamed(data: bytes) -> bytes:
    """The object file (ELF, 64-bit, little-endian) with those functions under names that nothing calls, and weak: many
    such files are linked together. TVM's own helpers, which are weak, stay as they are."""
    made = bytearray(data)
    table, entry, count = _header(data)
    sections = [_SECTION.unpack_from(data, table + i * entry) for i in range(count)]
    for section in sections:
        if section[1] != _SYMBOLS:
            continue
        _, _, _, _, start, size, link, *_ = section
        names = sections[link][4]
        for at in range(start, start + size, _SYMBOL.size):
            name, info, *_ = _SYMBOL.unpack_from(data, at)
            begin = names + name
            found = data[begin : data.index(b"\0", begin)]
            if found in NAMES and info >> 4 == _GLOBAL:
                made[begin : begin + len(found)] = NAMES[found]
                made[at + 4] = _WEAK << 4 | info & 15
    return bytes(made)


def _header(data: bytes) -> tuple[int, int, int]:
    """Where the table of sections is, the size of an entry, and how many there are."""
    fields = HEADER.unpack_from(data)
    return fields[6], fields[11], fields[12]
