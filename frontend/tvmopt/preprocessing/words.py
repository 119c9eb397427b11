"""The grammar of a stage, ``WORD=VALUE,WORD,...`` behind its prefix - for pictures, scores and boxes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tvmopt.errors import InputError


@dataclass(frozen=True)
class Key:
    """One word of the grammar: the field that it sets, how its value is read (None: the word stands alone), and what
    values there are."""

    field: str
    parse: Callable[[Any], Any]
    values: str


def one_of(*names: str) -> Callable[[Any], str]:
    """Reads one of some words, in capitals or not."""

    def parse(text: Any) -> str:
        return {name.lower(): name for name in names}[str(text).lower()]

    return parse


def read(
    text: str, keys: Mapping[str, Key], stage: str, where: str, *, wrong: str, noun: str = "word", alone: bool = True
) -> tuple[dict[str, Any], list[InputError]]:
    """The values by word, and everything that is wrong.

    Args:
        text: without the prefix. stage: its name, for messages.
        wrong: what is said of a value that cannot be read, of `part`, `word` and `value`.
        noun: what the words of this stage are called. alone: whether a word may stand without a value.
    """
    values: dict[str, Any] = {}
    problems = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        key = keys.get(word)
        if key is None:
            near = difflib.get_close_matches(word, keys, n=1)
            fix = (f"did you mean {near[0]}? " if near else "") + f"The {noun}s are {', '.join(keys)}"
            problems.append(InputError(f"{stage} has no {noun} {word!r}.", where=where, fix=fix))
        elif not equals and not alone:
            problems.append(InputError(f"{word} has no value.", where=where, fix=f"{word}: {key.values}"))
        elif word in values:
            problems.append(InputError(f"{word} is given twice.", where=where, fix=f"give {word} once"))
        else:
            try:
                values[word] = key.parse(value if equals else None)
            except (ValueError, KeyError, TypeError, ZeroDivisionError):
                what = wrong.format(part=part, word=word, value=value)
                problems.append(InputError(what, where=where, fix=f"{word}: {key.values}"))
    return values, problems
