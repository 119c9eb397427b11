"""What becomes of a model's scores before a program reads them, as one line - for `tvmopt compile --postprocess`.

    scores:softmax,top-k=5,labels=imagenet.txt

The order is fixed: softmax, then the k largest of the last axis, whose names are kept beside the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmopt.errors import InputError, collect, reason
from tvmopt.files import open_plain
from tvmopt.preprocessing.words import Key, read
from tvmopt.texts import whole_number

PREFIX = "scores:"


def _alone(text: str | None) -> bool:
    if text is not None:
        raise ValueError
    return True


def _count(text: str | None) -> int:
    value = whole_number(text or "")
    if not value:
        raise ValueError
    return value


def _file(text: str | None) -> str:
    if not text:
        raise ValueError
    return text


KEYS = {
    "softmax": Key("softmax", _alone, "softmax alone: scores become probabilities"),
    "top-k": Key("top_k", _count, "a number of classes: top-k=5"),
    "labels": Key(
        "labels",
        _file,
        "a text file with a name a line, or a JSON file with a list, or with id2label as Hugging Face writes it",
    ),
}
MOST = 1 << 20
"""Names that an artifact keeps."""


@dataclass(frozen=True)
class Scores:
    """One stage of scores: probabilities or not, how many of the largest (0: all), the file of the classes' names."""

    softmax: bool = False
    top_k: int = 0
    labels: str = ""

    @property
    def text(self) -> str:
        """The stage without the file, whose names an artifact keeps."""
        return written({"softmax": self.softmax, **({"top-k": self.top_k} if self.top_k else {})})


def parse(text: str, where: str = "--postprocess") -> Scores:
    """The stage that a text describes.

    >>> parse("scores:softmax,top-k=5")
    Scores(softmax=True, top_k=5, labels='')

    Raises:
        InputError: every word that is wrong.
    """
    where = f"{where} {text}"
    if not text.startswith(PREFIX):
        fix = f"{PREFIX}WORD,...; the words are {', '.join(KEYS)}"
        what = f"there is no postprocessing {text.partition(':')[0]!r}; there are 'scores' and 'boxes'."
        raise InputError(what, where=where, fix=fix)
    values, problems = read(text[len(PREFIX) :], KEYS, "scores", where, wrong="{part!r} says nothing.")
    if not problems and "labels" in values and "top-k" not in values:
        problems.append(
            InputError("labels name the largest scores, and there is no top-k.", where=where, fix="top-k=5")
        )
    if not problems and not values:
        problems.append(InputError("nothing is asked for.", where=where, fix=f"{PREFIX}top-k=5"))
    if problems:
        raise collect(problems)
    return Scores(**{KEYS[word].field: value for word, value in values.items()})


def written(options: Mapping[str, Any], prefix: str = PREFIX) -> str:
    """The text of a stage given as a mapping of words.

    >>> written({"softmax": True, "top-k": 5})
    'scores:softmax,top-k=5'
    """
    words = [word if value is True else f"{word}={value}" for word, value in options.items() if value is not False]
    return prefix + ",".join(words)


def names_in(file: str) -> tuple[str, ...]:
    """The names of classes in a file, by their number.

    Raises:
        InputError: it cannot be read, or holds no names.
    """
    try:
        with open_plain(file) as stream:
            text = stream.read().decode("utf-8-sig")
        names = _listed(json.loads(text)) if file.endswith(".json") else tuple(text.splitlines())
        while names and not names[-1].strip():
            names = names[:-1]
        if not 0 < len(names) <= MOST:
            raise ValueError(f"it holds {len(names)} names")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the labels cannot be read: {reason(error)}", where=file, fix=KEYS["labels"].values) from None
    return names


def _listed(content: Any) -> tuple[str, ...]:
    """The names of a JSON file: a list, or a mapping of numbers, perhaps as `id2label`."""
    if isinstance(content, dict):
        table = content.get("id2label", content)
        if not isinstance(table, dict) or set(table) != {str(i) for i in range(len(table))}:
            raise ValueError("it maps no numbers from 0 on to names")
        content = [table[str(i)] for i in range(len(table))]
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ValueError("it is no list of names")
    return tuple(content)
