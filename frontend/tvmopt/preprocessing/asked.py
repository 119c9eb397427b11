"""What a caller gives as `preprocess` and `postprocess`, in any of its forms, as one text an input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt.errors import InputError
from tvmopt.preprocessing import boxes, scores
from tvmopt.preprocessing.config import from_config
from tvmopt.preprocessing.picture import KEYS, PREFIX, parse, written

Stages = str | Mapping[str, Any] | None
"""A stage, or stages by the names of inputs: see :func:`tvmopt.compile`."""


def stages(asked: Stages) -> dict[str, str]:
    """The text of each stage by the name of its input, "" for the only one that could be a picture.

    >>> stages("image:resize=256"), stages({"resize": 256}), stages({"x": {"resize": 256}})
    ({'': 'image:resize=256'}, {'': 'image:resize=256'}, {'x': 'image:resize=256'})

    Raises:
        InputError: a stage is none; a configuration that cannot be read, or asks for what there is not.
    """
    if asked is None:
        return {}
    if isinstance(asked, str) or (isinstance(asked, Mapping) and asked and set(asked) <= set(KEYS)):
        return {"": _text(asked)}
    if not isinstance(asked, Mapping):
        fix = f"give '{PREFIX}resize=256,...', a mapping of its keys, or either by the name of an input"
        raise InputError(f"preprocess is a {type(asked).__name__}.", fix=fix)
    return {str(name): _text(one) for name, one in asked.items()}


def stages_behind(asked: Stages) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The text of each stage of `postprocess` by the name of its output, "" for the only one; and the names of classes
    in the files that stages ask for.

    >>> stages_behind({"softmax": True, "top-k": 5}), stages_behind({"y": "scores:softmax"})
    (({'': 'scores:softmax,top-k=5'}, {}), ({'y': 'scores:softmax'}, {}))

    Raises:
        InputError: a stage is none; names that cannot be read.
    """
    if asked is None:
        return {}, {}
    if isinstance(asked, str) or (isinstance(asked, Mapping) and asked and set(asked) <= {*scores.KEYS, *boxes.KEYS}):
        asked = {"": asked}
    texts, labels = {}, {}
    for name, one in (asked if isinstance(asked, Mapping) else {"": asked}).items():
        kind = boxes if isinstance(one, Mapping) and "head" in one else scores
        text = scores.written(one, kind.PREFIX) if isinstance(one, Mapping) else one
        if not isinstance(text, str):
            fix = f"'{scores.PREFIX}top-k=5,...', '{boxes.PREFIX}head=yolov8,...', or a mapping of its words"
            raise InputError(f"a stage is a {type(one).__name__}.", fix=fix)
        stage = boxes.parse(text) if text.startswith(boxes.PREFIX) else scores.parse(text)
        texts[str(name)] = stage.text
        if stage.labels:
            labels[str(name)] = scores.names_in(stage.labels)
    return texts, labels


def named(texts: Sequence[str], option: str = "--preprocess", prefixes: Sequence[str] = (PREFIX,)) -> dict[str, str]:
    """Stages as the command line has them: ``image:...``, or ``NAME=image:...``.

    >>> named(["x=image:resize=256"])
    {'x': 'image:resize=256'}

    Raises:
        InputError: an input or output is named twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        prefix = next((p for p in prefixes if f"={p}" in text and not text.startswith(tuple(prefixes))), "")
        name, _, stage = text.partition(f"={prefix}") if prefix else ("", "", text)
        stage = prefix + stage
        if name in found:
            which = f"'{name}'" if name else "the same"
            raise InputError(f"{which} has two stages.", where=f"{option} {text}", fix="put all words into one")
        found[name] = stage
    return found


def _text(one: Any) -> str:
    """One stage as text, read once, so that what is wrong is told before any work."""
    text = written(one) if isinstance(one, Mapping) else one
    if not isinstance(text, str):
        raise InputError(
            f"a stage is a {type(one).__name__}.", fix=f"'{PREFIX}resize=256,...' or a mapping of its keys"
        )
    if text.startswith(f"{PREFIX}@"):
        file, *more = text[len(PREFIX) + 1 :].split(",")
        text = ",".join([from_config(Path(file)), *more])
    parse(text)
    return text
