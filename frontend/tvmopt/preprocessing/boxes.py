"""What becomes of a detector's raw boxes and scores before a program reads them - for `tvmopt compile --postprocess`.

    boxes:head=yolov8,score=0.25,iou=0.45,most=300,labels=coco.txt

The order is fixed: scores of classes, boxes as corners, NonMaxSuppression, the best `most` of each picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvmopt.errors import InputError, collect
from tvmopt.preprocessing.words import Key, one_of, read
from tvmopt.texts import whole_number

PREFIX = "boxes:"
HEADS = ("yolov8", "yolov5", "pair")
CORNERS = ("xyxy", "yxyx", "cxcywh")
ENDS = ("first", "last")
MOST = 1 << 16
"""Boxes of a picture."""


@dataclass(frozen=True)
class Boxes:
    """One stage of boxes.

    Attributes:
        head: how the model gives them: "yolov8" [n, 4 + classes, N], "yolov5" [n, N, 5 + classes] (the fifth is the
            score of there being an object), "pair" [n, N, 4] and, as another output, [n, N, classes] or
            [n, classes, N].
        score: boxes are kept above it. iou: of two that overlap by more than this share the better one is kept.
        most: places of a picture.
        box: the numbers of a box; "" as the head says: "cxcywh" of yolov8 and yolov5, "xyxy" of a pair.
        scores: of a pair, the output with the scores; "": the only other one.
        agnostic: a box takes the place of those of other classes, too. multi: a box counts for each class above the
            score.
        softmax: scores become probabilities first. background: "first" or "last": that class is none.
        units: "picture": corners are pixels of the picture that came, inside of it; "model": of what the model reads;
            "": of the picture, if a stage in front of the model gives it another size and the head is none of a pair.
        labels: the file of the classes' names.
    """

    head: str
    score: float = 0.25
    iou: float = 0.45
    most: int = 300
    box: str = ""
    scores: str = ""
    agnostic: bool = False
    multi: bool = False
    softmax: bool = False
    background: str = ""
    units: str = ""
    labels: str = ""

    @property
    def corners(self) -> str:
        """The numbers of a box."""
        return self.box or ("xyxy" if self.head == "pair" else "cxcywh")

    @property
    def text(self) -> str:
        """The stage without the file, whose names an artifact keeps."""
        words = []
        for word, key in KEYS.items():
            value = getattr(self, key.field)
            if value is not False and value != "" and word != "labels":  # 0 is a limit, too
                words.append(word if value is True else f"{word}={value}")
        return PREFIX + ",".join(words)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _limit(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _places(text: str) -> int:
    value = whole_number(text or "")
    if value is None or not 0 < value <= MOST:
        raise ValueError
    return value


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _flag(text: str) -> bool:
    if text:
        raise ValueError
    return True


KEYS = {
    "head": Key("head", one_of(*HEADS), "yolov8 [n,4+classes,N], yolov5 [n,N,5+classes], or pair: boxes and scores"),
    "score": Key("score", _limit, "a number: boxes of a higher score are kept, 0.25"),
    "iou": Key("iou", _share, "0 to 1: intersection over union beyond which the better box is kept, 0.45"),
    "most": Key("most", _places, f"the number of places of a picture, 1 to {MOST}: 300"),
    "box": Key("box", one_of(*CORNERS), ", ".join(CORNERS)),
    "scores": Key("scores", _name, "the name of the output with the scores, of head=pair"),
    "agnostic": Key("agnostic", _flag, "agnostic alone: boxes of other classes are overlapped, too"),
    "multi-label": Key("multi", _flag, "multi-label alone: a box counts for each class above the score"),
    "softmax": Key("softmax", _flag, "softmax alone: scores become probabilities first"),
    "background": Key("background", one_of(*ENDS), "first or last: that class is none"),
    "in": Key("units", one_of("picture", "model"), "picture or model: whose pixels the corners are"),
    "labels": Key("labels", _name, "a text file with a name a line, or a JSON file: a list, or id2label"),
}
"""The words, in the order in which they are documented."""


def parse(text: str, where: str = "--postprocess") -> Boxes:
    """The stage that a text describes.

    >>> parse("boxes:head=yolov8,iou=0.5").most
    300

    Raises:
        InputError: every word that is wrong.
    """
    where = f"{where} {text}"
    values, problems = read(
        text.removeprefix(PREFIX), KEYS, "boxes", where, wrong="{part!r} says nothing about {word}."
    )
    if not problems and "head" not in values:
        fix = f"head={'|'.join(HEADS)}: {KEYS['head'].values}"
        problems.append(InputError("how the model gives its boxes is not said.", where=where, fix=fix))
    if (
        not problems
        and values["head"] != "pair"
        and (odd := [w for w in ("scores", "softmax", "background") if w in values])
    ):
        what = f"{odd[0]} is of head=pair."
        problems.append(InputError(what, where=where, fix=f"leave {odd[0]} out, or head=pair"))
    if not problems and values.get("agnostic") and values.get("multi-label"):
        what = "agnostic boxes have one class each, and multi-label gives them several."
        problems.append(InputError(what, where=where, fix="one of the two"))
    if problems:
        raise collect(problems)
    return Boxes(**{KEYS[word].field: value for word, value in values.items()})
