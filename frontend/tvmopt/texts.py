"""Texts from outside - a user's numbers, a model's names - for every room that reads or shows them."""

from __future__ import annotations

import unicodedata

_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format (bidirectional ones too), surrogate, unassigned


def whole_number(text: str) -> int | None:
    """A positive number of ASCII digits; None if the text is none. `str.isdigit` alone also takes superscripts.

    >>> whole_number("16"), whole_number("0"), whole_number("²"), whole_number("+1"), whole_number("9" * 5000)
    (16, None, None, None, None)
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        return None
    return int(text) or None


def threads_of(count: int) -> str:
    """How many threads, in words.

    >>> threads_of(1), threads_of(8)
    ('1 thread', '8 threads')
    """
    return f"{count} thread{'s' * (count != 1)}"


def printable(text: str) -> str:
    """The text without what a terminal would obey: control characters and the like are written as Python writes them.
    Line ends and tabs stay.

    >>> printable("a\\x1b]0;title\\x07b"), printable("\\u202eevil"), printable("é\\n")
    ('a\\\\x1b]0;title\\\\x07b', '\\\\u202eevil', 'é\\n')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _obeyed(c) else c.encode("unicode_escape").decode() for c in text)


def printable_line(text: str) -> str:
    """The same for one line, such as a name: line ends and tabs are escaped too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _obeyed(character: str) -> bool:
    return unicodedata.category(character) in _ESCAPED
