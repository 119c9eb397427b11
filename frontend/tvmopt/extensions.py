"""Other people's operator converters and graph passes, this package untouched - for whoever writes a plug-in.

An extension is a module with one or both of::

    CONVERTERS = {("com.example", "MovingAverage"): convert}     # see tvmopt.importer.converters
    PASSES = (("tvmopt.ConvertLayout", CancelNegations),)        # before this pass ("": last); made with the log

An installed package names its module in the entry-point group ``tvmopt.extensions``; a notebook calls :func:`register`.
Schedule families have a group of their own, ``tvmopt.schedules``. Which extensions took part stands in the report.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tvmopt.errors import InputError

GROUP = "tvmopt.extensions"
FAMILIES = "tvmopt.schedules"
"""The group of schedule families, and the package of ours (`tvmopt.scheduling.discover`)."""
Key = tuple[str, str]


@dataclass(frozen=True)
class Extension:
    """One extension.

    Attributes:
        name: of the entry point, or the module's.
        version: of the package that it comes from, "" where there is none.
        converters: ``(domain, op_type)`` -> converter; one of ours under the same key gives way.
        passes: ``(name of the pass it goes before, function of a DecisionLog that makes it)``.
    """

    name: str
    version: str = ""
    converters: dict[Key, Any] = field(default_factory=dict)
    passes: tuple[tuple[str, Callable[[Any], Any]], ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


_registered: dict[str, Extension] = {}


def register(module: Any, name: str = "") -> Extension:
    """Use a module's converters and passes in this process; the same name replaces what was there.

    `tvmopt compile` and :func:`tvmopt.api.compile_isolated` work in another process: install the module as a
    package, with an entry point, to have it there.

    Raises:
        InputError: the module has neither ``CONVERTERS`` nor ``PASSES``, or one of another form.
    """
    extension = _read(module, name or module.__name__, "")
    _registered[extension.name] = extension
    return extension


def unregister(name: str) -> None:
    """Forget what :func:`register` took."""
    _registered.pop(name, None)


def extensions() -> tuple[Extension, ...]:
    """Those of installed packages, by name, then those registered here.

    Raises:
        InputError: one cannot be imported, or two convert the same operator.
    """
    found = {e.name: e for e in (*_installed(), *_registered.values())}
    owners: dict[Key, Extension] = {}
    for extension in found.values():
        for key in extension.converters:
            other = owners.setdefault(key, extension)
            if other is not extension:
                raise InputError(
                    f"two extensions convert {key[0] or 'ai.onnx'}::{key[1]}.",
                    where=f"{other} and {extension}",
                    fix="uninstall one",
                )
    return tuple(found.values())


def foreign() -> bool:
    """Whether code of other packages takes part in a compile: extensions, schedule families. None is imported."""
    others = [p for p in entry_points(group=FAMILIES) if p.value != FAMILIES]
    return bool(_registered or others or entry_points(group=GROUP))


def converters() -> dict[Key, Any]:
    """The converters of all extensions."""
    return {key: convert for extension in extensions() for key, convert in extension.converters.items()}


def extended(passes: Sequence[Any], log: Any) -> list[Any]:
    """The pipeline with the passes of all extensions in their places.

    Raises:
        InputError: an extension wants to stand before a pass that does not exist.
    """
    result = list(passes)
    for extension in extensions():
        for before, make in extension.passes:
            names = [str(item.info.name) for item in result]
            if before and before not in names:
                near = difflib.get_close_matches(before, names, n=1, cutoff=0.5)
                raise InputError(
                    f"there is no pass {before!r} to stand before.",
                    where=f"extension {extension}",
                    fix=f"did you mean {near[0]!r}?" if near else "tvmopt/pipeline.py lists them",
                )
            result.insert(names.index(before) if before else len(result), make(log))
    return result


@cache
def _installed() -> tuple[Extension, ...]:
    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        try:
            module = point.load()
        except Exception as error:  # foreign code, imported
            raise InputError(
                f"the extension {point.name!r} cannot be imported: {type(error).__name__}: {error}",
                where=f"{point.value}, of {point.dist.name if point.dist else 'an unknown package'}",
                fix="mend it, or uninstall it",
            ) from error
        found.append(_read(module, point.name, point.dist.version if point.dist else ""))
    return tuple(found)


def _read(module: Any, name: str, version: str) -> Extension:
    converters, passes = getattr(module, "CONVERTERS", {}), tuple(getattr(module, "PASSES", ()))
    pairs = all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) and callable(p[1]) for p in passes)
    keys = isinstance(converters, dict) and all(
        isinstance(k, tuple) and len(k) == 2 and callable(c) for k, c in converters.items()
    )
    if not (converters or passes) or not pairs or not keys:
        raise InputError(
            f"{name} is no extension.",
            where=getattr(module, "__file__", None) or str(module),
            fix='CONVERTERS = {("domain", "Operator"): function} or PASSES = (("before", function),)',
        )
    return Extension(name, version, dict(converters), passes)
