"""The processors that a model's threads run on, and the memory that its weights lie in - for `load(cores=...)`.

    0-3,8        processors by their numbers, as lscpu shows them and `taskset -c` takes them
    node1        all processors of NUMA node 1
    node0,16-19  both

Threads are bound to the whole set, none of them to one processor: the system may still move a thread away from a
neighbour. Memory follows: weights are asked for on the nodes of these processors (all on the node, where it is one;
page by page in turn, where there are several), and what threads write first lies where they run.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tvmopt.errors import InputError
from tvmopt.targets.detect import cores_among, host_arch

SYSTEM = Path("/sys/devices/system")
_MBIND = {"x86_64": 237, "aarch64": 235}  # Linux: syscall_64.tbl, asm-generic/unistd.h
_PREFERRED, _INTERLEAVE = 1, 3  # Linux: include/uapi/linux/mempolicy.h
_BITS = 64


@dataclass(frozen=True)
class Cores:
    """Processors of this machine.

    Attributes:
        processors: their numbers.
        nodes: the NUMA nodes that they belong to; none where the system tells of none.
        count: cores: threads of one core are counted once, and not more than the quota of the control groups.
    """

    processors: frozenset[int]
    nodes: tuple[int, ...]
    count: int

    def __str__(self) -> str:
        return told(self.processors)


def parse(wanted: str | int | Iterable[int], root: Path = SYSTEM) -> Cores:
    """The processors that a text, a number or a sequence of numbers means.

    Raises:
        InputError: it cannot be read, or this process may not use one of them.
    """
    fix = f"this process may use {told(os.sched_getaffinity(0))}"
    if known := nodes(root):
        fix += "; " + ", ".join(f"node{node} is {told(found)}" for node, found in known.items())
    listed = wanted if isinstance(wanted, Iterable) else [wanted]
    text = wanted if isinstance(wanted, str) else ",".join(map(str, listed))
    found: set[int] = set()
    for word in text.split(","):
        node = re.fullmatch(r"node(\d{1,5})", word.strip())
        if node and int(node[1]) not in known:
            raise InputError(f"there is no NUMA node {int(node[1])}.", where=f"cores {text!r}", fix=fix)
        some = known[int(node[1])] & os.sched_getaffinity(0) if node else _listed(word.strip())
        if not some:
            what = f"none of {word.strip()} may be used." if node else f"{word!r} names no processors."
            raise InputError(what, where=f"cores {text!r}", fix=f"give 0-3, 0,2 or node0; {fix}")
        found |= some
    if missing := found - os.sched_getaffinity(0):
        raise InputError(f"this process may not use {told(missing)}.", where=f"cores {text!r}", fix=fix)
    return Cores(frozenset(found), tuple(n for n, some in known.items() if some & found), cores_among(found))


def _listed(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8, as the kernel writes them.

    >>> sorted(_listed("0-2,5")), _listed("3-1"), _listed("a")
    ([0, 1, 2, 5], set(), set())
    """
    found: set[int] = set()
    for word in text.split(","):
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", word)
        if ends is None:
            return set()
        found |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return found


def told(processors: Iterable[int]) -> str:
    """The numbers as :func:`parse` reads them.

    >>> told({0, 1, 2, 5}), told({7})
    ('0-2,5', '7')
    """
    runs: list[list[int]] = []
    for number in sorted(processors):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def nodes(root: Path = SYSTEM) -> dict[int, set[int]]:
    """The processors of each NUMA node that has some."""
    found = {}
    for folder in (root / "node").glob("node[0-9]*"):
        try:
            found[int(folder.name.removeprefix("node"))] = _listed((folder / "cpulist").read_text().strip())
        except (OSError, ValueError):
            continue
    return {node: some for node, some in sorted(found.items()) if some}


@contextmanager
def running_on(cores: Cores | None) -> Iterator[None]:
    """The calling thread runs on these processors meanwhile. One whose own are among them costs a microsecond."""
    before = os.sched_getaffinity(0) if cores is not None else set()
    if cores is None or before <= cores.processors:
        yield
        return
    os.sched_setaffinity(0, cores.processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ask_memory(start: int, size: int, nodes: tuple[int, ...]) -> bool:
    """Ask that memory which nobody has written yet comes from these nodes; `start` is a page's.

    Returns:
        Whether the system takes the wish: the profile of a container may forbid it. Without it memory comes from the
        node of the thread that writes it first.
    """
    if not nodes or not size:
        return True
    if host_arch() not in _MBIND:
        return False
    words = (ctypes.c_uint64 * (nodes[-1] // _BITS + 1))()
    for node in nodes:
        words[node // _BITS] |= 1 << node % _BITS
    policy = _PREFERRED if len(nodes) == 1 else _INTERLEAVE
    # the kernel takes one bit less than it is told
    return _mbind(start, size, policy, words, len(words) * _BITS + 1, 0) == 0


def _mbind(start: int, size: int, policy: int, words: object, bits: int, flags: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    values = (ctypes.c_long(_MBIND[host_arch()]), ctypes.c_void_p(start), ctypes.c_ulong(size), ctypes.c_long(policy))
    return int(call(*values, words, ctypes.c_ulong(bits), ctypes.c_uint(flags)))
