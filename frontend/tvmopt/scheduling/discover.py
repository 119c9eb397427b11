"""Finding the schedule families: those that ship and other people's - for lowering, scheduling, tuning and reports.

A package named by the entry-point group `tvmopt.schedules` holds one sub-package a kind of target (`cpu`, `cuda`). Its
families are the modules and packages in it that :class:`~tvmopt.scheduling.family.Family` can read, in the order of the
sub-package's tuple `FAMILIES` if it has one, else by name. Other people's are asked before ours, fallbacks last.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from tvmopt.errors import ScheduleError
from tvmopt.scheduling.family import Family

OURS = "tvmopt.schedules"
_KINDS = {"llvm": "cpu", "cuda": "cuda"}


@cache
def families(kind: str) -> tuple[Family, ...]:
    """The families for a TVM target kind, in the order in which they are asked.

    Raises:
        ScheduleError: two have the same name.
    """
    found: dict[str, Family] = {}
    packages = {ep.value for ep in entry_points(group=OURS)} - {OURS}
    for package in (*sorted(packages), OURS):
        for module in _modules(f"{package}.{_KINDS[kind]}"):
            family = Family.of(module)
            if family is None:
                continue
            if family.NAME in found:
                raise ScheduleError(
                    f"two schedule families are named {family.NAME!r}",
                    where=f"{found[family.NAME].origin} and {family.origin}",
                    fix="rename one: records are kept under a family's name",
                )
            found[family.NAME] = family
    return tuple(sorted(found.values(), key=lambda f: f.FALLBACK))


def family_named(kind: str, name: str) -> Family | None:
    """The family of this name; None where there is none (a kernel that came with its schedule, dlight's)."""
    return next((f for f in families(kind) if name == f.NAME), None)


def family_of_any_kind(name: str) -> Family | None:
    """The family of this name, whichever kind of target it is for: for reports, which name it only."""
    return next((f for kind in _KINDS if (f := family_named(kind, name))), None)


def _modules(package: str) -> list[ModuleType]:
    try:
        parent = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            return []  # a package without families for this kind
        raise
    names = getattr(parent, "FAMILIES", None) or [info.name for info in pkgutil.iter_modules(parent.__path__)]
    return [importlib.import_module(f"{package}.{name}") for name in names if not name.startswith("_")]
