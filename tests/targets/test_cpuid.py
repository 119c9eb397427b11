"""What the processor itself says of its instructions, beside the kernel's list."""

from __future__ import annotations

import mmap

import pytest

from tvmopt.targets import cpuid, detect
from tvmopt.targets.detect import host_arch

needs_x86 = pytest.mark.skipif(host_arch() != "x86_64", reason="the instruction is x86-64's")


@needs_x86
def test_it_agrees_with_the_kernel() -> None:
    """The kernel leaves out what it forbids; what it lists is there."""
    known = detect._FEATURES | detect._GENERATED
    listed = {known[f] for f in detect._cpuinfo()["flags"].split() if f in known}
    assert not listed & cpuid.absent()
    assert set(cpuid.BITS) == set(known.values())


@needs_x86
def test_an_older_processor_has_less_than_the_kernel_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"flags": "avx2 fma avx512f"}
    monkeypatch.setattr(cpuid, "absent", lambda: frozenset({"avx512f"}))
    assert detect._features(info) == ("avx2", "fma")


def test_registers_are_read_by_leaf_and_a_leaf_that_is_not_there_says_nothing() -> None:
    everything = 0xFFFFFFFF

    def absent(highest: int, subleaves: int, extended: int = 1 << 31 | 1) -> frozenset[str]:
        def answer(leaf: int, subleaf: int, place: int) -> None:
            words = (cpuid.ctypes.c_uint32 * 4).from_address(place)
            words[:] = [everything] * 4
            if leaf == 0:
                words[0] = highest
            if leaf == 1 << 31:
                words[0] = extended
            if (leaf, subleaf) == (7, 0):
                words[0] = subleaves

        return cpuid._absent(answer)

    assert absent(7, 1) == frozenset()
    assert absent(7, 0) == {"avxvnni", "avx512bf16"}
    assert absent(1, 1) == set(cpuid.BITS) - {"fma", "f16c", "movbe", "lzcnt", "sse4a"}
    assert absent(7, 1, 1 << 31) == {"lzcnt", "sse4a"}


def test_where_programs_may_not_write_code_the_kernels_list_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> mmap.mmap:
        raise PermissionError

    monkeypatch.setattr(cpuid.mmap, "mmap", forbidden)
    assert cpuid.absent.__wrapped__() == frozenset()
