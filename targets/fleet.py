"""Several targets of one artifact, as users write them: `x86-64-v3+x86-64-v4` - for `tvmopt.compile`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tvmopt.errors import TargetError
from tvmopt.targets import Machine

MOST = 16
"""Targets of one artifact; their names, joined, name its members."""


def machines(target: str | Path | Machine) -> tuple[Machine, ...]:
    """The machines of a target: one, or those of a fleet, in the order in which they are named.

    >>> [machine.name for machine in machines("x86-64-v3+x86-64-v4")]
    ['x86-64-v3', 'x86-64-v4']

    Raises:
        TargetError: a name is unknown, empty or there twice, or a GPU's; there are too many.
    """
    if isinstance(target, Machine) or "+" not in str(target) or Path(target).is_file():
        return (Machine.load(target),)
    words = [word.strip() for word in str(target).split("+")]
    where = f"target {str(target)!r}"
    if not all(words):
        fix = "write names with one + between two of them: x86-64-v3+x86-64-v4"
        raise TargetError("a name is missing beside a '+'.", where=where, fix=fix)
    found = [Machine.load(word) for word in words]
    gpus = [word for word, machine in zip(words, found, strict=True) if machine.kind != "llvm"]
    if gpus:
        fix = f"compile for {' and '.join(gpus)} apart: an artifact for a GPU is for one architecture"
        raise TargetError(f"a fleet is of CPUs, and {gpus[0]!r} is a GPU.", where=where, fix=fix)
    twice = [name for name, count in Counter(machine.name for machine in found).items() if count > 1]
    if twice:
        who = [word for word, machine in zip(words, found, strict=True) if machine.name == twice[0]]
        told = f"{twice[0]!r} is there twice" + (f" ({' and '.join(who)})." if len(set(who)) > 1 else ".")
        raise TargetError(told, where=where, fix="name each target once; a TOML file of its own has a name of its own")
    odd = [machine.name for machine in found if not re.fullmatch(r"[\w.-]+", machine.name, re.ASCII)]
    if odd:
        fix = "name it by letters, digits, '.', '_' and '-'"
        raise TargetError(f"{odd[0]!r} cannot name a part of a file.", where=where, fix=fix)
    if len(found) > MOST:
        told = f"there are {len(found)} targets, and an artifact has {MOST} at most."
        raise TargetError(told, where=where, fix="leave some out")
    return tuple(found)
