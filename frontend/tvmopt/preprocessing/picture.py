"""What becomes of a picture before a model reads it, as one line of text - for `tvmopt compile --preprocess`.

    image:resize=256,crop=224,mean=0.485/0.456/0.406,std=0.229/0.224/0.225,from=480x640

The order is fixed, whatever the order of the keys: resize, crop, scale, (x - mean) / std. Sizes are HEIGHTxWIDTH. In
the place of resize and crop, `letterbox=640` keeps the ratio and fills what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmopt.errors import InputError, collect
from tvmopt.importer.resampling import NAMES
from tvmopt.preprocessing.words import Key, one_of, read
from tvmopt.texts import whole_number

Size = tuple[int, int]
"""Height and width."""
PREFIX = "image:"
LARGEST = 1 << 15
"""Pixels of a side."""
ANY = (0, 0)
"""What `from=any` says: the size of each picture is its own."""


@dataclass(frozen=True)
class Picture:
    """One stage of pixels.

    Attributes:
        resize: the shorter side, or height and width; None: as it is.
        crop: height and width of the middle that is kept; None: all.
        filter: of the resizing, by Pillow's name.
        given: height and width of the pictures that come; None: as the shape of the input says; :data:`ANY`.
        scale: what a byte is multiplied by. mean, std: of each channel, or one for all.
        layout: "NHWC" or "NCHW", of the pictures that come.
        pixels: "rgb", "bgr" or "grey": the channels that come. model: "rgb" or "bgr": those that the model reads.
        pad: zeros around a picture that is smaller than the crop.
        centre: how half a pixel beside the crop is rounded: "even" (torchvision) or "floor" (Hugging Face).
        letterbox: height and width that a picture is fitted into with its own ratio; None: it is not.
        fill: the byte around it. place: "centre", or "first": it is in front of what is filled, on both axes.
    """

    resize: int | Size | None = None
    crop: Size | None = None
    filter: str = "bilinear"
    given: Size | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str = "NHWC"
    pixels: str = "rgb"
    model: str = "rgb"
    pad: bool = False
    centre: str = "even"
    letterbox: Size | None = None
    fill: int = 114
    place: str = "centre"
    named: frozenset[str] = field(default_factory=frozenset, compare=False)

    @property
    def size(self) -> Size | None:
        """Height and width behind the stage, where they do not depend on the picture's."""
        fixed = self.resize if isinstance(self.resize, tuple) else None
        return self.letterbox or self.crop or fixed

    def resized(self, given: Size) -> Size:
        """Height and width of a picture behind the resizing; the longer side is cut to whole pixels, as torchvision
        and Hugging Face do.

        >>> Picture(resize=256).resized((480, 640)), Picture(resize=(224, 224)).resized((480, 640))
        ((256, 341), (224, 224))
        """
        if self.resize is None:
            return given
        if isinstance(self.resize, tuple):
            return self.resize
        height, width = given
        longer = int(self.resize * max(given) / min(given))
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def begin(self, size: int, crop: int) -> int:
        """Where the crop of an axis begins; less than 0 where zeros stand around the picture.

        >>> [Picture(centre=how).begin(255, 224) for how in ("even", "floor")]
        [16, 15]
        >>> [Picture(centre=how).begin(5, 8) for how in ("even", "floor")]
        [-1, -2]
        """
        if self.centre == "floor":
            return (size - crop) // 2
        return round((size - crop) / 2) if size >= crop else -((crop - size) // 2)


def _size(text: str) -> Size:
    sides = [whole_number(part) for part in text.lower().split("x")]
    if len(sides) not in (1, 2) or any(s is None or not 0 < s <= LARGEST for s in sides):
        raise ValueError
    first, last = int(sides[0] or 0), int(sides[-1] or 0)
    return first, last


def _given(text: str) -> Size:
    return ANY if text == "any" else _size(text)


def _byte(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value <= 255:
        raise ValueError
    return value


def _resize(text: str) -> int | Size:
    size = _size(text)
    return size if "x" in text.lower() else size[0]


def _number(text: str) -> float:
    top, slash, below = text.partition("/")
    value = float(top) / float(below) if slash else float(top)
    if not math.isfinite(value):
        raise ValueError
    return value


def _numbers(text: str) -> tuple[float, ...]:
    values = tuple(map(float, text.split("/")))
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise ValueError
    return values


def _steps(text: str) -> tuple[float, ...]:
    values = _numbers(text)
    if min(values) <= 0:
        raise ValueError
    return values


SIDES = f"pixels up to {LARGEST}"
KEYS = {
    "resize": Key("resize", _resize, f"the shorter side (256), or HEIGHTxWIDTH (224x224), {SIDES}"),
    "crop": Key("crop", _size, f"one side of a square (224), or HEIGHTxWIDTH (224x240), {SIDES}"),
    "filter": Key("filter", one_of(*NAMES), ", ".join(NAMES)),
    "letterbox": Key("letterbox", _size, f"one side of a square (640), or HEIGHTxWIDTH (640x480), {SIDES}"),
    "fill": Key("fill", _byte, "a byte, 0 to 255"),
    "place": Key("place", one_of("centre", "first"), "centre, or first: what is filled is on the right and below"),
    "from": Key("given", _given, f"HEIGHTxWIDTH of the pictures that come (480x640), {SIDES}, or any"),
    "scale": Key("scale", _number, "what a byte is multiplied by: 1/255, 0.0078125"),
    "mean": Key("mean", _numbers, "one number, or one a channel: 0.485/0.456/0.406"),
    "std": Key("std", _steps, "one number above 0, or one a channel: 0.229/0.224/0.225"),
    "layout": Key("layout", one_of("NHWC", "NCHW"), "NHWC or NCHW"),
    "dtype": Key("", one_of("uint8"), "uint8: pixels are bytes"),
    "pixels": Key("pixels", one_of("rgb", "bgr", "grey"), "rgb, bgr or grey: the channels that come"),
    "model": Key("model", one_of("rgb", "bgr"), "rgb or bgr: the order that the model reads"),
    "pad": Key("pad", lambda text: one_of("zero", "none")(text) == "zero", "zero or none"),
    "centre": Key("centre", one_of("even", "floor"), "even (torchvision) or floor (Hugging Face)"),
}
"""The keys, in the order in which they are documented."""


def parse(text: str, where: str = "--preprocess") -> Picture:
    """The stage that a text describes.

    >>> parse("image:resize=256,crop=224,std=0.5").crop
    (224, 224)

    Raises:
        InputError: every key and value that is wrong.
    """
    where = f"{where} {text}"
    if not text.startswith(PREFIX):
        kind = text.partition(":")[0]
        fix = f"{PREFIX}KEY=VALUE,...; the keys are {', '.join(KEYS)}"
        raise InputError(f"there is no preprocessing {kind!r}; there is 'image'.", where=where, fix=fix)
    values, problems = read(
        text[len(PREFIX) :], KEYS, "image", where, wrong="{value!r} is no value of {word}.", noun="key", alone=False
    )
    for word in ("resize", "crop", "pad", "centre") if "letterbox" in values else ("fill", "place"):
        if word in values:
            instead = "leave one of the two out" if "letterbox" in values else "letterbox=640 says how large it becomes"
            without = "has no place beside letterbox" if "letterbox" in values else "is of a letterbox"
            problems.append(InputError(f"{word} {without}.", where=where, fix=instead))
    if problems:
        raise collect(problems)
    return Picture(**{KEYS[word].field: v for word, v in values.items() if KEYS[word].field}, named=frozenset(values))


def written(options: Mapping[str, Any]) -> str:
    """The text of a stage given as a mapping of keys.

    >>> written({"resize": 256, "crop": (224, 224), "mean": [0.5, 0.5, 0.5]})
    'image:resize=256,crop=224x224,mean=0.5/0.5/0.5'
    """
    between = {"mean": "/", "std": "/"}

    def value(key: str, one: Any) -> str:
        if isinstance(one, Sequence) and not isinstance(one, str):
            return between.get(key, "x").join(map(repr, one))
        return one if isinstance(one, str) else repr(one)

    return PREFIX + ",".join(f"{key}={value(key, one)}" for key, one in options.items())
