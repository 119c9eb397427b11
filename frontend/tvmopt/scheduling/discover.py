"""Finding the schedule families: those that ship and other people's - for ApplyFamilies and `tvmopt targets`.

A package named by the entry-point group `tvmopt.schedules` holds one sub-package a kind of target (`cpu`, `cuda`);
every module in it that has the five names of the Family protocol is a family. `generic` is the one that comes last.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from tvmopt.errors import ScheduleError
from tvmopt.scheduling.family import Family

_KINDS = {"llvm": "cpu", "cuda": "cuda"}
_PROTOCOL = ("NAME", "VERSION", "recognise", "knobs", "apply")


@cache
def families(kind: str) -> tuple[Family, ...]:
    """The families for a TVM target kind, `generic` last, the others by name."""
    found: dict[str, Family] = {}
    packages = {"tvmopt.schedules", *(ep.value for ep in entry_points(group="tvmopt.schedules"))}
    for package in sorted(packages):
        for module in _modules(f"{package}.{_KINDS[kind]}"):
            if all(hasattr(module, name) for name in _PROTOCOL):
                if module.NAME in found:
                    raise ScheduleError(
                        f"two schedule families are named {module.NAME!r}",
                        where=f"{module.__name__} and {getattr(found[module.NAME], '__name__', '?')}",
                        fix="rename one: records are kept under a family's name",
                    )
                found[module.NAME] = module
    return tuple(sorted(found.values(), key=lambda f: (f.NAME == "generic", f.NAME)))


def _modules(package: str) -> list[ModuleType]:
    try:
        parent = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            return []  # a package without families for this kind
        raise
    return [
        importlib.import_module(f"{package}.{info.name}")
        for info in pkgutil.iter_modules(parent.__path__)
        if not info.name.startswith("_")
    ]
