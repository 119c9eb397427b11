"""Dataclasses as plain data, and back - for reports and manifests, which are written several times in a compile."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries of their fields, in lists, tuples and dictionaries, too.

    As `dataclasses.asdict`, but what is no container is handed on and not copied: for the report of a detector of 300
    nodes that takes a fifth of the time.

    >>> from dataclasses import make_dataclass
    >>> Point = make_dataclass("Point", ["x", "y"])
    >>> plain({"a": (Point(1, [2]),)})
    {'a': ({'x': 1, 'y': [2]},)}
    """
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if kind is list or kind is tuple:
        return kind([plain(one) for one in value])
    if kind is dict:
        return {key: plain(one) for key, one in value.items()}
    if is_dataclass(kind):
        return {name: plain(getattr(value, name)) for name in _names(kind)}
    return value


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def typed(kind: Any, value: Any, where: str) -> Any:
    """What :func:`plain` made of a dataclass, or JSON of that, as the dataclass again, checked all the way down.

    Args:
        kind: a dataclass, ``tuple[X, ...]``, ``dict[str, X]``, a literal, a union or a plain type. A float may be
            written as a whole number, and is finite; a whole number has 64 bits.
        where: what to call it in an error.

    >>> typed(dict[str, tuple[float, ...]], {"a": [1, 2.5]}, "it")
    {'a': (1, 2.5)}

    Raises:
        TypeError: the first part that is of another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(value, dict):
            raise TypeError(f"{where} is not an object")
        if unknown := value.keys() - hints.keys():
            raise TypeError(f"{where} has an unknown field {min(unknown)!r}")
        return kind(**{key: typed(hints[key], item, f"{where}.{key}") for key, item in value.items()})
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(typed(args[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: typed(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if not _is(kind, origin, args, value):
        raise TypeError(f"{where} is {type(value).__name__}, not {getattr(kind, '__name__', kind)}")
    return value


def _is(kind: Any, origin: Any, args: tuple[Any, ...], value: Any) -> bool:
    """Whether a value, which is no container, is of a kind."""
    if origin is typing.Literal:
        return isinstance(value, str) and value in args
    if origin is types.UnionType:
        return any(_is(one, None, (), value) for one in args)
    if kind is types.NoneType:
        return value is None
    if kind is int:
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and isfinite(value)
    return isinstance(kind, type) and type(value) is kind


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
